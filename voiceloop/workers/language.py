"""The language model in a worker: chat messages and revised partials to branches of the engine.

The gateway speaks of messages and of the caller's words so far; the engine of tokens. Each reply
is one engine branch: the history so far is its committed prefix, the caller's open turn is staged
on it, and the whole turn is committed to it. What follows a reply (tool results, a next turn)
opens another engine branch, which shares the blocks of the first through the prefix tree.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from msgspec.structs import asdict

import engine.types as engine_types
from engine.branch import Branch
from engine.engine import Engine
from engine.load.description import describe
from engine.types import (
    EngineConfig,
    EngineError,
    IntegrityError,
    RequestError,
    SamplingParams,
    TemplateError,
)
from voiceloop.backends import (
    ChatMessage,
    Generated,
    GenerateParams,
    LanguageEvent,
    PreemptiveCall,
    PreemptiveDelta,
    PreemptiveDone,
    Staged,
    TextDelta,
    TokenLogprob,
    ToolCall,
    Usage,
)
from voiceloop.workers.chat_template import (
    History,
    RoleOrder,
    TurnFrame,
    chat_dict,
    forced_tools,
    offered_tools,
)
from voiceloop.workers.messages import (
    BeginPreemptive,
    Commit,
    OpenBranch,
    Stage,
    StopPreemptive,
    StreamEvent,
    StreamFailed,
    ToRole,
)
from voiceloop.workers.role import RoleBroken, RoleError, StreamError

log = logging.getLogger(__name__)

WARM_UP_BRANCH = "warm_up"
WARM_UP_STEPS = 1000  # far more than a prompt of ten words and two tokens take
# The first clause that is no mere "Sure,", and as much of the next as shows a voice that it ended;
# or, where a sentence goes on without a mark, more than four seconds of speech.
ENOUGH_TO_HOLD = re.compile(r"^.{8,}?[.,;:?!]\s.{6}|^.{64}.*?\s", re.DOTALL)
WARM_UP_HISTORY = (ChatMessage("system", "You are a helpful assistant."),)

FromPreemptive = (
    engine_types.PreemptiveDelta | engine_types.PreemptiveCall | engine_types.PreemptiveDone
)
FromReply = engine_types.TextDelta | engine_types.ToolCall | engine_types.Done


@dataclass(slots=True)
class Staging:
    """The words of the open turn: the newest ones, and the tokens that were staged last."""

    stage_id: int = 0
    user_text: str | None = None  # None once it is staged
    tokens: list[int] = field(default_factory=list)


@dataclass(slots=True)
class PreemptiveReply:
    """A reply made ahead: the gateway's number of it, the engine's, and its text so far."""

    number: int
    attempt: int
    text: str = ""

    def told(self, event: FromPreemptive) -> PreemptiveDelta | PreemptiveCall | PreemptiveDone:
        """An event of it as the gateway is told."""
        match event:
            case engine_types.PreemptiveDelta(text=text):
                self.text += text
                return PreemptiveDelta(self.number, text)
            case engine_types.PreemptiveCall(name=name, arguments_json=arguments):
                return PreemptiveCall(self.number, name, arguments)
            case engine_types.PreemptiveDone(finish_reason=reason):
                return PreemptiveDone(self.number, reason)

    @property
    def is_enough_to_hold(self) -> bool:
        return ENOUGH_TO_HOLD.search(self.text) is not None


@dataclass(slots=True)
class Reply:
    """The reply to a committed turn, so far; n_before_turn: tokens of the prompt before its own."""

    n_turn_tokens: int
    n_before_turn: int
    pieces: list[str] = field(default_factory=list)
    calls: list[ToolCall] = field(default_factory=list)

    def told(self, event: FromReply) -> TextDelta | ToolCall | Generated:
        """An event of it as the gateway is told."""
        match event:
            case engine_types.TextDelta(text=text):
                self.pieces.append(text)
                told = tuple(TokenLogprob(t.token, t.logprob, t.top) for t in event.logprobs)
                return TextDelta(text, told)
            case engine_types.ToolCall(call_id=call_id, name=name, arguments_json=arguments):
                self.calls.append(ToolCall(call_id, name, arguments))
                return self.calls[-1]
            case engine_types.Done():
                return self._generated(event)

    def message(self) -> dict[str, Any]:
        """The reply as a message of the history."""
        return chat_dict(ChatMessage("assistant", "".join(self.pieces), tuple(self.calls)))

    def _generated(self, done: engine_types.Done) -> Generated:
        reason: Any = done.finish_reason
        if self.calls and reason == "stop":
            reason = "tool_calls"
        n_resident = max(0, done.usage.cached_tokens - self.n_before_turn)
        usage = Usage(
            n_prompt_tokens=done.usage.prompt_tokens,
            n_cached_tokens=done.usage.cached_tokens,
            n_reply_tokens=done.usage.output_tokens,
            n_discarded_tokens=done.usage.discarded_tokens,
            n_turn_tokens=self.n_turn_tokens,
            n_turn_resident=min(self.n_turn_tokens, n_resident),
            queue_ms=done.timings.queue_ms,
            ttft_ms=done.timings.ttft_ms,
            n_drafted_tokens=done.usage.guessed_tokens,
            n_accepted_tokens=done.usage.confirmed_tokens,
        )
        return Generated(reason, usage)


class ChatBranch:
    """A conversation in chat messages, on one engine branch for each reply."""

    def __init__(
        self, opened: OpenBranch, model: Engine, frame: TurnFrame, order: RoleOrder
    ) -> None:
        self.stream_id = opened.stream_id
        self._model, self._frame, self._tenant = model, frame, opened.tenant
        self._history = History(opened.history, opened.tools, model.text, order)
        self._offered = offered_tools(self._history.tools)
        self._staging = Staging()
        self._ahead: PreemptiveReply | None = None
        self._reply: Reply | None = None  # None while the turn is open
        self._branch_numbers = count(1)
        self._history.settle()
        self._branch = self._new_branch()

    @property
    def has_work(self) -> bool:
        return self._staging.user_text is not None

    def stage(self, stage_id: int, user_text: str) -> None:
        """Keep the newest words; ``advance`` stages them, so that a burst costs one encoding."""
        self._staging.stage_id, self._staging.user_text = stage_id, user_text

    def advance(self) -> None:
        """Stage the newest words. Raises: RequestError, TemplateError."""
        user_text, self._staging.user_text = self._staging.user_text, None
        if user_text is not None and self._reply is None:
            self._stage(self._turn_tokens(self._history.encode(open_user=user_text)))

    def begin_preemptive(self, number: int, user_text: str, params: GenerateParams) -> None:
        """Raises: RequestError, TemplateError."""
        self.stop_preemptive()
        self._ahead = None
        if self._reply is not None or (self._history.tools and params.tool_choice == "none"):
            return  # such a reply's prompt does not show the tools, and what is staged does
        self.advance()
        staged = self._turn_tokens(self._history.encode(open_user=user_text))
        turn = {"role": "user", "content": user_text}
        whole = self._turn_tokens(self._history.encode([turn], add_generation_prompt=True))
        if staged != self._staging.tokens:
            self._stage(staged)
        if whole[: len(staged)] == staged:
            tail, sampling = whole[len(staged) :], self._sampling(params)
            self._ahead = PreemptiveReply(number, self._branch.begin_preemptive(tail, sampling))

    def stop_preemptive(self) -> None:
        if self._ahead is not None:
            self._branch.stop_preemptive()

    def commit(self, tail: Sequence[ChatMessage], params: GenerateParams) -> None:
        """Raises: RequestError, TemplateError."""
        if self._reply is not None:
            self._branch.close()
            self._history.messages.append(self._reply.message())
            self._history.settle()
            self._reply, self._branch = None, self._new_branch()
        self._staging.user_text = None
        turn = [chat_dict(message) for message in tail]
        # A model that does not see the tools calls none; what was staged with them is dropped.
        tools = [] if params.tool_choice == "none" else self._history.tools
        if tools and not self._model.text.takes_tools:
            raise TemplateError("expected no tools, for the model's chat template knows none")
        if params.is_raw:
            whole = self._model.text.encode("".join(message.content for message in tail))
        else:
            tokens = self._history.encode(turn, tools=tools, add_generation_prompt=True)
            whole = self._turn_tokens(tokens)
        attempt = self._ahead.attempt if self._ahead is not None else None
        self._ahead = None
        n_frame = self._frame.n_before + self._frame.n_after
        is_user = len(tail) == 1 and tail[0].role == "user"
        n_turn_tokens = max(0, len(whole) - n_frame) if is_user else 0
        self._branch.commit(whole, self._sampling(params), attempt=attempt)
        self._reply = Reply(n_turn_tokens, len(self._history.tokens) + self._frame.n_before)
        self._history.messages += turn

    def event(self, event: engine_types.Event) -> StreamEvent | StreamFailed | None:
        """What the gateway is told of an engine event; None for what stays in the worker."""
        told: LanguageEvent | None = None
        match event:
            case engine_types.Staged(_, n_resident, n_prefilled, p_end):
                told = Staged(self._staging.stage_id, n_resident, n_prefilled, p_end)
            case engine_types.Done(finish_reason="error"):
                return StreamFailed(self.stream_id, event.error or "the reply failed", True)
            case engine_types.TextDelta() | engine_types.ToolCall() | engine_types.Done():
                told = self._reply.told(event) if self._reply is not None else None
            case _ if self._ahead is not None and event.attempt == self._ahead.attempt:
                told = self._ahead.told(event)
                if self._ahead.is_enough_to_hold:
                    self.stop_preemptive()  # the rest costs little once it is wanted
        return StreamEvent(self.stream_id, told) if told is not None else None

    def close(self) -> None:
        self._branch.close()

    def _stage(self, turn_tokens: list[int]) -> None:
        self._staging.tokens = turn_tokens
        self._branch.stage(turn_tokens)

    def _new_branch(self) -> Branch:
        """A branch of the engine behind the history, with nothing staged."""
        self._staging.tokens, self._ahead = [], None
        branch_id = f"{self.stream_id}#{next(self._branch_numbers)}"
        return self._model.branch(branch_id, self._history.tokens, salt=self._tenant)

    def _turn_tokens(self, tokens: list[int]) -> list[int]:
        """What follows the history in ``tokens``.

        A template may write the history differently once something follows it (a last line feed,
        thoughts left out); the branch then starts anew from what both have in common.
        """
        if not self._history.keep_common(tokens):
            self._branch.close()
            self._branch = self._new_branch()
        return tokens[len(self._history.tokens) :]

    def _sampling(self, params: GenerateParams) -> SamplingParams:
        drawn = asdict(params)
        choice, _ = drawn.pop("tool_choice"), drawn.pop("is_raw")
        forced = forced_tools(choice, self._history.tools)
        offered = self._offered if choice == "auto" else None
        return SamplingParams(**drawn, forced_tools=forced, offered_tools=offered)


@contextmanager
def _sound() -> Iterator[None]:
    """An engine that finds its own KV inconsistent serves nobody any more."""
    try:
        yield
    except IntegrityError as error:
        raise RoleBroken(f"expected KV that adds up, found: {error}") from error


class LanguageRole:
    """One engine for every conversation of this worker."""

    rate_hz = 0

    def __init__(self, model: Engine, detail: str) -> None:
        self.detail = detail
        self._model = model
        self._frame, self._order = TurnFrame.of(model.text), RoleOrder.of(model.text)
        self._streams: dict[str, ChatBranch] = {}

    def warm_up(self) -> None:
        """Stage and answer one short turn: each kernel and buffer is touched once."""
        params = GenerateParams(max_tokens=2)
        self.receive(OpenBranch(WARM_UP_BRANCH, WARM_UP_HISTORY))
        self.receive(Stage(WARM_UP_BRANCH, 0, "Hello"))
        for _ in range(WARM_UP_STEPS):
            for event in self.step():
                if isinstance(event, StreamFailed):
                    raise RoleError(f"the engine failed its first turn: {event.message}")
                if isinstance(event.event, Staged):
                    tail = (ChatMessage("user", "Hello there."),)
                    self.receive(Commit(WARM_UP_BRANCH, tail, params))
                if isinstance(event.event, Generated):
                    self.close(WARM_UP_BRANCH)
                    return
        raise RoleError("expected a reply to the first turn, found none")

    def receive(self, message: ToRole) -> None:
        with _sound():
            self._receive(message)

    def _receive(self, message: ToRole) -> None:
        try:
            match message:
                case OpenBranch():
                    stream = ChatBranch(message, self._model, self._frame, self._order)
                    self._streams[message.stream_id] = stream
                case Stage():
                    self._streams[message.stream_id].stage(message.stage_id, message.user_text)
                case BeginPreemptive():
                    self._streams[message.stream_id].begin_preemptive(
                        message.attempt, message.user_text, message.params
                    )
                case StopPreemptive():
                    self._streams[message.stream_id].stop_preemptive()
                case Commit():
                    self._streams[message.stream_id].commit(message.tail, message.params)
                case _:
                    raise StreamError(f"expected a language message, found {message}")
        except (RequestError, TemplateError) as error:
            raise StreamError(str(error), is_request=True) from error

    def close(self, stream_id: str) -> None:
        stream = self._streams.pop(stream_id, None)
        if stream is not None:
            with _sound():
                stream.close()

    def has_work(self) -> bool:
        return self._model.has_work() or any(s.has_work for s in self._streams.values())

    def totals(self) -> Mapping[str, float]:
        return self._model.metrics()

    def step(
        self, interrupted: Callable[[], bool] | None = None
    ) -> Sequence[StreamEvent | StreamFailed]:
        messages: list[StreamEvent | StreamFailed] = []
        for stream in self._streams.values():
            try:
                stream.advance()
            except (RequestError, TemplateError) as error:
                failed = StreamFailed(stream.stream_id, str(error), False, is_request=True)
                messages.append(failed)
            except Exception as error:
                log.exception("staging failed the stream %s", stream.stream_id)
                found = f"expected words to be staged, found {type(error).__name__}"
                messages.append(StreamFailed(stream.stream_id, found, retryable=False))
        with _sound():
            events = self._model.step(interrupted)
        for event in events:
            stream_id = event.branch_id.rpartition("#")[0]
            owner = self._streams.get(stream_id)
            message = owner.event(event) if owner is not None else None
            if message is not None:
                messages.append(message)
        return messages


def load(model_dir: str, **options: Any) -> LanguageRole:
    """Load a Hugging Face folder or a GGUF file; ``options`` are EngineConfig's fields.

    Raises: RoleError.
    """
    for key in ("draft_dir", "adapter_dir", "calibration_text"):
        if options.get(key) is not None:
            options[key] = Path(options[key])
    try:
        engine = Engine.load(Path(model_dir), EngineConfig(**options))
    except EngineError as error:
        raise RoleError(f"the language model cannot be loaded: {error}") from error
    return LanguageRole(engine, f"{Path(model_dir).name}: {describe(engine)}")

"""The language model in a worker: chat messages and revised partials to branches of the engine.

The gateway speaks of messages and of the caller's words so far; the engine of tokens. Each reply
is one engine branch: the history so far is its committed prefix, the caller's open turn is staged
on it, and the whole turn is committed to it. What follows a reply (tool results, a next turn)
opens another engine branch, which shares the blocks of the first through the prefix tree.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import engine.types as engine_types
from engine.engine import Engine
from engine.types import EngineConfig, EngineError, RequestError, SamplingParams, TemplateError
from voiceloop.backends import (
    ChatMessage,
    Generated,
    GenerateParams,
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
    RoleOrder,
    TurnFrame,
    chat_dict,
    forced_tools,
    offered_tools,
    tool_dict,
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
from voiceloop.workers.role import RoleError, StreamError

WARM_UP_BRANCH = "warm_up"
WARM_UP_STEPS = 1000  # far more than a prompt of ten words and two tokens take
# The first clause that is no mere "Sure,", and as much of the next as shows a voice that it ended;
# or, where a sentence goes on without a mark, more than four seconds of speech.
ENOUGH_TO_HOLD = re.compile(r"^.{8,}?[.,;:?!]\s.{6}|^.{64}.*?\s", re.DOTALL)
WARM_UP_HISTORY = (ChatMessage("system", "You are a helpful assistant."),)


class ChatBranch:
    """A branch in chat messages: those so far, and the engine branch of the reply in the making."""

    def __init__(
        self, opened: OpenBranch, model: Engine, frame: TurnFrame, order: RoleOrder
    ) -> None:
        self.stream_id = opened.stream_id
        self.stage_id = 0
        self._model = model
        self._frame, self._order = frame, order
        self._messages = [chat_dict(message) for message in opened.history]
        self._tools = [tool_dict(tool) for tool in opened.tools]
        self._offered = offered_tools(self._tools)
        self._tenant = opened.tenant
        self._attempt_number, self._attempt_text = 0, ""
        self._n_turn_tokens = self._n_before_turn = 0
        self._n_branches = 0
        self._to_stage: str | None = None
        self._staged: list[int] = []
        self._attempt: int | None = None
        self._reply_text: list[str] = []
        self._reply_calls: list[ToolCall] = []
        self._committed = False
        self._open_branch()

    @property
    def has_work(self) -> bool:
        return self._to_stage is not None

    def stage(self, stage_id: int, user_text: str) -> None:
        """Keep the newest words; ``advance`` stages them, so that a burst costs one encoding."""
        self.stage_id = stage_id
        self._to_stage = user_text

    def advance(self) -> None:
        """Stage the newest words. Raises: RequestError, TemplateError."""
        if self._to_stage is None or self._committed:
            self._to_stage = None
            return
        user_text, self._to_stage = self._to_stage, None
        self._stage(self._turn_tokens(self._encode(open_user=user_text)))

    def begin_preemptive(self, attempt: int, user_text: str, params: GenerateParams) -> None:
        """Raises: RequestError, TemplateError."""
        self.stop_preemptive()
        self._attempt, self._attempt_number, self._attempt_text = None, attempt, ""
        if self._committed or (self._tools and params.tool_choice == "none"):
            return  # such a reply's prompt does not show the tools, and what is staged does
        self.advance()
        staged = self._turn_tokens(self._encode(open_user=user_text))
        turn = {"role": "user", "content": user_text}
        whole = self._turn_tokens(self._encode([turn], add_generation_prompt=True))
        if staged != self._staged:
            self._stage(staged)
        if whole[: len(staged)] == staged:
            self._attempt = self._branch.begin_preemptive(
                whole[len(staged) :], self._sampling(params)
            )

    def stop_preemptive(self) -> None:
        if self._attempt is not None:
            self._branch.stop_preemptive("cancelled")

    def commit(self, tail: Sequence[ChatMessage], params: GenerateParams) -> None:
        """Raises: RequestError, TemplateError."""
        if self._committed:
            self._branch.close()
            self._messages.append(self._reply())
            self._open_branch()
        self._to_stage = None
        turn = [chat_dict(message) for message in tail]
        # A model that does not see the tools calls none; what was staged with them is dropped.
        tools = [] if params.tool_choice == "none" else self._tools
        if params.is_raw:
            whole = self._model.text.encode("".join(message.content for message in tail))
        else:
            tokens = self._encode(turn, tools=tools, add_generation_prompt=True)
            whole = self._turn_tokens(tokens)
        attempt, self._attempt = self._attempt, None
        self._n_before_turn = len(self._history_tokens) + self._frame.n_before
        n_frame = self._frame.n_before + self._frame.n_after
        is_user = len(tail) == 1 and tail[0].role == "user"
        self._n_turn_tokens = max(0, len(whole) - n_frame) if is_user else 0
        self._branch.commit(whole, self._sampling(params), attempt=attempt)
        self._messages += turn
        self._committed = True

    def event(self, event: engine_types.Event) -> StreamEvent | StreamFailed | None:
        """What the gateway is told of an engine event; None for what stays in the worker."""
        match event:
            case engine_types.Staged():
                staged = Staged(
                    self.stage_id, event.n_resident, event.n_prefilled, event.p_end_of_turn
                )
                return StreamEvent(self.stream_id, staged)
            case engine_types.PreemptiveDelta(attempt=attempt, text=text) if (
                attempt == self._attempt
            ):
                self._attempt_text += text
                if ENOUGH_TO_HOLD.search(self._attempt_text):
                    self.stop_preemptive()  # the rest costs little once it is wanted
                return StreamEvent(self.stream_id, PreemptiveDelta(self._attempt_number, text))
            case engine_types.PreemptiveCall(attempt=attempt) if attempt == self._attempt:
                called = PreemptiveCall(self._attempt_number, event.name, event.arguments_json)
                return StreamEvent(self.stream_id, called)
            case engine_types.PreemptiveDone(attempt=attempt) if attempt == self._attempt:
                done = PreemptiveDone(self._attempt_number, event.finish_reason)
                return StreamEvent(self.stream_id, done)
            case engine_types.TextDelta():
                self._reply_text.append(event.text)
                told = tuple(TokenLogprob(t.token, t.logprob, t.top) for t in event.logprobs)
                return StreamEvent(self.stream_id, TextDelta(event.text, told))
            case engine_types.ToolCall():
                call = ToolCall(event.call_id, event.name, event.arguments_json)
                self._reply_calls.append(call)
                return StreamEvent(self.stream_id, call)
            case engine_types.Done(finish_reason="error"):
                return StreamFailed(self.stream_id, event.error or "the reply failed", True)
            case engine_types.Done():
                return StreamEvent(self.stream_id, self._generated(event))
            case _:
                return None

    def close(self) -> None:
        self._branch.close()

    def _open_branch(self) -> None:
        self._history_tokens = self._history()
        self._committed = False
        self._reply_text = []
        self._reply_calls = []
        self._start_branch()

    def _stage(self, turn_tokens: list[int]) -> None:
        self._staged = turn_tokens
        self._branch.stage(turn_tokens)

    def _history(self) -> list[int]:
        """Tokens of the messages so far; none where the template refuses them on their own."""
        if not self._messages:
            return []
        try:
            return self._encode()
        except TemplateError:
            return []  # what is really wrong with them shows when the turn is staged

    def _start_branch(self) -> None:
        self._n_branches += 1
        branch_id = f"{self.stream_id}#{self._n_branches}"
        self._branch = self._model.branch(branch_id, self._history_tokens, salt=self._tenant)
        self._staged = []
        self._attempt = None

    def _encode(
        self,
        tail: Sequence[dict[str, Any]] = (),
        *,
        tools: Sequence[dict[str, Any]] | None = None,
        open_user: str | None = None,
        **options: Any,
    ) -> list[int]:
        seen = self._tools if tools is None else tools
        messages, open_user = self._order.ordered([*self._messages, *tail], open_user)
        return self._model.text.encode_chat(messages, seen, open_user=open_user, **options)

    def _turn_tokens(self, tokens: list[int]) -> list[int]:
        """What follows the history in ``tokens``.

        A template may write the history differently once something follows it (a last line feed,
        thoughts left out); the branch then starts anew from what both have in common.
        """
        n_history = len(self._history_tokens)
        if tokens[:n_history] != self._history_tokens:
            pairs = enumerate(zip(self._history_tokens, tokens, strict=False))
            n_history = next(
                (i for i, (old, new) in pairs if old != new), min(n_history, len(tokens))
            )
            self._history_tokens = tokens[:n_history]
            self._branch.close()
            self._start_branch()
        return tokens[n_history:]

    def _sampling(self, params: GenerateParams) -> SamplingParams:
        return SamplingParams(
            max_tokens=params.max_tokens,
            temperature=params.temperature,
            top_p=params.top_p,
            top_k=params.top_k,
            seed=params.seed,
            stop=params.stop,
            json_schema=params.json_schema,
            presence_penalty=params.presence_penalty,
            frequency_penalty=params.frequency_penalty,
            ignore_eos=params.ignore_eos,
            logprobs=params.logprobs,
            is_batch=params.is_batch,
            forced_tools=forced_tools(params.tool_choice, self._tools),
            offered_tools=self._offered if params.tool_choice == "auto" else None,
        )

    def _reply(self) -> dict[str, Any]:
        text = "".join(self._reply_text)
        return chat_dict(ChatMessage("assistant", text, tuple(self._reply_calls)))

    def _generated(self, done: engine_types.Done) -> Generated:
        reason: Any = done.finish_reason
        if self._reply_calls and reason == "stop":
            reason = "tool_calls"
        usage = Usage(
            n_prompt_tokens=done.usage.prompt_tokens,
            n_cached_tokens=done.usage.cached_tokens,
            n_reply_tokens=done.usage.output_tokens,
            n_discarded_tokens=done.usage.discarded_tokens,
            n_turn_tokens=self._n_turn_tokens,
            n_turn_resident=min(
                self._n_turn_tokens, max(0, done.usage.cached_tokens - self._n_before_turn)
            ),
            queue_ms=done.timings.queue_ms,
            prefill_ms=max(0.0, done.timings.ttft_ms - done.timings.queue_ms),
            ttft_ms=done.timings.ttft_ms,
        )
        return Generated(reason, usage)


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
            raise StreamError(str(error)) from error

    def close(self, stream_id: str) -> None:
        stream = self._streams.pop(stream_id, None)
        if stream is not None:
            stream.close()

    def has_work(self) -> bool:
        return self._model.has_work() or any(s.has_work for s in self._streams.values())

    def step(
        self, interrupted: Callable[[], bool] | None = None
    ) -> Sequence[StreamEvent | StreamFailed]:
        messages: list[StreamEvent | StreamFailed] = []
        for stream in self._streams.values():
            try:
                stream.advance()
            except (RequestError, TemplateError) as error:
                messages.append(StreamFailed(stream.stream_id, str(error), retryable=False))
        for event in self._model.step(interrupted):
            stream_id = event.branch_id.rpartition("#")[0]
            owner = self._streams.get(stream_id)
            message = owner.event(event) if owner is not None else None
            if message is not None:
                messages.append(message)
        return messages


def load(model_dir: str, **options: Any) -> LanguageRole:
    """Load a Hugging Face folder; ``options`` are EngineConfig's fields. Raises: RoleError."""
    if options.get("draft_dir") is not None:
        options["draft_dir"] = Path(options["draft_dir"])
    try:
        engine = Engine.load(Path(model_dir), EngineConfig(**options))
    except EngineError as error:
        raise RoleError(f"the language model cannot be loaded: {error}") from error
    return LanguageRole(engine, Path(model_dir).name)

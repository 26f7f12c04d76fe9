"""One conversation in the worker: chat messages and revised partials to branches of the engine.

Each reply is one engine branch: the history so far is its committed prefix, the caller's open turn
is staged on it, and the whole turn is committed to it. What follows a reply (tool results, a next
turn) opens another engine branch, which shares the blocks of the first through the prefix tree.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass, field
from itertools import count
from typing import Any

from msgspec.structs import asdict

import engine.types as engine_types
from engine.branch import Branch
from engine.engine import Engine
from engine.sequence import common_prefix
from engine.text.counted_lists import CountedTurn
from engine.types import SamplingParams, TemplateError
from voiceloop.backends import (
    ChatMessage,
    Generated,
    GenerateParams,
    LanguageEvent,
    PreemptiveCall,
    PreemptiveDelta,
    PreemptiveDone,
    RouteSigns,
    Staged,
    TextDelta,
    Thinks,
    TokenLogprob,
    ToolCall,
    Usage,
    Verified,
)
from voiceloop.thoughts import Thoughts, opens_thought
from voiceloop.workers.messages import OpenBranch, StreamEvent, StreamFailed
from voiceloop.workers.roles.chat_template import (
    History,
    RoleOrder,
    TurnFrame,
    chat_dict,
    forced_tools,
    offered_tools,
)

N_END_TOKENS = 16  # of a prompt: more than a mark that opens a thought, and line feeds behind it
# The first clause that is no mere "Sure,", and as much of the next as shows a voice that it ended;
# or, where a sentence goes on without a mark, more than four seconds of speech.
ENOUGH_TO_HOLD = re.compile(r"^.{8,}?[.,;:?!]\s.{6}|^.{64}.*?\s", re.DOTALL)

FromPreemptive = (
    engine_types.PreemptiveDelta
    | engine_types.PreemptiveCall
    | engine_types.PreemptiveDone
    | engine_types.Verified
)
FromReply = engine_types.TextDelta | engine_types.ToolCall | engine_types.Done


@dataclass(slots=True)
class Staging:
    """The words of the open turn: the newest ones, and the tokens that were staged last."""

    stage_id: int = 0
    user_text: str = ""
    is_due: bool = False  # the newest words are not staged yet
    tokens: list[int] = field(default_factory=list)


@dataclass(slots=True)
class PreemptiveReply:
    """A reply made ahead: the gateway's number of it, the engine's, the turn that it answers, and
    its text so far. is_draft: another model is to verify it, and its tokens alone are told.
    """

    number: int
    attempt: int
    turn: CountedTurn
    is_draft: bool = False
    text: str = ""
    thoughts: Thoughts = field(default_factory=Thoughts)

    def told(self, event: FromPreemptive) -> Iterator[LanguageEvent]:
        """Yield what the gateway is told of an event of it."""
        match event:
            case engine_types.PreemptiveDelta(text=text):
                had_thought, said = self.thoughts.has_thought, self.thoughts.feed(text)
                if self.thoughts.has_thought and not (had_thought or self.text):
                    yield Thinks(self.number)
                yield from self._said(said)
            case engine_types.PreemptiveCall(name=name, arguments_json=arguments):
                yield PreemptiveCall(self.number, name, self.turn.settle(name, arguments))
            case engine_types.PreemptiveDone(finish_reason=reason):
                yield from self._said(self.thoughts.finish(is_cut=reason != "stop"))
                yield PreemptiveDone(self.number, reason, event.tokens if self.is_draft else ())
            case engine_types.Verified(n_kept=n_kept):
                yield Verified(self.number, n_kept)

    def _said(self, text: str) -> Iterator[LanguageEvent]:
        if text:
            self.text += text
            yield PreemptiveDelta(self.number, text)

    @property
    def is_enough_to_hold(self) -> bool:
        return ENOUGH_TO_HOLD.search(self.text) is not None


@dataclass(slots=True)
class Reply:
    """The reply to a committed turn, so far; n_before_turn: tokens of the prompt before its own."""

    turn: CountedTurn
    n_turn_tokens: int
    n_before_turn: int
    pieces: list[str] = field(default_factory=list)
    calls: list[ToolCall] = field(default_factory=list)
    thoughts: Thoughts = field(default_factory=Thoughts)

    def told(self, event: FromReply) -> Iterator[LanguageEvent]:
        """Yield what the gateway is told of an event of it."""
        match event:
            case engine_types.TextDelta(text=text):
                logprobs = tuple(TokenLogprob(t.token, t.logprob, t.top) for t in event.logprobs)
                had_thought, said = self.thoughts.has_thought, self.thoughts.feed(text)
                if self.thoughts.has_thought and not (had_thought or any(self.pieces)):
                    yield Thinks()
                yield from self._said(said, logprobs)
            case engine_types.ToolCall(call_id=call_id, name=name, arguments_json=arguments):
                settled = self.turn.settle(name, arguments)
                self.calls.append(ToolCall(call_id, name, settled))
                yield self.calls[-1]
            case engine_types.Done():
                yield from self._said(self.thoughts.finish(is_cut=event.finish_reason != "stop"))
                yield self._generated(event)

    def _said(self, text: str, logprobs: tuple[TokenLogprob, ...] = ()) -> Iterator[LanguageEvent]:
        if text or logprobs:
            self.pieces.append(text)
            yield TextDelta(text, logprobs)

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
            token_ms=done.token_ms,
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
        # What stands in for a model that failed has none: it answers as it is.
        self._adapter = opened.adapter if model.adapters is not None else ""
        self._reads_end = opened.reads_end
        self._history = History(opened.history, opened.tools, model.text, order)
        self._offered = offered_tools(self._history.tools)
        self._staging = Staging()
        self._said = _last_words(opened.history)  # by the caller, last
        self._ahead: PreemptiveReply | None = None
        self._reply: Reply | None = None  # None while the turn is open
        self._branch_numbers = count(1)
        self._history.settle()
        self._branch = self._new_branch()

    def stage(self, stage_id: int, user_text: str) -> None:
        """Keep the newest words; ``advance`` stages them, so that a burst costs one encoding."""
        self._staging.stage_id, self._staging.user_text = stage_id, user_text
        self._staging.is_due = True

    def advance(self) -> None:
        """Stage the newest words. Raises: RequestError, TemplateError."""
        is_due, self._staging.is_due = self._staging.is_due, False
        if is_due and self._reply is None:
            self._stage(self._open_turn(self._staging.user_text))

    def awaits(self, tail: Sequence[ChatMessage]) -> bool:
        """Whether the words that were staged last are those that a reply is asked to."""
        return len(tail) == 1 and tail[0].content == self._staging.user_text

    @property
    def takes_words_along(self) -> bool:
        return self._branch.takes_words_along

    def begin_preemptive(
        self,
        number: int,
        tail: Sequence[ChatMessage],
        params: GenerateParams,
        *,
        is_draft: bool = False,
    ) -> None:
        """Raises: RequestError, TemplateError."""
        self.stop_preemptive()
        self._ahead = None
        if self._reply is not None or (self._history.tools and params.tool_choice == "none"):
            return  # such a reply's prompt does not show the tools, and what is staged does
        self.advance()
        self._staging.user_text = tail[0].content
        staged = self._open_turn(tail[0].content)
        turn = [chat_dict(message) for message in tail]
        whole = self._turn_tokens(self._history.encode(turn, add_generation_prompt=True))
        if staged != self._staging.tokens:
            self._stage(staged)
        # Tokenizers join the mark that ends the words and a line feed behind it: where one follows,
        # as before notes, the staged words' last token is no part of the prompt.
        n_common = common_prefix(staged, whole)
        behind, n_cut = whole[n_common:], len(staged) - n_common
        attempt = self._branch.begin_preemptive(behind, self._sampling(params), n_cut)
        answered = CountedTurn(_last_words(tail, self._said), self._history.tools)
        thoughts = self._thoughts(whole)
        self._ahead = PreemptiveReply(number, attempt, answered, is_draft, thoughts=thoughts)

    def verify(self, number: int, tokens: Sequence[int]) -> None:
        """Another model's tokens of the reply made ahead. Raises: RequestError."""
        if self._ahead is not None and self._ahead.number == number:
            self._branch.verify(self._ahead.attempt, tokens)

    def stop_preemptive(self) -> None:
        if self._ahead is not None:
            self._branch.stop_preemptive()

    def commit(self, tail: Sequence[ChatMessage], params: GenerateParams) -> None:
        """Raises: RequestError, TemplateError."""
        if self._reply is not None:
            self._branch.close()
            self._history.append([self._reply.message()])
            self._history.settle()
            self._reply, self._branch = None, self._new_branch()
        self._staging.is_due = False
        turn = [chat_dict(message) for message in tail]
        # A model that does not see the tools calls none; what was staged with them is dropped.
        tools = [] if params.tool_choice == "none" else self._history.tools
        if tools and not self._model.text.takes_tools:
            raise TemplateError("expected no tools, for the model's chat template knows none")
        tokens = self._history.encode(turn, tools=tools, add_generation_prompt=True)
        whole = self._turn_tokens(tokens)
        attempt = self._ahead.attempt if self._ahead is not None else None
        self._ahead = None
        n_frame = self._frame.n_before + self._frame.n_after
        is_user = len(tail) == 1 and tail[0].role == "user"
        if is_user and tail[0].behind:  # no part of what the caller said
            n_frame += len(self._model.text.encode(tail[0].behind))
        n_turn_tokens = max(0, len(whole) - n_frame) if is_user else 0
        begun = params.begins_with
        prompt = [*whole, *self._model.text.encode(begun)] if begun else whole
        self._branch.commit(prompt, self._sampling(params), attempt=attempt)
        self._said = _last_words(tail, self._said)
        n_before_turn = len(self._history.tokens) + self._frame.n_before
        answered = CountedTurn(self._said, self._history.tools)
        thoughts = self._thoughts(whole)
        pieces = [begun] if begun else []
        self._reply = Reply(answered, n_turn_tokens, n_before_turn, pieces, thoughts=thoughts)
        self._history.append(turn)

    def events(self, event: engine_types.Event) -> list[StreamEvent | StreamFailed]:
        """Return what the gateway is told of an engine event."""
        told: list[LanguageEvent] = []
        match event:
            case engine_types.Staged(_, n_resident, n_prefilled, p_end, signs):
                route = RouteSigns(*astuple(signs)) if signs is not None else None
                told = [Staged(self._staging.stage_id, n_resident, n_prefilled, p_end, route)]
            case engine_types.Done(finish_reason="error"):
                return [StreamFailed(self.stream_id, event.error or "the reply failed", True)]
            case engine_types.TextDelta() | engine_types.ToolCall() | engine_types.Done():
                told = [*self._reply.told(event)] if self._reply is not None else []
            case _ if self._ahead is not None and event.attempt == self._ahead.attempt:
                told = [*self._ahead.told(event)]
                if self._ahead.is_draft:
                    told = [one for one in told if isinstance(one, PreemptiveDone)]
                if self._ahead.is_enough_to_hold:
                    self.stop_preemptive()  # the rest costs little once it is wanted
        return [StreamEvent(self.stream_id, each) for each in told]

    def close(self) -> None:
        self._branch.close()

    def _stage(self, turn_tokens: list[int]) -> None:
        self._staging.tokens = turn_tokens
        self._branch.stage(turn_tokens)

    def _new_branch(self) -> Branch:
        """A branch of the engine behind the history, with nothing staged."""
        self._staging.tokens, self._ahead = [], None
        branch_id = f"{self.stream_id}#{next(self._branch_numbers)}"
        caller = self.stream_id.partition(".")[0]  # the session, with which every stream id begins
        return self._model.branch(
            branch_id, self._history.tokens, self._tenant, caller, self._adapter,
            reads_end=self._reads_end,
        )  # fmt: skip

    def _open_turn(self, words: str) -> list[int]:
        """The open turn's tokens behind the history."""
        tokens, is_whole = self._history.turn_tokens(words)
        if not is_whole:
            self._start_anew()
        return tokens

    def _turn_tokens(self, tokens: list[int]) -> list[int]:
        """Return what follows the history in ``tokens``."""
        if not self._history.keep_common(tokens):
            self._start_anew()
        return tokens[len(self._history.tokens) :]

    def _start_anew(self) -> None:
        """Open another branch, which shares what both have in common.

        A template may write the history differently once something follows it: a last line feed,
        thoughts left out.
        """
        self._branch.close()
        self._branch = self._new_branch()

    def _thoughts(self, whole: Sequence[int]) -> Thoughts:
        """Return the thoughts in a reply to a turn with these tokens."""
        prompt_end = self._model.text.decode(whole[-N_END_TOKENS:])
        return Thoughts(begins_inside=opens_thought(prompt_end))

    def _sampling(self, params: GenerateParams) -> SamplingParams:
        drawn = asdict(params)
        choice = drawn.pop("tool_choice")
        del drawn["within_ms"], drawn["begins_with"]  # the gateway's own; the prompt's end
        forced = forced_tools(choice, self._history.tools)
        offered = self._offered if choice == "auto" else None
        return SamplingParams(**drawn, forced_tools=forced, offered_tools=offered)


def _last_words(messages: Sequence[ChatMessage], known: str = "") -> str:
    """Return what the caller said last in these messages; `known` where they said nothing."""
    said = (message.content for message in reversed(messages) if message.role == "user")
    return next(said, known)

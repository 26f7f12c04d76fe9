"""Owns one turn in the making: what is staged, the preemptive reply, the committed reply.

A branch holds private KV on top of the shared committed prefix. Its methods only change what is
wanted; the scheduler looks at that and decides what the next step does.
"""

from collections.abc import Sequence as Tokens
from dataclasses import dataclass, field
from typing import Protocol

from .reply import Reply
from .sequence import Sequence
from .text.tool_calls import ParsedCall
from .types import (
    MAX_SALVAGED,
    Done,
    Event,
    InvalidRequest,
    PreemptiveCall,
    PreemptiveDelta,
    PreemptiveDone,
    PromptTooLong,
    SamplingParams,
    TextDelta,
    ToolCall,
)


class Home(Protocol):
    """What a branch needs of its engine."""

    context_length: int
    vocab_size: int
    outbox: list[Event]

    def new_reply(self, n_prompt: int, params: SamplingParams) -> Reply: ...
    def require_room(self, n_tokens: int) -> None: ...
    def order(self) -> int: ...
    def speculated(self, session: str, n_used: int, n_wasted: int) -> None: ...
    def finished(self, reply: Reply, done: Done) -> None: ...
    def forget(self, branch: "Branch") -> None: ...


@dataclass(slots=True)
class PreemptiveReply:
    """A reply made ahead, on a fork that is taken when the staged turn is resident."""

    attempt: int
    tail: list[int]
    reply: Reply
    sequence: Sequence | None = None
    prompt: list[int] = field(default_factory=list)
    active: bool = True

    def start(self, staged: Sequence) -> Sequence:
        self.sequence = staged.fork()
        self.sequence.tokens += self.tail
        self.prompt = list(self.sequence.tokens)
        return self.sequence

    def release(self) -> None:
        """Stop and give the KV back; the tokens stay for salvage."""
        self.active = False
        if self.sequence is not None:
            self.sequence.release()


class Branch:
    """See `engine.Engine.branch`."""

    def __init__(
        self, home: Home, branch_id: str, history: Tokens[int], sequence: Sequence, session: str
    ) -> None:
        self.branch_id, self.sequence, self.session = branch_id, sequence, session
        self.n_history = len(history)
        self.history_published = not history
        self.staged_due = False  # a Staged event is owed
        self.n_prefilled = 0  # since the last Staged
        self.order = home.order()  # position in its class; renewed when staged or committed
        self.reply: Reply | None = None
        self.admitted = False
        self.preemptive: PreemptiveReply | None = None
        self.n_preemptive = 0  # in this turn
        self.n_discarded = 0  # of those, thrown away
        self.n_inherited = 0  # of dropped attempts, yet to be verified by what took their place
        self.closed = False
        self._home = home
        self._n_attempts = 0
        self._n_calls = 0
        home.require_room(len(history))
        self._require_context(len(history))
        self._require_known(history)
        sequence.retarget(list(history))

    # -- what a caller asks for ------------------------------------------------------------------

    def stage(self, tokens: Tokens[int]) -> None:
        """Replace the open turn (role header first, no end of turn) -> `Staged`.

        Only what differs from the turn staged before is computed.
        Raises: PromptTooLong, InvalidRequest.
        """
        target = self._target(tokens)
        if not target:
            raise InvalidRequest("expected at least one token to stage, found none")
        self._aim(target)
        self.staged_due = True
        self.order = self._home.order()
        ahead = self.preemptive
        if ahead is not None and ahead.active and ahead.prompt[: -len(ahead.tail)] != target:
            self.stop_preemptive("cancelled")

    def begin_preemptive(self, tail_tokens: Tokens[int], params: SamplingParams) -> int:
        """Make the reply to what is staged ahead -> `PreemptiveDelta`, `PreemptiveDone`.

        It runs when nothing else is due.

        tail_tokens: end of turn and assistant header. Returns the attempt's number for
        `commit`. A changed `stage` stops it but keeps it for salvage; a new attempt replaces it,
        and what stands of it too is kept, as with `commit`.
        Raises: PromptTooLong, InvalidRequest.
        """
        self._require_idle()
        if not tail_tokens:
            raise InvalidRequest("expected at least one tail token, found none")
        self._require_known(tail_tokens)
        n_prompt = len(self.sequence.tokens) + len(tail_tokens)
        self._require_context(n_prompt)
        reply = self._home.new_reply(n_prompt, params)
        reply.proposals = _said_in(self.preemptive, reply)
        self._drop_preemptive(is_inherited=True)
        self._n_attempts += 1
        self.preemptive = PreemptiveReply(self._n_attempts, list(tail_tokens), reply)
        return self._n_attempts

    def commit(
        self, tokens: Tokens[int], params: SamplingParams, attempt: int | None = None
    ) -> None:
        """Answer the finished turn, first in line -> `TextDelta`..., `ToolCall`..., `Done`.

        tokens: the whole turn with its end and the assistant header (or tool results).
        attempt: from `begin_preemptive`. Made to the same words it is adopted as it is, even where
        its KV had to make room and is computed again; else it is verified against the new prompt
        in one pass, and what stands is kept.
        After `Done` the turn and the reply are history: the branch can stage and commit again.
        Raises: PromptTooLong, OutOfMemory, InvalidRequest.
        """
        target = self._target(tokens)
        if not target:
            raise InvalidRequest("expected at least one token to commit, found none")
        reply = self._home.new_reply(len(target), params)
        self._home.require_room(len(target) + reply.params.max_tokens)
        usable = (
            self.preemptive
            if self.preemptive is not None and self.preemptive.attempt == attempt
            else None
        )
        self.staged_due, self.admitted, self.n_preemptive = False, False, 0
        self.order = self._home.order()
        if usable is not None and self._adopt(usable, reply, target):
            return
        reply.proposals = _said_in(usable, reply)
        self._drop_preemptive(is_inherited=usable is not None)
        self.reply = reply
        self._aim(target)
        reply.count(cached_tokens=self.sequence.n_resident, discarded_tokens=self.n_discarded)
        self.n_discarded = 0

    def cancel(self) -> None:
        """End the reply under way with `Done("cancelled")`; the branch stays usable."""
        if self.reply is not None:
            self.finish("cancelled")
        self._drop_preemptive()

    def close(self) -> None:
        """Give everything back. Idempotent in every state; no event follows."""
        if self.closed:
            return
        self.closed = True
        self._drop_preemptive()
        self.sequence.publish(self.n_history if self.reply is None else self.reply.n_prompt)
        self.sequence.release()
        self._home.forget(self)

    # -- what a step reports ---------------------------------------------------------------------

    def verified(self, n_stood: int, n_left: int) -> None:
        """Of what a dropped attempt said so much stands, in the reply or the attempt after it.

        n_left: tokens of it still to be verified; where none are, the rest was for nothing.
        """
        if not self.n_inherited:
            return
        self.n_inherited -= n_stood
        if self.reply is not None:
            self._home.speculated(self.session, n_stood, 0)
        if not n_left:
            self._discard_inherited()

    def emit(self, output: list[str | ParsedCall]) -> None:
        """Send output of the committed reply."""
        assert self.reply is not None
        text = "".join(piece for piece in output if isinstance(piece, str))
        if text:
            logprobs = self.reply.new_logprobs()
            delta = TextDelta(self.branch_id, text, self.reply.report(), logprobs)
            self._home.outbox.append(delta)
        for piece in output:
            if isinstance(piece, ParsedCall):
                self._n_calls += 1
                call_id = f"call_{self.branch_id}_{self._n_calls}"
                self._home.outbox.append(
                    ToolCall(self.branch_id, call_id, piece.name, piece.arguments_json)
                )

    def emit_preemptive(self, output: list[str | ParsedCall]) -> None:
        """Send output of the preemptive reply."""
        assert self.preemptive is not None
        attempt = self.preemptive.attempt
        text = "".join(piece for piece in output if isinstance(piece, str))
        if text:
            n_tokens = self.preemptive.reply.report()
            self._home.outbox.append(PreemptiveDelta(self.branch_id, attempt, text, n_tokens))
        self._home.outbox += [
            PreemptiveCall(self.branch_id, attempt, piece.name, piece.arguments_json)
            for piece in output
            if isinstance(piece, ParsedCall)
        ]
        if self.preemptive.reply.finish_reason is not None:
            self.stop_preemptive(self.preemptive.reply.finish_reason)

    def finish(self, reason: str, error: str | None = None) -> None:
        """End the committed reply; it becomes history that others may share."""
        reply = self.reply
        assert reply is not None
        self._discard_inherited()
        self.reply, self.admitted = None, False
        self.n_history = len(self.sequence.tokens)
        self.history_published = True
        self.sequence.publish(self.n_history)
        reply.count(kv_blocks=len(self.sequence.table))
        done = Done(self.branch_id, reason, reply.usage, error=error)
        self._home.finished(reply, done)

    def lose_preemptive(self) -> None:
        """Make room for somebody more urgent. Its tokens stay: who heard them may count on them."""
        assert self.preemptive is not None
        self.stop_preemptive("lost")
        self.preemptive.release()

    def stop_preemptive(self, reason: str) -> None:
        """No further tokens for it; what it has stays, to be adopted or salvaged."""
        assert self.preemptive is not None
        if self.preemptive.active:
            self.preemptive.active = False
            n_tokens = len(self.preemptive.reply.tokens)
            self._home.outbox.append(
                PreemptiveDone(self.branch_id, self.preemptive.attempt, reason, n_tokens)
            )

    # -- inside ----------------------------------------------------------------------------------

    def _target(self, tokens: Tokens[int]) -> list[int]:
        self._require_idle()
        self._require_known(tokens)
        target = self.sequence.tokens[: self.n_history] + list(tokens)
        self._require_context(len(target))
        return target

    def _require_idle(self) -> None:
        if self.closed:
            raise InvalidRequest(f"expected branch {self.branch_id} open, found it closed")
        if self.reply is not None:
            raise InvalidRequest(
                f"expected no reply under way on branch {self.branch_id}, found one"
            )

    def _require_context(self, n_tokens: int) -> None:
        if n_tokens >= self._home.context_length:
            raise PromptTooLong(
                f"expected a prompt below {self._home.context_length} tokens, found {n_tokens}"
            )

    def _require_known(self, tokens: Tokens[int]) -> None:
        """A token id out of range would fail in the middle of everybody's step."""
        if tokens and not (0 <= min(tokens) and max(tokens) < self._home.vocab_size):
            raise InvalidRequest(
                f"expected token ids from 0 to {self._home.vocab_size - 1}, "
                f"found {min(tokens)} to {max(tokens)}"
            )

    def _aim(self, target: list[int]) -> None:
        """Make `target` the sequence, with at least its last token to compute: we need logits."""
        self.sequence.retarget(target)
        if self.sequence.n_pending == 0:
            self.sequence.retreat(len(target) - 1)

    def _adopt(self, ahead: PreemptiveReply, reply: Reply, target: list[int]) -> bool:
        """Take over an attempt made for exactly this prompt and these parameters."""
        made = ahead.reply
        if (
            ahead.sequence is None
            or ahead.prompt != target
            or made.params != reply.params
            or not made.tokens
            or made.finish_reason == "error"
        ):
            return False
        self.sequence.release()
        self.sequence, self.preemptive, self.reply = ahead.sequence, None, made
        self._home.speculated(self.session, len(made.tokens), 0)
        made.adopt(reply.clock, self.sequence.n_resident, self.n_discarded)
        self.n_discarded = 0
        self.emit(made.pieces)
        if made.finish_reason is not None:
            self.finish(made.finish_reason)
        return True

    def _drop_preemptive(self, *, is_inherited: bool = False) -> None:
        """is_inherited: what it said is verified by what takes its place, and booked then."""
        if self.preemptive is not None:
            self.n_inherited += len(self.preemptive.reply.tokens)
            self.stop_preemptive("cancelled")
            self.preemptive.release()
            self.preemptive = None
        if not is_inherited:
            self._discard_inherited()

    def _discard_inherited(self) -> None:
        """Book what nobody will verify any more."""
        n_wasted, self.n_inherited = self.n_inherited, 0
        if n_wasted:
            self._home.speculated(self.session, 0, n_wasted)
            if self.reply is None:
                self.n_discarded += n_wasted
            else:
                self.reply.count(discarded_tokens=n_wasted)


def _said_in(ahead: PreemptiveReply | None, reply: Reply) -> list[int]:
    """What an attempt said, and had yet to verify, for `reply` to verify in its first pass."""
    if ahead is None:
        return []
    said = ahead.reply.tokens + ahead.reply.proposals
    return said[: min(reply.params.max_tokens - 1, MAX_SALVAGED)]

"""Owns one turn in the making: what is staged, the reply made ahead of its end, the committed one.

A branch holds private KV on top of the shared committed prefix. Its methods only change what is
wanted; the scheduler looks at that and decides what the next step does.
"""

from collections.abc import Sequence as Tokens
from dataclasses import dataclass, field
from enum import Enum
from itertools import count
from typing import Protocol

from .reply import Reply
from .sequence import Sequence, common_prefix
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
    RouteSigns,
    SamplingParams,
    Staged,
    TextDelta,
    ToolCall,
    Verified,
)


class Phase(Enum):
    """A branch is in one of these four phases."""

    OPEN = "open"  # the caller's turn: its words are staged, and a reply may be made ahead
    WAITING = "waiting"  # committed: the reply waits until there is room for all of it
    REPLYING = "replying"  # its worst case in blocks is promised
    CLOSED = "closed"


class Home(Protocol):
    """The part of the engine that a branch uses."""

    context_length: int
    vocab_size: int
    outbox: list[Event]

    def new_reply(self, n_prompt: int, params: SamplingParams) -> Reply: ...
    def require_room(self, n_tokens: int) -> None: ...
    def order(self) -> int: ...
    def discarded(self, n_tokens: int) -> None: ...
    def finished(self, reply: Reply, done: Done) -> None: ...
    def forget(self, branch: "Branch") -> None: ...


@dataclass(slots=True)
class StagedTurn:
    """The words of the open turn: whether they are to be told of, and what they took so far."""

    is_due: bool = False  # a `Staged` is owed
    n_prefilled: int = 0  # tokens computed since the last one


@dataclass(slots=True)
class PreemptiveReply:
    """One attempt at a reply made ahead, on a fork of the staged turn taken for its first step."""

    attempt: int
    prompt: list[int]
    n_cut: int  # of what is staged: the rest, and a tail, is the prompt
    reply: Reply
    staged: list[int]  # what it is made to
    sequence: Sequence | None = None
    is_active: bool = True
    draft: list[int] = field(default_factory=list)  # another engine's, not yet told of

    def start(self, staged: Sequence) -> Sequence:
        """Fork what is staged, as far as the prompt begins with it."""
        self.sequence = staged.fork()
        self.sequence.truncate(len(self.staged) - self.n_cut)
        self.sequence.tokens = list(self.prompt)
        return self.sequence

    @property
    def is_decoding(self) -> bool:
        """Whether its next token takes one row."""
        is_begun = self.sequence is not None and bool(self.reply.tokens)
        if not (self.is_active and is_begun) or self.reply.awaits_grammar():
            return False
        return self.sequence is not None and self.sequence.n_pending == 1

    def answers(self, prompt: list[int], params: SamplingParams) -> bool:
        """Whether it was made for exactly this prompt and these parameters, and has begun."""
        made = self.reply
        is_sound = bool(made.tokens) and made.finish_reason not in ("error", "malformed_call")
        return is_sound and (self.prompt, made.params) == (prompt, params)

    def release(self) -> None:
        """Give the KV back; the tokens stay for salvage."""
        if self.sequence is not None:
            self.sequence.release()


class Branch:
    """See `engine.Engine.branch`."""

    def __init__(
        self,
        home: Home,
        branch_id: str,
        history: Tokens[int],
        sequence: Sequence,
        caller: str = "",
        *,
        reads_end: bool = True,
    ) -> None:
        self.branch_id, self.sequence, self.caller = branch_id, sequence, caller
        self.reads_end = reads_end
        self.phase = Phase.OPEN
        self.order = home.order()  # position in its class; renewed when staged or committed
        self.n_history = len(history)
        self.staged = StagedTurn()
        self.preemptive: PreemptiveReply | None = None  # the last attempt
        self.reply: Reply | None = None  # the committed one
        self._home = home
        self._is_history_published = not history
        self._attempt_numbers, self._call_numbers = count(1), count(1)
        self._n_unsettled = 0  # tokens made ahead in this turn, not yet known to be of use or not
        home.require_room(len(history))
        self._require_context(len(history))
        self._require_known(history)
        sequence.retarget(list(history))

    @property
    def takes_words_along(self) -> bool:
        """Whether a reply made ahead computes the words with its prompt: nobody reads them."""
        return not self.reads_end and self.sequence.n_resident >= self.n_history

    @property
    def n_to_stage(self) -> int:
        """Tokens that take a pass of their own."""
        is_active = self.preemptive is not None and self.preemptive.is_active
        return 0 if is_active and self.takes_words_along else self.sequence.n_pending

    @property
    def n_committed(self) -> int:
        """Tokens from the first on that others may share: neither staged words nor drafts."""
        return self.n_history if self.reply is None else self.reply.n_prompt

    # -- what a caller asks for ------------------------------------------------------------------

    def stage(self, tokens: Tokens[int]) -> None:
        """Replace the open turn (role header first, no end of turn) -> `Staged`.

        Only what differs from the turn staged before is computed.
        Raises: PromptTooLong, InvalidRequest.
        """
        target = self._target(tokens)
        if not target:
            raise InvalidRequest("expected at least one token to stage, found none")
        ahead = self.preemptive
        if ahead is not None and ahead.staged != target:
            self.stop_preemptive()
        self.staged.is_due = True
        self.order = self._home.order()
        if self.reads_end:
            self._aim(target)
        else:
            self.sequence.retarget(target)
            self._tell_staged(None)

    def begin_preemptive(
        self, tail_tokens: Tokens[int], params: SamplingParams, n_cut: int = 0
    ) -> int:
        """Make the reply to what is staged ahead -> `PreemptiveDelta`, `PreemptiveDone`.

        It runs when nothing else is due.

        tail_tokens: end of turn and assistant header. n_cut: the last of the staged tokens, which
        stand otherwise in the prompt: a tokenizer joins a full stop and the line feed behind it;
        the tail then begins in their place. Returns the attempt's number for `commit`.
        A changed `stage` stops it but keeps it for salvage; a new attempt replaces it, and what
        stands of it too is kept, as with `commit`.
        Raises: PromptTooLong, InvalidRequest.
        """
        self._require_open()
        if not tail_tokens:
            raise InvalidRequest("expected at least one tail token, found none")
        self._require_known(tail_tokens)
        n_staged = len(self.sequence.tokens) - self.n_history
        if not 0 <= n_cut <= n_staged:
            raise InvalidRequest(f"expected n_cut of 0 to {n_staged} staged tokens, found {n_cut}")
        prompt = self.sequence.tokens[: len(self.sequence.tokens) - n_cut] + list(tail_tokens)
        self._require_context(len(prompt))
        reply = self._home.new_reply(len(prompt), params)
        reply.proposals = _said_in(self.preemptive, reply)
        self._drop_preemptive()
        attempt = next(self._attempt_numbers)
        staged = list(self.sequence.tokens)
        self.preemptive = PreemptiveReply(attempt, prompt, n_cut, reply, staged)
        return attempt

    def verify(self, attempt: int, tokens: Tokens[int]) -> None:
        """Have the attempt's next pass verify these tokens of it, another engine's -> `Verified`.

        The text is the same with them and without. What came too late, or is beside what the
        attempt has to verify already, is left out. Raises: InvalidRequest.
        """
        ahead = self.preemptive
        if ahead is None or ahead.attempt != attempt or ahead.reply.proposals:
            return
        said = ahead.reply.tokens
        draft = list(tokens[: min(ahead.reply.params.max_tokens - 1, MAX_SALVAGED)])
        self._require_known(draft)
        ahead.draft = draft
        if ahead.is_active and ahead.draft[: len(said)] == said:
            ahead.reply.proposals = ahead.draft[len(said) :]
        self._tell_verified(is_over=not ahead.is_active)

    def _tell_verified(self, *, is_over: bool = False) -> None:
        """How much of another's draft stands, once that is known. is_over: no more will."""
        ahead = self.preemptive
        if ahead is None or not ahead.draft:
            return
        n_kept = common_prefix(ahead.reply.tokens, ahead.draft)
        if is_over or n_kept < len(ahead.reply.tokens) or n_kept == len(ahead.draft):
            self._home.outbox.append(Verified(self.branch_id, ahead.attempt, n_kept))
            ahead.draft = []

    def stop_preemptive(self, reason: str = "cancelled") -> None:
        """No further tokens for it; what it has stays, to be adopted or salvaged."""
        ahead = self.preemptive
        if ahead is not None and ahead.is_active:
            ahead.is_active = False
            self._keep_prompt(ahead)
            if ahead.draft:  # what is not verified was never said
                ahead.reply.proposals = []
            self._tell_verified(is_over=True)
            said = tuple(ahead.reply.tokens)
            done = PreemptiveDone(self.branch_id, ahead.attempt, reason, said)
            self._home.outbox.append(done)

    def _keep_prompt(self, ahead: PreemptiveReply) -> None:
        """Have the words that the reply made ahead computed with its prompt, where nobody reads
        what they say: else their last row is computed for that.
        """
        made, own = ahead.sequence, self.sequence
        if made is None or self.reads_end or not own.n_pending:
            return
        n_resident = min(made.n_resident, common_prefix(made.tokens, own.tokens))
        if n_resident > own.n_resident:
            self.staged.n_prefilled += n_resident - own.n_resident
            self.sequence = made.fork()
            self.sequence.tokens = own.tokens
            self.sequence.retreat(n_resident)
            own.release()
            self._tell_staged(None)

    def commit(
        self, tokens: Tokens[int], params: SamplingParams, attempt: int | None = None
    ) -> None:
        """Answer the finished turn, first in line -> `TextDelta`..., `ToolCall`..., `Done`.

        tokens: the whole turn with its end and the assistant header (or tool results).
        attempt: the last of `begin_preemptive`. Made to the same words it is adopted as it is, even
        where its KV had to make room and is computed again; else it is verified against the new
        prompt in one pass, and what stands is kept.
        After `Done` the turn and the reply are history: the branch can stage and commit again.
        Raises: PromptTooLong, OutOfMemory, InvalidRequest.
        """
        target = self._target(tokens)
        if not target:
            raise InvalidRequest("expected at least one token to commit, found none")
        reply = self._home.new_reply(len(target), params)
        self._home.require_room(len(target) + reply.params.max_tokens)
        self.phase, self.order = Phase.WAITING, self._home.order()
        self.staged.is_due = False
        ahead = self.preemptive
        if ahead is not None and ahead.attempt != attempt:
            ahead = None
        if ahead is not None and ahead.answers(target, reply.params):
            self._adopt(ahead, reply)
            return
        reply.proposals = _said_in(ahead, reply)
        self._drop_preemptive()
        self.reply = reply
        self._aim(target)
        reply.count(cached_tokens=self.sequence.n_resident)
        if not reply.proposals:
            self._discard_unsettled()  # else the first pass tells what of it stands

    def cancel(self) -> None:
        """End the reply under way with `Done("cancelled")`; the branch stays usable."""
        if self.reply is not None:
            self.finish("cancelled")
        self._drop_preemptive()

    def close(self) -> None:
        """Give everything back. Idempotent in every state; no event follows."""
        if self.phase is Phase.CLOSED:
            return
        self.phase = Phase.CLOSED
        self._drop_preemptive()
        self._discard_unsettled()
        self.sequence.publish(self.n_committed)
        self.sequence.release()
        self._home.forget(self)

    # -- what the scheduler decides --------------------------------------------------------------

    def admit(self) -> None:
        """Blocks for the whole reply are promised."""
        self.phase = Phase.REPLYING

    def yield_room(self) -> None:
        """Give blocks to somebody more urgent; a reply under way waits and is computed again."""
        if self.phase is Phase.REPLYING:
            self.phase = Phase.WAITING
        self.sequence.release()

    def yield_preemptive(self) -> None:
        """The same for the reply made ahead. Its tokens stay: who heard them may count on them."""
        assert self.preemptive is not None
        self.stop_preemptive("lost")
        self.preemptive.release()

    # -- what a step reports ---------------------------------------------------------------------

    def prefilled(
        self, n_tokens: int, p_end_of_turn: float | None, route: RouteSigns | None = None
    ) -> None:
        """Note that staged tokens were computed; p_end_of_turn: None before the last of them, and
        where it is not read.
        """
        self.staged.n_prefilled += n_tokens
        if not self._is_history_published:  # what there is of it: others need not compute it too
            self.sequence.publish(self.n_history)
            self._is_history_published = self.sequence.n_resident >= self.n_history
        if p_end_of_turn is not None or not self.reads_end:
            self._tell_staged(p_end_of_turn, route)

    def _tell_staged(self, p_end_of_turn: float | None, route: RouteSigns | None = None) -> None:
        """Tell of staged words once they are resident, all of them."""
        if self.sequence.n_pending or not self.staged.is_due:
            return
        n_resident, n_prefilled = self.sequence.n_resident, self.staged.n_prefilled
        self.staged.is_due, self.staged.n_prefilled = False, 0
        self._home.outbox.append(
            Staged(self.branch_id, n_resident, n_prefilled, p_end_of_turn, route)
        )

    def made_ahead(self, n_tokens: int, output: list[str | ParsedCall]) -> None:
        """The preemptive reply has new tokens, which may have completed some output."""
        assert self.preemptive is not None
        self._n_unsettled += n_tokens
        attempt, reply = self.preemptive.attempt, self.preemptive.reply
        text = "".join(piece for piece in output if isinstance(piece, str))
        if text:
            delta = PreemptiveDelta(self.branch_id, attempt, text, reply.report())
            self._home.outbox.append(delta)
        self._home.outbox += [
            PreemptiveCall(self.branch_id, attempt, piece.name, piece.arguments_json)
            for piece in output
            if isinstance(piece, ParsedCall)
        ]
        self._tell_verified()
        if reply.finish_reason is not None:
            self.stop_preemptive(reply.finish_reason)

    def verified(self, n_stood: int, n_left: int) -> None:
        """Note how much of what was made ahead stands in the reply; n_left: still to verify."""
        if self._n_unsettled:
            self._n_unsettled -= n_stood
            if not n_left:
                self._discard_unsettled()

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
                call_id = f"call_{self.branch_id}_{next(self._call_numbers)}"
                self._home.outbox.append(
                    ToolCall(self.branch_id, call_id, piece.name, piece.arguments_json)
                )

    def finish(self, reason: str, error: str | None = None) -> None:
        """End the committed reply; it becomes history that others may share."""
        reply = self.reply
        assert reply is not None
        self._discard_unsettled()
        self.reply, self.phase = None, Phase.OPEN
        self.n_history = len(self.sequence.tokens)
        self._is_history_published = True
        self.sequence.publish(self.n_history)
        reply.count(kv_blocks=len(self.sequence.table))
        done = Done(self.branch_id, reason, reply.usage, error=error)
        self._home.finished(reply, done)

    # -- inside ----------------------------------------------------------------------------------

    def _target(self, tokens: Tokens[int]) -> list[int]:
        self._require_open()
        self._require_known(tokens)
        target = self.sequence.tokens[: self.n_history] + list(tokens)
        self._require_context(len(target))
        return target

    def _require_open(self) -> None:
        if self.phase is Phase.CLOSED:
            raise InvalidRequest(f"expected branch {self.branch_id} open, found it closed")
        if self.phase is not Phase.OPEN:
            raise InvalidRequest(f"branch {self.branch_id} has a reply under way")

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

    def _adopt(self, ahead: PreemptiveReply, asked: Reply) -> None:
        """Make what was made ahead for this very prompt the committed reply."""
        assert ahead.sequence is not None
        self._tell_verified(is_over=True)
        reply = ahead.reply
        self.sequence.release()
        self.sequence, self.preemptive, self.reply = ahead.sequence, None, reply
        reply.adopt(asked.clock, self.sequence.n_resident)
        self._n_unsettled -= len(reply.tokens)
        self._discard_unsettled()
        self.emit(reply.pieces)
        if reply.finish_reason is not None:
            self.finish(reply.finish_reason)

    def _drop_preemptive(self) -> None:
        self.stop_preemptive()
        if self.preemptive is not None:
            self.preemptive.release()
            self.preemptive = None

    def _discard_unsettled(self) -> None:
        """Count what was made ahead in this turn and is in no reply as discarded."""
        n_discarded, self._n_unsettled = self._n_unsettled, 0
        self._home.discarded(n_discarded)
        if self.reply is not None:
            self.reply.count(discarded_tokens=n_discarded)


def _said_in(ahead: PreemptiveReply | None, reply: Reply) -> list[int]:
    """List an attempt's tokens and proposals, for `reply` to verify in its first pass."""
    if ahead is None:
        return []
    said = ahead.reply.tokens + ([] if ahead.draft else ahead.reply.proposals)
    return said[: min(reply.params.max_tokens - 1, MAX_SALVAGED)]

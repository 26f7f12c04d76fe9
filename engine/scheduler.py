"""Owns the order of service: what the next step does, and who must give memory back for it.

Classes, most urgent first: committed decode, committed prefill, staged prefill, preemptive, batch.
A lower class joins a step only where it cannot be felt by a higher one.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from collections.abc import Sequence as Items
from dataclasses import dataclass
from enum import IntEnum
from time import monotonic

from .branch import Branch, Phase
from .kv_cache import KvPool
from .prefix_tree import PUBLIC, PrefixTree
from .reply import Reply
from .runner import Extension
from .sequence import Sequence
from .step_cost import SMALLEST_CHUNK, StepCost
from .types import EngineConfig, OutOfMemory

# Seconds of waiting for memory that count as one round: longer than a spoken reply takes to write,
# so that rounds hold while memory comes free, and no longer than a caller listens to nothing.
ROUND_WAIT_S = 5.0


class Service(IntEnum):
    DECODE = 0
    PREFILL = 1
    STAGED = 2
    PREEMPTIVE = 3
    BATCH = 4


@dataclass(slots=True)
class Task:
    """One sequence's share of a step. reply: what the logits are for; None for staged words.

    n_verified: how many of the extension's proposals were, known after the step; none where the
    step was under way before they were guessed. n_accepted: leading guesses that stood.
    """

    service: Service
    branch: Branch
    extension: Extension
    reply: Reply | None
    n_verified: int = 0
    n_accepted: int = 0

    @property
    def is_as_asked(self) -> bool:
        """Whether the step verified what was proposed."""
        return self.n_verified == len(self.extension.proposals)

    @property
    def is_decode(self) -> bool:
        """Whether one row gives the reply's next token, committed or made ahead."""
        is_ahead = self.service is Service.PREEMPTIVE and self.extension.n_known == 1
        return self.service is Service.DECODE or is_ahead


def worst_blocks(branch: Branch) -> int:
    """Blocks an admitted branch may still ask for."""
    reply, sequence = branch.reply, branch.sequence
    if reply is None:
        return 0
    n_most = reply.n_prompt + reply.params.max_tokens
    return sequence.n_blocks_to_reserve(n_most - sequence.n_resident)


def is_batch(branch: Branch) -> bool:
    """Whether nobody waits for this branch's reply."""
    return branch.reply is not None and branch.reply.params.is_batch


def is_operators(branch: Branch) -> bool:
    """Whether it is the prefix of all, computed before anybody asks for it."""
    return branch.sequence.salt == PUBLIC


def awaits_grammar(branch: Branch) -> bool:
    """Whether the committed reply can be in no step yet."""
    return branch.reply is not None and branch.reply.awaits_grammar()


def is_decoding(branch: Branch) -> bool:
    """Whether the reply's next token takes one row, and not a prompt still to be computed.

    A reply whose room was taken has both to compute again: its prompt and what it said.
    """
    return branch.reply is not None and bool(branch.reply.tokens) and branch.sequence.n_pending == 1


def decoded_next(branches: Iterable[Branch]) -> Iterator[tuple[str, Sequence, Reply]]:
    """Replies of a token a step: those somebody waits for; without any, those made ahead.

    Of each the branch's id, the sequence that it is in, and the reply.
    """
    branches = list(branches)
    awaited = [branch for branch in branches if branch.reply is not None and not is_batch(branch)]
    for branch in awaited:
        if branch.phase is Phase.REPLYING and is_decoding(branch) and not awaits_grammar(branch):
            assert branch.reply is not None
            yield branch.branch_id, branch.sequence, branch.reply
    for branch in [] if awaited else branches:
        ahead = branch.preemptive
        if ahead is not None and ahead.is_decoding and not branch.n_to_stage:
            assert ahead.sequence is not None
            yield branch.branch_id, ahead.sequence, ahead.reply


def in_turns(branches: Iterable[Branch]) -> list[tuple[int, Branch]]:
    """Branches in the order of service, each with its round; oldest first in a round.

    Of every tenant one in each round, and of one tenant each caller's first before anybody's
    second: who asks for much waits for it, and nobody else does. Where there is one tenant alone
    its callers have the rounds.
    """
    of_caller, of_tenant = Counter[tuple[str, str]](), Counter[str]()
    turns: list[tuple[int, Branch]] = []
    for branch in sorted(branches, key=lambda branch: branch.order):
        owner = branch.sequence.salt, branch.caller or branch.branch_id
        turns.append((of_caller[owner], branch))
        of_caller[owner] += 1
    turns.sort(key=lambda turn: (turn[0], turn[1].order))
    if len({tenant for tenant, _ in of_caller}) < 2:
        return turns
    rounds: list[tuple[int, Branch]] = []
    for _, branch in turns:
        rounds.append((of_tenant[branch.sequence.salt], branch))
        of_tenant[branch.sequence.salt] += 1
    return sorted(rounds, key=lambda turn: (turn[0], turn[1].order))


def _aged(n_round: int, branch: Branch, now: float) -> int:
    """The round of a committed reply, less what it has waited."""
    waited_s = now - branch.reply.clock.asked if branch.reply is not None else 0.0
    return max(0, n_round - int(waited_s / ROUND_WAIT_S))


def share_out(pending: Items[int], n_rows: int, rounds: Items[int] = ()) -> list[int]:
    """Rows of a step for prompts of so many `pending` tokens, the longest waiting first.

    Half goes to whoever waits longest, the rest round by round to whoever is soonest done: nobody
    starves, and a short turn does not wait for another session's long prompt.
    """
    chunks = [0] * len(pending)
    if pending:
        chunks[0] = min(pending[0], max(1, n_rows // 2))
    n_left = n_rows - sum(chunks)
    rounds = rounds or [0] * len(pending)
    for i in sorted(range(len(pending)), key=lambda i: (rounds[i], pending[i])):
        n_more = max(0, min(pending[i] - chunks[i], n_left))
        chunks[i] += n_more
        n_left -= n_more
    return chunks


class Scheduler:
    """Composes steps for the branches of one engine."""

    def __init__(
        self,
        pool: KvPool,
        tree: PrefixTree,
        config: EngineConfig,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self.pool, self.tree, self.config, self.clock = pool, tree, config, clock
        self._n_staged_of: dict[str, int] = {}  # tokens computed of each tenant that waits
        self.cost = StepCost()
        self._n_promised: int | None = None  # while a step is composed; None: to be counted

    # -- time ------------------------------------------------------------------------------------

    def observe(self, n_rows: int, elapsed_ms: float) -> None:
        """Learn from a step what its rows cost."""
        # Where rows share no steps a small one tells of Python and little of rows.
        if self.config.share_steps or n_rows >= SMALLEST_CHUNK:
            self.cost.observe(n_rows, elapsed_ms)

    def _chunk(self, limit: int) -> int:
        affordable = self.cost.rows_within(self.config.step_budget_ms)
        return limit if affordable is None else min(limit, max(SMALLEST_CHUNK, affordable))

    # -- the step --------------------------------------------------------------------------------

    def compose(self, branches: Iterable[Branch]) -> list[Task]:
        """The tasks of the next step, blocks reserved."""
        branches = sorted(branches, key=lambda b: (is_operators(b), is_batch(b), b.order))
        self._n_promised = None
        self._admit(branches)
        running = [b for b in branches if b.phase is Phase.REPLYING and not awaits_grammar(b)]
        awaited = [b for b in running if not is_batch(b)]
        sharing, n_most = self.config.share_steps, self.config.step_tokens
        # A prompt that reads the weights for nobody else is not cut finer than memory asks for:
        # who commits meanwhile waits for one such step.
        if not sharing or any(is_decoding(branch) for branch in awaited):
            n_most = self._chunk(n_most)
        tasks = self._committed(awaited, branches, n_most)
        urgent = any(task.service is Service.PREFILL for task in tasks)
        # One budget for whatever nobody waits for, of rows that committed ones have left.
        n_background = self._chunk(self.config.background_tokens)
        if not urgent or sharing:
            tasks += self._staged(branches, n_background - _n_rows(tasks))
        if not tasks or sharing:
            tasks += self._preemptive(branches, n_background - _n_rows(tasks))
        n_left = n_background - _n_rows(tasks) if tasks else self._chunk(self.config.step_tokens)
        if not tasks or (sharing and n_left > 0):
            tasks += self._committed([b for b in running if is_batch(b)], branches, n_left)
        return tasks

    def _committed(self, running: list[Branch], branches: list[Branch], n_most: int) -> list[Task]:
        """Rows for admitted replies: each in decode, then prompts as far as the step has room.

        n_most: rows; those in decode have theirs in any case.
        """
        tasks: list[Task] = []
        decoding = [branch for branch in running if is_decoding(branch)]
        turns = list[tuple[int, Branch]]()
        if len(decoding) < len(running):
            turns = [(n, b) for n, b in in_turns(running) if not is_decoding(b)]
        waiting, rounds = [b for _, b in turns], [n for n, _ in turns]
        n_left = n_most - len(decoding)
        chunks = share_out([branch.sequence.n_pending for branch in waiting], n_left, rounds)
        limits = [self.config.step_tokens] * len(decoding) + chunks
        for branch, n_rows in zip(decoding + waiting, limits, strict=True):
            reply, sequence = branch.reply, branch.sequence
            if reply is None or n_rows <= 0:
                continue
            service = Service.DECODE if is_decoding(branch) else Service.PREFILL
            extension = _extension(sequence, reply, n_rows)
            self._make_room(sequence.n_blocks_to_reserve(extension.n_rows), branches)
            sequence.reserve(extension.n_rows)
            service = Service.BATCH if reply.params.is_batch else service
            tasks.append(Task(service, branch, extension, reply))
        self._n_promised = None
        return tasks

    def _staged(self, branches: list[Branch], budget: int) -> list[Task]:
        tasks: list[Task] = []
        for branch in self._staged_in_turns(branches):
            sequence = branch.sequence
            if budget <= 0:
                break
            sequence.attach()  # somebody may have committed our prefix meanwhile
            n_known = min(sequence.n_pending, budget)
            if not self._has_spare(sequence.n_blocks_to_reserve(n_known), branches):
                continue
            sequence.reserve(n_known)
            is_read = branch.staged.is_due and branch.reads_end
            n_logits = int(is_read and n_known == sequence.n_pending)
            extension = Extension(sequence, n_known, n_logits=n_logits, is_staged=True)
            tasks.append(Task(Service.STAGED, branch, extension, None))
            budget -= n_known
            self._n_staged_of[sequence.salt] += n_known
        return tasks

    def _staged_in_turns(self, branches: list[Branch]) -> list[Branch]:
        """Open turns with words to compute: in rounds, and in each the tenant who had least so far.

        Who comes is counted as whoever had least of those that wait; who waits no more is
        forgotten. The operators' prefix is last.
        Source: start-time fair queueing (Goyal, Vin and Cheng, 1996).
        """
        pending = [b for b in branches if b.phase is Phase.OPEN and b.n_to_stage]
        tenants, known = {branch.sequence.salt for branch in pending}, self._n_staged_of
        least = min((known[tenant] for tenant in tenants & known.keys()), default=0)
        self._n_staged_of = had = {tenant: known.get(tenant, least) for tenant in tenants}
        turns = in_turns(branch for branch in pending if not is_operators(branch))
        turns.sort(key=lambda turn: (turn[0], had[turn[1].sequence.salt]))
        return [b for _, b in turns] + [b for b in pending if is_operators(b)]

    def _preemptive(self, branches: list[Branch], budget: int) -> list[Task]:
        """The shortest one goes first; each up to its bound."""
        tasks: list[Task] = []
        attempts = [(branch, branch.preemptive) for branch in branches if branch.preemptive]
        for branch, ahead in sorted(attempts, key=lambda attempt: len(attempt[1].reply.tokens)):
            if not ahead.is_active or branch.n_to_stage or budget <= 0:
                continue
            if ahead.reply.awaits_grammar():
                continue
            if len(ahead.reply.tokens) >= self.config.preemptive_tokens:
                branch.stop_preemptive()
                continue
            sequence = ahead.sequence or ahead.start(branch.sequence)
            extension = _extension(sequence, ahead.reply, budget)
            if not self._has_spare(sequence.n_blocks_to_reserve(extension.n_rows), branches):
                continue
            sequence.reserve(extension.n_rows)
            tasks.append(Task(Service.PREEMPTIVE, branch, extension, ahead.reply))
            budget -= extension.n_rows
        return tasks

    # -- memory ----------------------------------------------------------------------------------

    def _promised(self, branches: Iterable[Branch]) -> int:
        """Blocks that replies may still ask for, counted anew only where that has changed."""
        if self._n_promised is None:
            replying = (branch for branch in branches if branch.phase is Phase.REPLYING)
            self._n_promised = sum(worst_blocks(branch) for branch in replying)
        return self._n_promised

    def _has_spare(self, n_blocks: int, branches: Iterable[Branch]) -> bool:
        """Whether a lower class may take blocks without touching what is promised."""
        return self.tree.can_evict(n_blocks + self._promised(branches) - self.pool.n_free)

    def _admit(self, branches: list[Branch]) -> None:
        """Admit in turns of tenants and callers; nobody of a later one overtakes who waits for
        memory.

        Who waits moves a round ahead every `ROUND_WAIT_S`, so that newcomers' first replies do not
        keep somebody's second one waiting for ever.
        """
        if all(branch.phase is not Phase.WAITING for branch in branches):
            return
        now = self.clock()
        committed = [branch for branch in branches if branch.reply is not None]
        for is_last in (False, True):
            turns = in_turns(branch for branch in committed if is_batch(branch) is is_last)
            waiting = [turn for turn in turns if turn[1].phase is Phase.WAITING]
            waiting.sort(key=lambda turn: (_aged(turn[0], turn[1], now), turn[1].order))
            if not self._admit_all([branch for _, branch in waiting], branches):
                return

    def _admit_all(self, waiting: list[Branch], branches: list[Branch]) -> bool:
        """Whether there was room for all of them."""
        for branch in waiting:
            branch.sequence.attach()
            while not self._has_spare(worst_blocks(branch), branches):
                if not self._reclaim(branches, branch):
                    return False
            branch.admit()
            if self._n_promised is not None:
                self._n_promised += worst_blocks(branch)
        return True

    def _make_room(self, n_blocks: int, branches: list[Branch]) -> None:
        """Make room for an admitted branch; promised, so it can only be preemptible work in the
        way.
        """
        while not self.tree.can_evict(n_blocks - self.pool.n_free):
            if not self._reclaim(branches, None):
                raise OutOfMemory(
                    f"expected {n_blocks} KV blocks for admitted replies, "
                    f"found {self.pool.n_free} free"
                )

    def _reclaim(self, branches: list[Branch], wanting: Branch | None) -> bool:
        """Take back the KV of the least important holder.

        Replies made ahead, then batch replies (for others alone), then what is staged, then who
        waits.
        """
        self._n_promised = None
        for branch in reversed(branches):
            ahead = branch.preemptive
            if ahead is not None and ahead.sequence is not None and ahead.sequence.table:
                branch.yield_preemptive()
                return True
        others = [branch for branch in reversed(branches) if branch is not wanting]
        holders = list[Branch]()
        if wanting is not None and not is_batch(wanting):  # promises not yet used count too
            holders += [b for b in others if b.phase is Phase.REPLYING and is_batch(b)]
        for phase in (Phase.OPEN, Phase.WAITING):
            holders += [b for b in others if b.phase is phase and b.sequence.table]
        for branch in holders[:1]:
            branch.yield_room()
        return bool(holders)


def _n_rows(tasks: Items[Task]) -> int:
    return sum(task.extension.n_rows for task in tasks)


def _extension(sequence: Sequence, reply: Reply, budget: int) -> Extension:
    """The next rows of a reply: all its pending tokens and its proposals, or a chunk of them."""
    n_pending, proposals = sequence.n_pending, reply.proposals
    if n_pending > max(budget, 1):
        return Extension(sequence, budget, n_logits=0)
    index = len(reply.tokens)
    n_logits = 1 + len(proposals)
    return Extension(sequence, n_pending, proposals, n_logits, reply.draw, index, reply.grammar)

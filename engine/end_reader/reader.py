"""Owns the conversations whose words are read: what of each is resident, and who is due.

All that are due advance together, a bounded number of rows a step, the shortest first: a partial's
few new tokens never wait for a conversation of hundreds. What a caller's last turn left in the pool
the next one continues; blocks are never shared, and callers do not know each other.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from ..native.build import library
from ..native.rows import StepRows
from ..text.open_turn import OpenTurn
from ..text.text import Message, Text
from ..types import PromptTooLong, n_blocks_for
from .arrays import Arrays, EndHead, Shape
from .native_pass import NativePass

STEP_ROWS = 64  # some 10 ms of one core
N_BLOCKS = 1024  # 16,384 tokens: 64 MB, of which what calls need is touched
# Of a turn that goes on for minutes its end is read; what goes is cut in steps, so that what stays
# begins alike for as long.
MOST_CHARACTERS, CUT_CHARACTERS = 4000, 1000


class Judged(NamedTuple):
    """The newest words of a conversation, read."""

    branch_id: str
    stage_id: int
    n_tokens: int
    n_computed: int
    p_end_of_turn: float


@dataclass(slots=True)
class _Kept:
    """tokens[:n_resident] have their keys and values in the blocks of `table`."""

    tokens: list[int] = field(default_factory=list)
    n_resident: int = 0
    table: list[int] = field(default_factory=list)


@dataclass(slots=True)
class _Branch:
    """A conversation with its open turn; words: the newest, None once they are tokens of `kept`."""

    branch_id: str
    messages: Sequence[Message]
    kept: _Kept
    opened: OpenTurn | None = None
    words: str | None = None
    stage_id: int = 0
    n_computed: int = 0
    p_end: float | None = None  # behind the last of the tokens

    @property
    def n_pending(self) -> int:
        return len(self.kept.tokens) - self.kept.n_resident


class EndReader:
    """One model for all conversations; one thread."""

    def __init__(self, folder: Path, n_blocks: int = N_BLOCKS) -> None:
        """Raises: CheckpointError, TemplateError; NotBuilt where the C library is not to be had."""
        self.shape = Shape.read(folder)
        self.text = Text.read(folder, (self.shape.eos_id,))
        self.text.bound(self.shape.n_positions)
        self._head = EndHead(folder, self.shape.hidden)
        self.forward = NativePass(library(), Arrays(folder), self.shape, n_blocks)
        self._free = [*reversed(range(n_blocks))]
        self._branches: dict[str, _Branch] = {}
        self._due: dict[str, _Branch] = {}
        self._left = OrderedDict[str, _Kept]()  # by caller, of closed branches; the oldest goes
        self.n_rows = 0  # computed since the start

    def open(self, branch_id: str, messages: Sequence[Message]) -> None:
        """A conversation; the session stands before the first point of its id."""
        kept = self._left.pop(_caller(branch_id), None) or _Kept()
        self._branches[branch_id] = _Branch(branch_id, messages, kept)

    def stage(self, branch_id: str, stage_id: int, words: str) -> None:
        """The open turn so far. Only the newest words are read. Raises: KeyError."""
        branch = self._branches[branch_id]
        n_over = max(0, len(words) - MOST_CHARACTERS + CUT_CHARACTERS)
        branch.words = words[n_over // CUT_CHARACTERS * CUT_CHARACTERS :]
        branch.stage_id = stage_id
        self._due.setdefault(branch_id, branch)

    def close(self, branch_id: str) -> None:
        """Forget it; idempotent. Its keys and values wait for the caller's next turn."""
        branch = self._branches.pop(branch_id, None)
        self._due.pop(branch_id, None)
        if branch is None:
            return
        caller = _caller(branch_id)
        if (former := self._left.pop(caller, None)) is not None:
            self._drop(former)
        self._left[caller] = branch.kept

    def has_work(self) -> bool:
        return bool(self._due)

    def step(self) -> tuple[list[Judged], list[tuple[str, Exception]]]:
        """Advance what is due by `STEP_ROWS`; who is judged, and whose words cannot be read."""
        failed = list[tuple[str, Exception]]()
        for branch in [*self._due.values()]:
            try:
                self._settle(branch)
            except Exception as error:  # a template's, a tokenizer's: of these words alone
                self._due.pop(branch.branch_id)
                failed.append((branch.branch_id, error))
        rows, taken = StepRows(), list[tuple[_Branch, int]]()
        n_left = STEP_ROWS
        for branch in sorted(self._due.values(), key=lambda one: one.n_pending):
            n_rows = min(branch.n_pending, n_left)
            if n_rows == 0 or not self._reserve(branch, n_rows, taken):
                continue
            n_left -= n_rows
            kept = branch.kept
            is_last = n_rows == branch.n_pending
            new = kept.tokens[kept.n_resident : kept.n_resident + n_rows]
            rows.add(new, kept.n_resident, kept.table, int(is_last))
            taken.append((branch, n_rows))
        self._compute(rows, taken)
        return [*self._judged()], failed

    def _settle(self, branch: _Branch) -> None:
        """Make tokens of its newest words, and keep what of the resident ones they begin with."""
        if branch.words is None:
            return
        words, branch.words = branch.words, None
        if branch.opened is None:
            branch.opened = OpenTurn(self.text, branch.messages, (), words)
        tokens = branch.opened.before + branch.opened.behind(words)
        if len(tokens) > self.shape.n_positions:
            raise PromptTooLong(
                f"expected at most {self.shape.n_positions} tokens, found {len(tokens)}"
            )
        kept = branch.kept
        is_same = tokens == kept.tokens[: kept.n_resident] and branch.p_end is not None
        if not is_same:
            n_common = _common(kept.tokens[: kept.n_resident], tokens)
            kept.n_resident = min(n_common, len(tokens) - 1)  # the last one's state is wanted
            branch.p_end = None
        kept.tokens, branch.n_computed = tokens, 0
        self._free += reversed(kept.table[n_blocks_for(len(tokens)) :])
        del kept.table[n_blocks_for(len(tokens)) :]

    def _reserve(self, branch: _Branch, n_rows: int, taken: list[tuple[_Branch, int]]) -> bool:
        """Blocks for so many more rows, also from who needs them less; False where all are used."""
        kept = branch.kept
        n_wanted = n_blocks_for(kept.n_resident + n_rows) - len(kept.table)
        while len(self._free) < n_wanted:
            if self._left:
                self._drop(self._left.popitem(last=False)[1])
                continue
            stepping = {one.branch_id for one, _ in taken} | {branch.branch_id}
            idle = (one for one in self._branches.values() if one.branch_id not in stepping)
            longest = max(idle, key=lambda one: len(one.kept.table), default=None)
            if longest is None or not longest.kept.table:
                return False
            self._drop(longest.kept)
            longest.p_end = None
        for _ in range(n_wanted):
            kept.table.append(self._free.pop())
        return True

    def _drop(self, kept: _Kept) -> None:
        self._free += reversed(kept.table)
        kept.table, kept.n_resident = [], 0

    def _compute(self, rows: StepRows, taken: list[tuple[_Branch, int]]) -> None:
        if not taken:
            return
        probabilities = iter(self._head(self.forward.states(rows)) if rows.wanted else ())
        if not rows.wanted:
            self.forward.states(rows)
        for branch, n_rows in taken:
            branch.kept.n_resident += n_rows
            branch.n_computed += n_rows
            self.n_rows += n_rows
            if branch.n_pending == 0:
                branch.p_end = next(probabilities)

    def _judged(self) -> list[Judged]:
        judged = list[Judged]()
        for branch in [*self._due.values()]:
            if branch.n_pending == 0 and branch.p_end is not None:
                del self._due[branch.branch_id]
                n_tokens = len(branch.kept.tokens)
                judged.append(
                    Judged(branch.branch_id, branch.stage_id, n_tokens, branch.n_computed,
                           branch.p_end)
                )  # fmt: skip
        return judged


def _caller(branch_id: str) -> str:
    return branch_id.partition(".")[0]


def _common(a: Sequence[int], b: Sequence[int]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y),
                min(len(a), len(b)))  # fmt: skip

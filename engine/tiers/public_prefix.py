"""Owns how the operator's prefix gets into the pool: from its file, else computed and then kept.

What the disk takes runs on a thread, on copies; what touches the pool happens between two steps, a
few blocks at a time.
"""

import logging
from collections.abc import Callable
from concurrent.futures import Future
from enum import Enum
from threading import Thread
from typing import TypeVar

from ..branch import Branch
from ..engine import Engine
from ..kv_cache import BlockStore
from ..prefix_tree import PUBLIC
from ..types import BLOCK_TOKENS, Event, RequestError, Staged
from .prefix_file import PrefixFiles

log = logging.getLogger(__name__)

BLOCKS_AT_ONCE = 16  # copied between two steps: some 10 ms of a model of 0.6B on a CPU

T = TypeVar("T")


class Phase(Enum):
    READING = "reading"  # the file, on a thread
    PLACING = "placing"  # what was read, into the pool
    COMPUTING = "computing"  # on a branch, as the words of callers are staged
    COPYING = "copying"  # what was computed, out of the pool, to be written
    OVER = "over"


class PublicPrefix:
    """The operator's instructions and tools, shared by all tenants of one engine."""

    def __init__(
        self, engine: Engine, branch_id: str, tokens: list[int], files: PrefixFiles | None = None
    ) -> None:
        """tokens: of the prefix; whole blocks of them are shared. files: None keeps nothing."""
        n_blocks = len(tokens) // BLOCK_TOKENS
        self.tokens = tokens[: n_blocks * BLOCK_TOKENS]
        self.branch_id, self.phase = branch_id, Phase.OVER
        self.written: Future[bool] | None = None
        self._engine = engine
        is_kept = files is not None and files.takes(n_blocks * engine.pool.block_bytes)
        self._files = files if is_kept else None
        self._reading: Future[BlockStore | None] | None = None
        self._branch: Branch | None = None
        self._blocks: BlockStore | None = None  # read, or to be written
        self._n_done = 0  # blocks of those that are where they belong
        if not n_blocks or not engine.tree.is_sharing:
            return
        engine.tree.public = self.tokens
        if self._files is None:
            self._compute()
            return
        reader = self._files
        self._reading = _on_thread(lambda: reader.read(self.tokens, engine.pool))
        self.phase = Phase.READING

    def is_of(self, tokens: list[int]) -> bool:
        """Whether it is the prefix of these."""
        return self.tokens == tokens[: len(tokens) // BLOCK_TOKENS * BLOCK_TOKENS]

    @property
    def has_work(self) -> bool:
        """Whether `advance` would do anything."""
        if self.phase is Phase.READING:
            return self._reading is not None and self._reading.done()
        return self.phase in (Phase.PLACING, Phase.COPYING)

    def advance(self) -> None:
        """Do what is due between two steps of the engine."""
        if not self.has_work:
            return
        match self.phase:
            case Phase.READING:
                assert self._reading is not None
                self._blocks = self._reading.result()
                if self._blocks is None:
                    self._compute()
                else:
                    self.phase = Phase.PLACING
            case Phase.PLACING:
                self._place()
            case Phase.COPYING:
                self._copy()

    def observe(self, event: Event) -> None:
        """An event of the engine's branch of this name."""
        if isinstance(event, Staged) and self.phase is Phase.COMPUTING:
            if self._files is None:
                self.close()
                return
            self._blocks = self._engine.pool.store(self._n_blocks, is_pinned=False)
            self.phase = Phase.COPYING

    def close(self) -> None:
        """Idempotent. What is in the tree stays there."""
        self.phase, self._blocks = Phase.OVER, None
        if self._branch is not None:
            branch, self._branch = self._branch, None
            branch.close()

    @property
    def _n_blocks(self) -> int:
        return len(self.tokens) // BLOCK_TOKENS

    def _compute(self) -> None:
        self.phase = Phase.COMPUTING
        try:
            self._branch = self._engine.branch(self.branch_id, self.tokens, PUBLIC)
            self._branch.stage(self.tokens[-1:])  # its event says that all before it is resident
        except RequestError as error:
            log.warning("the operator's instructions are not computed ahead: %s", error)
            self.close()

    def _place(self) -> None:
        """Publish the next few blocks of what was read."""
        blocks, pool, tree = self._blocks, self._engine.pool, self._engine.tree
        assert blocks is not None
        first, last = self._n_done, min(self._n_done + BLOCKS_AT_ONCE, self._n_blocks)
        before = tree.match(self.tokens[: first * BLOCK_TOKENS], PUBLIC)
        if len(before) < first or not tree.can_evict(last - first - pool.n_free):
            self.close()  # callers need the room
            return
        pool.share(before)  # nothing of it makes room for the rest of it
        own = list[int]()
        try:
            for place in range(first, last):
                own.append(pool.allocate(own[-1] if own else None))
                pool.restore(blocks, place, own[-1])
            tree.publish(self.tokens[: last * BLOCK_TOKENS], [*before, *own], PUBLIC)
        finally:
            pool.release([*before, *own])
        self._n_done = last
        if last == self._n_blocks:
            self.close()

    def _copy(self) -> None:
        """Copy the next few blocks; write them when they are all there."""
        blocks, files, pool = self._blocks, self._files, self._engine.pool
        assert blocks is not None and files is not None
        table = self._engine.tree.match(self.tokens, PUBLIC)
        if len(table) < self._n_blocks:
            self.close()  # callers needed the room; another start writes it
            return
        last = min(self._n_done + BLOCKS_AT_ONCE, self._n_blocks)
        for place in range(self._n_done, last):
            pool.save(table[place], blocks, place)
        self._n_done = last
        if last == self._n_blocks:
            self.written = _on_thread(lambda: files.write(self.tokens, blocks))
            self.close()


def _on_thread(work: Callable[[], T]) -> Future[T]:
    """A thread of its own, which keeps no process from ending."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    Thread(target=run, daemon=True, name="operator's prefix").start()
    return future

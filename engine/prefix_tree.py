"""Owns the sharing of committed prefixes between requests, block by block.

A node stands for one full block of tokens after all blocks above it. Its KV lies in the pool, to
whose block the node holds one reference, or is parked in the host tier; what stands above a block
of the pool lies in the pool too. Children are found by their salt and their token ids themselves (a
hash finds the place, equality decides), so that tenants never meet and a collision cannot mix
prompts; only the operator's own prefix stands for all of them.
"""

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import takewhile

from .kv_cache import KvPool
from .tiers.host_tier import HostTier
from .types import BLOCK_TOKENS, IntegrityError, OutOfMemory

Key = tuple[str, tuple[int, ...]]  # salt and token ids

NOWHERE = -1
PUBLIC = "\0public"  # the salt of what every tenant may share; no tenant's name has a NUL
ADAPTED = "\0adapted"  # begins the salt of what an adapter computed, which is nobody else's


@dataclass(slots=True, eq=False)
class Node:
    """block: of the pool. slot: of the host tier. One of them is NOWHERE.

    is_kept: in the pool, and held by others than the tree, or a child is: `n_kept` of them are.
    """

    key: Key
    block: int
    parent: "Node | None"
    slot: int = NOWHERE
    children: "dict[Key, Node]" = field(default_factory=dict)
    is_kept: bool = False
    n_kept: int = 0

    @property
    def is_parked(self) -> bool:
        return self.slot != NOWHERE

    @property
    def is_public(self) -> bool:
        return self.key[0] == PUBLIC


class PrefixTree:
    """Committed blocks of all conversations; the least recently used make room first."""

    def __init__(self, pool: KvPool, is_sharing: bool = True, tier: HostTier | None = None) -> None:
        """is_sharing: False stores nothing, so that every prompt is computed anew.

        tier: where blocks go that make room; None: they are forgotten.
        """
        self.pool, self.is_sharing, self.tier = pool, is_sharing, tier
        self.public: list[int] = []  # the operator's prefix: whoever computes it shares it with all
        self._root = Node((PUBLIC, ()), NOWHERE, None)
        # Oldest first, and a parent always younger than its children: leaves come first. By block,
        # and by slot.
        self._by_age: OrderedDict[int, Node] = OrderedDict()
        self._parked: OrderedDict[int, Node] = OrderedDict()
        # Blocks that nobody but the tree holds, and nobody any below them.
        self.n_evictable = 0
        pool.evict, pool.on_shared = self.evict, self._on_shared

    def __len__(self) -> int:
        """Blocks of the pool."""
        return len(self._by_age)

    @property
    def n_parked(self) -> int:
        """Blocks in the host tier."""
        return len(self._parked)

    @property
    def n_restored(self) -> int:
        """Blocks that came back from there since the start."""
        return self.tier.n_restored if self.tier is not None else 0

    def match(self, tokens: Sequence[int], salt: str = "") -> list[int]:
        """Blocks of the longest prefix in the pool. The caller must take its own references."""
        path = self._walk(tokens, salt)
        self._touch(path)
        return [node.block for node in takewhile(lambda node: not node.is_parked, path)]

    def n_to_restore(self, tokens: Sequence[int], salt: str, n_resident: int) -> int:
        """Parked blocks of a prefix that lie behind the `n_resident` tokens already here."""
        if not self._parked:
            return 0
        path = self._walk(tokens, salt)
        n_parked = sum(node.is_parked for node in path)
        n_gained = len(path) * BLOCK_TOKENS - n_resident
        return n_parked if n_gained > (n_parked - 1) * BLOCK_TOKENS else 0

    def restore(self, tokens: Sequence[int], salt: str, n_most: int) -> int:
        """Bring back the first parked blocks of a prefix, up to `n_most` and as many as find room.

        Returns how many.
        """
        path = self._walk(tokens, salt)
        self._touch(path)
        held = [node.block for node in path if not node.is_parked]
        parked = [node for node in path if node.is_parked][:n_most]
        self.pool.share(held)  # what is here already makes no room for the rest of it
        n_held = len(held)
        try:
            for node in parked:
                if not node.is_parked:
                    break  # it went for good, to make room for another of the path
                held.append(self._restore(node, held[-1] if held else None))
        except OutOfMemory:
            pass  # all the rest is in use: these tokens are computed, when there is room
        finally:
            self.pool.release(held)
            self._touch(path)
        return len(held) - n_held

    def _restore(self, node: Node, after: int | None) -> int:
        """Returns the node's block, with a reference for the caller too. Raises: OutOfMemory."""
        assert self.tier is not None
        # While a block is found, what lies in the slot cannot be what goes for good.
        del self._parked[node.slot]
        try:
            block = self.pool.allocate(after)
        except OutOfMemory:
            self._parked[node.slot] = node
            raise
        self.tier.restore(node.slot, block)
        self._place(node, block)
        return block

    def _place(self, node: Node, block: int) -> None:
        """The node's KV lies in this block now; one more reference is held."""
        node.block, node.slot = block, NOWHERE
        self.pool.share([block])
        self._by_age[block] = node
        self.n_evictable += 1
        self._follow(node)

    def _touch(self, path: list[Node]) -> None:
        """Used now: the last to make room, a parent after its children."""
        for node in reversed(path):
            if node.block in self._by_age:
                self._by_age.move_to_end(node.block)
            elif node.slot in self._parked:
                self._parked.move_to_end(node.slot)

    def _walk(self, tokens: Sequence[int], salt: str) -> list[Node]:
        node, path = self._root, list[Node]()
        for start in range(0, len(tokens) - BLOCK_TOKENS + 1, BLOCK_TOKENS):
            block = tuple(tokens[start : start + BLOCK_TOKENS])
            may_share = node.is_public and not salt.startswith(ADAPTED)
            found = node.children.get((PUBLIC, block)) if may_share else None
            found = found or node.children.get((salt, block))
            if found is None:
                break
            path.append(found)
            node = found
        return path

    def publish(self, tokens: Sequence[int], blocks: Sequence[int], salt: str = "") -> None:
        """Store the full blocks of `tokens`, whose KV is `blocks`; known ones stay as they are.

        Only committed tokens may come here (I2).
        """
        if not self.is_sharing:
            return
        path = self._walk(tokens, salt)
        if not self._bring_up(path, blocks):
            return
        node = path[-1] if path else self._root
        n_public = 0 if salt.startswith(ADAPTED) else self._n_public(tokens)
        for i in range(len(path), len(tokens) // BLOCK_TOKENS):
            if blocks[i] in self._by_age or blocks[i] in self.pool.spoilt:
                break  # the block already stands elsewhere in the tree, or is of use to nobody
            block_tokens = tuple(tokens[i * BLOCK_TOKENS : (i + 1) * BLOCK_TOKENS])
            # Below a tenant's own block all is the tenant's: nobody else finds the way there.
            key = PUBLIC if node.is_public and i < n_public else salt, block_tokens
            child = Node(key, NOWHERE, node)
            self._place(child, blocks[i])
            node.children[key] = child
            path.append(child)
            node = child
        self._touch(path)

    def _bring_up(self, path: list[Node], blocks: Sequence[int]) -> bool:
        """Have parked nodes take blocks that were computed again; returns whether all could."""
        for node, block in zip(path, blocks, strict=False):
            if not node.is_parked:
                continue
            if block in self._by_age or self.tier is None:
                return False
            del self._parked[node.slot]
            self.tier.forget(node.slot)
            self._place(node, block)
        return True

    def _n_public(self, tokens: Sequence[int]) -> int:
        """Count the blocks of `tokens` that are the operator's."""
        n = 0
        while (n + 1) * BLOCK_TOKENS <= min(len(tokens), len(self.public)):
            own = slice(n * BLOCK_TOKENS, (n + 1) * BLOCK_TOKENS)
            if list(tokens[own]) != self.public[own]:
                break
            n += 1
        return n

    def _follow(self, node: Node) -> None:
        """Keep `n_evictable` up to date where a node, or one below it, has changed."""
        while node.parent is not None and not node.is_parked:
            is_kept = self.pool.refs[node.block] > 1 or node.n_kept > 0
            if is_kept == node.is_kept:
                return
            node.is_kept = is_kept
            self.n_evictable -= 1 if is_kept else -1
            node.parent.n_kept += 1 if is_kept else -1
            node = node.parent

    def _on_shared(self, block: int) -> None:
        if (node := self._by_age.get(block)) is not None:
            self._follow(node)

    def can_evict(self, n_blocks: int) -> bool:
        """Whether `evict` could give back that many."""
        return n_blocks <= self.n_evictable

    def evict(self, n_blocks: int) -> int:
        """Give back up to `n_blocks` of the pool, oldest first, the operator's prefix last.

        What is in use, or to be spared, is met once and counts as used now. Returns how many.
        """
        n_given = 0
        for spares_public in (True, False):
            for _ in range(len(self._by_age)):
                if n_given == n_blocks or not self.n_evictable:
                    return n_given
                node = next(iter(self._by_age.values()))
                if node.is_kept or (spares_public and node.is_public):
                    self._touch(_path_to(node))
                else:
                    self._leave_pool(node)
                    n_given += 1
        return n_given

    def _leave_pool(self, node: Node) -> None:
        """Into the host tier, if there is room; else for good."""
        if self.tier is not None and not self.tier.n_free:
            self._forget_parked(self.tier)
        block, node.block = node.block, NOWHERE
        del self._by_age[block]
        self.n_evictable -= 1
        if self.tier is not None and self.tier.n_free:
            node.slot = self.tier.save(block)
            self._parked[node.slot] = node
        else:
            self._cut(node)
        self.pool.release([block])

    def _forget_parked(self, tier: HostTier) -> None:
        """The oldest parked block goes for good, the operator's last."""
        public = next(iter(self._parked.values()), None)
        node = next((node for node in self._parked.values() if not node.is_public), public)
        if node is not None:  # the only slot may be that of the block which is coming back
            del self._parked[node.slot]
            tier.forget(node.slot)
            node.slot = NOWHERE
            self._cut(node)

    def forget(self, blocks: Iterable[int]) -> None:
        """Share these, and all that was computed behind them, with nobody more."""
        for block in blocks:
            if block in self._by_age:
                self._forget(self._by_age[block])

    def _forget(self, node: Node) -> None:
        for child in list(node.children.values()):
            self._forget(child)
        if not node.is_parked:
            del self._by_age[node.block]
            self.n_evictable -= not node.is_kept
            if node.parent is not None:
                node.parent.n_kept -= node.is_kept
                self._follow(node.parent)
            self.pool.release([node.block])
        elif self.tier is not None:
            del self._parked[node.slot]
            self.tier.forget(node.slot)
        self._cut(node)

    def _cut(self, node: Node) -> None:
        if node.children or node.parent is None:
            raise IntegrityError("expected a leaf to forget, found a block inside")
        del node.parent.children[node.key]

    def held(self) -> Iterator[int]:
        """Every reference the tree holds."""
        return iter(self._by_age)

    def check_integrity(self) -> None:
        """Raises: IntegrityError."""
        for place, node in (*self._by_age.items(), *self._parked.items()):
            parent = node.parent
            if parent is None or parent.children.get(node.key) is not node:
                raise IntegrityError(f"expected block {place} under its parent, found it cut")
            if len(node.key[1]) != BLOCK_TOKENS:
                raise IntegrityError(
                    f"expected {BLOCK_TOKENS} tokens in block {place}, found {len(node.key[1])}"
                )
            if parent.is_parked and not node.is_parked:
                raise IntegrityError(f"expected block {place} below the pool's, found it above")
            n_kept = sum(child.is_kept for child in node.children.values())
            is_kept = not node.is_parked and (self.pool.refs[place] > 1 or n_kept > 0)
            if (node.n_kept, node.is_kept) != (n_kept, is_kept):
                raise IntegrityError(f"expected block {place} kept as it is used, found it not")
            if place != (node.slot if node.is_parked else node.block):
                raise IntegrityError(f"expected block {place} where it is filed, found it moved")
        n_evictable = sum(not node.is_kept for node in self._by_age.values())
        if n_evictable != self.n_evictable:
            raise IntegrityError(f"expected {n_evictable} to evict, found {self.n_evictable}")
        if self.tier is not None and self.n_parked + self.tier.n_free != self.tier.n_slots:
            raise IntegrityError(
                f"expected {self.tier.n_slots} slots of the host tier, "
                f"found {self.n_parked + self.tier.n_free}"
            )


def _path_to(node: Node) -> list[Node]:
    """Return the node and all above it, from the top."""
    path = list[Node]()
    while node.parent is not None:
        path.append(node)
        node = node.parent
    return path[::-1]

"""Owns the sharing of committed prefixes between requests, block by block.

A node stands for one full block of tokens after all blocks above it; it holds one reference to the
KV block. Every salt has a root of its own, so tenants never meet. Children are found by their
token ids themselves (a hash finds the place, equality decides), so a collision cannot mix prompts.
"""

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice

from .kv_cache import KvPool
from .types import BLOCK_TOKENS, IntegrityError

Tokens = tuple[int, ...]


@dataclass(slots=True, eq=False)
class Node:
    tokens: Tokens
    block: int
    parent: "Node | None"
    children: dict[Tokens, "Node"] = field(default_factory=dict)


class PrefixTree:
    """Committed blocks of all conversations; the least recently used are given back first."""

    def __init__(self, pool: KvPool, is_sharing: bool = True) -> None:
        """is_sharing: False stores nothing, so that every prompt is computed anew."""
        self.pool, self.is_sharing = pool, is_sharing
        self._roots: dict[str, Node] = {}
        # Oldest first, and a parent always younger than its children: leaves come first.
        self._by_age: OrderedDict[int, Node] = OrderedDict()
        pool.evict = self.evict

    def __len__(self) -> int:
        return len(self._by_age)

    def match(self, tokens: Sequence[int], salt: str = "") -> list[int]:
        """Blocks of the longest stored prefix. The caller must take its own references."""
        path = self._walk(tokens, salt)
        for node in reversed(path):
            self._by_age.move_to_end(node.block)
        return [node.block for node in path]

    def _walk(self, tokens: Sequence[int], salt: str) -> list[Node]:
        node, path = self._roots.get(salt), []
        for start in range(0, len(tokens) - BLOCK_TOKENS + 1, BLOCK_TOKENS):
            if node is None:
                break
            node = node.children.get(tuple(tokens[start : start + BLOCK_TOKENS]))
            if node is not None:
                path.append(node)
        return path

    def publish(self, tokens: Sequence[int], blocks: Sequence[int], salt: str = "") -> None:
        """Store the full blocks of `tokens`, whose KV is `blocks`; known ones stay as they are.

        Only committed tokens may come here (I2).
        """
        if not self.is_sharing:
            return
        path = self._walk(tokens, salt)
        if salt not in self._roots:
            self._roots[salt] = Node((), -1, None)
        node = path[-1] if path else self._roots[salt]
        for i in range(len(path), len(tokens) // BLOCK_TOKENS):
            if blocks[i] in self._by_age:
                break  # the block already stands elsewhere in the tree
            key = tuple(tokens[i * BLOCK_TOKENS : (i + 1) * BLOCK_TOKENS])
            child = Node(key, blocks[i], node)
            self.pool.share([blocks[i]])
            node.children[key] = child
            self._by_age[blocks[i]] = child
            path.append(child)
            node = child
        for node in reversed(path):
            self._by_age.move_to_end(node.block)

    def _evictable(self) -> Iterator[Node]:
        """Oldest first: nodes that nobody but the tree holds, after all their children."""
        kept: set[int] = set()
        for block, node in self._by_age.items():
            if self.pool.refs[block] == 1 and block not in kept:
                yield node
            elif node.parent is not None:
                kept.add(node.parent.block)

    def can_evict(self, n_blocks: int) -> bool:
        """Whether `evict` could give back that many; looks no further than it must."""
        return sum(1 for _ in islice(self._evictable(), max(n_blocks, 0))) >= n_blocks

    def evict(self, n_blocks: int) -> int:
        """Give back up to `n_blocks`, oldest first; returns how many."""
        victims = list(islice(self._evictable(), n_blocks))
        for node in victims:
            self._drop(node)
        return len(victims)

    def _drop(self, node: Node) -> None:
        if node.children or node.parent is None:
            raise IntegrityError(f"expected a leaf to evict, found block {node.block} inside")
        del node.parent.children[node.tokens]
        del self._by_age[node.block]
        self.pool.release([node.block])

    def held(self) -> Iterator[int]:
        """Every reference the tree holds."""
        return iter(self._by_age)

    def check_integrity(self) -> None:
        """Raises: IntegrityError."""
        for node in self._by_age.values():
            parent = node.parent
            if parent is None or parent.children.get(node.tokens) is not node:
                raise IntegrityError(f"expected block {node.block} under its parent, found it cut")
            if len(node.tokens) != BLOCK_TOKENS:
                raise IntegrityError(
                    f"expected {BLOCK_TOKENS} tokens in block {node.block}, "
                    f"found {len(node.tokens)}"
                )

"""Which of several workers takes a new stream. Pure.

A language model keeps what it has read: callers of one agent go to the worker that has read that
agent's prompt, by rendezvous hashing, unless it has a quarter more than its share already; a call
stays where it began. Recognizers and voices keep nothing between streams: of two drawn at random
the one that is less behind.

Sources: Thaler and Ravishankar, Using name-based mappings to increase hit rates (1998); Mirrokni,
Thorup and Zadimoghaddam, Consistent hashing with bounded loads, arXiv:1608.01350; Mitzenmacher,
The power of two choices in randomized load balancing (2001).
"""

from __future__ import annotations

import hashlib
import math
import random
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

LOAD_BOUND = 1.25
MOST_PINS = 10_000  # calls that are remembered; the oldest is chosen for anew


@dataclass(frozen=True, slots=True)
class Member:
    """A worker that takes new streams. oldest_s: what waits longest for an answer of it."""

    name: str
    n_streams: int = 0
    oldest_s: float = 0.0


def by_prompt(prompt: bytes, members: Sequence[Member]) -> Member:
    """The worker of this prompt, or the next in its order that has room; members: not empty."""
    share = (sum(member.n_streams for member in members) + 1) / len(members)
    most = math.ceil(LOAD_BOUND * share)
    in_order = sorted(members, key=lambda member: _weight(prompt, member.name), reverse=True)
    return next((one for one in in_order if one.n_streams < most), in_order[0])


def _weight(prompt: bytes, name: str) -> bytes:
    return hashlib.blake2b(prompt, digest_size=16, key=name.encode()[:64]).digest()


def less_behind(members: Sequence[Member], draw: random.Random) -> Member:
    """Of two at random the one that answers sooner; members: not empty."""
    two = draw.sample(members, 2) if len(members) > 1 else members
    return min(two, key=lambda member: (member.oldest_s, member.n_streams))


class Pins:
    """Where each call's conversation lies."""

    def __init__(self) -> None:
        self._of_call: OrderedDict[str, str] = OrderedDict()

    def choose(self, call: str, prompt: bytes, members: Sequence[Member]) -> Member:
        """The worker the call began at, while it takes streams; else one for its prompt."""
        pinned = self._of_call.get(call)
        chosen = next((member for member in members if member.name == pinned), None)
        if chosen is None:
            chosen = by_prompt(prompt, members)
            self._of_call[call] = chosen.name
        self._of_call.move_to_end(call)
        while len(self._of_call) > MOST_PINS:
            self._of_call.popitem(last=False)
        return chosen

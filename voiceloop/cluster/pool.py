"""The choice among several workers for a new stream. Pure.

A language model keeps what it has read: callers of one agent go to the worker that has read that
agent's prompt, by rendezvous hashing, unless it has so much more than its share already that with
what others send there meanwhile it would have a quarter; a call stays where it began. Recognizers
and voices keep nothing between streams: of two drawn at random the one that is less behind. Where
workers of several versions are there, each call has one of them, by the shares that new calls are
given in, and stays with it while it has a worker.

Sources: Thaler and Ravishankar, Using name-based mappings to increase hit rates (1998); Mirrokni,
Thorup and Zadimoghaddam, Consistent hashing with bounded loads, arXiv:1608.01350; Mitzenmacher,
The power of two choices in randomized load balancing (2001).
"""

from __future__ import annotations

import hashlib
import math
import random
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

LOAD_BOUND = 1.25  # of its share, what a worker has at most, of calls that are placed one by one
# Where one is passed over. A worker tells four times a second how many it has: what other gateways
# send there meanwhile, two calls of 67 at a dozen new ones a second, is to fit in below the bound.
FULL_AT = 1.2
MOST_PINS = 10_000  # calls that are remembered; the oldest is chosen for anew


@dataclass(frozen=True, slots=True)
class Member:
    """A worker that takes new streams.

    n_held: calls whose conversation it has, streams of one that keeps nothing between them.
    oldest_s: what waits longest for an answer of it. version: as it was labelled at its start.
    """

    name: str
    n_held: int = 0
    oldest_s: float = 0.0
    version: str = ""


Choose = Callable[[Sequence[Member]], Member]  # of members that are all alike; not empty


def by_prompt(prompt: bytes, members: Sequence[Member]) -> Member:
    """The worker of this prompt, or the next in its order that has room; members: not empty."""
    share = (sum(member.n_held for member in members) + 1) / len(members)
    most = max(math.ceil(share), math.floor(FULL_AT * share))
    in_order = sorted(members, key=lambda member: _weight(prompt, member.name), reverse=True)
    return next((one for one in in_order if one.n_held < most), in_order[0])


def _weight(prompt: bytes, name: str) -> bytes:
    return hashlib.blake2b(prompt, digest_size=16, key=name.encode()[:64]).digest()


def less_behind(members: Sequence[Member], draw: random.Random) -> Member:
    """Return of two at random the one that answers sooner; members: not empty."""
    two = draw.sample(members, 2) if len(members) > 1 else members
    return min(two, key=lambda member: (member.oldest_s, member.n_held))


def version_of(call: str, shares: Mapping[str, float]) -> str | None:
    """The version that a new call is given, the same wherever it is asked; None: any.

    shares: of new calls, by version; they need not sum to 1.
    """
    total = sum(shares.values())
    if total <= 0:
        return None
    digest = hashlib.blake2b(call.encode(errors="replace"), digest_size=8).digest()
    left = total * int.from_bytes(digest, "big") / 2**64
    # The smallest first: a call that has the canary of one role has that of another role too.
    for version in sorted(shares, key=lambda version: (shares[version], version)):
        left -= shares[version]
        if left < 0:
            return version
    return max(version for version in shares if shares[version] > 0)


def shares_beside(
    tried: Collection[str], share: float, others: Mapping[str, int]
) -> dict[str, float]:
    """Shares of new calls: this to the versions that are tried, the rest to the others.

    others: not empty; how many workers each of them has, which is what it gets a share for.
    """
    share = share if tried else 0.0
    found = {version: (1.0 - share) * n / sum(others.values()) for version, n in others.items()}
    found |= {version: share / len(tried) for version in tried}
    return {version: round(found[version], 4) for version in sorted(found)}


def _has_room(
    alike: Sequence[Member], members: Sequence[Member], shares: Mapping[str, float]
) -> bool:
    """Whether workers of one version have no more than a quarter over their share of all streams.

    alike: not empty. Their share is what new calls are given in, or their number, where that is
    more.
    """
    among = len(alike) / len(members)
    if (total := sum(shares.values())) > 0:
        among = max(among, shares.get(alike[0].version, 0.0) / total)
    n_all = sum(member.n_held for member in members) + 1
    return sum(member.n_held for member in alike) < math.ceil(LOAD_BOUND * among * n_all)


@dataclass(frozen=True, slots=True)
class Pin:
    """The worker of a call's last stream."""

    name: str
    version: str


class Pins:
    """The worker that holds each call's conversation, and its version.

    tried: versions whose calls are compared with the others': these keep them whatever comes.
    """

    def __init__(self) -> None:
        self._of_call: OrderedDict[str, Pin] = OrderedDict()

    def of(self, call: str) -> Pin | None:
        """Return where it was last; None where that is not known."""
        return self._of_call.get(call)

    def choose(
        self,
        call: str,
        members: Sequence[Member],
        shares: Mapping[str, float],
        choose: Choose,
        tried: Collection[str] = (),
        *,
        stays: bool,
    ) -> Member:
        """A worker of the call's version; stays: the one it had, while that takes streams."""
        pin = self._of_call.get(call)
        own = [one for one in members if stays and pin is not None and one.name == pin.name]
        chosen = choose(own or self._alike(call, members, shares, tried))
        self._of_call[call] = Pin(chosen.name, chosen.version)
        self._of_call.move_to_end(call)
        while len(self._of_call) > MOST_PINS:
            self._of_call.popitem(last=False)
        return chosen

    def _alike(
        self,
        call: str,
        members: Sequence[Member],
        shares: Mapping[str, float],
        tried: Collection[str],
    ) -> Sequence[Member]:
        """Return the workers of the call's version; others where it has none any more, or its
        worker is gone and those that are left are full.
        """
        pin = self._of_call.get(call)
        alike = [one for one in members if pin is not None and one.version == pin.version]
        if pin is not None and alike:
            others = [one for one in members if one.version not in (pin.version, *tried)]
            has_its_own = any(one.name == pin.name for one in alike)
            keeps = not others or has_its_own or pin.version in tried
            return alike if keeps or _has_room(alike, members, shares) else others
        version = version_of(call, shares)
        return [member for member in members if member.version == version] or members

"""Site ids: what a page shows whose visitors may call without a server of the page's own.

A key signs which pages may show the id and what their visitors may do; nobody can change it, and
everybody may read it. The server hands each visitor a client secret for it, so many an hour and
network. Pure: the clock is passed in.
"""

from __future__ import annotations

import zlib
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import msgspec

from voiceloop.access import signing
from voiceloop.admission.allowance import HOUR_S
from voiceloop.admission.bucket import Bucket
from voiceloop.errors import InvalidRequest, RateLimited, Unauthorized

PREFIX = "site_"
MAX_CHARACTERS = 8192  # it stands in an HTML attribute
MAX_BYTES = 64 * 1024  # unpacked: its session has been accepted in a body of 512 KiB at most
MAX_NETWORKS = 10_000  # counted at once; the one that was longest away is forgotten


class Site(msgspec.Struct, frozen=True, array_like=True):
    """origins: of the pages that may show the id. session: of their visitors' calls, each of at
    most max_session_s; calls_per_hour: of one network.
    """

    origins: tuple[str, ...]
    session: dict[str, Any]
    max_session_s: int
    calls_per_hour: int


def pack(site: Site) -> bytes:
    """Return what is signed. Raises: InvalidRequest: it is longer than an id may be."""
    plain = msgspec.msgpack.encode(site)
    body = zlib.compress(plain, 9)
    if len(plain) > MAX_BYTES or len(body) > MAX_CHARACTERS * 5 // 8:
        raise InvalidRequest(
            f"expected a session that fits a site id of {MAX_CHARACTERS} characters, found more",
            param="session",
        )
    return body


def read(value: str) -> tuple[bytes, bytes]:
    """Return what was signed, and its signature. Raises: Unauthorized."""
    try:
        return signing.read(PREFIX, value, MAX_CHARACTERS)
    except ValueError:
        raise Unauthorized("Invalid site id. Copy the whole of it.") from None


def unpack(body: bytes) -> Site:
    """Return the fields of a body whose signature holds. Raises: Unauthorized: it is no site all
    the same.
    """
    try:
        return msgspec.msgpack.decode(signing.unpacked(body, MAX_BYTES), type=Site)
    except (ValueError, msgspec.DecodeError):
        raise Unauthorized("Invalid site id. Copy the whole of it.") from None


class Visitors:
    """How many calls each network has begun of late, for each site."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._buckets: OrderedDict[tuple[bytes, str], Bucket] = OrderedDict()

    def admit(self, mac: bytes, network: str, calls_per_hour: int) -> None:
        """One more of this network's. mac: of the site's id. Raises: RateLimited."""
        bucket = self._buckets.pop((mac, network), None)
        if bucket is None:
            bucket = Bucket(calls_per_hour, calls_per_hour / HOUR_S, self._clock)
        self._buckets[mac, network] = bucket
        while len(self._buckets) > MAX_NETWORKS:
            self._buckets.popitem(last=False)
        if not bucket.has(1.0):
            raise RateLimited(
                f"expected at most {calls_per_hour} calls an hour from one address, found more",
                code="quota_exceeded",
            )
        bucket.take()

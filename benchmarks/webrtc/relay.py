"""A bad line: UDP that is lost, late and out of order, the same at every run of a seed.

A peer that sends to the relay's port reaches the target, and its answers take the same way back.
"""

from __future__ import annotations

import asyncio
import random
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial

Address = tuple[str, int]
MAX_PEERS = 64
DIRECTIONS = ("up", "down")  # to the target, from it


@dataclass(frozen=True, slots=True)
class Impairment:
    """loss: a datagram's chance, 0 to 1. Each is late by delay_ms to delay_ms + jitter_ms, drawn
    for itself: with a jitter above the packets' spacing they overtake one another.
    """

    loss: float = 0.0
    delay_ms: float = 0.0
    jitter_ms: float = 0.0


class Relay:
    """impairment: of datagrams from now on; on_datagram: told of each that comes out of the line,
    with its direction. The draws of each direction are its own.
    """

    def __init__(
        self,
        target: Address,
        impairment: Impairment,
        seed: int,
        on_datagram: Callable[[str, bytes], None] = lambda direction, data: None,
    ) -> None:
        self.impairment = impairment
        self.n_lost = dict.fromkeys(DIRECTIONS, 0)
        self._target = target
        self._on_datagram = on_datagram
        self._draws = {one: random.Random(f"{seed} {one}") for one in DIRECTIONS}
        self._loop = asyncio.get_running_loop()
        self._front = _socket()
        self._front.bind(("127.0.0.1", 0))
        self._backs: dict[Address, socket.socket] = {}
        self._loop.add_reader(self._front, self._from_peers)

    @property
    def port(self) -> int:
        port: int = self._front.getsockname()[1]
        return port

    def close(self) -> None:
        for one in [self._front, *self._backs.values()]:
            self._loop.remove_reader(one)
            one.close()
        self._backs.clear()

    def _from_peers(self) -> None:
        for data, peer in _waiting(self._front):
            back = self._backs.get(peer)
            if back is None:
                if len(self._backs) == MAX_PEERS:
                    continue
                back = self._backs[peer] = _socket()
                back.connect(self._target)
                self._loop.add_reader(back, self._to_peer, back, peer)
            self._pass("up", data, partial(_send, back))

    def _to_peer(self, back: socket.socket, peer: Address) -> None:
        for data, _ in _waiting(back):
            self._pass("down", data, partial(_send, self._front, peer=peer))

    def _pass(self, direction: str, data: bytes, send: Callable[[bytes], None]) -> None:
        draws, line = self._draws[direction], self.impairment
        lost, late = draws.random() < line.loss, draws.random()  # both drawn for each: one sequence
        if lost:
            self.n_lost[direction] += 1
            return

        def arrive() -> None:
            self._on_datagram(direction, data)
            send(data)

        delay_s = (line.delay_ms + late * line.jitter_ms) / 1000.0
        if delay_s > 0.0:
            self._loop.call_later(delay_s, arrive)
        else:
            arrive()


def _socket() -> socket.socket:
    made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    made.setblocking(False)
    return made


def _waiting(one: socket.socket) -> Iterator[tuple[bytes, Address]]:
    """What has come; a datagram that found nobody is told as an error, and passed over."""
    while True:
        try:
            yield one.recvfrom(65_536)
        except ConnectionRefusedError:
            continue
        except OSError:
            return  # nothing more, or it was closed meanwhile


def _send(one: socket.socket, data: bytes, *, peer: Address | None = None) -> None:
    with suppress(OSError):  # it was closed, or its buffer is full: as good as lost
        one.send(data) if peer is None else one.sendto(data, peer)


@asynccontextmanager
async def relaying(
    target: Address,
    impairment: Impairment,
    seed: int,
    on_datagram: Callable[[str, bytes], None] = lambda direction, data: None,
) -> AsyncIterator[Relay]:
    """A relay for as long as it lasts."""
    relay = Relay(target, impairment, seed, on_datagram)
    try:
        yield relay
    finally:
        relay.close()


def is_sound(data: bytes) -> bool:
    """Whether a datagram of a WebRTC line is a packet of sound: RTP, not RTCP. Source: RFC 7983."""
    return len(data) > 12 and 128 <= data[0] <= 191 and not 192 <= data[1] <= 223


def now_s() -> float:
    """The clock of every time here."""
    return time.monotonic()

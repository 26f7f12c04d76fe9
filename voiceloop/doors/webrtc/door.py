"""The WebRTC door: an offer in, an answer out, and the call that follows.

Owns the UDP port and the certificate of the process, and each call from its answer to the moment
that its place and its share of the quota come back. What needs the extra `webrtc` is imported with
the first offer.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from starlette.requests import Request

from voiceloop.access.keys import Entry
from voiceloop.doors.calls import Calls
from voiceloop.doors.entrance import Server, check_session, hello_of, let_in, returns_of
from voiceloop.doors.line import Line
from voiceloop.doors.webrtc.offer import Offer, parse_offer
from voiceloop.errors import ConfigError, InternalError, MissingExtra
from voiceloop.realtime.settings import Json

if TYPE_CHECKING:
    from aiortc.rtcdtlstransport import RTCCertificate

    from voiceloop.doors.webrtc.mux import Mux
    from voiceloop.doors.webrtc.peer import Peer

log = logging.getLogger(__name__)

# From the answer to a peer that is there. Browsers give up after 15 s; whoever has not been heard
# by then has no way to us, and holds a place.
CONNECT_S = 10.0
# A peer that is no nearer than this gives way to another caller where all places are taken, as a
# WebSocket does on which nothing is said.
GIVES_WAY_S = 1.0


class WebRtcDoor:
    """The WebRTC door of one gateway."""

    def __init__(self, server: Server, calls: Calls) -> None:
        self._server = server
        self._calls = calls
        self._mux: Mux | None = None
        self._certificate: RTCCertificate | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._awaited: dict[asyncio.Task[None], float] = {}  # whose peers are not there; since when

    def prepare(self) -> None:
        """Do ahead, beside the event loop, what the first offer would hold all calls for."""
        with suppress(MissingExtra):
            _import_aiortc()

    async def answer(
        self, request: Request, entry: Entry, sdp: str, session: Json
    ) -> tuple[str, str]:
        """Let the caller of an offer in; returns the call's id and the answer.

        session: what the caller wants changed of it. Raises: MissingExtra, InvalidRequest,
        Overloaded, RateLimited, InternalError.
        """
        offer = parse_offer(sdp)
        _import_aiortc()
        async with AsyncExitStack() as stack:
            asked = replace(hello_of(request, entry, "webrtc"), asked=session)
            hello = await stack.enter_async_context(
                let_in(self._server, asked, asyncio.sleep, returns_of(request))
            )
            check_session(self._server, hello)
            line = Line(hello, asyncio.get_running_loop().time)
            try:
                peer, told = await self._peer(offer, line)
            except ConfigError as error:
                log.error("no call over WebRTC: %s", error.message)
                raise InternalError("No UDP port is free for the call.") from None
            line.far = peer
            stack.push_async_callback(peer.close)
            call_id = self._calls.add(line)
            stack.callback(self._calls.drop, call_id)
            task = asyncio.create_task(self._run(line, peer, stack.pop_all()), name=call_id)
        self._tasks.add(task)
        self._awaited[task] = asyncio.get_running_loop().time()
        task.add_done_callback(self._forget)
        return call_id, told

    def giving_way(self) -> Callable[[], None] | None:
        """Return what gives up the peer that is longest overdue, for another caller; None: none
        is.
        """
        now_s = asyncio.get_running_loop().time()
        overdue = (task for task, at_s in self._awaited.items() if now_s - at_s > GIVES_WAY_S)
        task = next(overdue, None)
        return None if task is None else partial(self._give_up, task)

    def _give_up(self, task: asyncio.Task[None]) -> None:
        del self._awaited[task]
        task.cancel()

    def _forget(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._awaited.pop(task, None)

    def close(self) -> None:
        """Give the port back; calls are over by then."""
        if self._mux is not None:
            self._mux.close()
            self._mux = None

    async def _peer(self, offer: Offer, line: Line) -> tuple[Peer, str]:
        """A peer of this offer, and our answer. Raises: ConfigError: there is no port for it."""
        from aiortc.rtcdtlstransport import RTCCertificate

        from voiceloop.doors.webrtc.mux import ANY, Mux
        from voiceloop.doors.webrtc.peer import Peer

        if self._mux is None:
            self._mux = Mux(asyncio.get_running_loop().time)
            self._certificate = RTCCertificate.generateCertificate()
        config = self._server.config
        # Who says where browsers reach it is not reached at the host of a proxy beside it.
        host = ANY[0] if config.webrtc.address else config.host
        await self._mux.open(host, config.webrtc.port)
        candidates = self._mux.candidates(config.webrtc.address)
        peer = Peer(offer, self._mux, self._certificate, line)
        return peer, peer.answer(candidates)

    async def _run(self, line: Line, peer: Peer, stack: AsyncExitStack) -> None:
        """One call; a bug in it ends no other."""
        async with stack:
            try:
                async with asyncio.timeout(CONNECT_S) as deadline:
                    line.on_end = lambda: deadline.reschedule(0.0)  # hung up before it was there
                    try:
                        await peer.connect()
                    finally:
                        line.on_end = lambda: None
            except (TimeoutError, ConnectionError):
                self._server.metrics.refused.labels(code="webrtc_not_connected").inc()
                log.info("a WebRTC peer was not there within %g s of its answer", CONNECT_S)
                return
            except Exception:
                log.exception("a WebRTC peer could not be connected")
                return
            task = asyncio.current_task()
            assert task is not None
            self._awaited.pop(task, None)
            if self._server.admission.is_draining:  # nobody would tell the call that it is to end
                return
            await self._server.serve_session(line)


def _import_aiortc() -> None:
    """Raises: MissingExtra."""
    from audio.opus import is_available

    try:
        import voiceloop.doors.webrtc.peer  # noqa: F401
    except ImportError as error:
        log.info("browsers call over a WebSocket: WebRTC wants voiceloop[webrtc] (%s)", error)
    else:
        if is_available():
            return
    raise MissingExtra("WebRTC needs packages that are missing: pip install 'voiceloop[webrtc]'")

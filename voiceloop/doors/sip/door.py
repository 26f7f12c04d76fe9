"""The SIP door: who may call, and each call from its INVITE to the moment that all is given back.

Owns the order in which a call is refused: before a model, a place or a port is touched. What needs
the extra `sip` is imported where the server has a port for it.

Source: RFC 3261, 8.2 and 11; RFC 3515 (REFER); RFC 3891 (Replaces).
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any
from urllib.parse import unquote

from aiosipua.headers import parse_address, parse_uri, stringify_uri
from aiosipua.message import SipRequest, SipResponse

from voiceloop.access.origins import is_loopback
from voiceloop.admission.bucket import Bucket
from voiceloop.admission.places import retry_after
from voiceloop.call.connection import Hello
from voiceloop.doors.calls import Calls
from voiceloop.doors.entrance import Server
from voiceloop.doors.line import Line
from voiceloop.doors.phone import admitted, hello_of_call
from voiceloop.doors.rtp.codecs import codecs_here
from voiceloop.doors.sip.description import offer, parse
from voiceloop.doors.sip.dialog import SDP, DialFailed, SipDialog, dial
from voiceloop.doors.sip.digest import Challenges, is_among
from voiceloop.doors.sip.endpoint import (
    METHODS,
    Endpoint,
    Flow,
    response_to,
)
from voiceloop.doors.sip.leg import LEAST_SESSION_S, Leg, LegState, SessionTimer
from voiceloop.doors.sip.media import Media, Ports
from voiceloop.doors.sip.trunk import Trunk
from voiceloop.errors import (
    CallRejected,
    InvalidRequest,
    NotAnswered,
    Overloaded,
    RateLimited,
    TransferFailed,
    VoiceLoopError,
)
from voiceloop.phone_settings import is_within
from voiceloop.telephony import Announcement, PhoneCall

log = logging.getLogger(__name__)

# New calls of all exchanges together. A flood is refused at some 0.3 ms each, and begins nothing.
INVITES_PER_S, INVITES_AT_ONCE = 30.0, 60.0
MAX_KNOWN = 1024  # hosts that have proved a password
# From our answer to its ACK. The answer is repeated for three times as long, but without a place.
CONFIRMED_S = 10.0
RING_S = 60.0  # a call that goes out; as long as a telephone rings
KEPT_S = 32.0  # an ended call, for what is still on its way (RFC 3261: 64 times T1)
UNDERSTOOD = {"timer"}


def listening_host(host: str, address: str) -> str:
    """The server's own. At loopback, where a proxy beside it is, no telephone reaches the address
    that it is told (``sip.address``; empty: none is): then every one of its family.
    """
    if not address or not is_loopback(host):
        return host
    return "::" if ":" in address else "0.0.0.0"


class SipDoor:
    """The SIP door of one gateway."""

    def __init__(self, server: Server, calls: Calls) -> None:
        self._server = server
        self._calls = calls
        self._config = server.config.sip
        loop = asyncio.get_running_loop()
        host = listening_host(server.config.host, self._config.address)
        self._endpoint = Endpoint(self._config.address, self)
        self._ports = Ports(host)
        self._codecs = codecs_here()
        users = dict(one.split(":", 1) for one in self._config.users)
        self._challenges = Challenges(users, loop.time)
        self._invites = Bucket(INVITES_AT_ONCE, INVITES_PER_S, loop.time)
        self._proved: dict[str, None] = {}
        self._legs: dict[str, Leg] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._host = host
        trunk = self._config.trunk
        self._trunk = Trunk(self._endpoint, trunk) if trunk.uri else None

    async def open(self) -> None:
        """Raises: ConfigError: the port is taken."""
        await self._endpoint.open(self._host, self._config.port)
        if self._trunk is not None and self._config.trunk.register:
            self._trunk.register()

    def close(self) -> None:
        """Give the port back; calls are over by then."""
        self._endpoint.close()

    @property
    def port(self) -> int:
        return self._endpoint.port

    # --- messages ---

    def is_known(self, host: str) -> bool:
        return host in self._proved or self._is_allowed(host)

    def _is_allowed(self, host: str) -> bool:
        is_trunk = self._trunk is not None and host == self._trunk.host
        return is_trunk or is_among(host, self._config.allow)

    def handle(self, request: SipRequest, flow: Flow) -> None:
        """A request that is no repetition."""
        leg = self._legs.get(request.call_id or "")
        to = request.to_addr
        if request.method == "CANCEL":
            if leg is None or leg.dialog.flow.host != flow.host:
                self._endpoint.refuse(request, flow, 481)
            else:
                leg.cancel(request)
        elif leg is not None and to is not None and to.tag:
            leg.handle(request)
        elif request.method == "ACK":
            return
        elif to is not None and to.tag:
            self._endpoint.refuse(request, flow, 481)
        elif request.method == "INVITE":
            if leg is None and self._lets_in(request, flow):
                self._invited(request, flow)
        elif request.method == "OPTIONS" and self.is_known(flow.host):
            self._endpoint.refuse(request, flow, *self._able())
        else:
            status = 405 if self.is_known(flow.host) else 403
            self._endpoint.refuse(request, flow, status, [("Allow", METHODS)])

    def handle_stray(self, response: SipResponse, flow: Flow) -> None:
        """An answer that nobody waits for: our ACK of it was lost."""
        leg = self._legs.get(response.call_id or "")
        if leg is not None and leg.dialog.flow.host == flow.host:
            leg.dialog.acknowledge_again(response)

    def _able(self) -> tuple[int, list[tuple[str, str]]]:
        """Return what a border controller asks with OPTIONS: whether it may send calls."""
        if self._server.not_ready() is not None or self._server.admission.lack() is not None:
            return 503, [("Retry-After", retry_after())]
        return 200, [("Allow", METHODS), ("Accept", SDP), ("Supported", "timer")]

    def _lets_in(self, request: SipRequest, flow: Flow) -> bool:
        """Whether its sender may call us; else it is told what is missing."""
        if self._is_allowed(flow.host):
            return True
        if not self._config.users:
            self._refuse(request, flow, 403, "sip_stranger")
            return False
        if self._challenges.user_of(request, flow.host) is None:
            asked = [
                ("WWW-Authenticate", one) for one in self._challenges.headers(request, flow.host)
            ]
            self._refuse(request, flow, 401, "sip_unproved", asked)
            return False
        if len(self._proved) >= MAX_KNOWN:
            del self._proved[next(iter(self._proved))]
        self._proved[flow.host] = None
        return True

    def _refuse(
        self,
        request: SipRequest,
        flow: Flow,
        status: int,
        code: str,
        headers: list[tuple[str, str]] | None = None,
    ) -> None:
        self._server.metrics.refused.labels(code=code).inc()
        self._endpoint.refuse(request, flow, status, headers or [])

    # --- a call comes in ---

    def _invited(self, request: SipRequest, flow: Flow) -> None:
        """An INVITE of somebody who may call: refused by what it says, or a call begins."""
        if self._invites.is_empty:
            self._refuse(request, flow, 503, "sip_flood", [("Retry-After", retry_after())])
            return
        if (able := self._able())[0] != 200:  # before 100, after which it would wait for us
            self._refuse(request, flow, able[0], "server_overloaded", able[1])
            return
        self._invites.take()
        if (refusal := self._refusal_of(request)) is not None:
            self._refuse(request, flow, *refusal)
            return
        self._endpoint.expect(request)
        flow.write(bytes(response_to(request, 100)))
        leg, line = self._leg(SipDialog.of(request, self._endpoint, flow), self._hello(request))
        leg.invited(request)
        self._spawn(self._answer(leg, line))

    def _refusal_of(self, request: SipRequest) -> tuple[int, str, list[tuple[str, str]]] | None:
        """Status, code and headers where what the INVITE says cannot be served."""
        required = {one.strip().lower() for one in request.headers.get("require")}
        kind = (request.content_type or SDP).partition(";")[0].strip().lower()
        interval_s = SessionTimer.of(request).interval_s
        if lacks := required - UNDERSTOOD:
            return 420, "sip_extension", [("Unsupported", ", ".join(sorted(lacks)))]
        if not request.contact:
            return 400, "sip_malformed", []
        if request.body and kind != SDP:
            return 415, "sip_body", [("Accept", SDP)]
        if interval_s and interval_s < LEAST_SESSION_S:
            return 422, "sip_session_interval", [("Min-SE", str(LEAST_SESSION_S))]
        try:
            if request.body:
                parse(request.text, self._codecs)
        except InvalidRequest as error:
            log.info("a call by SIP is refused: %s", error.message)
            return 488, "sip_no_codec", [("Warning", '304 voiceloop "no sound in common"')]
        return None

    def _leg(self, dialog: SipDialog, hello: Hello) -> tuple[Leg, Line]:
        loop = asyncio.get_running_loop()
        line = Line(hello, loop.time)
        leg = Leg(self._endpoint, dialog, self._codecs, line, self)
        leg.media = Media(self._ports, leg, dialog.flow.host, self._trusts)
        line.far = line.phone = leg
        self._legs[dialog.call_id] = leg
        return leg, line

    def _trusts(self, host: str) -> bool:
        """Whether sound may go to a host because a description names it."""
        with suppress(ValueError):
            return self._is_allowed(host)
        return False

    def _hello(self, request: SipRequest) -> Hello:
        caller, called = request.from_addr, parse_uri(request.uri)
        told = request.get_header("p-asserted-identity")  # who it is, as the exchange has checked
        asserted = parse_address(told).uri if told else None
        whom = asserted or (caller.uri if caller else None)
        headers = {name: values[0][:256] for name, values in request.headers.items() if values}
        call = PhoneCall(
            "sip",
            number_of(whom.user or "") if whom else "",
            number_of(called.user or ""),
            headers,
            request.call_id or "",
        )
        return hello_of_call(self._server.config, call)

    async def _answer(self, leg: Leg, line: Line) -> None:
        """One call that has come in; a bug in it ends no other."""
        call_id = self._calls.new_id()
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self._drop, leg)
            refusal = await self._admit(leg, line, stack, call_id)
            if leg.state is LegState.ENDED:  # the far end has given up meanwhile
                return
            if refusal is not None:
                status, code = refusal
                self._server.metrics.refused.labels(code=code).inc()
                again = [("Retry-After", retry_after())] if status == 503 else []
                leg.refuse(status, again)
                return
            leg.ring()
            leg.answer()
            with suppress(TimeoutError):
                async with asyncio.timeout(CONFIRMED_S):
                    await leg.settled()
            # Where the server drains, nobody would tell the call that it is to end.
            if leg.state is LegState.LIVE and not self._server.admission.is_draining:
                await self._run(line, call_id)

    async def _admit(
        self, leg: Leg, line: Line, stack: AsyncExitStack, call_id: str
    ) -> tuple[int, str] | None:
        """A place and two ports for the call, once it is decided that it is answered; else the
        status and code of its refusal.
        """
        task = asyncio.current_task()
        assert task is not None
        if self._calls.desk.asks and leg.state is LegState.RINGING:
            leg.ring()
        line.on_end = task.cancel  # the far end gives up while it rings
        try:
            entering = admitted(self._server, self._calls, line.hello, call_id)
            line.hello = await stack.enter_async_context(entering)
            line.on_end = lambda: None
            leg.media.open()
        except CallRejected as error:
            return error.sip_status, error.wire_code
        except RateLimited as error:
            return 486, error.wire_code
        except Overloaded as error:
            return 503, error.wire_code
        except VoiceLoopError as error:
            log.info("a call by SIP is refused: %s", error.message)
            return 403, error.wire_code
        finally:
            line.on_end = lambda: None
        return None

    async def _run(
        self, line: Line, call_id: str, answered: asyncio.Future[str] | None = None
    ) -> None:
        self._calls.add(line, call_id)
        if answered is not None:
            answered.set_result(call_id)
        try:
            await self._server.serve_session(line)
        finally:
            self._calls.drop(call_id)

    async def _drop(self, leg: Leg) -> None:
        await leg.close()
        loop = asyncio.get_running_loop()
        loop.call_later(KEPT_S, self._forget, leg)

    def _forget(self, leg: Leg) -> None:
        for call_id in [at for at, one in self._legs.items() if one is leg]:
            del self._legs[call_id]

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work, name="a call by SIP")
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a call by SIP failed", exc_info=error)

    # --- a call goes out ---

    async def call(self, hello: Hello, target: str) -> str:
        """Call a number or address over the trunk; returns the call's id once it is answered.

        Raises: InvalidRequest: there is no trunk, or it may not be called there. NotAnswered;
        Overloaded; RateLimited.
        """
        trunk = self._trunk
        if trunk is None:
            raise InvalidRequest("to: expected sip.trunk.uri, over which calls go out, found none")
        if not is_within(target, trunk.settings.dial_to):
            raise InvalidRequest(f"to: expected one of sip.trunk.dial_to, found {target[:80]!r}")
        try:
            flow = await trunk.flow()
        except OSError as error:
            raise NotAnswered(f"expected {trunk.domain} to be there, found that {error}") from None
        user = target.removeprefix("tel:")
        uri = target if target.startswith("sip:") else f"sip:{user}@{trunk.domain}"
        talk = SipDialog.to(uri, trunk.account, self._endpoint, flow)
        leg, line = self._leg(talk, hello)
        answered: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._spawn(self._dial(leg, line, answered))
        return await answered

    async def _dial(self, leg: Leg, line: Line, answered: asyncio.Future[str]) -> None:
        """One call that goes out. answered: its id, or why nobody took it."""
        trunk = self._trunk
        assert trunk is not None
        call_id = self._calls.new_id()
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self._drop, leg)
            try:
                entering = admitted(self._server, self._calls, line.hello, call_id)
                line.hello = await stack.enter_async_context(entering)
                leg.media.open()
                said = offer(self._codecs, leg.local())
                async with asyncio.timeout(RING_S):
                    leg.dialled(await dial(self._endpoint, leg.dialog, said, (), trunk.credentials))
            except TimeoutError:
                told = f"expected an answer within {RING_S:g} s, found none"
                answered.set_exception(NotAnswered(told))
            except DialFailed as error:
                told = f"expected somebody to answer, found {error.status} of SIP ({error})"
                answered.set_exception(NotAnswered(told))
            except VoiceLoopError as error:
                answered.set_exception(error)
            except BaseException:
                answered.cancel()
                raise
            else:
                await self._run(line, call_id, answered)

    # --- a call goes elsewhere ---

    @asynccontextmanager
    async def told(self, leg: Leg, uri: str, announcement: Announcement) -> AsyncIterator[str]:
        """As of `leg.Others`. A number is dialled where the call came from."""
        found, flow, trunk = parse_uri(uri), leg.dialog.flow, self._trunk
        try:
            if found.port or found.host.strip("[]") != flow.host:
                port, transport = found.port or 5060, found.params.get("transport") or "udp"
                flow = await self._endpoint.reach(found.host.strip("[]"), port, transport)
        except OSError as error:
            raise TransferFailed(f"expected {found.host} to be there, found {error}") from None
        # The password is the trunk's, and no other host's.
        proof = trunk.credentials if trunk is not None and trunk.host == flow.host else None
        caller = self._endpoint.contact(flow)[1:-1]
        talk = SipDialog.to(uri, caller, self._endpoint, flow)
        other, _ = self._leg(talk, Hello())
        try:
            other.media.open()
            async with asyncio.timeout(RING_S):
                said = offer(self._codecs, other.local())
                other.dialled(await dial(self._endpoint, talk, said, (), proof))
            await other.say(announcement.sound)
            if other.state is not LegState.LIVE:
                raise TransferFailed("expected somebody who waits for the caller, found none")
            yield talk.place
        except DialFailed as error:
            wanted = "expected somebody who answers there"
            raise TransferFailed(f"{wanted}, found {error.status} of SIP") from None
        except TimeoutError:
            raise TransferFailed(f"expected an answer within {RING_S:g} s, found none") from None
        except (InvalidRequest, Overloaded) as error:
            raise TransferFailed(error.message) from None
        finally:
            await self._drop(other)

    def referred(self, leg: Leg, request: SipRequest) -> None:
        """The far end asks us to call somebody in its place (RFC 3515)."""
        told = request.get_header("refer-to") or request.get_header("r") or ""
        uri = parse_address(told).uri
        if uri.scheme != "sip" or not uri.host:
            leg.dialog.respond(request, 400)
            return
        if not self._is_allowed(leg.dialog.flow.host):
            leg.dialog.respond(request, 403)  # a telephone may not have the exchange dial for it
            return
        replaces = unquote(uri.headers.get("Replaces", ""))
        if not replaces.isprintable():
            leg.dialog.respond(request, 400)
            return
        uri.headers = {}
        leg.dialog.respond(request, 202)
        self._endpoint.spawn(self._follow(leg, stringify_uri(uri), replaces))

    async def _follow(self, leg: Leg, target: str, replaces: str) -> None:
        """Call there by the way that the call came, and go on with whoever answers."""
        was = leg.dialog
        talk = SipDialog.to(
            target, self._endpoint.contact(was.flow)[1:-1], self._endpoint, was.flow
        )
        headers = [("Replaces", replaces), ("Require", "replaces")] if replaces else []
        self._legs[talk.call_id] = leg
        await was.say(was.notify(100, is_last=False))
        try:
            async with asyncio.timeout(RING_S):
                said = offer(self._codecs, leg.local())
                response = await dial(self._endpoint, talk, said, headers)
            leg.move_to(talk, response)
            status = 200
        except DialFailed as error:
            status = error.status
        except (TimeoutError, InvalidRequest):
            status = 480
        await was.say(was.notify(status, is_last=True))
        if status == 200:
            await was.say(was.request("BYE"))


def number_of(user: str) -> str:
    """A telephone number without what is only to be read; another name as it is."""
    user = unquote(user.partition(";")[0])
    bare = re.sub(r"[\s().\-]", "", user)
    return bare if re.fullmatch(r"\+?[0-9*#]+", bare) else user[:128]

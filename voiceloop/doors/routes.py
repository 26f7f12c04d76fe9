"""``/v1/realtime/calls``: calls that begin with an offer over HTTP, and what is done with one.

Owns the three bodies that stock clients send, the headers that a page of another origin needs, and
the verbs. Which of them there are is OpenAI's; `ice-servers` is ours.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from voiceloop.access.keys import Entry, client_key
from voiceloop.access.origins import check_origin
from voiceloop.doors.calls import Calls
from voiceloop.doors.desk import DECLINED, Desk, Ringing
from voiceloop.doors.entrance import Server, check_session, hello_of
from voiceloop.doors.phone import filled_session
from voiceloop.doors.telephones import Telephones
from voiceloop.doors.webrtc.door import WebRtcDoor
from voiceloop.errors import InvalidRequest, Overloaded, VoiceLoopError, expected
from voiceloop.http.body import pieces_of, read_body
from voiceloop.http.gate import error_response
from voiceloop.realtime.client_events import parse_frame
from voiceloop.realtime.settings import Json
from voiceloop.telephony import PhoneCall

PATH = "/v1/realtime/calls"
PHONE_CALLS = "/v1/phone/calls"
TARGET = re.compile(r"tel:\+?[0-9*#]{1,32}|sip:[^\s<>]{1,200}")
OWN_HEADER = re.compile(r"X-[A-Za-z0-9-]{1,60}", re.IGNORECASE)
MAX_BODY_BYTES = 512 * 1024  # an offer of 64 KiB, and a session with its tools
MAX_FIELDS = 4
# What the stock SDK sends with its offer, and reads of the answer.
PREFLIGHT = {
    "Access-Control-Allow-Methods": "GET, POST, DELETE",
    "Access-Control-Allow-Headers": "authorization, content-type, x-openai-agents-sdk",
    "Access-Control-Max-Age": "600",
}
LEAST_TURN_S = 3600.0

Handler = Callable[[Request, Entry], Awaitable[Response]]


class Doors:
    """The doors of one gateway besides its WebSocket."""

    def __init__(self, server: Server) -> None:
        self.calls = Calls(Desk(server.config.phone))
        self._server = server
        self._webrtc = WebRtcDoor(server, self.calls)
        self.telephones = Telephones(server, self.calls)

    def prepare(self) -> None:
        """As `WebRtcDoor.prepare`."""
        self._webrtc.prepare()

    async def open(self) -> None:
        """Listen where the configuration says, besides HTTP. Raises: ConfigError."""
        await self.telephones.open()

    def giving_way(self) -> Callable[[], None] | None:
        """As `WebRtcDoor.giving_way`."""
        return self._webrtc.giving_way()

    def close(self) -> None:
        """Give the ports back."""
        self._webrtc.close()
        self.telephones.close()

    def routes(self) -> list[Route]:
        server, call = self._server, PATH + "/{call_id}"
        return [
            Route(PATH, _checked(server, self._create), methods=["POST", "OPTIONS"]),
            Route(call, _checked(server, self._hang_up), methods=["DELETE", "OPTIONS"]),
            Route(f"{call}/hangup", _checked(server, self._hang_up), methods=["POST", "OPTIONS"]),
            Route(f"{call}/accept", _checked(server, self._accept), methods=["POST"]),
            Route(f"{call}/reject", _checked(server, self._reject), methods=["POST"]),
            Route(f"{call}/refer", _checked(server, self._refer), methods=["POST"]),
            Route(PHONE_CALLS, _checked(server, self._call), methods=["POST"]),
            Route(
                "/v1/realtime/ice-servers", _checked(server, self._ice_servers),
                methods=["GET", "OPTIONS"],
            ),
            *self.telephones.routes,
        ]  # fmt: skip

    async def _create(self, request: Request, entry: Entry) -> Response:
        sdp, session = await _read_call(request)
        call_id, answer = await self._webrtc.answer(request, entry, sdp, session)
        headers = {"Location": f"{PATH}/{call_id}"}
        return Response(answer, 201, headers, media_type="application/sdp")

    async def _call(self, request: Request, entry: Entry) -> Response:
        """Call a telephone; answers when that has."""
        body = parse_frame(await _text(request))
        to, session = body.get("to"), body.get("session") or {}
        if not isinstance(to, str) or not TARGET.fullmatch(to):
            raise expected("to", "tel:NUMBER or sip:NAME@HOST", to)
        if not isinstance(session, dict):
            raise expected("session", "an object", session)
        if (sip := self.telephones.sip) is None:
            raise InvalidRequest("This server calls nobody: set sip.port, and sip.trunk.uri.")
        call = PhoneCall("sip", called=to.removeprefix("tel:"), is_outbound=True)
        hello = replace(
            hello_of(request, entry, "webrtc"), door="phone", greeting=True, phone=call,
            asked=session,
        )  # fmt: skip
        check_session(self._server, hello)
        call_id = await sip.call(hello, to)
        return JSONResponse({"id": call_id}, 201, {"Location": f"{PATH}/{call_id}"})

    async def _hang_up(self, request: Request, entry: Entry) -> Response:
        """End a call. Of one by SIP the body may say what headers X- its BYE tells."""
        call_id = request.path_params["call_id"]
        if (ringing := self.calls.desk.find(call_id, entry.tenant)) is not None:
            ringing.reject(DECLINED)
            return Response(status_code=200)
        line = self.calls.find(call_id, entry.tenant)
        if text := await _text(request):
            headers = parse_frame(text).get("headers") or {}
            if not isinstance(headers, dict) or not all(
                OWN_HEADER.fullmatch(name) and isinstance(value, str) and value.isprintable()
                for name, value in headers.items()
            ):
                raise expected("headers", "names X-... with a line of text each", headers)
            line.last_headers = [(name, value[:256]) for name, value in headers.items()][:16]
        line.hang_up()
        return Response(status_code=200)

    async def _accept(self, request: Request, entry: Entry) -> Response:
        """Answer a call that rings; the body is the session that it begins with."""
        ringing = self._ringing(request, entry)
        session = parse_frame(await _text(request) or "{}")
        phone = ringing.hello.phone
        assert phone is not None
        if (reason := self._server.not_ready()) is not None:
            raise Overloaded(f"This server is not ready: {reason}.")
        session = filled_session(session, phone)
        check_session(self._server, replace(ringing.hello, asked=session))
        ringing.accept(session)
        return Response(status_code=200)

    async def _reject(self, request: Request, entry: Entry) -> Response:
        """Refuse a call that rings."""
        ringing = self._ringing(request, entry)
        status = parse_frame(await _text(request) or "{}").get("status_code", DECLINED)
        if type(status) is not int or not 400 <= status <= 699:
            raise expected("status_code", "400 to 699", status)
        ringing.reject(status)
        return Response(status_code=200)

    async def _refer(self, request: Request, entry: Entry) -> Response:
        """Connect the caller of a call that goes on with somebody else."""
        line = self.calls.find(request.path_params["call_id"], entry.tenant)
        if line.phone is None:
            raise _no_telephone("refer")
        target = parse_frame(await _text(request) or "{}").get("target_uri")
        if (
            not isinstance(target, str)
            or not TARGET.fullmatch(target)
            or not self._server.config.phone.allows(target)
        ):
            raise expected("target_uri", "one that phone.transfer_to allows", target)
        await line.phone.transfer(target)
        return Response(status_code=200)

    def _ringing(self, request: Request, entry: Entry) -> Ringing:
        """Raises: UnknownCall, InvalidRequest: it has been answered."""
        call_id = request.path_params["call_id"]
        if (ringing := self.calls.desk.find(call_id, entry.tenant)) is not None:
            return ringing
        verb = request.url.path.rpartition("/")[2]
        if self.calls.find(call_id, entry.tenant).phone is None:
            raise _no_telephone(verb)
        raise InvalidRequest(
            f"{verb}: expected a call that rings, found one that goes on", code="call_decided"
        )

    async def _ice_servers(self, request: Request, entry: Entry) -> Response:
        """Return where a page behind a firewall finds a way to us, and what opens it for a
        while.
        """
        webrtc, limits = self._server.config.webrtc, self._server.config.limits
        expires_at = int(time.time() + max(LEAST_TURN_S, 60.0 * limits.session_minutes))
        servers: list[Json] = [
            {"urls": [url], **(turn_credentials(secret, expires_at) if secret else {})}
            for url, secret in webrtc.ice_servers.items()
        ]
        return JSONResponse({"ice_servers": servers})


def _no_telephone(verb: str) -> InvalidRequest:
    return InvalidRequest(
        f"{verb}: expected a phone call, found one by WebRTC", code="not_a_phone_call"
    )


def turn_credentials(secret: str, expires_at: int) -> dict[str, str]:
    """Return what a TURN server that has the same secret takes until then (epoch seconds).

    Source: draft-uberti-behave-turn-rest-00; coturn's `use-auth-secret`.
    """
    username = f"{expires_at}:voiceloop"
    mac = hmac.new(secret.encode(), username.encode(), hashlib.sha1).digest()
    return {"username": username, "credential": base64.b64encode(mac).decode()}


def _checked(server: Server, handler: Handler) -> Callable[[Request], Awaitable[Response]]:
    """The handler behind the key's check, its errors as answers, readable for allowed pages."""

    async def checked(request: Request) -> Response:
        headers: dict[str, str] = {}
        try:
            is_keyed = not server.keys.is_open
            check_origin(request.headers, server.config.allowed_origins, is_keyed=is_keyed)
            headers = _cors(request)
            if request.method == "OPTIONS":
                return Response(status_code=204, headers={**headers, **PREFLIGHT})
            response = await handler(request, server.keys.check(client_key(request.headers)))
        except VoiceLoopError as error:
            server.metrics.refused.labels(code=error.wire_code).inc()
            response = error_response(error)
        response.headers.update(headers)
        return response

    return checked


def _cors(request: Request) -> dict[str, str]:
    """Return the headers for a page whose origin is allowed, so that it may read the answer."""
    origin = request.headers.get("origin")
    if origin is None:
        return {}
    return {
        "Access-Control-Allow-Origin": origin,
        "Access-Control-Expose-Headers": "Location",
        "Vary": "Origin",
    }


async def _read_call(request: Request) -> tuple[str, Json]:
    """The offer of a request, and what it wants changed of the session.

    Raises: InvalidRequest, FrameTooLarge.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    session: Any = {}
    if kind == "application/sdp":
        return await _text(request), {}
    if kind == "application/json":
        body = parse_frame(await _text(request))
        sdp, session = body.get("sdp"), body.get("session") or {}
    elif kind == "multipart/form-data":
        fields = await _fields(request)
        sdp, session = fields.get("sdp"), parse_frame(fields.get("session") or "{}")
    else:
        wanted = "application/sdp, application/json or multipart/form-data"
        raise InvalidRequest(f"content-type: expected {wanted}, found {kind[:80]!r}")
    if not isinstance(sdp, str):
        raise expected("sdp", "the offer as a text", sdp)
    if not isinstance(session, dict):
        raise expected("session", "an object", session)
    return sdp, session


async def _fields(request: Request) -> dict[str, str]:
    try:
        parser = MultiPartParser(
            request.headers, pieces_of(request, MAX_BODY_BYTES), max_files=0, max_fields=MAX_FIELDS
        )
        form = await parser.parse()
    except (MultiPartException, KeyError) as error:
        raise InvalidRequest(f"expected a multipart form, found that {error}") from None
    return {name: value for name, value in form.items() if isinstance(value, str)}


async def _text(request: Request) -> str:
    try:
        return (await read_body(request, MAX_BODY_BYTES)).decode("utf-8")
    except UnicodeDecodeError:
        raise InvalidRequest("expected UTF-8 text, found other bytes") from None

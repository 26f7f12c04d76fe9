"""The door of the HTTP model routes: who may ask, how much they may send, how many at once.

Owns the checks that come before any work, and the turning of errors into answers. An ``ek_`` key
opens a session and nothing here: a page that holds one cannot spend the models otherwise.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Sequence
from contextlib import ExitStack, aclosing, suppress
from dataclasses import dataclass
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from voiceloop.access.keys import KeyRing, client_key, tenant_of
from voiceloop.access.origins import check_origin, is_loopback
from voiceloop.access.quotas import Quotas
from voiceloop.admission.places import Admission, retry_after
from voiceloop.backends import Backends, Usage
from voiceloop.errors import (
    BackendError,
    BackendTimeout,
    Forbidden,
    Overloaded,
    VoiceLoopError,
)

log = logging.getLogger(__name__)

FORWARDED = ("forwarded", "x-forwarded-for", "x-real-ip", "via")  # headers that proxies add
CLIENT_LEFT = 499  # nginx's number for it: a body that ended early
MAX_JSON_BYTES = 2 * 1024 * 1024
ANSWER_S = 120.0  # for a whole answer; what is streamed may take as long as it is read

Handler = Callable[[Request], Awaitable[Response]]


def error_response(error: VoiceLoopError) -> JSONResponse:
    """The error as OpenAI's HTTP APIs send it; one of a model's stands in the log too."""
    status = error.http_status
    if isinstance(error, BackendError) and status >= 500:
        log.warning("an answer over HTTP failed (%s): %s", error.wire_code, error.message)
    headers: dict[str, str] = {}
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    elif status == 503:
        headers["Retry-After"] = retry_after()
    body = {
        "type": error.type,
        "code": error.wire_code,
        "message": error.message,
        "param": error.param,
    }
    return JSONResponse({"error": body}, status_code=status, headers=headers)


def check_is_here(request: Request) -> None:
    """Raises: Forbidden: the request comes from another machine, or through a proxy on this one.

    Or from a page whose name is made to mean this machine: its requests name it as their host.
    """
    client = request.client.host if request.client is not None else ""
    is_here = is_loopback(client) and is_loopback(request.url.hostname or "")
    if not is_here or any(name in request.headers for name in FORWARDED):
        raise Forbidden("Only this machine may ask for this, and through no proxy.")


@dataclass(frozen=True, slots=True)
class Door:
    """``not_ready``: one sentence that says what keeps requests out, None when nothing does.

    ``observe_usage``: told of each answer, and of the model's name. ``answered_by``: the models as
    the agent of a name has them, with its own adapter.
    """

    keys: KeyRing
    allowed_origins: Sequence[str]
    not_ready: Callable[[], str | None]
    quotas: Quotas
    backends: Callable[[], Backends | None]
    admission: Admission
    observe_usage: Callable[[Usage, str], None] = lambda usage, model: None
    answered_by: Callable[[str, Backends], Backends] = lambda name, backends: backends

    def check(self, request: Request, *, takes_secrets: bool = False) -> None:
        """takes_secrets: a client secret opens this too. Raises: Forbidden, Unauthorized."""
        is_keyed = not self.keys.is_open
        check_origin(request.headers, self.allowed_origins, is_keyed=is_keyed)
        check = self.keys.check if takes_secrets else self.keys.check_lasting
        check(client_key(request.headers))

    def models(self, agent: str = "") -> Backends:
        """The models, of an agent that is named with its adapter.

        Raises: Overloaded while they are not there; InvalidRequest: there is no such agent.
        """
        reason, backends = self.not_ready(), self.backends()
        if reason is not None or backends is None:
            raise Overloaded(f"This server is not ready: {reason}.")
        return self.answered_by(agent, backends) if agent else backends

    def keyed(self, handler: Handler, *, takes_secrets: bool = False) -> Handler:
        """The handler behind `check` alone, with its errors as answers."""

        async def checked(request: Request) -> Response:
            try:
                self.check(request, takes_secrets=takes_secrets)
                return await handler(request)
            except VoiceLoopError as error:
                return error_response(error)

        return checked

    def guard(self, handler: Handler) -> Handler:
        """The handler behind the checks, in a place, with its errors as answers."""

        async def guarded(request: Request) -> Response:
            with ExitStack() as place:
                try:
                    self.check(request)
                    self.models()
                    if not self.keys.is_open:  # else any key is taken: no name of a client's choice
                        tenant = tenant_of(client_key(request.headers))
                        add_body = place.enter_context(self.quotas.request(tenant))
                        request = _counted(request, add_body)
                    place.enter_context(self.admission.place())
                    async with asyncio.timeout(ANSWER_S):
                        response = await handler(request)
                except ClientDisconnect:
                    return Response(status_code=CLIENT_LEFT)  # nobody reads it
                except TimeoutError:
                    late = BackendTimeout(f"The models did not answer within {ANSWER_S:.0f} s.")
                    return error_response(late)
                except VoiceLoopError as error:
                    return error_response(error)
                if isinstance(response, Stream):
                    response.place = place.pop_all()  # it ends with the last byte
                return response

        return guarded


class Stream(StreamingResponse):
    """An answer that is sent as it comes about; its place and its source end with it."""

    def __init__(self, pieces: AsyncGenerator[bytes, None], media_type: str) -> None:
        super().__init__(pieces, media_type=media_type, headers={"Cache-Control": "no-store"})
        self._pieces = pieces
        self.place = ExitStack()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # A client that leaves cancels the sending, not the source: close it in any case. One that
        # reads too slowly is made to leave (`server/connections.py`).
        with self.place, suppress(ClientDisconnect):
            async with aclosing(self._pieces):
                await super().__call__(scope, receive, send)


def _counted(request: Request, add: Callable[[int], object]) -> Request:
    """The same request, with its body's bytes told of as they come."""

    async def receive() -> Message:
        message = await request.receive()
        add(len(message.get("body", b"")))
        return message

    return Request(request.scope, receive)


async def started(pieces: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    """The same pieces, the first of them made: what fails at once fails before the status."""
    first = await anext(pieces, b"")  # nothing at all may be the whole answer

    async def whole() -> AsyncGenerator[bytes, None]:
        async with aclosing(pieces):
            yield first
            async for piece in pieces:
                yield piece

    return whole()


async def unless_left(request: Request, work: Coroutine[Any, Any, Response]) -> Response:
    """Return what comes of the work; it ends where the client leaves, whose body has been read.

    Raises: ClientDisconnect.
    """

    async def leaving() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    tasks = working, left = asyncio.create_task(work), asyncio.create_task(leaving())
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientDisconnect
        return working.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(working, left, return_exceptions=True)

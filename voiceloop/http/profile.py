"""``POST /debug/profile``: a trace of what a worker's models compute, for who is on the machine.

Owns who may ask: a client on this very machine that has the operator's key. A caller's key opens
nothing here, for a proxy on this machine may let callers look as if they were on it. Everything
waits while the trace is written, so it is bounded, and there is one at a time.
The last one is kept.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from contextlib import suppress

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from voiceloop.access.keys import client_key, is_same_key
from voiceloop.errors import (
    Forbidden,
    InvalidRequest,
    Overloaded,
    Unauthorized,
    VoiceLoopError,
    expected,
)
from voiceloop.http.gate import Door, check_is_here, error_response

MOST_S = 10.0  # to write 2 s of small operations, 53,000 a second, took a busy machine 10 s
DEFAULT_S = 5.0


def profile_route(door: Door, operators_key: str) -> Route:
    """``?seconds=5&worker=engine``; answers with the file's path when the trace is written.

    operators_key: that of the metrics; "" where there is none, and then there are no traces.
    """
    lock = asyncio.Lock()
    kept: list[str] = []  # the file of the last trace, which the next one replaces

    async def profile(request: Request) -> Response:
        _check(request, operators_key)
        seconds = _seconds(request.query_params.get("seconds", str(DEFAULT_S)))
        if lock.locked():
            raise Overloaded("expected no other profile at the same time, found one under way")
        async with lock:
            while kept:  # one may be of 138 MB
                with suppress(OSError):
                    os.unlink(kept.pop())
            descriptor, path = tempfile.mkstemp(prefix="voiceloop-", suffix=".trace.json")
            os.close(descriptor)
            worker = request.query_params.get("worker", "engine")
            try:
                await door.models().profile(worker, path, seconds)
            except BaseException:
                os.unlink(path)
                raise
            kept.append(path)
        return JSONResponse({"path": path, "seconds": seconds, "worker": worker})

    async def answered(request: Request) -> Response:
        try:
            return await profile(request)
        except VoiceLoopError as error:
            return error_response(error)

    return Route("/debug/profile", answered, methods=["POST"])


def _check(request: Request, operators_key: str) -> None:
    """Raises: Forbidden, Unauthorized."""
    check_is_here(request)
    if not operators_key:
        raise Forbidden("expected a server with a metrics_key, which opens this, found none")
    if not is_same_key(client_key(request.headers), operators_key):
        raise Unauthorized("expected the metrics_key, found none or another key")


def _seconds(text: str) -> float:
    """Raises: InvalidRequest."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0.1 <= seconds <= MOST_S:
        error: InvalidRequest = expected("seconds", f"0.1 to {MOST_S:g}", text)
        raise error
    return seconds

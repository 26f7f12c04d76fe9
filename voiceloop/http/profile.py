"""``POST /debug/profile``: a trace of what a worker's models compute, for who is on the machine.

Owns who may ask: a client on this very machine, with a key where there are keys, and not through a
proxy, whose callers come from everywhere. Everything waits while the trace is written, so it is
bounded, and there is one at a time.
"""

from __future__ import annotations

import asyncio
import os
import tempfile

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from voiceloop.errors import InvalidRequest, Overloaded, expected
from voiceloop.http.gate import Door, check_is_here

MOST_S = 10.0  # to write 2 s of small operations, 53,000 a second, took a busy machine 10 s
DEFAULT_S = 5.0


def profile_route(door: Door) -> Route:
    """``?seconds=5&worker=engine``; answers with the file's path when the trace is written."""
    lock = asyncio.Lock()

    async def profile(request: Request) -> Response:
        check_is_here(request)
        seconds = _seconds(request.query_params.get("seconds", str(DEFAULT_S)))
        if lock.locked():
            raise Overloaded("expected no other profile at the same time, found one under way")
        async with lock:
            descriptor, path = tempfile.mkstemp(prefix="voiceloop-", suffix=".trace.json")
            os.close(descriptor)
            worker = request.query_params.get("worker", "engine")
            try:
                await door.models().profile(worker, path, seconds)
            except BaseException:
                os.unlink(path)
                raise
        return JSONResponse({"path": path, "seconds": seconds, "worker": worker})

    return Route("/debug/profile", door.keyed(profile), methods=["POST"])


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

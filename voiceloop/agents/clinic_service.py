"""The diary behind the agent ``clinic``: a small HTTP service to run beside it, and to replace.

``python -m voiceloop.agents.clinic_service [--port 8090]``. ``GET /slots/{day}`` tells what is
free, ``POST /bookings`` takes a day, a time and a name. What is booked is gone from the list. Tries
of one call are told apart by their Idempotency-Key, so that nobody is booked twice. In memory: all
is as it was when it starts anew.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

PORT = 8090
DIARY = {
    "monday": ("9 am", "2 pm"),
    "tuesday": ("11 am",),
    "wednesday": ("8 am", "3 pm"),
    "thursday": (),
    "friday": ("10 am",),
}
MAX_BODY_BYTES = 10_000
MAX_BOOKINGS = 1000
FIELDS = ("day", "time", "name")


class Diary:
    """The free times, and the appointments made."""

    def __init__(self) -> None:
        self._free = {day: list(times) for day, times in DIARY.items()}
        self._booked: dict[str, dict[str, Any]] = {}  # answers by the key of the call

    def free(self, day: str) -> str:
        """Return the free times in words, for an agent to say."""
        times = self._free.get(day.strip().lower())
        if times is None:
            return "none, we are closed"
        return " and ".join(times) or "none"

    def book(self, key: str, day: str, time: str, name: str) -> dict[str, Any]:
        """Once for each key, which a second try of the same call repeats."""
        if key in self._booked:
            return self._booked[key]
        times = self._free.get(day.strip().lower(), [])
        found = next((one for one in times if _same(one, time)), None)
        if found is None:
            return {"status": "not free", "free": self.free(day)}
        if len(self._booked) >= MAX_BOOKINGS:
            return {"status": "the diary is full"}
        times.remove(found)
        answer = {"status": "booked", "code": f"M{len(self._booked) + 1:03d}", "name": name}
        self._booked[key] = answer
        return answer


def _same(one: str, other: str) -> bool:
    """ "10 am", "10am", "10 a.m." """
    return one.replace(" ", "") == other.lower().replace(" ", "").replace(".", "")


def build_app(diary: Diary | None = None) -> Starlette:
    """The service as an application, for this program and for tests."""
    book = diary or Diary()

    async def slots(request: Request) -> JSONResponse:
        return JSONResponse({"slots": book.free(request.path_params["day"])})

    async def bookings(request: Request) -> JSONResponse:
        body = bytearray()
        async for piece in request.stream():
            body += piece
            if len(body) > MAX_BODY_BYTES:
                return _refusal(413, f"expected at most {MAX_BODY_BYTES} bytes, found more")
        try:
            asked = json.loads(body)
        except (ValueError, RecursionError):
            return _refusal(400, "expected JSON, found something else")
        given = asked if isinstance(asked, dict) else {}
        lacking = [name for name in FIELDS if not isinstance(given.get(name), str)]
        if lacking:
            return _refusal(400, f"expected {', '.join(FIELDS)} as texts, found no {lacking[0]}")
        key = request.headers.get("idempotency-key") or json.dumps(asked, sort_keys=True)
        return JSONResponse(book.book(key, *(given[name] for name in FIELDS)))

    return Starlette(
        routes=[Route("/slots/{day}", slots), Route("/bookings", bookings, methods=["POST"])]
    )


def _refusal(status: int, told: str) -> JSONResponse:
    return JSONResponse({"error": told}, status)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m voiceloop.agents.clinic_service", description="The diary of Mill Clinic."
    )
    parser.add_argument("--port", type=int, default=PORT, help="(default: %(default)s)")
    uvicorn.run(build_app(), host="127.0.0.1", port=parser.parse_args().port, log_level="warning")


if __name__ == "__main__":
    main()

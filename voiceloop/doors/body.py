"""The body of a request to a door, read up to a bound."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from starlette.requests import Request

from voiceloop.errors import FrameTooLarge


async def pieces_of(request: Request, most: int) -> AsyncGenerator[bytes, None]:
    """Raises: FrameTooLarge: there are more than `most` bytes."""
    n_bytes = 0
    async for piece in request.stream():
        n_bytes += len(piece)
        if n_bytes > most:
            raise FrameTooLarge(f"expected a body of at most {most} bytes, found more")
        yield piece


async def read_body(request: Request, most: int) -> bytes:
    """Raises: FrameTooLarge."""
    return b"".join([piece async for piece in pieces_of(request, most)])

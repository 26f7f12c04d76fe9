"""The socket between a command and the process that holds its call: one request, then answers.

Owns where it lies, who may reach it (this user alone), and the bounds of what is sent.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import stat
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

from clients.errors import ConnectionFailed

MAX_REQUEST_BYTES = 64 * 1024
MAX_ANSWER_BYTES = 4 * 1024 * 1024  # of one line, as a frame of the server's
NAME = re.compile(r"[A-Za-z0-9_-]{1,32}")

Answer = Callable[[dict[str, Any]], Awaitable[None]]


def socket_of(name: str) -> Path:
    """Return where the call of this name is reached; its folder is made.

    Raises:
        ConnectionFailed: the name is none, or the folder is not this user's alone.
    """
    if not NAME.fullmatch(name):
        raise ConnectionFailed(
            f"expected as name 1 to 32 letters, digits, _ or -, found {name[:40]!r}"
        )
    base = Path(os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir())
    folder = base / f"voiceloop-calls-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) & 0o077:
        raise ConnectionFailed(f"Others may write into {folder}. Make it yours alone.")
    return folder / f"{name}.sock"


async def ask(path: Path, request: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
    """The answers of the process that holds the call.

    Raises:
        ConnectionFailed: nobody holds a call there, or it ended before it had answered.
    """
    try:
        reader, writer = await asyncio.open_unix_connection(path, limit=MAX_ANSWER_BYTES)
    except (OSError, ValueError) as error:
        raise ConnectionFailed(
            f"No call named {path.stem!r} is open. Open one: voiceloop call start"
        ) from error
    try:
        writer.write(json.dumps(request).encode() + b"\n")
        while line := await reader.readline():
            if (answer := json.loads(line)) is None:
                return
            yield answer
        raise ConnectionFailed("The call has ended.")
    except (OSError, ValueError) as error:
        raise ConnectionFailed(f"The call did not answer: {error}") from error
    finally:
        writer.close()


async def serve(
    path: Path, obey: Callable[[dict[str, Any], Answer], Awaitable[None]]
) -> asyncio.Server:
    """Take requests; `obey` answers each through the function that it is given."""

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async def answer(one: dict[str, Any]) -> None:
            writer.write(json.dumps(one).encode() + b"\n")
            await writer.drain()

        try:
            request = json.loads(await reader.readline())
            await obey(request, answer)
            writer.write(b"null\n")  # that was all of it
            await writer.drain()
        except (OSError, ValueError):
            pass  # who asked has gone, or is none of our commands
        finally:
            writer.close()

    path.unlink(missing_ok=True)  # noqa: ASYNC240 - once, before anything runs
    return await asyncio.start_unix_server(take, path, limit=MAX_REQUEST_BYTES)

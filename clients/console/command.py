"""``voiceloop call``: what each verb asks of the process that holds the call, and prints."""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from clients.command import EXIT_FAILED
from clients.console.line import ask, socket_of
from clients.errors import ClientError, ConnectionFailed
from clients.outputs import prepare_folder

HOLD = (sys.executable, "-P", "-m", "clients.console.holding")


def run_call(chosen: argparse.Namespace) -> int:
    """Returns the exit code: 1 where a turn got no answer. Raises: ClientError."""
    path = socket_of(chosen.name)
    if chosen.verb == "start":
        return _start(chosen, path)
    return asyncio.run(_ask(path, _request(chosen)))


def _start(chosen: argparse.Namespace, path: Path) -> int:
    if path.exists() and _is_held(path):
        raise ConnectionFailed(f"A call named {chosen.name!r} is open. End it: voiceloop call stop")
    if chosen.out is not None:
        prepare_folder(chosen.out)
    options = {
        "socket": str(path),
        "agent": chosen.agent,
        "config": str(chosen.config) if chosen.config else None,
        "preset": chosen.preset,
        "voice": chosen.voice,
        "key": chosen.key,
        "results": dict(_result(text) for text in chosen.result),
        "out": str(chosen.out.resolve()) if chosen.out else None,
    }
    with path.with_suffix(".log").open("wb") as log:
        process = subprocess.Popen(
            HOLD,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            start_new_session=True,
        )
    assert process.stdin is not None
    assert process.stdout is not None
    with process.stdin as options_of_it:  # not in its arguments, which others can list: the key
        options_of_it.write(json.dumps(options).encode())
    line = process.stdout.readline()
    if not line:
        raise ConnectionFailed(f"The call has ended: see {log.name}.")
    return _print(json.loads(line))


def _is_held(path: Path) -> bool:
    async def reached() -> bool:
        return [one async for one in ask(path, {"verb": "events", "since": 1 << 62})] == []

    try:
        return asyncio.run(reached())
    except ConnectionFailed:
        return False


def _result(text: str) -> tuple[str, Any]:
    name, found, value = text.partition("=")
    if not name or not found:
        raise ClientError(f"expected --result TOOL=TEXT, found {text[:80]!r}")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def _request(chosen: argparse.Namespace) -> dict[str, Any]:
    match chosen.verb:
        case "say":
            return {
                "verb": "say",
                "text": chosen.text,
                "wav": str(chosen.wav.resolve()) if chosen.wav else None,
                "typed": chosen.typed,
                "after": chosen.after,
                "no_wait": chosen.no_wait,
            }
        case "events":
            return {"verb": "events", "since": chosen.since}
        case _:
            return {"verb": "stop"}


async def _ask(path: Path, request: dict[str, Any]) -> int:
    code = 0
    async for one in ask(path, request):
        code = max(code, _print(one))
    return code


def _print(one: Mapping[str, Any]) -> int:
    """Raises: ClientError: it tells of one."""
    if "error" in one and len(one) == 1:
        raise ClientError(str(one["error"]))
    print(json.dumps(one))
    return EXIT_FAILED if one.get("answer") == "" else 0

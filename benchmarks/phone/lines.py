"""A telephone's line beside a WebSocket: the same calls over both, by turns."""

from __future__ import annotations

import asyncio
import json
import sys
from argparse import Namespace
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from benchmarks.harness.harness import RESULTS, Bar, interleaved
from benchmarks.phone.call import PUBLIC_URL
from benchmarks.phone.peers import TOKEN
from clients.call.script import DEFAULT_CAST, load_call
from clients.errors import ClientError
from clients.progress import progress_bar
from clients.report.percentiles import Distribution
from clients.server_process import ServerProcess, free_port, running_server

WEBSOCKET = "websocket"
CALL_S = 240.0
ADDED_MS = 10.0  # to the gap's p50
CLEAR_MS = 120.0  # from `clear` to silence, p95, besides what the carrier's own buffer plays
HISTORY_MS = 350.0  # a word: 170 in a minute
ENVIRONMENT = {
    "VOICELOOP_PHONE_PUBLIC_URL": PUBLIC_URL,
    "VOICELOOP_PHONE_SECRETS": f"twilio={TOKEN},asterisk={TOKEN}",
    "VOICELOOP_SIP_ALLOW": "127.0.0.1",
}


@asynccontextmanager
async def serving(*arguments: str, **more: str) -> AsyncIterator[tuple[ServerProcess, int]]:
    """The embedded preset behind all of these doors, and its port of SIP. more: its environment."""
    sip_port = free_port()
    environment = {**ENVIRONMENT, "VOICELOOP_SIP_PORT": str(sip_port), **more}
    arguments = ("--preset", "embedded", *arguments)
    log = RESULTS / "phone-server.log"
    async with running_server(arguments, log=log, environment=environment) as server:
        yield server, sip_port


class LinePart:
    """As `Part`. name: of the far end."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._turns: dict[str, list[dict[str, Any]]] = {}
        self._clear_ms: list[float] = []
        self._history_ms: list[float] = []

    async def measure(self, chosen: Namespace) -> None:
        script = load_call()
        voices = script.casts[DEFAULT_CAST]
        n_calls = -(-chosen.turns // len(script.turns))
        rounds = list(interleaved((WEBSOCKET, self._name), n_calls))
        async with serving() as (server, sip_port):
            with progress_bar(f"{self._name}: calls", len(rounds)) as progress:
                for done, one in enumerate(rounds):
                    voice = voices[one.index % len(voices)]
                    address, seed = f"127.0.0.1:{server.port}", chosen.seed + one.index
                    told = await call(address, voice, seed, one.variant, sip_port=sip_port)
                    self._add(one.variant, told)
                    progress(done + 1)

    def _add(self, line: str, call: dict[str, Any]) -> None:
        self._turns.setdefault(line, []).extend(call["turns"])
        self._clear_ms += call.get("clear_ms", [])
        told = call.get("told_and_heard_ms", [])
        self._history_ms += [abs(said - heard) for said, heard in told]

    def figures(self) -> dict[str, Any]:
        if self._name not in self._turns:
            return {}
        told = {
            "clear_to_silence_ms": Distribution.of(self._clear_ms),
            "history_off_by_ms": Distribution.of(self._history_ms),
        }
        return {
            "lines": {line: line_figures(turns) for line, turns in self._turns.items()},
            **{name: {"n": d.n, "p50": d.p50, "p95": d.p95} for name, d in told.items()},
            "turns": self._turns,
        }

    def bars(self) -> Sequence[Bar]:
        figures = self.figures()
        lines, clear = figures["lines"], figures["clear_to_silence_ms"]
        history = figures["history_off_by_ms"]
        phone, socket = lines[self._name], lines.get(WEBSOCKET)
        gaps = phone["gap_ms"]["p50"], socket["gap_ms"]["p50"] if socket else None
        added = None if None in gaps else gaps[0] - gaps[1]
        return [
            Bar(f"unanswered, {self._name}", phone["unanswered"], 0, ""),
            Bar(f"added gap, {self._name}, p50", added, ADDED_MS, n=phone["gap_ms"]["n"]),
            Bar(f"clear to silence, {self._name}, p95", clear["p95"], CLEAR_MS, n=clear["n"]),
            Bar(f"history, {self._name}, p95", history["p95"], HISTORY_MS, n=history["n"]),
        ]

    def show(self) -> None:
        figures = self.figures()
        for line, told in figures["lines"].items():
            print(line_text(line, told))
        for name in ("clear_to_silence_ms", "history_off_by_ms"):
            one = figures[name]
            print(f"  {name:<24} n {one['n']:>3}  p50 {one['p50']}  p95 {one['p95']}")


def line_text(line: str, told: Mapping[str, Any]) -> str:
    gap = told["gap_ms"]
    return (
        f"\n{line}: {told['n_turns']} turns, {told['unanswered']} unanswered, hard cuts "
        f"{told['hard_cuts_percent']} %, gap p50 {gap['p50']} p95 {gap['p95']}"
    )


def line_figures(turns: Sequence[dict[str, Any]]) -> dict[str, Any]:
    gaps = Distribution.of([turn["gap_ms"] for turn in turns if turn["gap_ms"] is not None])
    cut = [turn for turn in turns if turn["cut_in"] and not turn["cut_is_soft"]]
    return {
        "n_turns": len(turns),
        "unanswered": sum(not turn["answered"] for turn in turns),
        "hard_cuts_percent": round(100.0 * len(cut) / max(1, len(turns)), 1),
        "gap_ms": {"n": gaps.n, "p50": gaps.p50, "p95": gaps.p95},
    }


async def call(
    address: str, voice: str, seed: int, line: str, echo_ms: float = 0.0, sip_port: int = 0
) -> dict[str, Any]:
    """One call in a process of its own. Raises: ClientError."""
    options = ["--voice", voice, "--seed", str(seed), "--line", line, "--echo-ms", str(echo_ms)]
    options += ["--sip-port", str(sip_port)]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "benchmarks.phone.call", address, *options,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        out, log = await asyncio.wait_for(process.communicate(), CALL_S)
    except TimeoutError:
        raise ClientError(f"expected a call to end within {CALL_S:g} s, found that none") from None
    finally:
        if process.returncode is None:
            process.kill()
    if process.returncode != 0:
        raise ClientError(f"expected a call, found: {log.decode(errors='replace')[-600:]}")
    told: dict[str, Any] = json.loads(out)
    return told

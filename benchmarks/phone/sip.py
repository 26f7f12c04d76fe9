"""SIP: its line beside a WebSocket, 200 calls of SIPp, and a caller beside a flood of INVITEs."""

from __future__ import annotations

import asyncio
import csv
import shutil
import tempfile
from argparse import Namespace
from asyncio.subprocess import DEVNULL, PIPE, STDOUT
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx

from benchmarks.harness.harness import Bar, interleaved
from benchmarks.phone.lines import LinePart, call, line_figures, line_text, serving
from benchmarks.phone.sip_line import flood
from benchmarks.webrtc.crowd import SETTLE_S, holds
from clients.call.script import DEFAULT_CAST, load_call
from clients.errors import ClientError
from clients.progress import progress_bar
from clients.report.percentiles import Distribution
from clients.server_process import ServerProcess

N_CALLS, AT_ONCE = 200, 20
A_SECOND = 25  # begin; each lasts 0.8 s
SET_UP_MS = 60.0  # p95, from the INVITE to its 200
INVITES_A_SECOND = 200.0
NEIGHBOURS = 1.10  # of the gap's p95 without the flood
LEFT = ("ports", "descriptors", "tasks")


class SipPart(LinePart):
    """As `LinePart`, and the calls of SIPp."""

    def __init__(self) -> None:
        super().__init__("sip")
        self._set_up_ms: list[float] = []
        self._left: dict[str, float] = {}

    async def measure(self, chosen: Namespace) -> None:
        # By load a machine of two cores lets ten calls in, and one number is called by twenty.
        more = {"VOICELOOP_LIMITS_ADMIT_BY_LOAD": "false", "VOICELOOP_PHONE_MAX_CALLS": "0"}
        async with serving(**more) as (server, sip_port):
            await sipp_calls(sip_port, AT_ONCE)  # what is made once
            await asyncio.sleep(SETTLE_S)
            before = await left_by(server)
            self._set_up_ms = await sipp_calls(sip_port, N_CALLS)
            await asyncio.sleep(SETTLE_S)
            after = await left_by(server)
            self._left = {name: after[name] - before[name] for name in before}
        await super().measure(chosen)

    def figures(self) -> dict[str, Any]:
        if not self._left:
            return {}
        set_up = Distribution.of(self._set_up_ms)
        told = {"n": set_up.n, "p50": set_up.p50, "p95": set_up.p95, "most": set_up.most}
        return {**super().figures(), "set_up_ms": told, "left": self._left}

    def bars(self) -> Sequence[Bar]:
        told = self.figures()["set_up_ms"]
        crowd = [
            Bar("calls of SIPp that were taken", told["n"], N_CALLS, "", at_least=True),
            Bar("set-up of a call by SIP, p95", told["p95"], SET_UP_MS, n=told["n"]),
        ]
        crowd += [Bar(f"{name} left by them", n, 0, "") for name, n in self._left.items()]
        return [*crowd, *(super().bars() if self._turns else ())]

    def show(self) -> None:
        figures = self.figures()
        told = figures["set_up_ms"]
        print(f"\n{told['n']} calls of SIPp, {AT_ONCE} at once: set-up p50 {told['p50']} p95 "
              f"{told['p95']} most {told['most']} ms; left {figures['left']}")  # fmt: skip
        if self._turns:
            super().show()


async def sipp_calls(port: int, n_calls: int) -> list[float]:
    """Milliseconds from each INVITE to its 200. Raises: ClientError: no SIPp, or a call failed."""
    if shutil.which("sipp") is None:
        raise ClientError("expected sipp, of Debian's package sip-tester, found none")
    with tempfile.TemporaryDirectory() as folder:
        process = await asyncio.create_subprocess_exec(
            "sipp", f"127.0.0.1:{port}", "-i", "127.0.0.1", "-nostdin", "-timeout", "120",
            "-sn", "uac", "-m", str(n_calls), "-l", str(AT_ONCE), "-r", str(A_SECOND),
            "-d", "800", "-trace_rtt", "-rtt_freq", "1",
            cwd=folder, stdin=DEVNULL, stdout=PIPE, stderr=STDOUT,
        )  # fmt: skip
        log, _ = await process.communicate()
        if process.returncode:
            found = log.decode(errors="replace")[-600:]
            raise ClientError(f"expected calls of SIPp, found {found}")
        return _times_in(Path(folder))


def _times_in(folder: Path) -> list[float]:
    (file,) = folder.glob("uac_*_rtt.csv")
    with file.open(newline="") as lines:
        rows = list(csv.reader(lines, delimiter=";"))[1:]
    return [float(row[1]) for row in rows if len(row) > 1]


async def left_by(server: ServerProcess) -> dict[str, float]:
    held = await holds(server)
    return {name: held[name] for name in LEFT}


class FloodPart:
    """As `Part`: calls by SIP without and with a flood of INVITEs of a stranger."""

    def __init__(self) -> None:
        self._turns: dict[str, list[dict[str, Any]]] = {}
        self._n_refused = 0.0

    async def measure(self, chosen: Namespace) -> None:
        script = load_call()
        voices = script.casts[DEFAULT_CAST]
        rounds = list(interleaved(("quiet", "flood"), -(-chosen.turns // len(script.turns))))
        async with serving() as (server, port):
            address = f"127.0.0.1:{server.port}"
            with progress_bar("flood: calls", len(rounds)) as progress:
                for done, one in enumerate(rounds):
                    voice = voices[one.index % len(voices)]
                    sends = one.variant == "flood"
                    strangers = (
                        asyncio.create_task(flood(port, INVITES_A_SECOND)) if sends else None
                    )
                    try:
                        told = await call(address, voice, one.index, "sip", sip_port=port)
                    finally:
                        if strangers is not None:
                            strangers.cancel()
                    self._turns.setdefault(one.variant, []).extend(told["turns"])
                    self._n_refused = await refused(address)
                    progress(done + 1)

    def figures(self) -> dict[str, Any]:
        if len(self._turns) < 2:
            return {}
        lines = {line: line_figures(turns) for line, turns in self._turns.items()}
        return {"lines": lines, "refused": self._n_refused, "turns": self._turns}

    def bars(self) -> Sequence[Bar]:
        lines = self.figures()["lines"]
        quiet, beside = (lines[name]["gap_ms"]["p95"] for name in ("quiet", "flood"))
        times = None if not quiet or beside is None else round(beside / quiet, 3)
        n = lines["flood"]["gap_ms"]["n"]
        return [
            Bar("unanswered beside a flood", lines["flood"]["unanswered"], 0, ""),
            Bar("gap p95 beside a flood of INVITEs", times, NEIGHBOURS, "times", n=n),
            Bar("INVITEs refused by an answer", self._n_refused, 1, "", at_least=True),
        ]

    def show(self) -> None:
        figures = self.figures()
        for line, told in figures["lines"].items():
            print(line_text(line, told))
        print(f"  {figures['refused']:g} INVITEs were refused by an answer, the rest by none")


async def refused(address: str) -> float:
    """INVITEs of strangers that were answered with 403."""
    async with httpx.AsyncClient(trust_env=False) as http:
        lines = (await http.get(f"http://{address}/metrics")).text.splitlines()
    name = 'voiceloop_refused_total{code="sip_stranger"}'
    return next((float(line.split()[-1]) for line in lines if line.startswith(name)), 0.0)

"""A recording beside what its caller sent and heard: drift, cuts, and what keeping a call costs."""

from __future__ import annotations

import asyncio
import json
import tempfile
from argparse import Namespace
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
from numpy.typing import NDArray

from benchmarks.harness.harness import RESULTS, Bar, interleaved
from clients.call.script import DEFAULT_CAST, load_call, load_utterances
from clients.call.simulated_call import SimulatedCall
from clients.connection import RATE_HZ, RealtimeConnection
from clients.errors import ConnectionFailed
from clients.progress import progress_bar
from clients.report.percentiles import Distribution
from clients.server_process import ServerProcess, running_server

EXTRAS = {"greeting": "1", "voiceloop.timeline": "1"}
DRIFT_MS, CUT_MS, ADDED_MS, MB_HOUR = 1.0, 20.0, 2.0, 60.0
WINDOW_S, AROUND_S = 2.0, 1.0  # of speech that is looked for, and how far around its place
AUDIBLE = 100  # of int16: what Opus leaves of silence is below
ENCODED_S = 60.0

VARIANTS = ("not kept", "kept")

Samples = NDArray[np.int16]


class RecordingPart:
    """As `Part`: the same calls by turns at two servers, one of which has a folder for them."""

    def __init__(self) -> None:
        self._gaps_ms: dict[str, list[float]] = {}
        self._drifts: list[float] = []  # ms a minute
        self._cuts_ms: list[float] = []
        self._mb_hour: list[float] = []
        self._n_degraded = 0

    async def measure(self, chosen: Namespace) -> None:
        script = load_call()
        rounds = list(interleaved(VARIANTS, -(-chosen.turns // len(script.turns))))
        with tempfile.TemporaryDirectory() as folder:
            kept = Path(folder) / "calls"
            settings = Path(folder) / "voiceloop.toml"
            settings.write_text(
                f'[recording]\nfolder = "{kept}"\nconsent = "none"\nformat = "opus"\n'
            )
            empty = Path(folder) / "empty.toml"
            empty.write_text("")
            async with _serving(empty) as without, _serving(settings) as keeping:
                urls = dict(zip(VARIANTS, (without.url, keeping.url), strict=True))
                with progress_bar("recording: calls", len(rounds)) as progress:
                    for done, one in enumerate(rounds):
                        seed = chosen.seed + one.index
                        await self._call(urls[one.variant], one.variant, seed, kept)
                        progress(done + 1)

    async def _call(self, url: str, variant: str, seed: int, kept: Path) -> None:
        voices = load_call().casts[DEFAULT_CAST]
        utterances = load_utterances(load_call(), voices[seed % len(voices)], RATE_HZ)
        connection = await RealtimeConnection.open(url, extras=EXTRAS)
        before = _sounds(kept)
        call = SimulatedCall(connection, utterances)
        result = await call.run()
        gaps = (turn.gap_ms for turn in result.turns)
        self._gaps_ms.setdefault(variant, []).extend(ms for ms in gaps if ms is not None)
        if variant == "kept":
            sound = await _encoded(kept, before)
            self._look_at(sound, call.uplink.recorded())

    def _look_at(self, sound: Path, line: Samples) -> None:
        notes = json.loads(sound.with_suffix(".json").read_text())
        self._n_degraded += bool(notes["is_degraded"])
        both, rate_hz = soundfile.read(sound, dtype="int16")
        assert rate_hz == RATE_HZ
        self._mb_hour.append(sound.stat().st_size / 1e6 * 3600.0 / notes["seconds"])
        first, last = (_shift_ms(both[:, 0], line, share) for share in (0.1, 0.85))
        self._drifts.append((last - first) / (0.75 * len(line) / RATE_HZ / 60.0))
        sounding = np.flatnonzero(np.abs(both[:, 1].astype(np.int32)) > AUDIBLE)
        for cut in notes["cuts"]:
            at = round(cut["at_ms"] * RATE_HZ / 1000.0)
            near = sounding[np.abs(sounding - at) < RATE_HZ // 4]
            if len(near):  # nothing sounds where the words had a pause
                self._cuts_ms.append(1000.0 * abs(float(near[-1]) - at) / RATE_HZ)

    def figures(self) -> dict[str, Any]:
        if not self._drifts:
            return {}
        gaps = {name: vars_of(Distribution.of(ms)) for name, ms in self._gaps_ms.items()}
        return {
            "gap_ms": gaps,
            "gaps_ms": self._gaps_ms,
            "drift_ms_minute": max(map(abs, self._drifts)),
            "cut_against_history_ms": max(self._cuts_ms, default=None),
            "cuts": len(self._cuts_ms),
            "opus_mb_hour": max(self._mb_hour),
            "degraded": self._n_degraded,
        }

    def bars(self) -> Sequence[Bar]:
        told = self.figures()
        off, on = (told["gap_ms"][name]["p95"] for name in ("not kept", "kept"))
        return (
            Bar("recording: drift a minute", told["drift_ms_minute"], DRIFT_MS),
            Bar(
                "recording: cut against history",
                told["cut_against_history_ms"],
                CUT_MS,
                n=told["cuts"],
            ),
            Bar("recording: gap p95 added", on - off, ADDED_MS),
            Bar("recording: Opus an hour", told["opus_mb_hour"], MB_HOUR, "MB"),
        )

    def show(self) -> None:
        print(json.dumps(self.figures(), indent=1))


def vars_of(one: Distribution) -> dict[str, float | None]:
    return {"p50": one.p50, "p95": one.p95, "n": one.n}


def _serving(settings: Path) -> AbstractAsyncContextManager[ServerProcess]:
    arguments = ("--preset", "embedded", "--config", str(settings))
    return running_server(arguments, log=RESULTS / f"phone-recording-{settings.stem}.log")


def _sounds(kept: Path) -> set[Path]:
    return set(kept.glob("*.opus"))


async def _encoded(kept: Path, before: set[Path]) -> Path:
    for _ in range(round(ENCODED_S / 0.1)):
        if found := _sounds(kept) - before:
            return found.pop()
        await asyncio.sleep(0.1)
    raise ConnectionFailed(f"expected a recording within {ENCODED_S:.0f} s, found none")


def _shift_ms(left: Samples, line: Samples, share: float) -> float:
    """How much later the recording has this stretch of speech than the caller sent it."""
    from scipy.signal import correlate

    begin, n_window = round(share * len(line)), round(WINDOW_S * RATE_HZ)
    loud = np.abs(line[begin : begin + 10 * n_window].astype(np.int32))
    begin += int(np.argmax(loud)) - n_window // 2
    part = line[begin : begin + n_window].astype(np.float64)
    from_at = max(0, begin - round(AROUND_S * RATE_HZ))
    around = left[from_at : begin + n_window + round(AROUND_S * RATE_HZ)].astype(np.float64)
    found = int(np.argmax(correlate(around, part, mode="valid", method="fft")))
    return 1000.0 * (from_at + found - begin) / RATE_HZ

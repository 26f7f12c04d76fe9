"""WebRTC beside the WebSocket: ``python -m benchmarks.webrtc [--paired] [--loss] [--check]``.

Plays the bundled call, in each of its voices by turns, into ``voiceloop serve`` on the loopback,
in real time, by libwebrtc (package `wrtc`), call by call.

--paired   the same calls over a WebSocket too: what WebRTC adds to the gap
--loss     over lines that lose 0, 1, 5 and 10 % of all datagrams, both ways, and delay each by 20
           to 60 ms: what loss adds to the same line without it

--part cuts    200 answers cut on a line that loses 5 %: what history keeps, against what was heard
--part crowd   200 calls, 20 at once: what the server holds more afterwards
--part media   eight callers who speak without a pause: what the media of a call costs
--part uplink  how late the last of what a caller says is, by its own encoder
--part widget  the widget of the example page in Chromium: its size, and how soon it speaks

At the ear: of WebRTC what libwebrtc's buffer lets out, of a WebSocket what a buffer of 40 ms does.
On the wire: the first packet of sound, and the first loud sample received. Onset to silence: what
of the agent still comes out after a caller's first sound over it. History: what the server says
was heard of an item that was cut, less what came out of the buffer.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any

from benchmarks.harness.command_line import Benchmark, run
from benchmarks.harness.harness import RESULTS, Bar, interleaved
from clients.call.script import DEFAULT_CAST, load_call, missing_words
from clients.errors import ClientError
from clients.progress import progress_bar
from clients.report.percentiles import Distribution
from clients.server_process import running_server

WEBSOCKET, WEBRTC = "WebSocket", "WebRTC"
DELAY = ("--delay-ms", "20", "--jitter-ms", "40")
LOSSES = (0, 1, 5, 10)  # percent
LINES: dict[str, tuple[str, ...]] = {
    WEBSOCKET: ("--websocket",),
    WEBRTC: (),
    **{f"{percent} % lost": ("--loss", str(percent / 100), *DELAY) for percent in LOSSES},
}
CALL_S = 240.0
ADDED_MS = {"ear": (25, 60), "wire": (10, 30)}  # p50, p95
ADDED_BY_LOSS = {1: (40, 0.5), 5: (60, 2.0), 10: (80, 5.0)}  # percent: ms, points of words
ONSET_MS = (165, 250)  # to the last packet, to silence at the ear
DIAL_MS, CREATED_MS = 50, 300
HISTORY_MS = 350  # a word: 170 in a minute
FAKES = (sys.executable, "-m", "benchmarks.calls.fake_server")
PART_S = 900.0
N_CUTS, N_CALLERS = 200, 4
N_CROWD, AT_ONCE = 200, 20
N_MEDIA = 8


@dataclass(slots=True)
class Calls:
    """What the calls of one line showed."""

    turns: list[dict[str, Any]] = field(default_factory=list)
    dial_ms: list[float] = field(default_factory=list)
    created_ms: list[float] = field(default_factory=list)
    history_ms: list[float] = field(default_factory=list)

    def add(self, call: Mapping[str, Any]) -> None:
        self.turns += call["turns"]
        if "dial_ms" in call:
            self.dial_ms.append(call["dial_ms"])
            self.created_ms.append(call["created_ms"])
            self.history_ms += [abs(told - heard) for told, heard in call["told_and_heard_ms"]]

    def gaps(self, name: str) -> Distribution:
        return Distribution.of([t[name] for t in self.turns if t.get(name) is not None])

    def onsets(self, name: str) -> Distribution:
        barge_ins = [turn["barge_in"] for turn in self.turns if turn["barge_in"]]
        return Distribution.of([one[name] for one in barge_ins if one[name] is not None])

    @property
    def words_missing(self) -> float:
        """Percent of the words said that the transcripts do not have, in any order."""
        said = [(turn["said"], turn["heard"]) for turn in self.turns]
        words = [(w, heard) for text, heard in said for w in text.replace("...", " ").split()]
        wrong = sum(bool(missing_words(((word.strip(",.?!"),),), heard)) for word, heard in words)
        return 100.0 * wrong / max(1, len(words))

    @property
    def hard_cuts(self) -> float:
        cut = [turn for turn in self.turns if turn["cut_in"] and not turn["cut_is_soft"]]
        return 100.0 * len(cut) / max(1, len(self.turns))

    def figures(self, is_socket: bool) -> dict[str, Any]:
        """The ear of a WebSocket has a buffer of its own; libwebrtc's is counted already."""
        ear, wire = ("audible_ms", "gap_ms") if is_socket else ("gap_ms", "wire_ms")
        silent = "audible_ms" if is_socket else "wire_ms"
        told = {
            "gap_ear_ms": self.gaps(ear),
            "gap_wire_ms": self.gaps(wire),
            "onset_to_silence_at_the_ear_ms": self.onsets(silent),
            "post_to_201_ms": Distribution.of(self.dial_ms),
            "offer_to_session_ms": Distribution.of(self.created_ms),
            "history_off_by_ms": Distribution.of(self.history_ms),
        }
        stages = [turn["stages"] for turn in self.turns if turn.get("stages")]
        names = {name: None for one in stages for name in one}
        return {
            "n_turns": len(self.turns),
            "stage_p50_ms": {
                name: Distribution.of([one.get(name, 0.0) for one in stages]).p50 for name in names
            },
            "unanswered": sum(not turn["answered"] for turn in self.turns),
            "hard_cuts_percent": round(self.hard_cuts, 1),
            "words_missing_percent": round(self.words_missing, 1),
            **{name: {"n": d.n, "p50": d.p50, "p95": d.p95} for name, d in told.items()},
        }


async def measure(
    lines: Sequence[str], n_turns: int, seed: int, found: Mapping[str, Calls]
) -> None:
    """Play the calls, line by line interleaved. Raises: ClientError."""
    script = load_call()
    voices = script.casts[DEFAULT_CAST]
    rounds = list(interleaved(lines, -(-n_turns // len(script.turns))))
    log = RESULTS / "webrtc-server.log"
    async with running_server(("--preset", "embedded"), log=log) as server:
        address = server.url.partition("://")[2].partition("/")[0]
        with progress_bar("calls", len(rounds)) as progress:
            for done, one in enumerate(rounds):
                voice = voices[one.index % len(voices)]
                found[one.variant].add(
                    await _call(address, voice, seed + one.index, LINES[one.variant])
                )
                progress(done + 1)


async def _call(address: str, voice: str, seed: int, options: Sequence[str]) -> dict[str, Any]:
    """One call in a process of its own. Raises: ClientError."""
    told: dict[str, Any] = await told_by(
        "call", address, "--voice", voice, "--seed", str(seed), *options, within_s=CALL_S
    )
    return told


async def told_by(part: str, *arguments: str, within_s: float) -> Any:
    """What a process of these benchmarks prints, for libwebrtc's threads end with theirs alone.

    Raises: ClientError.
    """
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", f"benchmarks.webrtc.{part}", *arguments,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        out, log = await asyncio.wait_for(process.communicate(), within_s)
    except TimeoutError:
        raise ClientError(
            f"expected {part} to end within {within_s:g} s, found it goes on"
        ) from None
    finally:
        if process.returncode is None:
            process.kill()
    if process.returncode != 0:
        raise ClientError(f"expected {part}, found: {log.decode(errors='replace')[-600:]}")
    return json.loads(out)


def bars_of(figures: Mapping[str, dict[str, Any]]) -> list[Bar]:
    """Of the lines that were measured."""
    bars = [Bar(f"unanswered, {line}", one["unanswered"], 0, "") for line, one in figures.items()]
    if (rtc := figures.get(WEBRTC)) is not None:
        silent = rtc["onset_to_silence_at_the_ear_ms"]
        history = rtc["history_off_by_ms"]
        bars += [
            Bar("POST to 201, p95", rtc["post_to_201_ms"]["p95"], DIAL_MS),
            Bar("offer to session.created, p95", rtc["offer_to_session_ms"]["p95"], CREATED_MS),
            Bar("onset to silence at the ear, p95", silent["p95"], ONSET_MS[1], n=silent["n"]),
            Bar("history against what was heard, p95", history["p95"], HISTORY_MS, n=history["n"]),
        ]
        if (socket := figures.get(WEBSOCKET)) is not None:
            for place, limits in ADDED_MS.items():
                for which, limit in zip(("p50", "p95"), limits, strict=True):
                    added = _added(rtc, socket, f"gap_{place}_ms", which)
                    bars.append(Bar(f"added gap, {place}, {which}", added, limit))
    if (clean := figures.get("0 % lost")) is not None:
        for percent, (limit_ms, points) in ADDED_BY_LOSS.items():
            lossy, told = figures[f"{percent} % lost"], f"{percent} % lost"
            words = lossy["words_missing_percent"] - clean["words_missing_percent"]
            cuts = lossy["hard_cuts_percent"] - clean["hard_cuts_percent"]
            added = _added(lossy, clean, "gap_ear_ms", "p50")
            bars += [
                Bar(f"{told}: gap added, p50", added, limit_ms),
                Bar(f"{told}: words missing, added", words, points, "pts"),
                Bar(f"{told}: hard cuts, added", cuts, 0, "pts"),
            ]
    return bars


def _added(one: dict[str, Any], base: dict[str, Any], name: str, which: str) -> float | None:
    found = one[name][which], base[name][which]
    return None if None in found else found[0] - found[1]


def print_figures(figures: Mapping[str, dict[str, Any]]) -> None:
    for line, told in figures.items():
        print(
            f"\n{line}: {told['n_turns']} turns, {told['unanswered']} unanswered, hard cuts "
            f"{told['hard_cuts_percent']} %, words missing {told['words_missing_percent']} %"
        )
        for name, one in told.items():
            if isinstance(one, dict) and one.get("n"):
                print(f"  {name:<34} n {one['n']:>3}  p50 {one['p50']:>7}  p95 {one['p95']:>7}")
        print(
            "  stages, p50:", "  ".join(f"{name} {ms}" for name, ms in told["stage_p50_ms"].items())
        )


async def measure_media(found: dict[str, Any]) -> None:
    found |= await told_by("media", str(N_MEDIA), within_s=PART_S)


async def measure_crowd(found: dict[str, Any]) -> None:
    log = RESULTS / "webrtc-server.log"
    environment = {"VOICELOOP_LIMITS_ADMIT_BY_LOAD": "false"}
    arguments = ("--preset", "embedded")
    async with running_server(arguments, log=log, environment=environment) as server:
        places = (str(server.port), str(server.pid), str(N_CROWD), str(AT_ONCE))
        found |= await told_by("crowd", *places, within_s=PART_S)


async def measure_cuts(found: dict[str, Any]) -> None:
    log = RESULTS / "webrtc-server.log"
    async with running_server(("--rising",), command=FAKES, log=log) as server:
        callers = (
            told_by(
                "cuts", f"127.0.0.1:{server.port}", "--cuts", str(N_CUTS // N_CALLERS),
                "--seed", str(seed), within_s=PART_S,
            )
            for seed in range(N_CALLERS)
        )  # fmt: skip
        cuts = [one for of_caller in await asyncio.gather(*callers) for one in of_caller]
    off_ms = Distribution.of([abs(cut[0] - cut[1]) for cut in cuts if cut is not None])
    found |= {"n": off_ms.n, "p50": off_ms.p50, "p95": off_ms.p95, "most": off_ms.most}
    found["cuts"] = cuts


async def measure_widget(found: dict[str, Any]) -> None:
    log = RESULTS / "webrtc-server.log"
    async with running_server(("--preset", "embedded"), log=log) as server:
        found |= await told_by("widget", f"http://127.0.0.1:{server.port}", within_s=PART_S)


async def measure_uplink(found: dict[str, Any]) -> None:
    found |= await told_by("uplink", "20", within_s=PART_S)


PARTS = {
    "media": measure_media,
    "crowd": measure_crowd,
    "cuts": measure_cuts,
    "uplink": measure_uplink,
    "widget": measure_widget,
}


def bars_of_part(part: str, found: Mapping[str, Any]) -> list[Bar]:
    match part:
        case "media":
            return [
                Bar("media of a call, share of a core", found["core_percent"], 5, "%"),
                Bar("memory of a call's media", found["memory_mb"], 3, "MB"),
            ]
        case "crowd":
            limits = {"memory_mb": (1, "MB")}
            return [Bar(f"{name} left", more, *limits.get(name, (0, "")))
                    for name, more in found.items()]  # fmt: skip
        case "cuts":
            return [Bar("history against what was heard, p95", found["p95"], HISTORY_MS,
                        n=found["n"])]  # fmt: skip
        case "uplink":
            return []
    return [
        Bar("widget, over the wire", found["bytes"], 25_000, "bytes"),
        Bar("first words after the click, p50", found["p50"], 1500, n=found["n"]),
    ]


def run_part(command: Benchmark, part: str) -> int:
    """One of `PARTS`, from the measuring to the exit code."""
    found: dict[str, Any] = {}
    command.measure(PARTS[part](found))
    if not found:
        return command.without_results()
    print({name: value for name, value in found.items() if not isinstance(value, list)})
    settings = {"part": part}
    return command.finish(settings, bars_of_part(part, found), name=f"webrtc_{part}", found=found)


def main() -> int:
    command = Benchmark(
        "webrtc",
        "Calls over WebRTC by libwebrtc, beside the same over a WebSocket, and over lines that "
        "lose packets. A run that is interrupted writes the calls that had ended.",
        seed="the room noise, and what a line loses",
    )
    command.count("--turns", 48, "of each line at least so many, in whole calls of eight")
    command.switch("--paired", "the same calls over a WebSocket too")
    command.switch("--loss", "over lines that lose packets; five lines, a minute for each call")
    command.choice("--part", ("calls", *PARTS), "calls", "what is measured")
    chosen = command.parse()
    if find_spec("webrtc") is None:
        command.parser.error(
            "expected the package wrtc (pip install wrtc; Python 3.11), found none"
        )
    if chosen.part != "calls":
        return run_part(command, chosen.part)
    lines = [WEBRTC, *([WEBSOCKET] if chosen.paired else [])]
    lines += [name for name in LINES if chosen.loss and name.endswith("lost")]
    found = {name: Calls() for name in lines}
    command.measure(measure(lines, chosen.turns, chosen.seed, found))
    figures = {
        name: calls.figures(name == WEBSOCKET) for name, calls in found.items() if calls.turns
    }
    if not figures:
        return command.without_results()
    print_figures(figures)
    turns = {name: calls.turns for name, calls in found.items()}
    return command.finish({"turns": chosen.turns}, bars_of(figures), lines=figures, turns=turns)


if __name__ == "__main__":
    sys.exit(run(main))

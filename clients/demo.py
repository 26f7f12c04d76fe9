"""``voiceloop demo``: a recorded caller talks to a real server in real time, and a person watches.

Starts ``voiceloop serve`` as the processes it really is, plays the call over the WebSocket, prints
the conversation as it happens and writes conversation.wav (caller left, agent right), turns.json,
waterfall.png and report.html. A call that is interrupted, or breaks off, leaves them too: what was
recorded, and the turns that were over.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from clients.agent_card import AgentCard, read_card
from clients.call.open_call import CallOptions
from clients.call.record import CallRecord
from clients.call.result import CallResult
from clients.call.script import ScriptedTurn, Utterance, load_call, load_utterances, utterance_of
from clients.call.simulated_call import SimulatedCall
from clients.connection import RATE_HZ, RealtimeConnection, own_key
from clients.errors import ConnectionFailed, RecordingError
from clients.live_view import LiveView
from clients.outputs import prepare_folder, writing
from clients.progress import spinner
from clients.provenance import provenance
from clients.recording import Recording, Samples, read_wav, write_wav
from clients.report.call_summary import summary_of, turn_json
from clients.report.report import report_html
from clients.report.waterfall_png import check_matplotlib, draw_waterfall
from clients.report.waveform import pauses, speech_start
from clients.server_process import ServerProcess, running_server
from clients.terminal import Terminal

EXTRAS = {"greeting": "1", "voiceloop.timeline": "1", "voiceloop.partials": "1"}
SPLIT_PAUSE_MS = 1_000.0  # in a person's own recording, a pause after which the agent may answer
MAX_RECORDING_S = 600.0
TOO_EARLY = "[red]ended before the call began[/red]: nothing was recorded"


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """The options of the command line. ``wav``: a recording that speaks instead of our caller."""

    out: Path
    wav: Path | None = None
    json: bool = False
    preset: str = "embedded"
    voice: str = "heart"


def recording_as_call(path: Path) -> tuple[Utterance, ...]:
    """A person's recording as a caller: split where it pauses for a second or more.

    Raises:
        RecordingError: it is no mono 16-bit WAV, holds only silence, or runs over ten minutes.
    """
    recording = read_wav(path).at_rate(RATE_HZ)
    if recording.duration_ms > 1000.0 * MAX_RECORDING_S:
        raise RecordingError(
            f"expected a recording of at most {MAX_RECORDING_S:.0f} s, "
            f"found {recording.duration_ms / 1000:.0f} s in {path}"
        )
    if speech_start(recording.samples, RATE_HZ) is None:
        raise RecordingError(f"expected speech in {path}, found digital silence")
    cuts = [(a + b) // 2 for a, b in pauses(recording.samples, RATE_HZ, SPLIT_PAUSE_MS)]
    edges = [0, *cuts, len(recording.samples)]
    return tuple(
        utterance_of(
            ScriptedTurn(f"part {i}", f"({path.name}, part {i})", path.name, "agent", 600, 0, ()),
            Recording(recording.samples[begin:end], RATE_HZ),
        )
        for i, (begin, end) in enumerate(zip(edges[:-1], edges[1:], strict=True), 1)
    )


async def run_demo(options: DemoOptions) -> int:
    """Run the demo; returns the exit code: 0, or 1 where a turn got no answer.

    Raises:
        ClientError: the recording cannot be used, the server did not start, or the call broke off.
    """
    check_matplotlib()
    script = load_call()
    title = script.title if options.wav is None else options.wav.name
    utterances = (
        load_utterances(script, options.voice, RATE_HZ)
        if options.wav is None
        else recording_as_call(options.wav)
    )
    prepare_folder(options.out)
    console = Terminal(stderr=options.json, highlight=False)
    arguments = ["--preset", options.preset]
    async with AsyncExitStack() as running:
        try:
            with spinner(f"starting the server ({options.preset})", console):
                server = await running.enter_async_context(
                    running_server(arguments, log=options.out / "server.log")
                )
            card = await read_card(server.url, own_key(server.url))
            console.print(
                f"[dim]ready after {server.ready_s:.1f} s at {server.url}: {card}[/dim]\n"
            )
            connection = await RealtimeConnection.open(
                server.url, key=own_key(server.url), extras=EXTRAS
            )
        except asyncio.CancelledError:
            console.print(TOO_EARLY)
            raise
        try:
            result = await play(connection, utterances, options, console, server, title, card)
        except ConnectionFailed as error:
            raise ConnectionFailed(f"{error}; see {options.out / 'server.log'}") from error
    return 1 if result.unanswered else 0


async def play(
    connection: RealtimeConnection,
    utterances: tuple[Utterance, ...],
    options: DemoOptions,
    console: Console,
    server: ServerProcess,
    title: str,
    card: AgentCard,
) -> CallResult:
    """Play the call and leave its files, also of one that ends early.

    Raises:
        ConnectionFailed: the server hung up; what was recorded by then is written.
        OutputError: a file cannot be written.
    """
    view = LiveView(console, card.name, len(utterances))
    call = SimulatedCall(
        connection, utterances, voice=options.voice, options=CallOptions(), observer=view
    )
    try:
        with view:
            result = await call.run()
    except (asyncio.CancelledError, ConnectionFailed) as error:
        partial = "interrupted" if isinstance(error, asyncio.CancelledError) else "broken off"
        console.print(f"[red]{partial}[/red]")  # at once: the report takes a moment
        so_far = call.so_far()
        if so_far is None:
            console.print(TOO_EARLY)
        else:
            _leave(options, console, call, so_far, _results(so_far, server, title, partial, card))
        raise
    _leave(options, console, call, result, _results(result, server, title, None, card))
    return result


def _leave(
    options: DemoOptions,
    console: Console,
    call: SimulatedCall,
    result: CallResult,
    results: dict[str, Any],
) -> None:
    title = results["call"] + (f" ({results['partial']})" if results["partial"] else "")
    with spinner("writing the report", console):
        write_outputs(options, call.record, result, results, call.uplink.recorded(), title)
    _print_end(console, results, options.out)
    if options.json:
        json.dump(results, sys.stdout, indent=1)
        print()


def _results(
    result: CallResult, server: ServerProcess, title: str, partial: str | None, card: AgentCard
) -> dict[str, Any]:
    """``partial``: why the call ended early, None for a whole one."""
    return {
        "call": title,
        "partial": partial,
        "agent": asdict(card),
        **provenance(),
        "seed": CallOptions().seed,
        "server_ready_s": round(server.ready_s, 2),
        "resident_mb": round(server.resident_mb(), 1),
        **summary_of([result]),
        "greeting": result.greeting,
        "turns": [turn_json(turn) for turn in result.turns],
    }


def write_outputs(
    options: DemoOptions,
    record: CallRecord,
    result: CallResult,
    results: dict[str, Any],
    caller: Samples,
    title: str,
) -> None:
    """Write the four files of a call into ``options.out``.

    Raises:
        OutputError: one of them cannot be written.
    """
    channels = record.channels(caller)
    write_wav(options.out / "conversation.wav", channels, RATE_HZ)
    with writing(options.out):
        (options.out / "turns.json").write_text(json.dumps(results, indent=1) + "\n")
        _write_report(options, result, results, channels, title)


def _write_report(
    options: DemoOptions,
    result: CallResult,
    results: dict[str, Any],
    channels: tuple[Samples, Samples],
    title: str,
) -> None:
    gap = results["gap_ms"]["p50"]
    note = "no turn was answered in time" if gap is None else f"median gap {gap:.0f} ms"
    card = AgentCard(**results["agent"])
    note = f"{note}  ·  {card}  ·  {results['machine']['cpu']}  ·  commit {results['commit']}"
    draw_waterfall(options.out / "waterfall.png", result.turns, title, note)
    page = report_html(result, results, results, channels, RATE_HZ, title=title, agent=card.name)
    (options.out / "report.html").write_text(page, encoding="utf-8")


def _print_end(console: Console, results: dict[str, Any], out: Path) -> None:
    gap = results["gap_ms"]
    n_turns = results["n_turns"]
    if results["partial"]:
        console.print(f"turns that were over by then: {n_turns}")
    if gap["p50"] is not None:
        n_expected = results["turns_with_expected_words"]  # none of a recording of one's own
        worded = f", {results['turns_with_words_found']} of {n_expected} with the expected words"
        console.print(
            f"[bold]{gap['p50']:.0f} ms[/bold] median gap, {gap['p95']:.0f} ms p95; "
            f"{n_turns - results['unanswered']} of {n_turns} turns answered"
            f"{worded if n_expected else ''}, {results['cut_ins']} cut-ins"
        )
    else:
        console.print(f"[red]none of {n_turns} turns has a gap[/red]")
    files = ("report.html", "conversation.wav", "waterfall.png", "turns.json")
    console.print("[dim]wrote[/dim] " + "  ".join(str(out / name) for name in files))
    if not results["partial"]:
        console.print(f"[dim]talk to it yourself:[/dim] {own_command()} serve")


def own_command() -> str:
    """`voiceloop` as it can be typed here: by its name, else where `make demo` has put it."""
    if shutil.which("voiceloop") is not None:
        return "voiceloop"
    return os.path.relpath(Path(sys.executable).with_name("voiceloop"))

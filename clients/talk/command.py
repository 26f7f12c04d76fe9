"""``voiceloop talk``: a person's side of a call, by microphone and loudspeaker or from a WAV.

With ``--wav`` the recording is streamed as it is, in real time, and the call ends when the agent
has answered its end; ``--out`` keeps it, also where ctrl-C or the server ends it before. With the
microphone the call lasts until ctrl-C; with loudspeakers the agent is kept from hearing itself by
echo cancellation, where its library is installed, else headphones are asked for.
"""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

from clients.arguments import DEFAULT_URL
from clients.call.open_call import CallOptions, session_settings
from clients.call.script import ScriptedTurn, utterance_of
from clients.call.simulated_call import SimulatedCall
from clients.connection import RATE_HZ
from clients.errors import ConnectionFailed, OutputError
from clients.live_view import LiveView
from clients.outputs import check_file
from clients.recording import Samples, read_recording, write_wav
from clients.talk import echo
from clients.talk.desk_call import DeskCall
from clients.talk.desk_line import DeskLine
from clients.talk.keyboard import key_presses
from clients.talk.level_meter import LevelMeter
from clients.talk.sound_card import sound_card
from clients.talk.speaker import Speaker
from clients.terminal import Terminal

MAX_BEHIND_BLOCKS = 250  # 5 s of microphone: beyond that the connection is not keeping up
EXTRAS = {"greeting": "1", "voiceloop.partials": "1"}


@dataclass(frozen=True, slots=True)
class TalkOptions:
    url: str = DEFAULT_URL
    wav: Path | None = None
    out: Path | None = None
    key: str | None = None
    voice: str = ""  # the agent's; "": its own
    push_to_talk: bool = False
    cancels_echo: bool = True  # where the library is installed


async def run_talk(options: TalkOptions) -> int:
    """Hold one call; returns the exit code: 1 where a recording got no answer.

    Raises:
        ClientError: no server, no microphone, a recording that cannot be used, or ``out`` cannot
            be written.
    """
    console = Terminal(highlight=False)
    if options.wav is not None:
        return await _talk_from_wav(options, options.wav, console)
    await _talk_by_microphone(options, console)
    return 0


async def _talk_from_wav(options: TalkOptions, wav: Path, console: Console) -> int:
    turn = ScriptedTurn(wav.stem, f"({wav.name})", wav.name, "agent", 300, 0, ())
    if options.out is not None:
        _check_out(options.out, wav)
    utterance = utterance_of(turn, read_recording(wav).at_rate(RATE_HZ))
    connection = await DeskLine.open(options.url, key=options.key, extras=EXTRAS)
    view = LiveView(console, "agent")
    asked = CallOptions(agent_voice=options.voice)
    call = SimulatedCall(connection, (utterance,), options=asked, observer=view)
    try:
        with view:
            result = await call.run()
    except (asyncio.CancelledError, ConnectionFailed):
        if options.out is not None and call.so_far() is not None:
            console.print("[red]the call ended early[/red]")
            _keep(call, options.out, console)
        raise
    if options.out is not None:
        _keep(call, options.out, console)
    return 1 if result.unanswered else 0


def _check_out(out: Path, wav: Path) -> None:
    """Raises: OutputError: it is the recording itself, or cannot be written."""
    if out.exists() and wav.exists() and out.samefile(wav):
        raise OutputError(f"expected --out to name another file than --wav, found {out} twice")
    check_file(out)


def _keep(call: SimulatedCall, out: Path, console: Console) -> None:
    write_wav(out, call.record.channels(call.uplink.recorded()), RATE_HZ)
    console.print(f"[dim]wrote[/dim] {out} [dim](caller left, agent right)[/dim]")


async def _talk_by_microphone(options: TalkOptions, console: Console) -> None:
    speaker, meter = Speaker(), LevelMeter()
    microphone: asyncio.Queue[Samples] = asyncio.Queue(MAX_BEHIND_BLOCKS)
    cancels_echo = options.cancels_echo and echo.is_available()
    with ExitStack() as desk:
        keys = desk.enter_context(key_presses()) if options.push_to_talk else None
        desk.enter_context(sound_card(microphone, speaker, cancels_echo=cancels_echo))
        connection = await DeskLine.open(options.url, key=options.key, extras=EXTRAS)
        await connection.send({"type": "session.update", "session": _desk_session(options)})
        console.print(f"[dim]{_advice(options, cancels_echo=cancels_echo)}; ctrl-C ends[/]\n")
        with LiveView(console, "agent", meter=meter) as view:
            await DeskCall(connection, microphone, speaker, view, meter, keys).run()
    console.print("[dim]the server ended the call[/dim]")


def _desk_session(options: TalkOptions) -> dict[str, Any]:
    session = session_settings(voice=options.voice)
    if options.push_to_talk:
        session["audio"]["input"]["turn_detection"] = None
    return session


def _advice(options: TalkOptions, *, cancels_echo: bool) -> str:
    """How to speak, and what keeps the agent from hearing itself."""
    how = "space, speak, space" if options.push_to_talk else "speak"
    if cancels_echo:
        return f"{how}; echo cancellation is on, loudspeakers are fine"
    if not options.cancels_echo:
        return f"{how}; no echo cancellation: with loudspeakers the agent hears itself"
    remedy = escape("pip install 'voiceloop[talk]' brings echo cancellation")
    return f"{how}; headphones keep the agent from hearing itself ({remedy})"

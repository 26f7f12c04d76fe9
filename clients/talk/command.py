"""``voiceloop talk``: a person's side of a call, by microphone and loudspeaker or from a WAV.

With ``--wav`` the recording is streamed as it is, in real time, and the call ends when the agent
has answered its end; ``--out`` keeps it, also where ctrl-C or the server ends it before. With the
microphone the call lasts until ctrl-C. There is no echo cancellation here: with loudspeakers the
agent would hear itself, so headphones are asked for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from clients.arguments import DEFAULT_URL
from clients.call.script import ScriptedTurn, utterance_of
from clients.call.simulated_call import SimulatedCall, session_settings
from clients.connection import RATE_HZ, RealtimeConnection
from clients.errors import ConnectionFailed, DeviceMissing, OutputError
from clients.live_view import LiveView
from clients.outputs import check_file
from clients.recording import Samples, read_recording, write_wav
from clients.talk.speaker import Speaker
from clients.terminal import Terminal

BLOCK_MS = 20
N_BLOCK = RATE_HZ * BLOCK_MS // 1000
MAX_BEHIND_BLOCKS = 250  # 5 s of microphone: beyond that the connection is not keeping up
EXTRAS = {"greeting": "1", "voiceloop.partials": "1"}


@dataclass(frozen=True, slots=True)
class TalkOptions:
    url: str = DEFAULT_URL
    wav: Path | None = None
    out: Path | None = None
    key: str | None = None


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
    connection = await RealtimeConnection.open(options.url, key=options.key, extras=EXTRAS)
    view = LiveView(console, "agent")
    call = SimulatedCall(connection, (utterance,), observer=view)
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
    speaker = Speaker()
    microphone: asyncio.Queue[Samples] = asyncio.Queue(MAX_BEHIND_BLOCKS)
    with sound_card(microphone, speaker):
        connection = await RealtimeConnection.open(options.url, key=options.key, extras=EXTRAS)
        await connection.send({"type": "session.update", "session": session_settings()})
        console.print("[dim]speak; headphones keep the agent from hearing itself; ctrl-C ends[/]\n")
        with LiveView(console, "agent") as view:
            async with asyncio.TaskGroup() as group:
                line = group.create_task(_send_microphone(connection, microphone))
                await _play_answers(connection, speaker, view)
                line.cancel()
    console.print("[dim]the server ended the call[/dim]")


async def _send_microphone(
    connection: RealtimeConnection, microphone: asyncio.Queue[Samples]
) -> None:
    try:
        while True:
            await connection.append_audio(await microphone.get())
    except ConnectionFailed:
        return  # the other task sees the end of the events and ends the call


async def _play_answers(connection: RealtimeConnection, speaker: Speaker, view: LiveView) -> None:
    async for received in connection.events():
        view.received(received)
        if received.type == "response.output_audio.delta":
            speaker.push(received.event["item_id"], received.samples)
        elif received.type == "input_audio_buffer.speech_started":
            interrupted = speaker.flush()
            if interrupted is not None:
                await connection.truncate(interrupted)


@contextmanager
def sound_card(microphone: asyncio.Queue[Samples], speaker: Speaker) -> Iterator[None]:
    """Open the default microphone and loudspeaker at 24 kHz; blocks arrive on the event loop.

    Raises:
        DeviceMissing: no sounddevice, no PortAudio, no microphone, or it cannot do 24 kHz.
    """
    try:
        import sounddevice
    except ImportError as error:
        raise DeviceMissing(
            "expected sounddevice for the microphone, found none: pip install 'voiceloop[talk]', "
            "or use --wav"
        ) from error
    except OSError as error:  # the package is there, the library under it is not
        raise DeviceMissing(
            "expected the PortAudio library, found none: apt-get install libportaudio2, "
            "or use --wav"
        ) from error
    loop = asyncio.get_running_loop()

    def offer(samples: Samples) -> None:
        if not microphone.full():
            microphone.put_nowait(samples)

    def recorded(data: Any, *_: object) -> None:
        loop.call_soon_threadsafe(offer, np.frombuffer(data, dtype=np.int16).copy())

    def wanted(data: Any, n_frames: int, *_: object) -> None:
        data[:] = speaker.take(n_frames).tobytes()

    shape = {"samplerate": RATE_HZ, "channels": 1, "dtype": "int16", "blocksize": N_BLOCK}
    with ExitStack() as streams:
        try:
            streams.enter_context(sounddevice.RawInputStream(callback=recorded, **shape))
            streams.enter_context(sounddevice.RawOutputStream(callback=wanted, **shape))
        except (sounddevice.PortAudioError, ValueError) as error:
            raise DeviceMissing(
                f"expected a microphone and a loudspeaker, found none that opens: {error}; "
                "use --wav"
            ) from error
        yield

"""One caller for every runtime: the same audio, the same clock, nothing but sound is believed.

Owns how a call of `benchmarks.peers` is played and measured. The caller streams 20 ms frames in
real time, room noise between turns, and judges the runtime by the audio that arrives: no event of
any runtime enters a figure, except that a flush ends what is queued at the client. What VoiceLoop
tells of its turns explains a figure and makes none.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from time import monotonic
from typing import Any, Protocol

import numpy as np
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from audio.frames import RECOGNIZER_HZ
from audio.resample import Resampler
from benchmarks.calls.human_turns import HumanTurn
from clients.call.open_call import session_settings
from clients.call.result import SOFT_CUT_MS
from clients.connection import RATE_HZ, RealtimeConnection, own_key
from clients.playout import Playout
from clients.recording import Samples
from clients.report.waterfall import Waterfall, waterfall_of
from clients.report.waveform import FRAME_MS, audible_amplitude, first_audible, speech_frames
from clients.uplink import Uplink

ANSWER_WITHIN_S = 6.0
QUIET_S = 0.7  # of the agent, before the next turn: a reply in two parts has a pause
INTERRUPT_AFTER_S = 1.2  # of the agent's answer
FACTS = ("endpoint", "anticipation", "draft_buffered_ms")
FADE_MS = 150.0  # longer than any runtime fades in for
BREAK_MS = 300.0  # longer than any runtime's packets are apart


@dataclass(frozen=True, slots=True)
class Heard:
    """Agent audio at 24 kHz that arrived; None: the runtime says to drop what is queued."""

    at: float
    samples: Samples | None


class Line(Protocol):
    """A call to one runtime. told: its own account of its turns, where it gives any."""

    told: list[dict[str, Any]]

    async def append_audio(self, samples: Samples) -> None: ...

    def heard(self) -> AsyncIterator[Heard]: ...

    async def close(self) -> None: ...


class RealtimeLine:
    """VoiceLoop, by the Realtime protocol. detection: None for the server's own default."""

    def __init__(self, connection: RealtimeConnection) -> None:
        self.told: list[dict[str, Any]] = []
        self._connection = connection

    @classmethod
    async def open(cls, port: int, detection: Mapping[str, Any] | None = None) -> RealtimeLine:
        url = f"ws://127.0.0.1:{port}/v1/realtime"
        extras = {"greeting": "1", "voiceloop.timeline": "1"}
        connection = await RealtimeConnection.open(url, key=own_key(url), extras=extras)
        settings = session_settings(detection)
        await connection.send({"type": "session.update", "session": settings})
        return cls(connection)

    async def append_audio(self, samples: Samples) -> None:
        await self._connection.append_audio(samples)

    async def heard(self) -> AsyncIterator[Heard]:
        async for received in self._connection.events():
            if received.type == "response.output_audio.delta":
                yield Heard(received.at, received.samples)
            elif received.type == "input_audio_buffer.speech_started":
                yield Heard(received.at, None)
            elif received.type == "voiceloop.timeline":
                self.told.append(received.event["timeline"])

    async def close(self) -> None:
        await self._connection.close()


class BareLine:
    """A peer: PCM16 frames both ways. ``rate_hz``: what it listens at."""

    def __init__(self, socket: ClientConnection, rate_hz: int) -> None:
        self.told: list[dict[str, Any]] = []
        self._socket = socket
        self._resampler = Resampler(RATE_HZ, rate_hz) if rate_hz != RATE_HZ else None

    @classmethod
    async def open(cls, port: int, rate_hz: int) -> BareLine:
        url = f"ws://127.0.0.1:{port}/call"
        return cls(await connect(url, compression=None), rate_hz)

    async def append_audio(self, samples: Samples) -> None:
        if self._resampler is not None:
            samples = self._resampler.push(samples)
        await self._socket.send(samples.astype("<i2").tobytes())

    async def heard(self) -> AsyncIterator[Heard]:
        try:
            while True:
                message = await self._socket.recv()
                at = monotonic()
                if isinstance(message, bytes):
                    yield Heard(at, np.frombuffer(message, dtype="<i2").astype(np.int16))
                elif message == "clear":
                    yield Heard(at, None)
        except ConnectionClosed:
            return

    async def close(self) -> None:
        await self._socket.close()


def silent_after(audible_ms: Sequence[float]) -> float:
    """The end of what is audible without a break; a reply that begins later is another one."""
    end_ms = 0.0
    for ms in audible_ms:
        if ms - end_ms > BREAK_MS:
            break
        end_ms = ms
    return end_ms


def faded_in_s(pieces: Sequence[Heard], first_at: float) -> float:
    """From the first audible sample of the piece that arrived then to the first that is no softer
    than 6 dB below the loudest of the next FADE_MS: a first sound that fades in is heard there.
    """
    heard = [p.samples for p in pieces if p.samples is not None and p.at >= first_at]
    sound = np.concatenate(heard).astype(np.int32)
    sound = np.abs(sound[first_audible(sound) or 0 :][: int(FADE_MS * RATE_HZ / 1000.0)])
    return float(np.argmax(sound >= sound.max() / 2)) / RATE_HZ


def goes_on(turn: HumanTurn, after_s: float) -> float:
    """When a word first sounds so long after the onset, or later; in s from there, inf: never.

    A noisy room lies within 35 dB of a voice, so that loudness tells it only without the words.
    """
    if turn.words:
        after_ms = turn.onset_ms + 1000.0 * after_s
        to_come = [max(start, after_ms) for _, start, end in turn.words if end > after_ms]
        return (to_come[0] - turn.onset_ms) / 1000.0 if to_come else float("inf")
    loud_ms = FRAME_MS * speech_frames(turn.samples, RECOGNIZER_HZ) - turn.onset_ms
    later_ms = loud_ms[loud_ms >= 1000.0 * after_s]
    return float(later_ms[0]) / 1000.0 if len(later_ms) else float("inf")


def account_of(told: Sequence[Mapping[str, Any]], since: float) -> Mapping[str, Any] | None:
    """Of the first reply that was sent since then; None where none was."""
    return next((t for t in told if t["marks"].get("first_byte_on_wire", 0.0) >= since), None)


@dataclass(frozen=True, slots=True)
class MeasuredTurn:
    """What became of one turn; times in ms.

    cut: the agent was audible before the caller's end; of a barge-in: audible again, having fallen
    silent. over_ms: of a cut turn, for how long the agent was heard once the caller went on.
    gap_ms: None where it was cut or nobody answered. wire_ms, audible_ms: from the onset of
    an interruption to silence. waterfall: where the gap went, by the runtime's own account. facts:
    of the same account, or of what cut the turn: why it ended, and the draft.
    """

    name: str
    kind: str
    gap_ms: float | None
    cut: bool
    answered: bool
    wire_ms: float | None = None
    audible_ms: float | None = None
    waterfall: Waterfall | None = None
    facts: Mapping[str, Any] | None = None
    over_ms: float | None = None

    @property
    def is_cut_hard(self) -> bool:
        """Whether the agent spoke over a caller who went on for longer than a soft cut may last."""
        return self.over_ms is not None and self.over_ms > SOFT_CUT_MS


class PeerCall:
    """One call of one runtime: `run` plays the turns and returns what became of them."""

    def __init__(
        self, line: Line, tell: Callable[[int, str], Awaitable[None]], *, seed: int
    ) -> None:
        self._line = line
        self._tell = tell
        self._uplink = Uplink(line, seed=seed)
        self._playout = Playout(RATE_HZ)
        self._audible: list[float] = []  # arrivals of audible pieces
        self._pieces: list[Heard] = []

    async def run(self, turns: Sequence[tuple[int, HumanTurn, bool]]) -> list[MeasuredTurn]:
        """Turns as (its number at the stubs, the turn, whether the answer is interrupted by it).

        A turn that interrupts is played over the long answer to a plain playing of itself.
        """
        measured = []
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._listen()), group.create_task(self._uplink.run())]
            await self._greeted()
            for number, turn, interrupts in turns:
                if interrupts:
                    measured.append(await self._interrupt(number, turn))
                else:
                    measured.append(await self._ask(number, turn))
            for task in tasks:
                task.cancel()
        await self._line.close()
        return measured

    async def _greeted(self) -> None:
        """An agent that speaks first has said its greeting: else the caller would interrupt it."""
        await asyncio.sleep(1.0)
        await self._until_quiet()

    async def _listen(self) -> None:
        async for heard in self._line.heard():
            self._pieces.append(heard)
            if heard.samples is None:
                self._playout.flush(heard.at)
                continue
            self._playout.push("agent", heard.samples, heard.at)
            if first_audible(heard.samples) is not None:
                self._audible.append(heard.at)

    async def _ask(self, number: int, turn: HumanTurn) -> MeasuredTurn:
        await self._tell(number, "short")
        onset_at, end_at = await self._say(turn)
        await self._until_answered(end_at)
        await self._until_quiet()
        return self._measured(turn, turn.kind, onset_at, end_at)

    async def _interrupt(self, number: int, turn: HumanTurn) -> MeasuredTurn:
        await self._tell(number, "long")
        _, end_at = await self._say(turn)
        await self._until_answered(end_at)
        await asyncio.sleep(INTERRUPT_AFTER_S)
        await self._tell(number, "short")
        onset_at, end_at = await self._say(turn)
        await self._until_answered(end_at)
        await self._until_quiet()
        was_talking = any(onset_at - 0.3 <= at < onset_at for at in self._audible)
        arrivals = [1000.0 * (at - onset_at) for at in self._audible if onset_at <= at < end_at]
        wire_ms = silent_after(arrivals)
        return MeasuredTurn(
            turn.name,
            "barge-in",
            None,
            any(ms > wire_ms for ms in arrivals),
            any(at >= end_at for at in self._audible),
            wire_ms if was_talking else None,
            silent_after(self._heard_ms(onset_at, end_at)) if was_talking else None,
        )

    def _heard_ms(self, onset_at: float, end_at: float) -> list[float]:
        """When the loudspeaker was audible between two moments, in ms from the first."""
        heard = self._playout.render(onset_at, int((end_at - onset_at) * RATE_HZ))
        loud = np.flatnonzero(np.abs(heard.astype(np.int32)) > audible_amplitude())
        return [float(ms) for ms in np.unique(loud * 1000 // RATE_HZ)]

    def _measured(
        self,
        turn: HumanTurn,
        kind: str,
        onset_at: float,
        end_at: float,
        until: float = float("inf"),
    ) -> MeasuredTurn:
        """What became of a turn. until: from then on another sound was played."""
        cut = any(onset_at <= at < end_at for at in self._audible)
        # What the runtime dropped again, although the caller had ended, was no answer.
        dropped_at = (p.at for p in self._pieces if p.samples is None and p.at < until)
        kept_at = max(dropped_at, default=0.0)
        after = [at for at in self._audible if at >= max(end_at, kept_at)]
        heard_at = after[0] + faded_in_s(self._pieces, after[0]) if after else 0.0
        gap_ms = 1000.0 * (heard_at - end_at) if after and not cut else None
        over_ms = self._over_ms(turn, onset_at, end_at) if cut else None
        measured = MeasuredTurn(turn.name, kind, gap_ms, cut, bool(after), over_ms=over_ms)
        told = account_of(self._line.told, onset_at if cut else end_at)
        if told is None:
            return measured
        measured = replace(measured, facts={name: told[name] for name in FACTS if name in told})
        if gap_ms is None:
            return measured
        return replace(measured, waterfall=waterfall_of(told, end_at, after[0], heard_at))

    def _over_ms(self, turn: HumanTurn, onset_at: float, end_at: float) -> float:
        """For how long an agent that began too early was heard from where the caller went on."""
        began_at = next(at for at in self._audible if onset_at <= at < end_at)
        goes_on_at = goes_on(turn, began_at - onset_at) + onset_at
        return float(len(self._heard_ms(goes_on_at, end_at))) if goes_on_at < end_at else 0.0

    async def _say(self, turn: HumanTurn) -> tuple[float, float]:
        """Play the clip; when its first and its last sound were sent."""
        position = self._uplink.say(turn.at_rate(RATE_HZ))
        await self._until(lambda: not self._uplink.speaking, float("inf"))
        onset = position + int(turn.onset_ms * RATE_HZ / 1000.0)
        end = position + int(turn.end_ms * RATE_HZ / 1000.0) - 1
        return self._uplink.sent_at(onset), self._uplink.sent_at(end)

    async def _until_answered(self, end_at: float) -> None:
        def answered() -> bool:
            return any(at >= end_at for at in self._audible[-1:])

        await self._until(answered, end_at + ANSWER_WITHIN_S)

    async def _until_quiet(self) -> None:
        await self._until(lambda: monotonic() >= self._playout.idle_at + QUIET_S, float("inf"))

    async def _until(self, holds: Callable[[], bool], deadline: float) -> None:
        """Look every few ms; most conditions depend on the clock, not on what arrives."""
        while not holds():
            if monotonic() >= deadline:
                return
            await asyncio.sleep(0.005)

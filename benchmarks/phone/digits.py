"""Digits of a telephone: as events on a line that loses packets, as tones, and none where people
only speak."""

from __future__ import annotations

import asyncio
import os
import random
from argparse import Namespace
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import soundfile

from audio.codec import decode, encode
from audio.frames import VOICE_HZ, Samples
from audio.resample import Resampler
from benchmarks.harness.harness import Bar
from clients.errors import ClientError
from voiceloop.doors.keypad import tones
from voiceloop.doors.rtp.digits import FRAME, DigitReader, DigitWriter
from voiceloop.doors.rtp.packet import RtpPacket
from voiceloop.doors.rtp.send import RtpSender
from voiceloop.doors.rtp.tones import ToneListener

EVENT_TYPE = 101
KEYS = "0123456789*#ABCD"
N_KEYS = 2000
LOSS = 0.1
LINE_HZ = 8_000
SPEECH_MINUTES = 60.0
CHUNK = 4800
KINDS = (
    "calls", "commands", "speechocean762", "fsdd", "ljspeech", "jfk", "librispeech", "slots",
    "orders",
)  # fmt: skip
DATA = Path(__file__).resolve().parents[2].parent / "shared" / "data"


class DigitsPart:
    """As `Part`."""

    def __init__(self) -> None:
        self._figures: dict[str, Any] = {}

    async def measure(self, chosen: Namespace) -> None:
        """Raises: ClientError: there is no recorded speech."""
        self._figures["events_right_percent"] = events_right(chosen.seed)
        self._figures["tones_right_percent"] = await asyncio.to_thread(tones_right, chosen.seed)
        minutes, false = await asyncio.to_thread(false_keys)
        self._figures |= {"speech_minutes": round(minutes, 1), "false_keys": false}

    def figures(self) -> dict[str, Any]:
        return self._figures

    def bars(self) -> Sequence[Bar]:
        told = self._figures
        return [
            Bar("keys by events at 10 % loss", told["events_right_percent"], 100.0, "%", True),
            Bar("keys as tones", told["tones_right_percent"], 99.0, "%", True),
            Bar("minutes of speech", told["speech_minutes"], SPEECH_MINUTES, "min", True),
            Bar("keys that nobody pressed in them", told["false_keys"], 0, ""),
        ]

    def show(self) -> None:
        for name, value in self._figures.items():
            print(f"  {name:<24} {value}")


def events_right(seed: int) -> float:
    """Keys told exactly once, in percent, where one packet of ten is lost and one comes late."""
    rng = random.Random(seed)
    pressed = "".join(rng.choices(KEYS, k=N_KEYS))
    writer, sender, reader = DigitWriter(), RtpSender(7, 0, 0, 0, LINE_HZ), DigitReader()
    writer.put(pressed)
    sent: list[tuple[float, RtpPacket]] = []
    now_s = 0.0
    while not writer.is_idle:
        if (due := writer.next()) is not None and rng.random() >= LOSS:
            packet = sender.event(due.payload, EVENT_TYPE, now_s, is_first=due.is_first)
            sent.append((now_s + rng.uniform(0.0, 0.04), packet))
        elif due is not None:
            sender.event(due.payload, EVENT_TYPE, now_s, is_first=due.is_first)
        sender.skip(FRAME)
        now_s += 0.02
    told = "".join(reader.read(packet) or "" for _, packet in sorted(sent, key=lambda one: one[0]))
    return round(100.0 * same(pressed, told) / N_KEYS, 2)


def tones_right(seed: int) -> float:
    """The same of tones over G.711, from -12 to -36 dBFS, in noise of 20 dB below them or less."""
    rng = np.random.default_rng(seed)
    n_right = n_all = 0
    for number in range(N_KEYS // 20):
        pressed = "".join(rng.choice(list(KEYS), 20))
        gain = 10 ** (-rng.uniform(0.0, 24.0) / 20)
        sound = np.frombuffer(tones(pressed), "<i2") * gain
        noise = rng.normal(0.0, 32768 * 0.25 * gain * 10 ** (-rng.uniform(20, 40) / 20), len(sound))
        law = "pcmu" if number % 2 else "pcma"
        heard = over_the_line((sound + noise).clip(-32768, 32767).astype(np.int16), VOICE_HZ, law)
        listener = ToneListener()
        told = "".join(listener.hear(heard[at : at + 480]) for at in range(0, len(heard), 480))
        n_right += same(pressed, told)
        n_all += len(pressed)
    return round(100.0 * n_right / n_all, 2)


def false_keys() -> tuple[float, int]:
    """Minutes of people who speak, over G.711, and the keys that were heard in them."""
    n_false, n_samples = 0, 0
    for samples, rate_hz in speech():
        heard, listener = over_the_line(samples, rate_hz, "pcmu"), ToneListener()
        for at in range(0, len(heard), CHUNK):
            n_false += len(listener.hear(heard[at : at + CHUNK]))
        n_samples += len(heard)
        if n_samples >= SPEECH_MINUTES * 60 * VOICE_HZ:
            break
    return n_samples / VOICE_HZ / 60, n_false


def speech() -> Iterator[tuple[Samples, int]]:
    """Recorded people of `$VOICELOOP_DATA`, one after another. Raises: ClientError."""
    folder = Path(os.environ.get("VOICELOOP_DATA", DATA)) / "speech"
    files = [path for kind in KINDS for path in sorted((folder / kind).rglob("*.flac"))]
    if not files:
        raise ClientError(f"expected recorded speech in {folder}, found none")
    for path in files:
        samples, rate_hz = soundfile.read(path, dtype="int16", always_2d=True)
        for channel in samples.T:
            yield np.ascontiguousarray(channel), rate_hz


def over_the_line(samples: Samples, rate_hz: int, law: Any) -> Samples:
    """As it arrives by G.711."""
    narrow = Resampler(rate_hz, LINE_HZ).push(samples)
    return Resampler(LINE_HZ, VOICE_HZ).push(decode(encode(narrow, law), law))


def same(pressed: str, told: str) -> int:
    """Keys of a longest common run in order, less those told besides."""
    row = [0] * (len(told) + 1)
    for key in pressed:
        before, row = row, [0]
        for at, other in enumerate(told):
            row.append(before[at] + 1 if key == other else max(before[at + 1], row[at]))
    return row[-1] - max(0, len(told) - len(pressed))

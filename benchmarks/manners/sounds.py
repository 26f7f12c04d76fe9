"""What is heard beside caller and agent, and from whom; always the same.

Owns the trials' recordings. No bystander here was heard by the head that judges sounds
(`audio.recipes.train_for_agent`): bystanders, the television and the room are people who order of
`commands.jsonl`, which no recipe reads. Callers were heard by it. Nobody in the shared data says
"mm-hm" or speaks aside: these are made voices, and the panel says so.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
import soundfile
from numpy.typing import NDArray
from scipy.signal import butter, sosfilt

from audio.frames import RECOGNIZER_HZ
from audio.recipes.overlapping_sounds import as_bystander
from audio.recipes.paused_speech import sounding
from benchmarks.calls.overlapping_sounds import BACKCHANNELS, cough, door, keyboard, said_by
from clients.call.script import DEFAULT_CAST
from clients.recording import Samples, read_flac, to_int16
from clients.report.waveform import FULL_SCALE, speech_start
from voiceloop.listening.recipes.endpointing_set import MS

Part = Literal[
    "interruption", "backchannel", "noise", "aside", "bystander", "television", "echo", "room",
    "dictation",
]  # fmt: skip
PARTS: tuple[Part, ...] = (
    "interruption", "backchannel", "noise", "aside", "bystander", "television", "echo", "room",
    "dictation",
)  # fmt: skip
SOURCES: dict[Part, str] = {
    "interruption": "the caller's own question once more: readers and people who order",
    "backchannel": "made: hibari at three pitches",
    "noise": "coughs, keys, doors (made) and recordings (speech/noise), by turns",
    "aside": "made: hibari at three pitches, turned away, 6 dB softer",
    "bystander": "people who order (speech/commands), across a room, 15 dB softer",
    "television": "two such people at once, dull, across a room, 15 dB softer",
    "echo": "the agent's own sound 20 dB softer, out of a room, 60 to 250 ms late",
    "room": "as bystander and television by turns, while the agent is silent: left unanswered",
    "dictation": "no other sound: people's numbers, addresses and names, a made voice's e-mails "
    "and dates, asked for by nobody: not cut",
}
ASIDES = (
    "One moment, honey.", "Not now, I am on the phone.", "Put it on the table, please.",
    "Ask your mother.", "Is the door locked?", "I will be right there.",
)  # fmt: skip
CALLER_DBFS, ASIDE_DB, AWAY_DB = -25.0, 6.0, 15.0
ECHO_DB, ECHO_DELAYS_MS = 20.0, (60.0, 120.0, 250.0)
LONGEST_MS = 3000.0

Wave = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Trial:
    """One sound, int16 [n] at 16 kHz; of an echo empty, and delay_ms says when it comes back. text:
    what a recognizer could hear, "" where nobody wrote it down. onset_ms: where the voice begins;
    recordings begin with up to 0.65 s of silence.
    """

    part: Part
    name: str
    samples: Samples
    text: str = ""
    delay_ms: float = 0.0
    onset_ms: float = 0.0

    @property
    def is_to_yield(self) -> bool:
        """Whether the agent is to fall silent for it."""
        return self.part == "interruption"

    @property
    def is_in_silence(self) -> bool:
        """Whether it comes when the agent has said its answer, or none comes."""
        return self.part in ("room", "dictation")


def trials(part: Part, n: int, data: Path) -> list[Trial]:
    """The first so many of a part."""
    found = (trial for trial, _ in zip(_all(part, data), range(n), strict=False))
    return [replace(t, onset_ms=(speech_start(t.samples, RECOGNIZER_HZ) or 0) / MS) for t in found]


def _all(part: Part, data: Path) -> Iterator[Trial]:
    if part in ("echo", "interruption", "dictation"):  # no other sound than caller and agent make
        for index in range(1000):
            delay_ms = ECHO_DELAYS_MS[index % len(ECHO_DELAYS_MS)] if part == "echo" else 0.0
            name = f"{part} {index}, {delay_ms:g} ms"
            yield Trial(part, name, np.zeros(0, np.int16), "", delay_ms)
    elif part in ("backchannel", "aside"):
        yield from _made(part)
    elif part == "noise":
        yield from _noises(data)
    else:
        yield from _people(part, data)


def _made(part: Part) -> Iterator[Trial]:
    texts = BACKCHANNELS if part == "backchannel" else ASIDES
    said = list(said_by(DEFAULT_CAST, texts))
    random.Random(part).shuffle(said)
    for name, spoken in said:
        wave = spoken.astype(float)
        text = name.partition(": ")[2]
        if part == "aside":
            away = as_bystander(wave, random.Random(name))
            yield Trial(part, name, _at(away, CALLER_DBFS - ASIDE_DB), text)
        else:
            yield Trial(part, name, _at(wave, CALLER_DBFS), text)


def _noises(data: Path) -> Iterator[Trial]:
    recordings = sorted((data / "speech" / "noise").glob("*.flac"))
    for index in range(1000):
        made = (cough, keyboard, door)[index % 3]
        yield Trial("noise", f"{made.__name__} {index}", _at(made(index).astype(float), -25.0))
        if recordings:
            path = recordings[index % len(recordings)]
            noise = read_flac(path).samples
            start = random.Random(f"{path.name} {index}").randrange(len(noise) - int(1500 * MS))
            piece = noise[start : start + int(1500 * MS)].astype(float)
            yield Trial("noise", f"{path.stem} {index}", _at(piece, CALLER_DBFS))


def _people(part: Part, data: Path) -> Iterator[Trial]:
    listed = (data / "speech" / "commands.jsonl").read_text(encoding="utf-8").splitlines()
    files = [json.loads(row)["file"] for row in listed]
    random.Random("manners").shuffle(files)
    third = len(files) // 3  # no recording is in two parts
    place = {"room": 0, "bystander": 1, "television": 2}[part]
    for index, file in enumerate(files[place * third : (place + 1) * third]):
        chance = random.Random(file)
        wave = _spoken(data, file)
        if part == "television" or (part == "room" and index % 2):
            other = _spoken(data, files[place * third + (index + 1) % third])
            n = min(len(wave), len(other))
            dull = butter(2, 2500.0, fs=RECOGNIZER_HZ, output="sos")
            wave = np.asarray(sosfilt(dull, wave[:n] + other[:n]), np.float64)
        yield Trial(part, file, _at(as_bystander(wave, chance), CALLER_DBFS - AWAY_DB))


def _spoken(data: Path, file: str) -> Wave:
    samples = soundfile.read(data / "speech" / file, dtype="int16")[0]
    start_ms = sounding(samples)[0][0]
    spoken: Wave = samples[int(start_ms * MS) : int((start_ms + LONGEST_MS) * MS)].astype(float)
    return spoken * 3000.0 / max(float(np.abs(spoken).max()), 1.0)


def _at(wave: Wave, dbfs: float) -> Samples:
    """As loud as that where it sounds."""
    loud = np.abs(wave) > np.abs(wave).max() / 30
    rms = float(np.sqrt(np.mean(np.square(wave[loud])))) if loud.any() else 1.0
    return to_int16(wave * FULL_SCALE * 10.0 ** (dbfs / 20.0) / max(rms, 1e-9))

"""Sounds of callers and others over an agent that speaks: what `benchmarks.backchannels` hears.

Owns the making of them, always the same for the same voices and recordings. The old kinds are said
by made voices or made of noise; of the new ones callers are people who order, a bystander the same
people across the room, and an echo the agent out of the caller's loudspeaker.
"""

from __future__ import annotations

import json
import random
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import soundfile
from numpy.typing import NDArray

from audio.frames import RECOGNIZER_HZ
from audio.recipes.overlapping_sounds import as_bystander, as_echo
from audio.recipes.paused_speech import sounding
from benchmarks.calls.make_call import CALLERS
from clients.call.script import DEFAULT_CAST, load_call
from clients.recording import Samples, read_flac, to_int16
from clients.report.waveform import FULL_SCALE, room_noise
from voiceloop.listening.recipes.endpointing_set import MS
from voiceloop.listening.recipes.synthetic_callers import PITCH_HZ, ScriptedTurn, speak

Kind = Literal["backchannel", "noise", "interruption", "caller", "bystander", "echo"]
BACKCHANNELS = ("mm hmm.", "uh huh.", "yeah.", "right.", "okay.", "I see.", "yeah, right.")
INTERRUPTIONS = (
    "Actually, wait a second.", "No, I want a small one.", "Can I change my order?",
    "Stop, please.", "How much is that?", "Excuse me, I have a question.",
)  # fmt: skip
LEAD_MS, TRAIL_MS = 600.0, 1500.0
# Where within the detector's windows of 32 ms a caller begins is chance, and it decides much: every
# sound begins at each of these places.
ALIGNED_MS = (0.0, 8.0, 16.0, 24.0)
SOUND_DBFS = -25.0
# Of a bystander and an echo at the caller's microphone, who has -25: an arm's length against two.
AWAY_DBFS = -35.0
LONGEST_MS = 3000.0  # of a person's sound
AGENT_SAYS = (
    "Sure, a large cappuccino with oat milk, coming right up.",
    "We are open from eight to six every day but Sunday.",
    "That will be four dollars and fifty cents, anything else?",
    "One moment please, I will have a look for you.",
    "Your table is booked for seven o'clock tomorrow evening.",
    "We have sandwiches, soup of the day, and three kinds of cake.",
)
N_ROOMS = 4  # in which each of these is an echo
BURSTS_MS = (120.0, 300.0, 700.0, 3000.0)


@dataclass(frozen=True, slots=True)
class Sound:
    """A caller's sound in a quiet room, int16 at 16 kHz."""

    name: str
    kind: Kind
    samples: Samples
    said: str = ""  # what the agent has just said, where it hears itself


def recorded_noise(data: Path) -> list[Path]:
    """The recordings of noise of the shared data; none where that is not here."""
    return sorted((data / "speech" / "noise").glob("*.flac"))


def said_by(cast: str, texts: Sequence[str]) -> Iterator[tuple[str, Samples]]:
    """Each text in each voice of a cast of callers: its name, and int16 at 16 kHz."""
    if cast == "flite":
        for voice, pitch_hz in PITCH_HZ.items():
            for text in texts:
                turn = ScriptedTurn(text, voice, voice, pitch_hz, 1.0, text, (), "short")
                yield f"{voice}: {text}", speak(turn)
        return
    with tempfile.TemporaryDirectory() as folder:
        for voice in load_call().casts[cast]:
            for text in texts:
                recording, _ = CALLERS[voice].speak(text, Path(folder))
                yield f"{voice}: {text}", recording.at_rate(RECOGNIZER_HZ).samples


def sounds(recordings: Sequence[Path], cast: str = DEFAULT_CAST) -> Iterator[Sound]:
    """All sounds, always the same for the same recordings of noise and voices."""
    said: dict[Kind, tuple[str, ...]] = {
        "backchannel": BACKCHANNELS, "interruption": INTERRUPTIONS,
    }  # fmt: skip
    for kind, texts in said.items():
        for name, spoken in said_by(cast, texts):
            yield from in_room(name, kind, spoken)
    rng = np.random.default_rng(1)
    for path in recordings:
        noise = read_flac(path).samples
        for length_ms in BURSTS_MS:
            start = int(rng.integers(0, len(noise) - int(length_ms * MS)))
            piece = noise[start : start + int(length_ms * MS)]
            yield from in_room(f"{path.stem}, {length_ms:.0f} ms", "noise", piece)
    for seed in range(6):
        yield from in_room(f"cough {seed}", "noise", cough(seed))
        yield from in_room(f"keyboard {seed}", "noise", keyboard(seed))
        yield from in_room(f"door {seed}", "noise", door(seed))


def cough(seed: int) -> Samples:
    """Two bursts of noise through a throat's formants, each dying away in 120 ms."""
    rng = np.random.default_rng(seed)
    t = np.arange(int(0.45 * RECOGNIZER_HZ)) / RECOGNIZER_HZ
    shape = np.exp(-t / 0.06) + 0.7 * np.where(t > 0.2, np.exp(-(t - 0.2) / 0.05), 0.0)
    throat = sum(np.sin(2 * np.pi * f * t + rng.uniform(0, 6)) for f in (450, 1100, 2400))
    return to_int16(8000 * shape * (rng.standard_normal(len(t)) * (1 + 0.5 * throat)))


def keyboard(seed: int) -> Samples:
    """Eight clicks of 6 ms in a second."""
    rng = np.random.default_rng(seed)
    samples = np.zeros(RECOGNIZER_HZ)
    for start in rng.integers(0, RECOGNIZER_HZ - 200, 8):
        samples[start : start + 96] += rng.standard_normal(96) * np.exp(-np.arange(96) / 20)
    return to_int16(9000 * samples)


def door(seed: int) -> Samples:
    """A thump: low noise that dies away in 150 ms."""
    rng = np.random.default_rng(seed)
    t = np.arange(int(0.5 * RECOGNIZER_HZ)) / RECOGNIZER_HZ
    low = np.convolve(rng.standard_normal(len(t)), np.ones(80) / 80, "same")
    return to_int16(60000 * low * np.exp(-t / 0.08))


def others(data: Path) -> Iterator[Sound]:
    """People who order, the same as bystanders, and the agent's echo; none without the data."""
    listed = data / "speech" / "commands.jsonl"
    rows = listed.read_text(encoding="utf-8").splitlines() if listed.is_file() else []
    for index, row in enumerate(rows):
        file = json.loads(row)["file"]
        samples = soundfile.read(data / "speech" / file, dtype="int16")[0]
        start_ms = sounding(samples)[0][0]
        spoken = samples[int(start_ms * MS) : int((start_ms + LONGEST_MS) * MS)].astype(float)
        yield _at_one_place(index, in_room(file, "caller", spoken))
        away = as_bystander(spoken, random.Random(file))
        yield _at_one_place(index, in_room(file, "bystander", away, AWAY_DBFS))
    with tempfile.TemporaryDirectory() as folder:
        for index, text in enumerate(AGENT_SAYS * N_ROOMS):
            recording, _ = CALLERS["heart"].speak(text, Path(folder))
            said = recording.at_rate(RECOGNIZER_HZ).samples.astype(float)
            echo = as_echo(said, random.Random(f"{index} {text}"))
            heard = in_room(f"{text} {index}", "echo", echo, AWAY_DBFS, said=text)
            yield _at_one_place(index, heard)


def _at_one_place(index: int, sounds: Iterator[Sound]) -> Sound:
    """These are many: each is heard at one of the places, all places alike."""
    return list(sounds)[index % len(ALIGNED_MS)]


def in_room(
    name: str,
    kind: Kind,
    samples: Samples | NDArray[np.float64],
    dbfs: float = SOUND_DBFS,
    *,
    said: str = "",
) -> Iterator[Sound]:
    """The sound [n] at 16 kHz in a quiet room, always as loud, at each of its places."""
    loud = float(np.sqrt(np.mean(np.square(samples.astype(np.float64))))) or 1.0
    level = samples * (FULL_SCALE * 10.0 ** (dbfs / 20.0) / loud)
    for later_ms in ALIGNED_MS:
        n_lead, n_trail = int((LEAD_MS + later_ms) * MS), int(TRAIL_MS * MS)
        n_samples = n_lead + len(samples) + n_trail
        whole: NDArray[np.float64] = room_noise(n_samples, RECOGNIZER_HZ, 1).astype(float)
        whole[n_lead : n_lead + len(samples)] += level
        yield Sound(f"{name} at {later_ms:.0f} ms", kind, to_int16(whole), said)

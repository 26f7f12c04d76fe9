"""Sounds that come while an agent speaks, as training and tests hear their beginnings.

Owns the making of them: who says what, in which room and at what distance. A bystander and an echo
are the same recordings as callers, through another room; a backchannel is said by the same voices
as an interruption. Level, line, noise and speed are drawn without knowing the kind: a head can
learn it only from how the thing sounds.
"""

import random
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import soundfile
from numpy.typing import NDArray
from scipy.signal import butter, fftconvolve, resample_poly, sosfilt

from ..errors import AudioError
from ..frames import RECOGNIZER_HZ, Samples
from ..resample import Resampler
from .offset_windows import over_u_law
from .paused_speech import MS, paused_turns, sounding

SoundKind = Literal["interruption", "backchannel", "noise", "echo", "bystander"]
SOUNDS_VERSION = 1  # to be raised with every change of this file
# Words of a listener and of somebody who wants the floor; no phrase of benchmarks.backchannels'
# interruptions is among them. Short ones on both sides: length must not tell.
BACKCHANNELS = (
    "mm hmm.", "mhm.", "mm.", "uh huh.", "uh huh, uh huh.", "hm.", "yeah.", "yeah, yeah.", "yep.",
    "yes.", "okay.", "okay, okay.", "right.", "right, right.", "sure.", "I see.", "got it.", "oh.",
    "oh, okay.", "aha.", "all right.", "yeah, okay.", "mm hmm, right.", "ah, I see.",
)  # fmt: skip
INTERRUPTIONS = (
    "No.", "Wait.", "What?", "Sorry?", "Hello?", "Hold on.", "Not that one.", "Who is this?",
    "A large one.", "Two of them.", "Tomorrow.", "Never mind.", "Repeat that.", "I need help.",
    "Can you say that again?", "I meant Tuesday.", "Let me ask you something.", "That is wrong.",
    "What time is it?", "Where are you?", "Do you have tea?", "My name is Peter.", "And the price?",
    "One more thing, please.", "Okay, but what about the cake?", "Right, I want the other one.",
    "Yes, but not today.", "Could I get a refund?", "Mushrooms, please.", "Maybe later.",
)  # fmt: skip
# One voice each of flite, and of espeak-ng variants that sound like people.
FLITE = ("rms", "slt", "awb", "kal16")
ESPEAK = tuple(
    f"{accent}+{variant}"
    for accent, variants in (
        ("en-us", ("m1", "m3", "m7", "f1", "f2", "f4", "Andy", "Annie", "klatt2", "Michael")),
        ("en-gb", ("m2", "m4", "m8", "f3", "f5", "Alicia", "John", "steph", "Gene", "linda")),
    )
    for variant in variants
)
LEAD_MS = 300.0  # of the room before a sound, as the listener keeps it
LONGEST_MS = 1200.0  # of a sound: its beginning is judged
LEVEL_DBFS = (-42.0, -18.0)
FLOOR_DBFS = (-78.0, -52.0)
NARROW_SHARE, SPEED_SHARE, NOISE_SHARE, SNR_DB = 0.4, 0.5, 0.3, (8.0, 25.0)
SPEEDS = ((9, 10), (19, 20), (21, 20), (11, 10))
# Reverberation to -60 dB in s, and how much louder the straight way is than the room: a headset or
# a handset; somebody across the room; the caller's own loudspeaker beside the microphone.
NEAR_ROOM, FAR_ROOM, SPEAKER_ROOM = (
    ((0.15, 0.5), (4.0, 20.0)), ((0.3, 0.9), (-10.0, -2.0)), ((0.2, 0.5), (-4.0, 6.0)),
)  # fmt: skip
FULL_SCALE = 32768.0
ELSEWHERE: tuple[SoundKind, ...] = ("bystander", "echo")

Wave = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Spoken:
    """Speech of one person, [n] at 16 kHz from its first sound on; is_passing: a backchannel."""

    name: str
    speaker: str
    is_person: bool
    is_passing: bool
    wave: Wave


@dataclass(frozen=True, slots=True)
class Overlap:
    """A sound over the agent: int16 [n] at 16 kHz, LEAD_MS of room before it and room behind it.

    lasts_ms: of the sound itself. speaker: who spoke, or the recording of a noise.
    """

    name: str
    kind: SoundKind
    speaker: str
    is_person: bool
    samples: Samples
    lasts_ms: float


# -- who speaks ----------------------------------------------------------------------------------


def people(data: Path) -> Iterator[Spoken]:
    """How the turns of the shared data begin: orders, dictation, a call, read sentences."""
    for turn in paused_turns(data):
        start, end = int(turn.start_ms * MS), int(turn.end_ms * MS)
        wave = turn.samples[start : min(end, start + int(LONGEST_MS * MS))].astype(np.float64)
        yield Spoken(turn.name, turn.speaker, True, False, wave)


def made_voices(voices: Sequence[str] = (*FLITE, *ESPEAK)) -> Iterator[Spoken]:
    """Backchannels and interruptions, both by every voice. Raises: AudioError without a program."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "said.wav"
        for voice in voices:
            for is_passing, texts in ((True, BACKCHANNELS), (False, INTERRUPTIONS)):
                for text in texts:
                    wave = _said(voice, text, out)
                    yield Spoken(f"{voice}: {text}", voice, False, is_passing, wave)


def _said(voice: str, text: str, out: Path) -> Wave:
    pitch = random.Random(f"{voice} {text}").randint(35, 65)
    espeak = ["espeak-ng", "-v", voice, "-p", str(pitch), "-w", str(out), text]
    flite = ["flite", "-voice", voice, "-t", text, "-o", str(out)]
    try:
        subprocess.run(flite if voice in FLITE else espeak, check=True, capture_output=True)
    except (FileNotFoundError, subprocess.CalledProcessError) as error:
        raise AudioError(f"expected flite and espeak-ng for the recipe, found: {error}") from None
    samples, rate_hz = soundfile.read(out, dtype="int16")
    resampler = Resampler(rate_hz, RECOGNIZER_HZ)
    wave = np.concatenate([resampler.push(samples), resampler.flush()])
    sounds = sounding(wave)
    start, end = int(sounds[0][0] * MS), int(sounds[-1][1] * MS)
    return wave[start : min(end, start + int(LONGEST_MS * MS))].astype(np.float64)


# -- in which room -------------------------------------------------------------------------------


def in_room(wave: Wave, room: tuple[tuple[float, float], ...], chance: random.Random) -> Wave:
    """The same from somewhere in a room: the straight way, then a tail that dies away."""
    (least_s, most_s), (least_db, most_db) = room
    seconds, ratio_db = chance.uniform(least_s, most_s), chance.uniform(least_db, most_db)
    rng = np.random.default_rng(chance.randrange(2**31))
    times = np.arange(int(seconds * RECOGNIZER_HZ)) / RECOGNIZER_HZ
    tail = rng.standard_normal(len(times)) * 10.0 ** (-3.0 * times / seconds)
    tail[: 2 * MS] = 0.0  # the nearest wall is a third of a metre away
    tail *= 10.0 ** (-ratio_db / 20.0) / max(float(np.sqrt(np.sum(tail**2))), 1e-9)
    # Walls and air take the high tones.
    tail = sosfilt(butter(1, chance.uniform(2500.0, 6000.0), fs=RECOGNIZER_HZ, output="sos"), tail)
    tail[0] = 1.0
    return np.asarray(fftconvolve(wave, tail), np.float64)


def as_caller(wave: Wave, chance: random.Random) -> Wave:
    return in_room(wave, NEAR_ROOM, chance) if chance.random() < 0.6 else wave


def as_bystander(wave: Wave, chance: random.Random) -> Wave:
    """Across the room: more of the room than of the voice."""
    return in_room(wave, FAR_ROOM, chance)


def as_echo(wave: Wave, chance: random.Random) -> Wave:
    """Out of a small loudspeaker beside the microphone, in half of all cases what a canceller
    leaves of it: bits of it, as loud as they come."""
    band = butter(2, (chance.uniform(150, 350), chance.uniform(3200, 6500)), "band",
                  fs=RECOGNIZER_HZ, output="sos")  # fmt: skip
    loud = max(float(np.abs(wave).max()), 1.0)
    sound = np.tanh(chance.uniform(0.5, 2.5) * sosfilt(band, wave) / loud) * loud
    sound = in_room(sound, SPEAKER_ROOM, chance)
    if chance.random() < 0.5:
        rng = np.random.default_rng(chance.randrange(2**31))
        n_points = 2 + len(sound) // (30 * MS)
        left = np.clip(rng.normal(0.45, 0.4, n_points), 0.02, 1.0)
        sound *= np.interp(np.arange(len(sound)), np.linspace(0, len(sound), n_points), left)
    return np.asarray(sound, np.float64)


def as_noise(seed: int) -> Wave:
    """A cough, a breath, keys, or a door: bursts of noise of one shape each."""
    rng = np.random.default_rng(seed)
    t = np.arange(int(rng.uniform(0.3, 0.9) * RECOGNIZER_HZ)) / RECOGNIZER_HZ
    white = rng.standard_normal(len(t))
    match seed % 4:
        case 0:
            throat = sum(np.sin(2 * np.pi * f * rng.uniform(0.8, 1.25) * t + rng.uniform(0, 6))
                         for f in (450, 1100, 2400))  # fmt: skip
            return 8000 * np.exp(-t / rng.uniform(0.04, 0.1)) * white * (1 + 0.5 * throat)
        case 1:
            band = butter(2, (rng.uniform(300, 900), rng.uniform(2500, 7000)), "band",
                          fs=RECOGNIZER_HZ, output="sos")  # fmt: skip
            return 6000 * np.asarray(sosfilt(band, white)) * np.sin(np.pi * t / t[-1])
        case 2:
            keys = np.zeros(len(t))
            for start in rng.integers(0, len(t) - 200, 7):
                keys[start : start + 96] += white[:96] * np.exp(-np.arange(96) / 20)
            return 9000 * keys
        case _:
            low = np.convolve(white, np.ones(80) / 80, "same")
            return 60000 * low * np.exp(-t / rng.uniform(0.05, 0.15))


# -- over the agent ------------------------------------------------------------------------------


def overlaps(
    spoken: Sequence[Spoken], noises: Sequence[tuple[str, Samples]], n_people: int = 2
) -> Iterator[Overlap]:
    """Every kind of every voice. noises: recordings by name. n_people: ways a person is heard."""
    recordings = [samples for _, samples in noises]
    for one in spoken:
        kind: SoundKind = "backchannel" if one.is_passing else "interruption"
        for way in range(n_people if one.is_person else 1):
            chance = random.Random(f"{one.name} {way}")
            yield _heard(one, kind, as_caller(one.wave, chance), recordings, chance)
        for elsewhere in ELSEWHERE:
            chance = random.Random(f"{one.name} {elsewhere}")
            if one.is_person or chance.random() < 0.5:
                through = as_bystander if elsewhere == "bystander" else as_echo
                yield _heard(one, elsewhere, through(one.wave, chance), recordings, chance)
    for name, samples in noises:
        for at in range(100):
            chance = random.Random(f"{name} {at}")
            n = int(chance.uniform(120.0, LONGEST_MS) * MS)
            start = chance.randrange(len(samples) - n)
            wave = samples[start : start + n].astype(np.float64)
            one = Spoken(f"{name} {at}", name, True, False, wave)
            yield _heard(one, "noise", wave, (), chance)
    for seed in range(240):
        chance = random.Random(f"burst {seed}")
        one = Spoken(f"burst {seed}", f"burst {seed % 20}", False, False, as_noise(seed))
        yield _heard(one, "noise", as_caller(one.wave, chance), recordings, chance)


def _heard(
    one: Spoken,
    kind: SoundKind,
    wave: Wave,
    noises: Sequence[Samples],
    chance: random.Random,
) -> Overlap:
    """In the room of a call: as loud, as narrow and as noisy whatever it is."""
    if chance.random() < SPEED_SHARE:
        wave = resample_poly(wave, *chance.choice(SPEEDS))
    n_lead, n_sound = int(LEAD_MS * MS), len(wave)
    loud = np.abs(wave) > np.abs(wave).max() / 30
    rms = float(np.sqrt(np.mean(np.square(wave[loud])))) if loud.any() else 1.0
    level = FULL_SCALE * 10.0 ** (chance.uniform(*LEVEL_DBFS) / 20.0)
    whole = np.zeros(n_lead + int(1.4 * LONGEST_MS * MS) + n_lead)
    whole[n_lead : n_lead + n_sound] = (wave * level / max(rms, 1.0))[: len(whole) - n_lead]
    whole += _pink(len(whole), FULL_SCALE * 10.0 ** (chance.uniform(*FLOOR_DBFS) / 20.0), chance)
    if noises and chance.random() < NOISE_SHARE:
        noise = chance.choice(list(noises))
        start = chance.randrange(len(noise))
        piece = np.take(noise, range(start, start + len(whole)), mode="wrap").astype(np.float64)
        wanted = level * 10.0 ** (-chance.uniform(*SNR_DB) / 20.0)
        whole += piece * wanted / max(float(np.sqrt(np.mean(np.square(piece)))), 1.0)
    samples = np.clip(np.rint(whole), -32768, 32767).astype(np.int16)
    if chance.random() < NARROW_SHARE:
        samples = over_u_law(samples)
    return Overlap(f"{one.name}, {kind}", kind, one.speaker, one.is_person, samples, n_sound / MS)


def _pink(n_samples: int, level: float, chance: random.Random) -> Wave:
    rng = np.random.default_rng(chance.randrange(2**31))
    spectrum = np.fft.rfft(rng.standard_normal(n_samples + 2))
    spectrum /= np.sqrt(np.arange(len(spectrum)) + 1.0)
    pink = np.fft.irfft(spectrum, n_samples + 2)[:n_samples]
    return np.asarray(pink * level / max(float(pink.std()), 1e-9), np.float64)

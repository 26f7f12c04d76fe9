"""The clips of the shared data, and the conditions under which a recognizer hears each."""

import json
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import soundfile

from audio.codec import decode, encode
from audio.errors import AudioError
from audio.frames import RECOGNIZER_HZ, Samples, rms_dbfs
from audio.noise_reduction import Field, NoiseReduction
from clients.recording import Recording

SNR_DB = 10.0
LEAD_S = 0.2  # of silence or noise before and after a clip, as the listener gives
SEED = 0
TELEPHONE_HZ = 8_000
BABBLE = "babble_6.flac"  # of the shared noise: six voices at once
FLITE_VOICES = ("slt", "rms", "awb", "kal16")
FLITE_RMS_DBFS = -24.0
SENTENCES = Path(__file__).parents[1] / "cafe_sentences.txt"


@dataclass(frozen=True, slots=True)
class Clip:
    """A recording with either its words or, of a spoken order, its slots.

    path: a FLAC file; of `flite` the file of the sentence, and voice who says it.
    """

    source: str
    path: Path
    voice: str = ""
    words: tuple[str, ...] = ()
    slots: tuple[tuple[str, ...], ...] = ()

    @property
    def name(self) -> str:
        return f"{self.voice}: {' '.join(self.words)}" if self.voice else self.path.name


def read_clips(speech: Path, most: int) -> Iterator[Clip]:
    """At most `most` clips of each source, spread over its list."""
    by_source: dict[str, list[Clip]] = {}
    for line in (speech / "manifest.jsonl").read_text().splitlines():
        record = json.loads(line)
        words = tuple(record["text"].split())
        clip = Clip(record["source"], speech / record["file"], words=words)
        by_source.setdefault(clip.source, []).append(clip)
    for line in (speech / "slots.jsonl").read_text().splitlines():
        record = json.loads(line)
        if record["kind"] == "phone":
            words = tuple(record["text"].split())
            clip = Clip("telephone numbers", speech / record["file"], words=words)
            by_source.setdefault("phone", []).append(clip)
    for line in (speech / "commands.jsonl").read_text().splitlines():
        record = json.loads(line)
        slots = tuple(tuple(value.split()) for value in record["slots"].values())
        clip = Clip("commands (slots)", speech / record["file"], slots=slots)
        by_source.setdefault(clip.source, []).append(clip)
    if shutil.which("flite"):
        by_source["flite"] = [
            Clip("flite", SENTENCES, voice, tuple(sentence.split()))
            for sentence in SENTENCES.read_text().splitlines()
            for voice in FLITE_VOICES
        ]
    for clips in by_source.values():
        yield from clips[:: max(1, -(-len(clips) // most))]


def read_clip(clip: Clip) -> Samples:
    return synthesize(" ".join(clip.words), clip.voice) if clip.voice else read_audio(clip.path)


def synthesize(text: str, voice: str) -> Samples:
    """text in a voice of flite, at FLITE_RMS_DBFS."""
    with tempfile.NamedTemporaryFile(suffix=".wav") as file:
        command = ["flite", "-voice", voice, "-t", text, "-o", file.name]
        subprocess.run(command, check=True, capture_output=True)
        speech = read_audio(Path(file.name)).astype(np.float64)
    gain = 10 ** ((FLITE_RMS_DBFS - rms_dbfs(speech.astype(np.int16))) / 20)
    return np.clip(speech * gain, -32768, 32767).astype(np.int16)


def read_audio(path: Path) -> Samples:
    samples, rate_hz = soundfile.read(path, dtype="int16")
    if rate_hz != RECOGNIZER_HZ:
        raise AudioError(f"expected {path} at {RECOGNIZER_HZ} Hz, found {rate_hz}")
    return np.asarray(samples, np.int16)


def conditions(
    speech: Samples, noises: dict[str, Samples], index: int, fields: Sequence[Field] = ()
) -> Iterator[tuple[str, Samples]]:
    """The clip with a silent edge; through a telephone; with noise and with voices at SNR_DB.

    fields: the latter two are also given as a session with this noise reduction hears them.
    """
    edge = round(LEAD_S * RECOGNIZER_HZ)
    padded = np.pad(speech, edge).astype(np.float64)
    generator = np.random.default_rng(SEED + index)
    hiss = generator.normal(0.0, 3.0, len(padded))  # digital silence exists on no line
    clean = np.clip(padded + hiss, -32768, 32767).astype(np.int16)
    yield "clean", clean
    narrow = Recording(clean, RECOGNIZER_HZ).at_rate(TELEPHONE_HZ).samples
    heard = decode(encode(narrow, "pcmu"), "pcmu")
    yield "8 kHz u-law", Recording(heard, TELEPHONE_HZ).at_rate(RECOGNIZER_HZ).samples
    others = [noise for name, noise in noises.items() if name != BABBLE]
    for name, noise in (("noise", others[index % len(others)]), ("babble", noises[BABBLE])):
        start = int(generator.integers(0, len(noise)))
        repeated = np.resize(np.roll(noise, -start), len(padded))
        gain = 10 ** ((rms_dbfs(speech) - SNR_DB - rms_dbfs(repeated)) / 20)
        mixed = np.clip(padded + gain * repeated, -32768, 32767).astype(np.int16)
        yield f"{name} {SNR_DB:.0f} dB", mixed
        for field in fields:
            reduction = NoiseReduction(field)
            cleaned = np.concatenate((reduction.push(mixed), reduction.flush()))
            yield f"{name} {SNR_DB:.0f} dB, {field}", cleaned

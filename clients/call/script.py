"""The script of a simulated call: what is said, when, and what an answer must contain.

``load_call`` reads the bundled ``clients/call/call.toml`` or a script of the user's own, whose
recordings lie where it says, seen from its own folder. Positions in the audio (onset, true end, the
hesitation) are never typed: an ``Utterance`` measures them on its own waveform.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from clients.errors import CallScriptError, RecordingError
from clients.recording import MAX_RECORDING_S, Recording, read_flac, read_wav
from clients.report.waveform import pauses, speech_end, speech_start

CALL_FOLDER = Path(__file__).resolve().parent
DEFAULT_CAST = "hibari"
OWN_VOICE = ""  # of a script without casts
MAX_TURNS = 200  # an hour of a call
MAX_SCRIPT_BYTES = 1024 * 1024
HESITATION_MS = 400.0  # a stop consonant is silent for up to ~150 ms, a phrase break ~300 ms

After = Literal["agent", "barge_in"]


@dataclass(frozen=True, slots=True)
class ScriptedTurn:
    """One turn of the caller.

    ``after`` "agent" speaks ``wait_ms`` after the agent has finished; "barge_in" speaks ``wait_ms``
    after the first audible sample of the answer that is to be interrupted. ``expect`` holds lists
    of words; an answer needs one word of each.
    """

    name: str
    text: str
    file: str
    after: After
    wait_ms: float
    pause_ms: float
    expect: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class CallScript:
    """``casts``: by name, the voices in which the call is recorded, each in a folder of its name.

    A script without casts is one voice, whose recordings lie in ``folder`` itself.
    """

    title: str
    casts: Mapping[str, tuple[str, ...]]
    turns: tuple[ScriptedTurn, ...]
    folder: Path = CALL_FOLDER

    @property
    def voices(self) -> tuple[str, ...]:
        """Return the voices of the cast that is played where none is named."""
        return self.casts[DEFAULT_CAST] if self.casts else (OWN_VOICE,)


@dataclass(frozen=True, slots=True)
class Utterance:
    """A turn's audio with its truth; ``onset``, ``end`` and ``hesitations`` in its samples."""

    turn: ScriptedTurn
    recording: Recording
    onset: int
    end: int
    hesitations: tuple[tuple[int, int], ...]


def load_call(path: Path = CALL_FOLDER / "call.toml") -> CallScript:
    """Read a call script.

    Raises:
        CallScriptError: the file is absent, is no TOML, or a turn lacks what it must have.
    """
    data = _read_toml(path)
    entries = data.get("turns", [])
    if not isinstance(entries, list) or not all(isinstance(one, dict) for one in entries):
        raise CallScriptError(f"expected [[turns]] in {path}, found another value")
    if not 0 < len(entries) <= MAX_TURNS:
        raise CallScriptError(
            f"expected [[turns]] in {path}, 1 to {MAX_TURNS}, found {len(entries) or 'none'}"
        )
    turns = tuple(_turn(entry, index) for index, entry in enumerate(entries))
    try:
        casts = {name: tuple(voices) for name, voices in data.get("casts", {}).items()}
    except (AttributeError, TypeError):
        raise CallScriptError(f"expected lists of voices in [casts] of {path}") from None
    if casts and not casts.get(DEFAULT_CAST):
        raise CallScriptError(f"expected the voices of {DEFAULT_CAST!r} in [casts] of {path}")
    return CallScript(str(data.get("title", path.stem)), casts, turns, path.resolve().parent)


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        if path.stat().st_size > MAX_SCRIPT_BYTES:
            raise CallScriptError(f"expected a call script at {path}, found over a megabyte")
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CallScriptError(f"expected a call script at {path}, found none") from error
    except ValueError as error:  # no TOML, no UTF-8
        raise CallScriptError(f"expected TOML in {path}, found a mistake: {error}") from error


def _turn(entry: dict[str, Any], index: int) -> ScriptedTurn:
    for key in ("name", "text", "file", "after"):
        if not isinstance(entry.get(key), str):
            raise CallScriptError(f"expected {key!r} in turn {index + 1} of the call, found none")
    if entry["after"] not in ("agent", "barge_in"):
        raise CallScriptError(
            f"expected after = 'agent' or 'barge_in' in turn {entry['name']!r}, "
            f"found {entry['after']!r}"
        )
    expect = entry.get("expect", [])
    lists = expect if isinstance(expect, list) else [None]
    if not all(isinstance(words, list) and all(map(_is_text, words)) for words in lists):
        raise CallScriptError(
            f"expected lists of words as expect in turn {entry['name']!r}, found {expect!r}"
        )
    return ScriptedTurn(
        entry["name"],
        entry["text"],
        entry["file"],
        entry["after"],
        _ms_of(entry, "wait_ms", 600.0),
        _ms_of(entry, "pause_ms", 0.0),
        tuple(tuple(word.lower() for word in words) for words in expect),
    )


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _ms_of(entry: dict[str, Any], key: str, default: float) -> float:
    value = entry.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 60_000:
        raise CallScriptError(
            f"expected {key} = 0 to 60000 in turn {entry['name']!r}, found {value!r}"
        )
    return float(value)


def load_utterances(
    script: CallScript, voice: str, rate_hz: int, folder: Path | None = None
) -> tuple[Utterance, ...]:
    """The call's audio in one of its voices, resampled to ``rate_hz``, with measured truth.

    A file is a mono FLAC, or a mono 16-bit WAV. ``folder``: instead of the script's own.

    Raises:
        CallScriptError: the voice is not one of the call's, or a recording holds no speech.
        RecordingError: a file is absent, has another format, or lasts more than ten minutes.
    """
    voices = [name for cast in script.casts.values() for name in cast] or [OWN_VOICE]
    place = (folder or script.folder) / voice
    if voice not in voices:
        raise CallScriptError(f"expected a voice of {', '.join(voices)}, found {voice!r}")
    return tuple(
        utterance_of(turn, _read_audio(place / turn.file).at_rate(rate_hz)) for turn in script.turns
    )


def _read_audio(path: Path) -> Recording:
    recording = read_flac(path) if path.suffix.lower() == ".flac" else read_wav(path)
    if recording.duration_ms > 1000 * MAX_RECORDING_S:
        seconds = recording.duration_ms / 1000
        raise RecordingError(
            f"expected at most {MAX_RECORDING_S:.0f} s of a turn, found {seconds:.0f} s: {path}"
        )
    return recording


def utterance_of(turn: ScriptedTurn, recording: Recording) -> Utterance:
    """Measure one recording.

    Raises:
        CallScriptError: the recording holds no speech at all.
    """
    onset = speech_start(recording.samples, recording.rate_hz)
    end = speech_end(recording.samples, recording.rate_hz)
    if onset is None or end is None:
        raise CallScriptError(f"expected speech in turn {turn.name!r}, found digital silence")
    hesitations = tuple(pauses(recording.samples, recording.rate_hz, HESITATION_MS))
    return Utterance(turn, recording, onset, end, hesitations)


_DIGITS = {
    "zero": "0", "oh": "0", "one": "1", "two": "2", "three": "3", "four": "4", "five": "5",
    "six": "6", "seven": "7", "eight": "8", "nine": "9",
}  # fmt: skip


def missing_words(expect: tuple[tuple[str, ...], ...], answer: str) -> list[str]:
    """The expectations that ``answer`` does not meet, each as "a/b/c/…"; empty when all are met.

    Words match whole words and their plurals. A run of four or more digits matches digits however
    they are written: "555-0142", "five five five, oh one four two".
    """
    found = set(words_found(expect, answer))
    return [
        "/".join(words[:3]) + ("/…" if len(words) > 3 else "")
        for words in expect
        if found.isdisjoint(words)
    ]


def words_found(expect: tuple[tuple[str, ...], ...], answer: str) -> list[str]:
    """Return those of the expected words that ``answer`` contains, in the order of ``expect``."""
    words = re.findall(r"[a-z']+|\d+", answer.lower())
    digits = "".join(_DIGITS.get(word, word if word.isdigit() else " ") for word in words)
    spoken = {*words, *(word.removesuffix("s") for word in words)}
    return [
        word
        for alternatives in expect
        for word in alternatives
        if (word in digits if word.isdigit() and len(word) >= 4 else word in spoken)
    ]

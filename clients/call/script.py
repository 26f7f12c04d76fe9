"""The script of a simulated call: what is said, when, and what an answer must contain.

``load_call`` reads ``clients/call/call.toml``. Positions in the audio (onset, true end, the
hesitation) are never typed: an ``Utterance`` measures them on its own waveform.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from clients.errors import CallScriptError
from clients.recording import Recording, read_flac
from clients.report.waveform import pauses, speech_end, speech_start

CALL_FOLDER = Path(__file__).resolve().parent
DEFAULT_CAST = "hibari"
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
    """``casts``: by name, the voices in which the call is recorded."""

    title: str
    casts: Mapping[str, tuple[str, ...]]
    turns: tuple[ScriptedTurn, ...]

    @property
    def voices(self) -> tuple[str, ...]:
        """Of the cast that is played where none is named."""
        return self.casts[DEFAULT_CAST]


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
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CallScriptError(f"expected a call script at {path}, found none") from error
    except tomllib.TOMLDecodeError as error:
        raise CallScriptError(f"expected TOML in {path}, found a mistake: {error}") from error
    turns = tuple(_turn(entry, index) for index, entry in enumerate(data.get("turns", [])))
    if not turns:
        raise CallScriptError(f"expected [[turns]] in {path}, found none")
    casts = {name: tuple(voices) for name, voices in data.get("casts", {}).items()}
    if not casts.get(DEFAULT_CAST):
        raise CallScriptError(f"expected the voices of {DEFAULT_CAST!r} in [casts] of {path}")
    return CallScript(data.get("title", path.stem), casts, turns)


def _turn(entry: dict[str, Any], index: int) -> ScriptedTurn:
    for key in ("name", "text", "file", "after", "expect"):
        if key not in entry:
            raise CallScriptError(f"expected {key!r} in turn {index + 1} of the call, found none")
    if entry["after"] not in ("agent", "barge_in"):
        raise CallScriptError(
            f"expected after = 'agent' or 'barge_in' in turn {entry['name']!r}, "
            f"found {entry['after']!r}"
        )
    expect = tuple(tuple(word.lower() for word in words) for words in entry["expect"])
    return ScriptedTurn(
        entry["name"],
        entry["text"],
        entry["file"],
        entry["after"],
        float(entry.get("wait_ms", 600.0)),
        float(entry.get("pause_ms", 0.0)),
        expect,
    )


def load_utterances(
    script: CallScript, voice: str, rate_hz: int, folder: Path = CALL_FOLDER
) -> tuple[Utterance, ...]:
    """The call's audio in one of its voices, resampled to ``rate_hz``, with measured truth.

    Raises:
        CallScriptError: the voice is not one of the call's.
        RecordingError: a file is absent or holds no speech.
    """
    voices = [name for cast in script.casts.values() for name in cast]
    if voice not in voices:
        raise CallScriptError(f"expected a voice of {', '.join(voices)}, found {voice!r}")
    return tuple(
        utterance_of(turn, read_flac(folder / voice / turn.file).at_rate(rate_hz))
        for turn in script.turns
    )


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
    """Those of the expected words that ``answer`` contains, in the order of ``expect``."""
    words = re.findall(r"[a-z']+|\d+", answer.lower())
    digits = "".join(_DIGITS.get(word, word if word.isdigit() else " ") for word in words)
    spoken = {*words, *(word.removesuffix("s") for word in words)}
    return [
        word
        for alternatives in expect
        for word in alternatives
        if (word in digits if word.isdigit() and len(word) >= 4 else word in spoken)
    ]

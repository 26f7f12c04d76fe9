"""A kept call as it is read back: its notes, and its caller's channel.

Owns where they lie and what is wrong with them. Whatever wrote the files, they are read as a
stranger's: bounded, and checked to the last value that is used.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
from numpy.typing import NDArray

from voiceloop.errors import ConfigError
from voiceloop.recording.notes import FORM, SECTIONS
from voiceloop.recording.timeline import LEFT, RATE_HZ

MAX_NOTES = 64 * 1024 * 1024  # bytes: a day's call is a tenth of that
MAX_S = 4 * 3600.0
# What a replay does again. Results of tools are given where the tool is called.
REPLAYED = frozenset(
    (
        "session.update", "input_audio_buffer.commit", "input_audio_buffer.clear",
        "response.create", "conversation.item.create",
    )
)  # fmt: skip

Samples = NDArray[np.int16]


@dataclass(frozen=True, slots=True)
class KeptFiles:
    """caller: int16 [n] at RATE_HZ. events: of its client, with their second."""

    name: str
    notes: dict[str, Any]
    caller: Samples

    @property
    def events(self) -> list[tuple[float, dict[str, Any]]]:
        found = []
        for entry in self.notes["client"]:
            event = entry.get("event")
            is_result = isinstance(event, dict) and "output" in (event.get("item") or {})
            if isinstance(event, dict) and event.get("type") in REPLAYED and not is_result:
                found.append((float(entry.get("at_ms", 0.0)) / 1000.0, event))
        return found

    def results(self) -> dict[tuple[str, str], list[tuple[str, float]]]:
        """Return what came of each call of a tool: by name and arguments, with the seconds it
        took.
        """
        outputs = {entry.get("call_id"): entry for entry in self.notes["results"]}
        found: dict[tuple[str, str], list[tuple[str, float]]] = {}
        for call in self.notes["calls"]:
            result = outputs.get(call.get("call_id"))
            if result is not None:
                wait_s = max(0.0, (result["at_ms"] - call["at_ms"]) / 1000.0)
                key = str(call.get("name")), canonical(str(call.get("arguments")))
                found.setdefault(key, []).append((str(result.get("output")), wait_s))
        return found


def canonical(arguments: str) -> str:
    """The same for arguments that say the same."""
    try:
        return json.dumps(json.loads(arguments), sort_keys=True)
    except ValueError:
        return arguments


def read_kept(path: Path) -> KeptFiles:
    """path: of either file of a call, or of both without their endings. Raises: ConfigError."""
    stem = path.with_name(path.name.partition(".")[0])
    notes = _notes(stem.with_name(stem.name + ".json"))
    for ending in (".flac", ".opus", ".flac.part"):
        sound = stem.with_name(stem.name + ending)
        if sound.exists():
            return KeptFiles(stem.name, notes, _caller(sound))
    raise ConfigError(f"expected {stem.name}.flac or .opus beside its notes, found neither")


def _notes(path: Path) -> dict[str, Any]:
    try:
        if path.stat().st_size > MAX_NOTES:
            raise ConfigError(f"expected notes of at most {MAX_NOTES} bytes, found more in {path}")
        notes = json.loads(path.read_bytes())
    except OSError as error:
        sealed = path.with_name(path.name + ".age")
        found = (
            "found it encrypted: age --decrypt it first"
            if sealed.exists()
            else f"found none ({error.strerror})"
        )
        raise ConfigError(f"expected the notes of a kept call at {path}, {found}") from None
    except ValueError as error:
        raise ConfigError(f"expected JSON in {path}, found a mistake: {error}") from None
    if not isinstance(notes, dict) or notes.get("form") != FORM:
        raise ConfigError(f"expected notes of form {FORM} in {path}, found others")
    for name in SECTIONS:
        entries = notes.setdefault(name, [])
        if not isinstance(entries, list) or not all(isinstance(one, dict) for one in entries):
            raise ConfigError(f"expected a list of entries in {name} of {path}, found another")
    return notes


def _caller(path: Path) -> Samples:
    try:
        with soundfile.SoundFile(path) as file:
            if file.channels != 2 or file.samplerate != RATE_HZ:
                told = f"{file.channels} channels at {file.samplerate} Hz"
                raise ConfigError(f"expected 2 channels at {RATE_HZ} Hz in {path}, found {told}")
            if file.frames > MAX_S * RATE_HZ:
                raise ConfigError(f"expected at most {MAX_S / 3600:g} hours in {path}, found more")
            both: Samples = file.read(dtype="int16")
    except (soundfile.LibsndfileError, OSError) as error:
        raise ConfigError(f"expected the sound of a kept call in {path}, found: {error}") from None
    return np.ascontiguousarray(both[:, LEFT])

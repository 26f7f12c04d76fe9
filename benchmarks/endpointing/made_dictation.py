"""E-mail addresses, spelled letters with their words, dates of birth: dictated by a made voice.

Nobody recorded any, so the bundled caller's voice says them at three pitches, none of which a
weight was fitted to. Each is spoken as a whole and parted at its groups; the silences between are
as long as those that recorded people leave in numbers and addresses. Deterministic.
"""

from __future__ import annotations

import json
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from audio.frames import RECOGNIZER_HZ
from benchmarks.calls.make_call import CALLERS
from clients.call.script import DEFAULT_CAST, load_call
from clients.recording import to_int16
from clients.report.waveform import room_noise, speech_end
from voiceloop.listening.recipes.endpointing_set import (
    FLOOR_DBFS,
    GREETING,
    LEAD_MS,
    MS,
    TRAIL_MS,
    CallerTurn,
    levelled,
)
from voiceloop.listening.recipes.forced_alignment import SpokenWord

# "|" parts the groups. Half are asked for; the others come by themselves.
SAID: dict[str, tuple[str, ...]] = {
    "emails": (
        "jane dot doe | at example | dot com",
        "it's peter | underscore brown | at gmail dot com",
        "my email is lisa | at river house | dot org",
        "info | at green market | dot co | dot uk",
        "k taylor | at yahoo | dot com",
        "sales dot north | at acme | dot net",
        "you can write to anna | dot berg | at outlook dot com",
        "tom | underscore | forty two | at example dot org",
    ),
    "spelled": (
        "b as in boy | a as in apple | k as in kite | e as in egg | r as in river",
        "m as in mike | o | o as in oscar | r e",
        "s as in sam | m i t | h as in house",
        "l for london | e e | n for november | a",
    ),
    "born": (
        "march fifth | nineteen eighty five",
        "the third of | may | two thousand and one",
        "december | twenty first | nineteen ninety",
        "june eleventh | nineteen | seventy two",
    ),
}
QUESTIONS = {
    "emails": "What is your email address?",
    "spelled": "Could you spell your name?",
    "born": "What is your date of birth?",
}
LEAST_PAUSE_MS, MOST_PAUSE_MS = 250.0, 1300.0  # of people's: between groups, not digits


def made_dictation(data: Path) -> list[CallerTurn]:
    """All of them in each voice."""
    silences_ms = _silences_ms(data)
    voices = load_call().casts[DEFAULT_CAST]
    return [
        _turn(kind, text, voice, is_asked=(index + number) % 2 == 0, silences_ms=silences_ms)
        for kind, texts in SAID.items()
        for index, text in enumerate(texts)
        for number, voice in enumerate(voices)
    ]


def _silences_ms(data: Path) -> list[float]:
    """Those of people who dictate numbers and addresses."""
    rows = (data / "speech" / "slots.jsonl").read_text(encoding="utf-8").splitlines()
    listed = [row for row in map(json.loads, rows) if row["kind"] in ("phone", "address")]
    found = [float(end - start) for row in listed for start, end in row["pauses"]]
    return [ms for ms in found if LEAST_PAUSE_MS <= ms <= MOST_PAUSE_MS]


def _turn(
    kind: str, text: str, voice: str, *, is_asked: bool, silences_ms: list[float]
) -> CallerTurn:
    chance = random.Random(f"{voice}: {text}")
    groups = [group.split() for group in text.split("|")]
    pieces, words, holds = [], list[SpokenWord](), list[tuple[float, float]]()
    at_ms = LEAD_MS
    for number, (piece, group) in enumerate(zip(_parted(text, voice), groups, strict=True)):
        if number:
            silence_ms = chance.choice(silences_ms)
            holds.append((at_ms, at_ms + silence_ms))
            pieces.append(np.zeros(int(silence_ms * MS)))
            at_ms += silence_ms
        each_ms = len(piece) / MS / len(group)
        words += [
            SpokenWord(word, at_ms + i * each_ms, at_ms + (i + 1) * each_ms)
            for i, word in enumerate(group)
        ]
        pieces.append(piece)
        at_ms += len(piece) / MS
    said = levelled(to_int16(np.concatenate(pieces)))
    n_lead = int(LEAD_MS * MS)
    room = room_noise(n_lead + len(said) + int(TRAIL_MS * MS), RECOGNIZER_HZ, 1, FLOOR_DBFS)
    whole = room.astype(np.float64)
    whole[n_lead : n_lead + len(said)] += said
    asked = ((("assistant", QUESTIONS[kind]),)) if is_asked else GREETING
    return CallerTurn(
        f"{voice}: {text}", voice, "test", to_int16(whole), tuple(words), tuple(holds),
        LEAD_MS + (speech_end(said, RECOGNIZER_HZ) or len(said)) / MS, asked, frozenset({kind}),
    )  # fmt: skip


def _parted(text: str, voice: str) -> Iterator[np.ndarray]:
    """The sound of each group of one that is said as a whole."""
    groups = [group.strip() for group in text.split("|")]
    edges = [0]
    with tempfile.TemporaryDirectory() as folder:
        for n_before in range(1, len(groups)):
            before, after = " ".join(groups[:n_before]), " ".join(groups[n_before:])
            recording, boundary_s = CALLERS[voice].speak(f"{before} | {after}", Path(folder))
            edges.append(int(boundary_s * recording.rate_hz))
        recording, _ = CALLERS[voice].speak(f"{' '.join(groups)}", Path(folder))
    samples = recording.samples.astype(np.float64)
    for start, end in zip(edges, [*edges[1:], speech_end(recording.samples, recording.rate_hz)
                                  or len(samples)], strict=True):  # fmt: skip
        yield samples[start:end]

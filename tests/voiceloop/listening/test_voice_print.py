"""A print lies near another of the same voice, and there is none of too little sound."""

from __future__ import annotations

import json
import random
from collections import defaultdict

import numpy as np
import pytest
import soundfile
from numpy.typing import NDArray

from audio.frames import RECOGNIZER_HZ, Samples
from benchmarks.harness.data_folder import data_folder
from voiceloop.listening.voice_print import Print, VoicePrinter, distance, same_log_odds

LISTED = data_folder() / "speech" / "orders.jsonl"


def print_of(samples: Samples, n_piece: int = 320) -> Print | None:
    printer = VoicePrinter()
    for start in range(0, len(samples), n_piece):
        printer.feed(samples[start : start + n_piece])
    return printer.print()


def noise(seconds: float) -> NDArray[np.int16]:
    rng = np.random.default_rng(0)
    return (rng.standard_normal(int(seconds * RECOGNIZER_HZ)) * 900).astype(np.int16)


def test_a_short_sound_has_no_print() -> None:
    assert print_of(noise(0.25)) is None
    assert VoicePrinter().print() is None


def test_a_print_does_not_depend_on_the_pieces_and_no_sound_makes_it_fail() -> None:
    for samples in (noise(1.0), np.full(RECOGNIZER_HZ, 32767, np.int16)):
        pieces = [print_of(samples, n) for n in (160, 320, 4000)]
        assert pieces[1] == pytest.approx(pieces[0]) and pieces[2] == pytest.approx(pieces[0])


@pytest.mark.skipif(not LISTED.is_file(), reason="no shared data")
def test_people_lie_nearer_to_themselves_than_to_others() -> None:
    turns: dict[str, list[Print]] = defaultdict(list)
    for line in LISTED.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        if len(turns[row["speaker"]]) < 3:
            samples = soundfile.read(data_folder() / "speech" / row["file"], dtype="int16")[0]
            start, end = (int(row[key] * 16) for key in ("start_of_speech_ms", "end_of_speech_ms"))
            one = print_of(samples[start : min(end, start + 2 * RECOGNIZER_HZ)], 4000)
            turns[row["speaker"]] += [one] if one is not None else []
    people = [prints for prints in turns.values() if len(prints) == 3]
    chance = random.Random(0)
    own, of_others = [], []
    for prints in people:
        for sound, kept in ((prints[2], own), (chance.choice(people)[0], of_others)):
            nearest = min(distance(sound, one) for one in prints[:2])
            kept.append(same_log_odds(nearest, sound))
    assert len(people) > 15
    assert np.median(own) > 0.5 and np.median(of_others) < -1.0

"""Turns with the pauses that people really made, as endpointing is fitted and judged on them.

Owns the real set: spontaneous orders, dictated numbers, addresses and spelled names, the turns of a
service call, and read sentences, each in its own room, half of the speakers to fit and half to
test; of the test's, copies in noise and over a telephone. Nothing is spliced. Deterministic.
"""

from __future__ import annotations

import pickle
import zlib
from dataclasses import replace
from pathlib import Path

from audio.normalize import spoken_words
from audio.recipes.paused_speech import Kind, PausedTurn, paused_turns, with_room
from clients.recording import read_flac
from voiceloop.listening.recipes.disk_cache import cache_folder
from voiceloop.listening.recipes.endpointing_set import (
    GREETING,
    LATEST_AFTER_WORD_MS,
    LEAD_MS,
    TRAIL_MS,
    CallerTurn,
    in_noise,
    levelled,
    over_u_law,
    part_of,
)
from voiceloop.listening.recipes.forced_alignment import SpokenWord, align
from voiceloop.listening.recipes.synthetic_callers import Part

REAL_VERSION = 2  # to be raised with every change of what follows, and of audio.recipes
SLICES: dict[Kind, str] = {
    "order": "orders", "number": "numbers", "address": "addresses", "name": "names",
    "call": "calls", "read": "read",
}  # fmt: skip
DICTATED = frozenset({"numbers", "addresses", "names"})
ASKED: dict[Kind, str] = {
    "number": "What is your phone number?",
    "address": "What is your address?",
    "name": "Could you spell your name?",
}
PART_BIT = 16
COPIES_EVERY = 4  # test turns, about one is copied into noise and over u-law


def real_turns(data: Path, part: Part) -> list[CallerTurn]:
    """All turns of a part; of the test part also the copies in noise and over u-law.

    Kept in the cache folder: making them takes two minutes.
    """
    path = cache_folder() / "turns" / f"real-{part}-{REAL_VERSION}.pickle"
    if path.is_file():
        kept: list[CallerTurn] = pickle.loads(path.read_bytes())
        return kept
    turns = [_caller_turn(one, part) for one in paused_turns(data) if _part_of(one) == part]
    if part == "test":
        noises = [read_flac(path).samples for path in sorted((data / "speech/noise").glob("*"))]
        copied = [turn for turn in turns if _crc(f"copy {turn.name}") % COPIES_EVERY == 0]
        turns += [in_noise(turn, noises[i % len(noises)]) for i, turn in enumerate(copied)]
        turns += [over_u_law(turn) for turn in copied]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pickle.dumps(turns))
    return turns


def _crc(name: str) -> int:
    return zlib.crc32(name.encode())


def _part_of(said: PausedTurn) -> Part:
    """Readers as in the other set. Of the others a bit that halves the dictated turns too:

    by `part_of` all the voices with many of them would fall to the test.
    """
    if said.kind == "read":
        return part_of(said.speaker)
    return "fit" if _crc(said.speaker) >> PART_BIT & 1 else "test"


def _caller_turn(said: PausedTurn, part: Part) -> CallerTurn:
    said = with_room(replace(said, samples=levelled(said.samples)), LEAD_MS, TRAIL_MS)
    words = _words(said)
    question = ASKED.get(said.kind)
    is_asked = question is not None and _crc(f"asked {said.name}") % 2 == 0
    return CallerTurn(
        name=said.name,
        speaker=said.speaker,
        part=part,
        samples=said.samples,
        words=words,
        holds=said.pauses,
        end_ms=_end_ms(said, words),
        history=(("assistant", question),) if is_asked and question else GREETING,
        slices=frozenset({SLICES[said.kind]}),
    )


def _end_ms(said: PausedTurn, words: tuple[SpokenWord, ...] | None) -> float:
    """The turn's end. What a reader breathes behind the last word is not read any more:

    energy alone took it for speech in one of four, by 160 to 530 ms. Of the others the text is not
    sure enough: it says what was to be dictated.
    """
    if said.kind != "read" or not words or said.end_ms <= words[-1].end_ms + LATEST_AFTER_WORD_MS:
        return said.end_ms
    return words[-1].end_ms


def _words(said: PausedTurn) -> tuple[SpokenWord, ...] | None:
    """Return what was said and when; None where nobody wrote it down, or a word is in no
    dictionary.
    """
    if said.text is None:
        return None
    words = tuple(spoken_words(said.text))
    return align(said.samples, words)

"""Human callers for calls over the wire: clips of the shared data, whole turns, honest truth.

Owns which clips are played: those of the endpointing test's speakers, spread over all of them,
each plain or with a hesitation of 300-1200 ms spliced in, and none that the waits were chosen on;
behind the plain ones, orders as people spoke them. The clip's end is the waveform's, unless a
breath or an old recording's floor follows the last word
(`voiceloop.listening.recipes.endpointing_set`).
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from audio.frames import RECOGNIZER_HZ
from benchmarks.endpointing.made_dictation import made_dictation
from benchmarks.harness.data_folder import OF_PAUSED_TURNS, OF_TURNS, data_with
from clients.call.script import ScriptedTurn, Utterance
from clients.connection import RATE_HZ
from clients.recording import Recording, Samples
from clients.report.waveform import AUDIBLE_DBFS, FRAME_MS, frame_levels_db, speech_start
from voiceloop.listening.recipes.endpointing_set import (
    COPIES,
    FADE,
    LEAD_MS,
    MS,
    CallerTurn,
    caller_turns,
)
from voiceloop.listening.recipes.real_turns import DICTATED, real_turns

Kind = Literal["plain", "hesitation", "dictation"]
AFTER_END_MS = 60.0  # of the clip, faded: what is longer is the recording's own silence
BEFORE_WORD_MS = 150.0  # what sounds earlier than this before the first word is a breath or a click
WAIT_MS = 600.0  # after the agent has finished, before the caller speaks
# The first so many of each kind were played and looked at while the waits of each eagerness were
# chosen (LOG.md, "endpointing, a point for each eagerness"): a figure on them would flatter. The
# rest was part of the whole set's figures only.
CHOSEN_ON = 32
LONGEST_MS = 9000.0  # a turn in a call is rarely longer, and every second is measured in real time


@dataclass(frozen=True, slots=True)
class HumanTurn:
    """One clip: int16 at 16 kHz, beginning with its first sound. Times in ms from there."""

    name: str
    speaker: str
    kind: Kind
    samples: Samples
    onset_ms: float
    end_ms: float
    words: tuple[tuple[str, float, float], ...]

    @property
    def text(self) -> str:
        return " ".join(word for word, _, _ in self.words)

    def at_rate(self, rate_hz: int) -> Samples:
        return Recording(self.samples, RECOGNIZER_HZ).at_rate(rate_hz).samples


def human_turns(kind: Kind, n_turns: int) -> list[HumanTurn]:
    """So many turns of the test's speakers, fairly spread over them; always the same.

    All are ranked, one of each speaker before a second of any, and the first CHOSEN_ON are left
    out. Where these end (there are some 60 of a kind) plain turns go on with spontaneous orders,
    some 170, whose words nobody wrote down. Fewer come where both have ended.

    Raises:
        DataMissing: the shared data is not here.
    """
    turns = caller_turns(data_with(*OF_TURNS), "test")
    chosen = _ranked([turn for turn in turns if _fits(turn, kind)], kind)[CHOSEN_ON:]
    if kind == "plain" and len(chosen) < n_turns:
        people = real_turns(data_with(*OF_PAUSED_TURNS), "test")
        chosen += _ranked([turn for turn in people if _is_order(turn)], "orders")
    return [_cut_out(turn, kind) for turn in chosen[:n_turns]]


def dictated_turns(n_turns: int) -> list[HumanTurn]:
    """By turns numbers, addresses and spelled names of the test's speakers, and what a made voice
    dictates (`made_dictation`); always the same. Raises: DataMissing.
    """
    data = data_with(*OF_PAUSED_TURNS)
    whole = [turn for turn in real_turns(data, "test") if not turn.slices & COPIES]
    people = [turn for turn in whole if turn.slices & DICTATED and turn.end_ms < LONGEST_MS]
    made = _ranked(made_dictation(data), "made")
    both = zip(_ranked(people, "dictated"), made, strict=False)
    return [_cut_out(turn, "dictation") for pair in both for turn in pair][:n_turns]


def _ranked(turns: Sequence[CallerTurn], name: str) -> list[CallerTurn]:
    """One of each speaker before a second of any, else by chance; always the same."""
    shuffled = list(turns)
    random.Random(f"human turns {name}").shuffle(shuffled)
    rounds: dict[str, int] = {}
    ranked = []
    for turn in shuffled:
        rounds[turn.speaker] = rounds.get(turn.speaker, 0) + 1
        ranked.append((rounds[turn.speaker], turn))
    ranked.sort(key=lambda pair: pair[0])
    return [turn for _, turn in ranked]


def _is_order(turn: CallerTurn) -> bool:
    return "orders" in turn.slices and not turn.slices & COPIES and turn.end_ms < LONGEST_MS


def _fits(turn: CallerTurn, kind: Kind) -> bool:
    if turn.words is None or "human" not in turn.slices or turn.slices & COPIES:
        return False
    return ("hesitation" in turn.slices) == (kind == "hesitation") and turn.end_ms < LONGEST_MS


def _cut_out(turn: CallerTurn, kind: Kind) -> HumanTurn:
    """The clip out of its quiet room: the line of a call has a room of its own."""
    begin = int(LEAD_MS * MS)
    samples = turn.samples[begin : int((turn.end_ms + AFTER_END_MS) * MS)].copy()
    samples[-FADE:] = samples[-FADE:] * np.linspace(1.0, 0.0, FADE)
    words = turn.words or ()
    first_word_ms = words[0].start_ms - LEAD_MS if words else 0.0
    return HumanTurn(
        name=turn.name,
        speaker=turn.speaker,
        kind=kind,
        samples=samples,
        onset_ms=_onset_ms(samples, first_word_ms),
        end_ms=turn.end_ms - LEAD_MS,
        words=tuple((w.text, w.start_ms - LEAD_MS, w.end_ms - LEAD_MS) for w in words),
    )


def _onset_ms(samples: Samples, first_word_ms: float) -> float:
    """Where the first word begins to sound: what a barge-in's delay runs from.

    Some recordings have a floor within 35 dB of their peak, which is no onset: what is softer than
    -45 dBFS counts from where the word is aligned.
    """
    quiet = int(max(0.0, first_word_ms - BEFORE_WORD_MS) * MS)
    sounds_ms = (quiet + (speech_start(samples[quiet:], RECOGNIZER_HZ) or 0)) / MS
    audible = np.flatnonzero(frame_levels_db(samples[quiet:], RECOGNIZER_HZ) >= AUDIBLE_DBFS)
    audible_ms = quiet / MS + FRAME_MS * float(audible[0]) if len(audible) else sounds_ms
    return max(sounds_ms, min(audible_ms, first_word_ms))


def utterance_of(turn: HumanTurn) -> Utterance:
    """The clip as a turn of a simulated call, which asks nothing of the answer."""
    script = ScriptedTurn(turn.name, turn.text, turn.name, "agent", WAIT_MS, 0.0, ())
    recording = Recording(turn.at_rate(RATE_HZ), RATE_HZ)
    onset, end = (int(ms * RATE_HZ / 1000.0) for ms in (turn.onset_ms, turn.end_ms))
    hesitations = ((onset, end),) if turn.kind == "hesitation" else ()
    return Utterance(script, recording, onset, end, hesitations)

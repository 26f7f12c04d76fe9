"""The turns of a set as they are heard: whose words, the model's and the recognizer's judgement.

Owns the two sets (real pauses, spliced ones), the four transcript sources, and which turns of
which set a source hears.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal

from benchmarks.endpointing.made_dictation import made_dictation
from voiceloop.listening.recipes.end_probability import EndProbability
from voiceloop.listening.recipes.endpointing_set import COPIES, CallerTurn, caller_turns, marked
from voiceloop.listening.recipes.heard_turn import EmbeddedRecognizer, HeardWords, Pause, pauses_of
from voiceloop.listening.recipes.pause_evidence import HeardTurn, heard_turn
from voiceloop.listening.recipes.real_turns import real_turns
from voiceloop.listening.recipes.reference_replay import finals, replay
from voiceloop.listening.recipes.synthetic_callers import Part, said_in_training
from voiceloop.listening.recipes.voice_reading import VoiceReading, readings_of

SetName = Literal["real", "spliced", "made"]
Source = Literal["reference", "finals", "moonshine"]
SETS: tuple[SetName, ...] = ("real", "spliced")  # that weights are fitted to, and measured by
MADE: SetName = "made"  # a voice dictates what nobody recorded
# reference: the true words, as a good recognizer would give them; finals: as a service that decodes
# at pauses alone.
TRUE_WORDS: dict[Source, Callable[[CallerTurn, Sequence[Pause]], tuple[HeardWords, ...]]] = {
    "reference": replay, "finals": finals,
}  # fmt: skip
RECOGNIZERS: dict[Source, str] = {"moonshine": "moonshine-tiny"}
SOURCES: tuple[Source, ...] = (*TRUE_WORDS, *RECOGNIZERS)
# Decoding is slow: of the spliced turns that a recognizer hears, one in so many is taken.
HEARD_EVERY = 4
ORDERS_EVERY = 3
STATEMENT = (("assistant", "Alright, that is done."),)


@dataclass(frozen=True, slots=True)
class Hearing:
    """Where turns come from and what is asked about them; None: it is done without."""

    data: Path
    ask_end: EndProbability | None
    voice: VoiceReading | None

    def turns(self, name: SetName, part: Part, source: Source) -> list[HeardTurn]:
        """The turns of a set's part as one transcript source hears them."""
        turns = self._of_set(name, part)
        if (said := TRUE_WORDS.get(source)) is not None:
            return [
                self._heard(turn, said(turn, pauses_of(turn)), source)
                for turn in turns
                if turn.words is not None
            ]
        recognizer = EmbeddedRecognizer(RECOGNIZERS[source])
        chosen = turns if name in ("real", MADE) else _thinned(turns, part)
        return [self._heard(turn, recognizer.hear(turn), source) for turn in chosen]

    def _of_set(self, name: SetName, part: Part) -> Sequence[CallerTurn]:
        if name == MADE:
            return made_dictation(self.data)
        if name == "real":
            return real_turns(self.data, part)
        turns = caller_turns(self.data, part)
        if part == "test":
            turns = marked(turns, said_in_training(self.data / "dialogues"))
        return [_after_a_statement(turn) for turn in turns]

    def _heard(self, turn: CallerTurn, words: Sequence[HeardWords], source: Source) -> HeardTurn:
        ask_end = None if self.ask_end is None else partial(self.ask_end.after, turn.history)
        if self.voice is None:
            return heard_turn(turn, words, ask_end)
        ask_voice = partial(self.voice.p_voice, turn)
        return heard_turn(turn, words, ask_end, readings_of(turn), ask_voice)


def _after_a_statement(turn: CallerTurn) -> CallerTurn:
    """Half of the human turns answer no question: what the agent said last is not theirs anyway."""
    if "human" not in turn.slices or zlib.crc32(f"after {turn.name}".encode()) % 2:
        return turn
    return replace(turn, history=STATEMENT)


def _thinned(turns: Sequence[CallerTurn], part: Part) -> list[CallerTurn]:
    """One in so many; to fit, all human turns without hesitation: there are few enough."""
    orders = [turn for turn in turns if "orders" in turn.slices]
    others = [turn for turn in turns if not turn.slices & ({"orders"} | COPIES)]
    # By the name: every nth would fall in step with the plain and hesitating copies of a clip.
    chosen = [
        turn
        for turn in others
        if zlib.crc32(turn.name.encode()) % HEARD_EVERY == 0
        or (part == "fit" and "human" in turn.slices and "hesitation" not in turn.slices)
    ]
    return orders[::ORDERS_EVERY] + chosen

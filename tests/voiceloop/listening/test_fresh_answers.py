"""For how long a sound may pause an answer that has just begun, and how often in vain."""

from __future__ import annotations

import numpy as np
import pytest

from tests.fakes import quiet, tone
from voiceloop.listening.segment import (
    DOUBTED_MS,
    LIKELY,
    LIKELY_RETURN_MS,
    MOST_DOUBTS_IN_VAIN,
    ONSET_MS,
    RETURN_MS,
    EarlyStarts,
    Onset,
)

SOUND_MS = 64.0
HZ = 16_000


def answered(at_ms: float = 0.0) -> EarlyStarts:
    """A turn has ended there, and the answer to it begins."""
    early = EarlyStarts()
    early.is_enabled = True
    early.end_turn(("yes",), at_ms)
    return early


@pytest.mark.parametrize("after_ms, pauses", [(20, True), (900, True), (DOUBTED_MS + 20, None)])
def test_a_sound_pauses_the_answer_to_a_turn_of_the_last_second(
    after_ms: float, pauses: bool | None
) -> None:
    assert DOUBTED_MS == 1000.0
    assert answered().doubt(after_ms, SOUND_MS) is pauses
    assert answered().doubt(after_ms, 0.0) is None  # nothing sounds


def test_an_agent_that_takes_no_answer_back_is_not_paused_by_a_sound() -> None:
    early = EarlyStarts()
    early.end_turn(("yes",), 0.0)
    assert early.doubt(20.0, SOUND_MS) is None


def test_sounds_of_which_no_voice_comes_pause_the_answers_of_a_call_twice() -> None:
    early = answered()
    for at_ms in (100.0, 300.0):
        assert early.doubt(at_ms, SOUND_MS) is True
        assert early.doubt(at_ms + SOUND_MS - 1, SOUND_MS) is None
        assert early.doubt(at_ms + SOUND_MS, SOUND_MS) is False
    assert MOST_DOUBTS_IN_VAIN == 2
    early.end_turn(("no",), 5000.0)
    assert early.doubt(5100.0, SOUND_MS) is None


def test_a_sound_that_turned_out_to_be_a_voice_was_not_in_vain() -> None:
    early = answered()
    for at_ms in (100.0, 200.0, 300.0):
        assert early.doubt(at_ms, SOUND_MS) is True
        assert early.end_doubt() is True
    assert early.end_doubt() is False


@pytest.mark.parametrize(
    "likeness, back_ms, speaks_ms",
    [(LIKELY, LIKELY_RETURN_MS, LIKELY_RETURN_MS + ONSET_MS), (0.0, RETURN_MS, RETURN_MS)],
)
def test_behind_a_turn_a_likely_voice_has_as_much_longer_as_a_beginning_takes(
    likeness: float, back_ms: float, speaks_ms: float
) -> None:
    onset = Onset()
    onset.feed(quiet(500, HZ))
    assert (onset.may_be_back_ms, onset.may_speak_ms) == (0.0, 0.0)
    for _ in range(3):
        onset.observe_likeness(likeness)
        onset.feed(np.asarray(tone(20, HZ)))
    assert (onset.may_be_back_ms, onset.may_speak_ms) == (back_ms, speaks_ms)

"""When a pause ends a turn."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from voiceloop.endpointing import (
    LONGEST_WAIT_MS,
    Continue,
    End,
    Endpointing,
    Evidence,
    wait_ms,
)
from voiceloop.settings import SemanticVad, ServerVad


def heard(text: str, p_end: float | None = None, speech_ms: float = 1500.0) -> Evidence:
    return Evidence(tuple(text.split()), True, p_end, speech_ms)


@pytest.mark.parametrize(
    ("text", "p_end", "shortest", "longest"),
    [
        ("what time do you close on saturday", 0.6, 250, 420),
        ("yes", None, 250, 320),
        ("no thanks", None, 250, 320),
        ("i'd like a large latte", 0.5, 250, 420),
        ("that's all thank you", None, 250, 600),
        ("i'd like a large latte and", None, 1200, 1700),
        ("i'd like a large latte and", 0.02, 1400, 1700),
        ("i would like to book a table for", 0.1, 1400, 1700),
        ("um", None, 1200, 1700),
        ("my number is five five five", None, 1000, 1700),
        ("my number is five five five zero one four two", 0.5, 250, 450),
    ],
)
def test_waits_by_what_was_said(
    text: str, p_end: float | None, shortest: float, longest: float
) -> None:
    assert shortest <= wait_ms(heard(text, p_end)) <= longest


def test_the_surer_the_model_the_shorter_the_wait() -> None:
    waits = [wait_ms(heard("a table for two", p / 20)) for p in range(1, 20)]
    assert waits == sorted(waits, reverse=True)


def test_a_hypothesis_that_has_not_come_yet_makes_it_wait_longer() -> None:
    full = heard("a large latte please")
    assert wait_ms(Evidence(full.words, False, None, 1500)) > wait_ms(full)


def test_digits_are_under_way_until_a_whole_number() -> None:
    number = "five five five zero one four two".split()
    waits = [wait_ms(heard(" ".join(number[:n]), 0.1)) for n in range(2, 8)]
    assert min(waits[:-1]) > 1200 > 500 > waits[-1]


def test_a_voice_that_is_held_is_waited_for_longer() -> None:
    said = tuple("i'd like a large lennon".split())
    fallen = wait_ms(Evidence(said, True, 0.2, 1500, tail_level_db=-16.0))
    held = wait_ms(Evidence(said, True, 0.2, 1500, tail_level_db=-1.0))
    assert held > 850 > fallen


def test_server_vad_is_a_fixed_timer() -> None:
    endpointing = Endpointing(ServerVad(silence_duration_ms=400))
    endpointing.observe_speech(0)
    endpointing.observe_silence(1000)
    endpointing.observe_words(("and",), full=True)
    assert endpointing.decide(1399) == Continue(1.0)
    assert endpointing.decide(1400) == End("server_vad", 400.0)


def test_speech_that_goes_on_keeps_the_turn_open() -> None:
    endpointing = Endpointing(SemanticVad())
    endpointing.observe_speech(0)
    endpointing.observe_silence(1000)
    endpointing.observe_words(("yes",), full=True)
    endpointing.observe_speech(1200)
    assert endpointing.decide(9000) == Continue(None)
    endpointing.observe_silence(9100)
    assert isinstance(endpointing.decide(9150), Continue)


def test_a_probability_read_after_other_words_does_not_count() -> None:
    endpointing = Endpointing(SemanticVad())
    endpointing.observe_speech(0)
    endpointing.observe_silence(1000)
    endpointing.observe_words(("yes", "please"), full=True)
    endpointing.observe_p_end(0.99)
    sure_ms = endpointing.needed_ms()
    endpointing.observe_words(("yes", "please", "and"), full=True)
    assert endpointing.evidence.p_end is None and endpointing.needed_ms() > sure_ms


Event = tuple[str, float]


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("speech"), st.just(0.0)),
            st.tuples(st.just("silence"), st.just(0.0)),
            st.tuples(st.just("p_end"), st.floats(0, 1)),
            st.tuples(st.sampled_from(["yes", "and", "um", "five five", ""]), st.just(1.0)),
        ),
        max_size=20,
    ),
    st.sampled_from(["auto", "high", "medium", "low"]),
)
def test_no_order_of_events_waits_longer_than_the_longest_wait(
    events: list[Event], eagerness: str
) -> None:
    endpointing = Endpointing(SemanticVad(eagerness=eagerness))  # type: ignore[arg-type]
    now_ms = 0.0
    endpointing.observe_speech(now_ms)
    for name, value in events:
        now_ms += 50
        match name:
            case "speech":
                endpointing.observe_speech(now_ms)
            case "silence":
                endpointing.observe_silence(now_ms)
            case "p_end":
                endpointing.observe_p_end(value)
            case words:
                endpointing.observe_words(tuple(words.split()), full=True)
    endpointing.observe_silence(now_ms)
    assert isinstance(endpointing.decide(now_ms + LONGEST_WAIT_MS[eagerness]), End)

"""When a pause ends a turn."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from voiceloop.listening.endpointing import (
    FITTED,
    LONGEST_WAIT_MS,
    WORDS_BY_MS,
    Continue,
    Eagerness,
    End,
    Endpointing,
    Hazard,
    OperatingPoint,
    Weights,
    WeightSets,
    read_weights,
    wait_ms,
)
from voiceloop.listening.evidence import Evidence, question_in, terms
from voiceloop.realtime.settings import SemanticVad, ServerVad


def heard(text: str, p_end: float | None = None, speech_ms: float = 1500.0) -> Evidence:
    return Evidence(tuple(text.split()), True, p_end, speech_ms)


def hazard(weights: Weights, threshold: float, min_delay_ms: float = 0.0) -> Hazard:
    return Hazard(weights, dict.fromkeys(LONGEST_WAIT_MS, OperatingPoint(threshold, min_delay_ms)))


def test_the_turn_ends_where_the_logit_reaches_the_threshold() -> None:
    end = hazard(Weights(bias=-1.0, silence=2.0, open_word=-2.0), threshold=1.0)
    sets = WeightSets(end, end)
    assert wait_ms(heard("a coffee please"), sets) == pytest.approx(1000.0)
    assert wait_ms(heard("a coffee and"), sets) == pytest.approx(2000.0)


def test_each_set_of_weights_serves_its_evidence() -> None:
    sets = WeightSets(hazard(Weights(0.0, 1.0, p_end=1.0), 1.0), hazard(Weights(0.0, 1.0), 2.0))
    assert wait_ms(heard("a coffee", 0.5), sets) == pytest.approx(1000.0)
    assert wait_ms(heard("a coffee"), sets) == pytest.approx(2000.0)


@pytest.mark.parametrize(
    ("text", "term"),
    [
        ("", "no_words"),
        ("i'd like um", "filler"),
        ("my number is five five five", "digits_under_way"),
        ("five five five zero one four two", "digits_complete"),
        ("a large latte and", "open_word"),
        ("no thanks", "short_answer"),
        ("a small latte please", "closing"),
        ("that is all thank you", "closing"),
    ],
)
def test_the_last_words_say_what_kind_of_pause_it_is(text: str, term: str) -> None:
    assert terms(heard(text))[term] == 1.0


def test_a_short_answer_answers_a_yes_no_question() -> None:
    assert "answers" in terms(Evidence(("yes",), True, question="yes_no"))
    assert "answers" not in terms(Evidence(("yes",), True, question="open"))


def test_a_turn_never_ends_below_the_min_delay() -> None:
    end = hazard(Weights(bias=9.0, silence=2.0), threshold=1.0, min_delay_ms=240.0)
    assert wait_ms(heard("a coffee please"), WeightSets(end, end)) == 240.0


def test_an_unconfident_end_has_a_longer_min_delay() -> None:
    setting = OperatingPoint(
        1.0,
        min_delay_ms=200.0,
        unconfident_delay_ms=400.0,
        confident_logit=3.0,
        unconfident_logit=2.0,
    )
    scores = (4.0, 3.0, 2.5, 2.0, 1.0, 0.0)
    assert [setting.wait_ms(score, silence=2.0) for score in scores] == [
        200.0, 200.0, 300.0, 400.0, 400.0, 500.0,
    ]  # fmt: skip
    step = OperatingPoint(
        1.0,
        min_delay_ms=200.0,
        unconfident_delay_ms=400.0,
        confident_logit=2.0,
        unconfident_logit=2.0,
    )
    assert [step.wait_ms(score, silence=2.0) for score in (2.0, 1.99)] == [200.0, 400.0]


def test_every_fitted_setting_waits_no_less_where_it_is_less_sure() -> None:
    for hazard_set in (FITTED.with_p_end, FITTED.without_p_end):
        for setting in hazard_set.settings.values():
            assert setting.unconfident_logit <= setting.confident_logit
            assert 0 < setting.min_delay_ms <= setting.unconfident_delay_ms


@pytest.mark.parametrize("p_end", [None, 0.5])
def test_less_eager_agents_wait_longer(p_end: float | None) -> None:
    ladder: tuple[Eagerness, ...] = ("high", "auto", "medium", "low")
    for text in ("a small latte please", "what time do you close", "i'd like a latte and"):
        waits = [wait_ms(heard(text, p_end), eagerness=eagerness) for eagerness in ladder]
        assert waits == sorted(waits)
    assert wait_ms(heard("um"), eagerness="low") > wait_ms(heard("um"), eagerness="high")


def test_the_fitted_weights_wait_longer_in_mid_sentence() -> None:
    whole = wait_ms(heard("what time do you close on saturday"))
    assert whole < 600 < 750 < wait_ms(heard("i'd like a large latte and"))
    assert wait_ms(heard("um")) > 1500
    assert wait_ms(heard("my number is five five five")) > 1.5 * whole


def test_the_surer_the_model_the_shorter_the_fitted_wait() -> None:
    waits = [wait_ms(heard("a table for two", p / 20)) for p in range(1, 20)]
    assert waits == sorted(waits, reverse=True)


def test_a_voice_that_is_held_is_waited_for_longer() -> None:
    said = tuple("i'd like a large lennon".split())
    fallen = wait_ms(Evidence(said, True, None, 1500, tail_level_db=-16.0))
    assert wait_ms(Evidence(said, True, None, 1500, tail_level_db=-1.0)) > fallen


def test_a_voice_that_stays_up_is_waited_for_longer() -> None:
    said = tuple("i'd like a large lennon".split())
    fallen, up = (
        wait_ms(Evidence(said, True, None, 1500, tail_semitones=pitch)) for pitch in (-6.0, 3.0)
    )
    assert up > fallen


def a_turn(
    endpointing: Endpointing,
    from_ms: float,
    pauses_ms: tuple[float, ...] = (),
    text: str = "a large tea",
) -> float:
    """Speaks, and again after each pause; returns when the last sound was."""
    endpointing.observe_speech(from_ms)
    at_ms = from_ms + 500
    for pause_ms in pauses_ms:
        endpointing.observe_silence(at_ms)
        endpointing.observe_speech(at_ms + pause_ms)
        at_ms += pause_ms + 500
    endpointing.observe_words(tuple(text.split()), full=True)
    endpointing.observe_silence(at_ms)
    endpointing.end_turn()
    return at_ms


def test_a_caller_who_pauses_in_his_turns_is_waited_for_longer() -> None:
    endpointing = Endpointing(SemanticVad())
    assert endpointing.evidence.pause_prior_ms is None
    last_ms = a_turn(endpointing, 0, (900.0, 200.0))
    assert endpointing.evidence.pause_prior_ms == 500.0  # (900 + 2 * 300) / 3
    a_turn(endpointing, last_ms + 5000)
    assert endpointing.evidence.pause_prior_ms == 375.0
    said = tuple("i'd like a large latte".split())
    waits = [
        wait_ms(Evidence(said, True, pause_prior_ms=pause_prior_ms))
        for pause_prior_ms in (0.0, 450.0, 900.0)
    ]
    assert waits == sorted(waits) and waits[0] < waits[2]


def test_speech_right_after_a_turn_was_a_pause_in_it() -> None:
    endpointing = Endpointing(SemanticVad())
    last_ms = a_turn(endpointing, 0)
    endpointing.observe_speech(last_ms + 700)
    assert endpointing.evidence.pause_prior_ms == pytest.approx(1300.0 / 3)
    endpointing.observe_words(("with", "milk", "please"), full=True)
    endpointing.observe_silence(last_ms + 1500)
    endpointing.end_turn()
    assert endpointing.evidence.pause_prior_ms == 325.0  # 700 ms in the one turn, none in the other


def test_a_sound_that_is_given_back_says_nothing_of_the_caller() -> None:
    endpointing = Endpointing(SemanticVad())
    last_ms = a_turn(endpointing, 0, (900.0,))
    for words in ((), ("yeah",), ("oh", "yeah", "right")):
        endpointing.observe_speech(last_ms + 500)
        endpointing.observe_words(words, full=True)
        endpointing.observe_silence(last_ms + 700)
        endpointing.reset()
        assert endpointing.evidence.pause_prior_ms == 500.0


def test_an_answer_of_a_word_has_nowhere_to_pause() -> None:
    endpointing = Endpointing(SemanticVad())
    last_ms = a_turn(endpointing, 0, (900.0,))
    for _ in range(4):
        last_ms = a_turn(endpointing, last_ms + 5000, text="yes please")
    assert endpointing.evidence.pause_prior_ms == 500.0


@pytest.mark.parametrize(
    ("reply", "question"),
    [
        ("Sure. Would you like a muffin?", "yes_no"),
        ("What is your phone number?", "number"),
        ("Great! What can I get you?", "open"),
        ("One latte. That is four dollars.", None),
        ("", None),
        ("?", "open"),
    ],
)
def test_the_agents_last_sentence_is_read_for_its_question(
    reply: str, question: str | None
) -> None:
    assert question_in(reply) == question
    endpointing = Endpointing(SemanticVad())
    endpointing.observe_reply(reply)
    assert endpointing.evidence.question == question


def test_a_weights_file_names_only_what_there_is() -> None:
    settings = "".join(
        f"[with_p_end.settings.{name}]\nthreshold = 1.0\n" for name in LONGEST_WAIT_MS
    )
    with pytest.raises(TypeError, match="colour"):
        read_weights(f"[with_p_end.weights]\ncolour = 1.0\n{settings}\n[without_p_end]\n")
    assert FITTED.with_p_end.weights.silence > 0 and FITTED.without_p_end.weights.silence > 0


def test_server_vad_is_a_fixed_timer() -> None:
    endpointing = Endpointing(ServerVad(silence_duration_ms=400))
    endpointing.observe_speech(0)
    endpointing.observe_silence(1000)
    endpointing.observe_words(("and",), full=True)
    assert endpointing.decide(1399) == Continue(1.0)
    assert endpointing.decide(1400) == End("server_vad", 400.0, 400.0)


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
    events: list[Event], eagerness: Eagerness
) -> None:
    endpointing = Endpointing(SemanticVad(eagerness=eagerness))
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


def test_an_end_waits_for_the_words_of_the_pause_and_not_for_ever() -> None:
    def paused(*, full: bool, settings: SemanticVad | ServerVad) -> Endpointing:
        endpointing = Endpointing(settings)
        endpointing.observe_speech(0.0)
        endpointing.observe_silence(1000.0)
        endpointing.observe_words(("a", "small", "latte", "please"), full=full)
        endpointing.observe_p_end(0.99)
        return endpointing

    assert isinstance(paused(full=True, settings=SemanticVad()).decide(1450.0), End)
    late = paused(full=False, settings=SemanticVad())
    assert late.decide(1450.0) == Continue(WORDS_BY_MS - 450.0)
    assert late.decide(1000.0 + WORDS_BY_MS) == End("unsure", WORDS_BY_MS, WORDS_BY_MS)
    assert isinstance(paused(full=False, settings=ServerVad()).decide(1500.0), End)

"""When a pause ends a turn."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tables import each_row
from voiceloop.listening.endpointing import (
    FITTED,
    SETS,
    UNREAD_PRICE,
    WORDS_BY_MS,
    Continue,
    End,
    Endpointing,
    Hazard,
    Weights,
    WeightSets,
    read_weights,
    wait_ms,
)
from voiceloop.listening.evidence import P_VOICE_IN_TALK, REMEMBERED_PAUSES, Evidence, terms
from voiceloop.listening.release import (
    DICTATED_PRICE,
    KNOTS_MS,
    LEAST_WAIT_MS,
    PATIENCE,
    Eagerness,
    Patience,
    Rise,
)
from voiceloop.realtime.settings import SemanticVad, ServerVad
from voiceloop.slots.question import Slot, SlotKind

YES_NO = Slot(SlotKind.YES_NO)
AT_5_S = Patience(5.0, LEAST_WAIT_MS, 2000.0)
PHONE = Slot(SlotKind.NUMBER, 10)


def heard(text: str, p_end: float | None = None, speech_ms: float = 1500.0) -> Evidence:
    return Evidence(tuple(text.split()), True, p_end, speech_ms)


def rise(per_second: float) -> Rise:
    return Rise(tuple(per_second * (knot - KNOTS_MS[0]) / 1000.0 for knot in KNOTS_MS))


def hazard(weights: Weights) -> Hazard:
    return Hazard(weights, rise(2.0), rise(2.0))


def test_the_better_the_evidence_the_sooner_the_turn_ends() -> None:
    sets = WeightSets({frozenset(): hazard({"bias": 1.0, "open_word": -1.0})})
    whole, open_ = wait_ms(heard("a coffee please"), sets), wait_ms(heard("a coffee and"), sets)
    assert open_ - whole == pytest.approx(500.0)  # a logit less, at two a second


def test_the_set_that_uses_most_of_what_is_known_serves() -> None:
    words, p_end = hazard({"bias": 1.0}), hazard({"bias": 2.0})
    voice, both = hazard({"bias": 3.0}), hazard({"bias": 4.0})
    named = dict(zip(SETS.values(), (words, p_end, voice, both), strict=True))
    told = {
        "p_end": replace(heard("tea"), p_end=0.5),
        "p_voice": replace(heard("tea"), p_voice=1.0),
    }
    sets = WeightSets(named)
    assert sets.of(heard("tea")) is words and sets.of(told["p_end"]) is p_end
    assert sets.of(told["p_voice"]) is voice
    assert sets.of(replace(told["p_end"], p_voice=1.0)) is both
    without_voice = WeightSets({SETS["words"]: words, SETS["words_p_end"]: p_end})
    assert without_voice.of(replace(told["p_end"], p_voice=1.0)) is p_end
    assert without_voice.of(told["p_voice"]) is words


def test_the_voice_of_a_yes_that_was_asked_for_is_no_witness() -> None:
    p_end, both = hazard({"bias": 2.0}), hazard({"bias": 4.0})
    witnesses = list(SETS.values())
    sets = WeightSets({witnesses[1]: p_end, witnesses[3]: both, frozenset(): p_end})
    yes = replace(heard("yes", p_end=0.5), p_voice=-2.0)
    assert sets.of(replace(yes, slot=YES_NO)) is p_end
    assert sets.of(yes) is both  # nobody asked for one
    assert sets.of(replace(yes, slot=YES_NO, words=("yes", "i", "would"))) is both


def test_a_sure_voice_says_less_of_talk_that_is_read_than_of_what_is_dictated() -> None:
    talk = replace(heard("a large tea and a muffin"), p_voice=4.0)
    assert terms(talk)["p_voice"] == 4.0  # no model has read it: the voice alone judges
    assert terms(replace(talk, p_end=0.5))["p_voice"] == P_VOICE_IN_TALK
    assert terms(replace(talk, p_end=0.5, p_voice=-4.0))["p_voice"] == -4.0
    dictated = replace(heard("five five five zero", p_end=0.5), p_voice=4.0, slot=PHONE)
    assert terms(dictated)["p_voice"] == 4.0


def test_who_dictates_is_waited_for_by_pauses_of_dictation() -> None:
    late = Rise((0.0, 0.0, 0.0, 0.0, 0.1, 1.0, 3.0, 5.0, 6.0))  # by 700 ms most have gone on
    sets = WeightSets({frozenset(): Hazard({"bias": 0.0}, rise(6.0), late)})
    talked, dictated = heard("i would like a tea"), heard("four one five five five")
    assert wait_ms(dictated, sets) > wait_ms(talked, sets)


@each_row(
    ("text", "term"),
    [
        ("", "no_words"),
        ("i'd like um", "filler"),
        ("my number is five five five", "number_under_way"),
        ("five five five zero one four two", "number_plausible"),
        ("four one five five five five zero one four two", "number_complete"),
        ("it is k l a r a", "spelling_under_way"),
        ("twelve river road", "address_plausible"),
        ("a large latte and", "open_word"),
        ("no thanks", "short_answer"),
        ("a small latte please", "closing"),
        ("that is all thank you", "closing"),
    ],
)
def test_the_last_words_say_what_kind_of_pause_it_is(text: str, term: str) -> None:
    assert terms(heard(text))[term] == 1.0


def test_a_short_answer_answers_a_yes_no_question() -> None:
    assert "answers" in terms(Evidence(("yes",), True, slot=YES_NO))
    assert "answers" not in terms(Evidence(("yes",), True, slot=Slot(SlotKind.OPEN)))


@pytest.mark.parametrize(("language", "is_read"), [("en-US", True), ("", True), ("de", False)])
def test_english_words_and_heads_judge_english_alone(language: str, is_read: bool) -> None:
    endpointing = Endpointing(SemanticVad())
    endpointing.observe_language(language)
    endpointing.observe_replies("What is your phone number?")
    endpointing.observe_speech(0)
    endpointing.observe_words(("ich", "bin", "in"), full=False)  # "in" ends no German sentence
    endpointing.observe_silence(1000)
    endpointing.observe_words(("ich", "bin", "in"), full=True)
    evidence = endpointing.evidence
    assert len(evidence.words) == 3 and evidence.words_are_full
    assert (evidence.words[-1] == "in") is is_read
    assert (evidence.slot is not None) is is_read
    assert evidence.reads_words is is_read


def test_a_turn_never_ends_below_the_least_wait() -> None:
    sets = WeightSets({frozenset(): hazard({"bias": 9.0})})
    assert wait_ms(heard("a coffee please"), sets) == PATIENCE["auto"].least_ms


def test_a_language_that_nobody_reads_has_weights_and_a_price_of_its_own() -> None:
    read, unread = (hazard({"bias": bias}) for bias in (9.0, 0.5))
    sets = WeightSets({frozenset(): read}, unread=unread)
    said = heard("ja genau")
    foreign = replace(said, reads_words=False)
    assert sets.of(said) is read and sets.of(foreign) is unread
    own = hazard({"bias": 0.1})
    told = replace(foreign, p_end=0.9)
    assert sets.of(told) is unread and replace(sets, unread_p_end=own).of(told) is own
    assert WeightSets({frozenset(): read}).of(foreign) is read  # fitted before there were any
    patient = replace(AT_5_S, cut_cost_s=UNREAD_PRICE * AT_5_S.cut_cost_s)
    assert unread.wait_ms(foreign, AT_5_S) == unread.wait_ms(said, patient)


def test_a_cut_within_dictation_costs_less_than_one_in_talk() -> None:
    hazard = Hazard({"bias": 0.5}, rise(2.0), rise(2.0))
    talk = Evidence(("so", "i", "would", "like"), True)
    digits = replace(talk, words=("nine", "four", "one", "five"))
    assert digits.is_dictation and not talk.is_dictation
    waits_ms = [hazard.wait_ms(said, AT_5_S) for said in (digits, talk)]
    assert waits_ms[0] < waits_ms[1]
    dictated = replace(AT_5_S, cut_cost_s=DICTATED_PRICE * AT_5_S.cut_cost_s)
    assert waits_ms[0] == hazard.wait_ms(talk, dictated)


@pytest.mark.parametrize("p_end", [None, 0.5])
@pytest.mark.parametrize("slot", [None, PHONE])
def test_nine_digits_are_waited_for_and_ten_are_not(p_end: float | None, slot: Slot | None) -> None:
    digits = tuple("four one five five five five oh one four two".split())
    waits = [wait_ms(Evidence(digits[:n], True, p_end, 3000.0, slot=slot)) for n in (3, 6, 9, 10)]
    # Three in four of the pauses within a number last 400 ms at most (the shared data's README).
    assert min(waits[:3]) > 400 and waits[3] < 300


def test_a_name_that_is_spelled_is_waited_for() -> None:
    said = tuple("k l a r a".split())
    assert wait_ms(Evidence(said, True, None, 3000.0, slot=Slot(SlotKind.SPELLING))) > 700


def test_the_voice_is_a_witness_of_its_pause_alone() -> None:
    endpointing = Endpointing(SemanticVad())
    endpointing.observe_speech(0)
    endpointing.observe_voice(2.0)
    assert endpointing.evidence.p_voice is None  # nobody pauses
    endpointing.observe_silence(1000)
    endpointing.observe_voice(2.0)
    endpointing.observe_voice(-1.0)
    assert endpointing.evidence.p_voice == -1.0  # the latest counts
    endpointing.observe_speech(1300)
    assert endpointing.evidence.p_voice is None


def test_who_stops_shortly_after_each_digit_is_waited_for_by_that_pace() -> None:
    """The same digits, the same silence: one says them one by one, the other in groups."""
    said = tuple("two six one".split())
    one_by_one, in_groups = (
        Evidence(said, True, None, 1500.0, turn_pauses_ms=pauses_ms)
        for pauses_ms in ((140.0, 130.0), (500.0, 600.0))
    )
    hazard = Hazard({"bias": -1.0}, rise(2.0), rise(4.0))
    waits_ms = [hazard.wait_ms(evidence, AT_5_S) for evidence in (one_by_one, in_groups)]
    assert waits_ms[0] < waits_ms[1]
    assert FITTED.hazards[frozenset()].rise(in_groups).pace > 1.0


def test_a_pace_needs_pauses_and_no_single_one_rules_it() -> None:
    def pace(*pauses_ms: float) -> float:
        return Evidence(turn_pauses_ms=pauses_ms).pace

    assert pace() == pace(60.0, 80.0) == 1.0  # a stop's closure is no pause
    assert pace(250.0, 250.0) == pytest.approx(1.0)
    assert 1.0 > pace(125.0) > pace(125.0, 125.0) > 0.5
    assert pace(*[4000.0] * 9) == 1.6 and pace(*[101.0] * 9) == 0.6


def test_a_number_that_nobody_asked_for_may_end_at_any_digit() -> None:
    digits = heard("two six one")
    assert "number_unasked" in terms(digits)
    assert "number_unasked" in terms(replace(digits, slot=Slot(SlotKind.OPEN)))
    assert "number_unasked" not in terms(replace(digits, slot=PHONE))
    assert "number_unasked" not in terms(heard("a large tea"))


def test_no_more_of_a_turns_pauses_are_kept_than_its_pace_needs() -> None:
    endpointing = Endpointing(SemanticVad())
    for at_ms in range(0, 100_000, 1000):
        endpointing.observe_speech(at_ms)
        endpointing.observe_silence(at_ms + 600)
    assert endpointing.evidence.turn_pauses_ms == (400.0,) * REMEMBERED_PAUSES


@pytest.mark.parametrize("p_end", [None, 0.5])
def test_less_eager_agents_wait_longer(p_end: float | None) -> None:
    ladder: tuple[Eagerness, ...] = ("high", "auto", "medium", "low")
    for text in ("a small latte please", "what time do you close", "i'd like a latte and"):
        waits = [wait_ms(heard(text, p_end), eagerness=eagerness) for eagerness in ladder]
        assert waits == sorted(waits)
    assert wait_ms(heard("um"), eagerness="low") > wait_ms(heard("um"), eagerness="high")


def test_the_fitted_weights_wait_longer_in_mid_sentence() -> None:
    whole = wait_ms(heard("what time do you close on saturday"))
    assert whole < 600 < wait_ms(heard("i'd like a large latte and"))
    assert wait_ms(heard("um")) > 1200
    assert wait_ms(heard("my number is five five five")) > 1.5 * whole


def test_the_surer_the_model_the_shorter_the_fitted_wait() -> None:
    waits = [wait_ms(heard("a table for two", p / 20)) for p in range(1, 20)]
    assert waits == sorted(waits, reverse=True)


def test_a_voice_that_is_held_is_waited_for_longer() -> None:
    said = tuple("i'd like a large lennon".split())
    fallen, held = (Evidence(said, True, None, 1500, tail_level_db=db) for db in (-16.0, -1.0))
    hazard = FITTED.of(held)
    assert hazard.score(fallen) > hazard.score(held) and wait_ms(fallen) <= wait_ms(held)


def test_a_voice_that_stays_up_is_waited_for_longer() -> None:
    said = tuple("i'd like a large lennon".split())
    fallen, up = (Evidence(said, True, None, 1500, tail_semitones=pitch) for pitch in (-6.0, 3.0))
    hazard = FITTED.of(up)
    assert hazard.score(fallen) > hazard.score(up) and wait_ms(fallen) <= wait_ms(up)


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


def test_what_the_agent_asked_for_is_evidence_until_it_says_something_else() -> None:
    endpointing = Endpointing(SemanticVad())
    endpointing.observe_replies("Thank you. What is your phone number?")
    assert endpointing.evidence.slot == PHONE
    a_turn(endpointing, 0)
    assert endpointing.evidence.slot == PHONE
    endpointing.observe_replies("What is your phone number?", "Could you say it again?")
    assert endpointing.evidence.slot == PHONE
    endpointing.observe_replies("Got it.")
    assert endpointing.evidence.slot is None


WORDS_ALONE = f"""
preemptive_needed_ms = 400.0
[words.rise]
talk = {list(rise(2.0).logits)}
dictation = {list(rise(1.0).logits)}
[words.weights]
bias = 1.0
"""


def test_a_weights_file_names_only_what_there_is() -> None:
    assert read_weights(WORDS_ALONE).of(heard("tea")).weights == {"bias": 1.0}
    with pytest.raises(ValueError, match="colour"):
        read_weights(WORDS_ALONE + "colour = 1.0\n")
    with pytest.raises(KeyError, match="words"):
        read_weights("preemptive_needed_ms = 400.0\n")
    with pytest.raises(ValueError, match="expected 9 logits"):
        read_weights(WORDS_ALONE.replace("talk = [0.0, ", "talk = ["))
    assert {SETS["words"], SETS["words_p_end"]} <= set(FITTED.hazards)
    assert FITTED.unread is not None and FITTED.unread_p_end is not None


def test_an_end_is_unsure_until_a_hard_cut_would_be_worth_no_more_and_a_timers_never() -> None:
    unsure_ms = []
    for bias in range(-4, 3):
        sets = WeightSets({frozenset(): hazard({"bias": float(bias)})})
        endpointing = Endpointing(SemanticVad(), sets)
        endpointing.observe_speech(0)
        endpointing.observe_silence(1000)
        endpointing.observe_words(("a", "coffee"), full=True)
        needed_ms = endpointing.needed_ms()
        left_ms = endpointing.unsure_ms(End("unsure", needed_ms, needed_ms))
        later_ms = needed_ms + left_ms
        assert endpointing.unsure_ms(End("unsure", later_ms, needed_ms)) == 0.0
        if left_ms:
            assert endpointing.unsure_ms(End("unsure", later_ms - 10.0, needed_ms)) == 10.0
        unsure_ms.append(left_ms)
    assert max(unsure_ms) > 0.0 == unsure_ms[-1]
    timer = Endpointing(ServerVad(silence_duration_ms=400))
    assert timer.unsure_ms(End("server_vad", 400.0, 400.0)) == 0.0


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
    assert isinstance(endpointing.decide(now_ms + PATIENCE[eagerness].longest_ms), End)


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

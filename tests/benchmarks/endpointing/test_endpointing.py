"""How endpointing is judged and fitted, on turns made by hand."""

from __future__ import annotations

import gzip
import json
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.endpointing.table import bars_of
from benchmarks.harness.data_folder import data_folder
from voiceloop.call.status import RETRACT_S
from voiceloop.listening.endpointing import (
    SETS,
    WORDS_BY_MS,
    Hazard,
    Weights,
    WeightSets,
    read_weights,
    wait_ms,
)
from voiceloop.listening.evidence import Evidence
from voiceloop.listening.recipes.caller_past import in_calls
from voiceloop.listening.recipes.endpointing_set import (
    MS,
    UNSEEN,
    CallerTurn,
    _spliced,
    marked,
    part_of,
)
from voiceloop.listening.recipes.forced_alignment import SpokenWord
from voiceloop.listening.recipes.hazard_fit import (
    MOMENTS_MS,
    N_RAMPS,
    SPLICED_WEIGHT,
    fit,
    ramps,
    samples_of,
)
from voiceloop.listening.recipes.heard_turn import CHUNK_MS, Pause
from voiceloop.listening.recipes.operating_points import (
    PREEMPTIVE_WAITS_MS,
    as_toml,
    costs,
    fit_sets,
    preemptive_needed_ms,
)
from voiceloop.listening.recipes.pause_evidence import HeardPause, HeardTurn, Step
from voiceloop.listening.recipes.reference_replay import replay
from voiceloop.listening.recipes.synthetic_callers import SOURCES, SPLIT, VOICES, scripted_turns
from voiceloop.listening.recipes.turn_frontier import (
    Outcome,
    Point,
    bootstrap_by_speaker,
    cut_at,
    frontier,
    hazard_moment,
    latency_at,
    most_above,
    outcome,
    timer_moment,
)
from voiceloop.listening.release import KNOTS_MS, PATIENCE, Rise
from voiceloop.listening.segment import LIKELY_RETURN_MS, RETURN_MS

WORDS = (SpokenWord("a", 500, 700), SpokenWord("large", 700, 1000), SpokenWord("tea", 1500, 1900))


def a_turn(end_ms: float = 1900.0, name: str = "turn") -> CallerTurn:
    samples = np.random.default_rng(1).normal(0, 900, 4000 * MS).astype(np.int16)
    return CallerTurn(
        name, "someone", "test", samples, WORDS, ((1000, 1500),), end_ms, (), frozenset()
    )


def a_pause(since_ms: float, resumed_ms: float | None, text: str = "a large tea") -> HeardPause:
    evidence = Evidence(tuple(text.split()), True, None, 1500.0)
    detected_ms = since_ms + 60
    return HeardPause(since_ms, detected_ms, resumed_ms, (Step(detected_ms, evidence),))


def test_a_timer_shorter_than_the_hold_cuts_the_turn() -> None:
    heard = HeardTurn(a_turn(), (a_pause(1000, 1500), a_pause(1900, None)))
    cut = outcome(heard, [timer_moment(pause, 300) for pause in heard.pauses])
    whole = outcome(heard, [timer_moment(pause, 600) for pause in heard.pauses])
    assert cut == Outcome(True, 300.0, is_soft=True) and whole == Outcome(False, 600.0)


def test_a_decision_before_the_detector_has_fallen_is_impossible() -> None:
    assert timer_moment(a_pause(1000, None), 10) == 1060


def weight_sets(weights: Weights, per_second: float = 2.0) -> WeightSets:
    rise = Rise(tuple(per_second * (knot - KNOTS_MS[0]) / 1000.0 for knot in KNOTS_MS))
    return WeightSets({frozenset(): Hazard(weights, rise, rise)})


def test_the_hazard_waits_by_what_was_said() -> None:
    sets = weight_sets(Weights(bias=1.0, open_word=-1.0))
    whole_ms = hazard_moment(a_pause(1000, None), sets)
    assert whole_ms is not None and 1000 + PATIENCE["auto"].least_ms < whole_ms < 1500
    assert hazard_moment(a_pause(1000, None, "a tea and"), sets) == pytest.approx(whole_ms + 500)
    assert hazard_moment(a_pause(1000, whole_ms + 100, "a tea and"), sets) is None


def test_no_end_before_the_words_of_the_pause_are_there() -> None:
    sure = weight_sets(Weights(bias=9.0))
    pause = a_pause(1000, None)
    pending = replace(pause.steps[0].evidence, words_are_full=False)
    assert hazard_moment(pause, sure) == 1000 + PATIENCE["auto"].least_ms
    late = replace(pause, steps=(replace(pause.steps[0], evidence=pending),))
    assert hazard_moment(late, sure) == 1000 + WORDS_BY_MS
    full = Step(1300.0, pause.steps[0].evidence)
    assert hazard_moment(replace(late, steps=(*late.steps, full)), sure) == 1300


def test_an_end_waits_for_the_eot_probability_that_is_on_its_way() -> None:
    sure = weight_sets(Weights(bias=9.0, p_end=1.0))
    pause = a_pause(1000, None)
    full = pause.steps[0].evidence
    told = replace(full, p_end=0.5)
    soon, late = (
        replace(pause, steps=(Step(1230.0, full), Step(at_ms, told))) for at_ms in (1250.0, 1400.0)
    )
    assert hazard_moment(soon, sure) == 1250 and hazard_moment(late, sure) == 1230


def test_a_turn_stays_open_for_as_long_as_the_listener_keeps_it_while_a_sound_begins() -> None:
    sure = weight_sets(Weights(bias=9.0))
    over_ms = 1000 + PATIENCE["auto"].least_ms
    back = dict.fromkeys(np.arange(1200.0, 1260.0, CHUNK_MS), RETURN_MS)

    def ends_at(returns_ms: dict[float, float]) -> float | None:
        return hazard_moment(replace(a_pause(1000, None), returns_ms=returns_ms), sure)

    assert over_ms == 1210 and ends_at(back) == 1260  # quiet again with the next chunk
    assert ends_at(back | {1220.0: 0.0}) == 1220
    for longest_ms in (RETURN_MS, LIKELY_RETURN_MS):
        goes_on = dict.fromkeys(np.arange(0.0, 3000.0, CHUNK_MS), longest_ms)
        assert ends_at(goes_on) == over_ms + longest_ms
    assert hazard_moment(replace(a_pause(1000, 1210), returns_ms=back), sure) is None


def test_a_cut_that_is_taken_back_is_a_soft_one() -> None:
    heard = HeardTurn(a_turn(), (a_pause(1000, 1500), a_pause(1900, None)))
    soon_ms, early_ms = 1500 - 1000 * RETRACT_S + 1, 1500 - 1000 * RETRACT_S - 1
    assert outcome(heard, [soon_ms, 2200.0]) == Outcome(True, 300.0, is_soft=True)
    assert outcome(heard, [early_ms, 2200.0]) == Outcome(True, 300.0)
    assert outcome(heard, [None, 2200.0]) == Outcome(False, 300.0)


def test_the_frontier_keeps_what_nothing_beats() -> None:
    points = [Point("a", 300, 0.3), Point("b", 400, 0.35), Point("c", 500, 0.05)]
    best = frontier(points)
    assert [p.setting for p in best] == ["a", "c"]
    assert cut_at(best, 400) == pytest.approx(0.175) and cut_at(best, 200) is None
    assert latency_at(best, 0.05) == 500 and latency_at(best, 0.01) is None


def test_a_frontier_is_above_another_by_its_worst_latency() -> None:
    low = [Point("a", 200, 0.3), Point("b", 400, 0.1)]
    crossing = [Point("c", 200, 0.4), Point("d", 400, 0.05)]
    assert most_above(low, crossing, (200, 400)) == pytest.approx(0.05)
    assert most_above(low, crossing, (200,)) == pytest.approx(-0.1)
    assert most_above(low, crossing, (100, 200)) == pytest.approx(-0.1)  # nobody is so fast
    assert most_above(low, [Point("e", 100, 0.9)], (100, 200)) is None  # the other alone is


def test_one_latency_at_which_a_peer_is_better_misses_a_bar() -> None:
    def policy(*cuts: float) -> dict[str, object]:
        points = [(200.0, cuts[0]), (500.0, cuts[1]), (1200.0, cuts[2])]
        best = [{"setting": "", "latency_ms": ms, "cut": cut} for ms, cut in points]
        return {"frontier": best, "slices": {}}

    def missed(own: dict[str, object]) -> list[str]:
        measured = {"policies": {"voiceloop": own, "timer": policy(0.5, 0.3, 0.1)}}
        bars = bars_of(measured, "spliced", "reference")
        return [bar.name for bar in bars if "timer" in bar.name and not bar.holds]

    assert missed(policy(0.4, 0.2, 0.0)) == []
    assert missed(policy(0.4, 0.31, 0.0)) == ["points above timer, the most from 200 to 1200 ms"]


def spoken(part: str) -> tuple[set[str], set[str]]:
    """Speakers and sentences of the recorded clips of a part."""
    path = data_folder() / "speech" / "manifest.jsonl"
    if not path.is_file():
        pytest.skip(f"no speech data at {path}: set VOICELOOP_DATA")
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    chosen = [row for row in rows if part_of(row["speaker"]) == part]
    return {row["speaker"] for row in chosen}, {row["text"] for row in chosen}


def test_the_fit_and_the_test_share_no_speaker_no_voice_and_no_sentence_read() -> None:
    fitted, tested = spoken("fit"), spoken("test")
    for ours, theirs in zip(fitted, tested, strict=True):
        assert ours and theirs and not ours & theirs
    assert not set(VOICES["fit"]) & set(VOICES["test"])


def splits_of(folder: Path) -> dict[str, str]:
    found = {}
    for source in SOURCES:
        with gzip.open(folder / f"{source}.jsonl.gz", "rt", encoding="utf-8") as lines:
            records = [json.loads(line) for line in lines]
        found |= {record["id"]: record["split"] for record in records}
    return found


def test_no_dialogue_that_a_model_learned_from_is_spoken() -> None:
    folder = data_folder() / "dialogues"
    if not folder.is_dir():
        pytest.skip(f"no dialogues at {folder}: set VOICELOOP_DATA")
    splits = splits_of(folder)
    for part, split in SPLIT.items():
        names = [turn.name for turn in scripted_turns(folder, part) if "#" in turn.name]
        assert len(names) > 50 and split != "train"
        assert {splits[name.rpartition("#")[0]] for name in names} == {split}


def test_turns_that_nobody_says_in_training_are_unseen() -> None:
    words_unknown = replace(a_turn(), words=None)
    turns = marked([a_turn(), words_unknown], frozenset({("tea",)}))
    assert [UNSEEN in turn.slices for turn in turns] == [True, False]
    assert UNSEEN not in marked([a_turn()], frozenset({("a", "large", "tea")}))[0].slices


def test_speakers_are_drawn_whole() -> None:
    draws = bootstrap_by_speaker(["x", "x", "y"], 20, seed=1)
    assert all(list(draw).count(0) == list(draw).count(1) for draw in draws)


def test_words_are_revealed_late_and_never_ahead() -> None:
    heard = replay(a_turn(), [Pause(1060, 1000, 1500, 500, None, None)])
    flushed = next(words for words in heard if words.flushed)
    assert flushed.words == ("a", "large") and flushed.at_ms == 1120
    assert heard[-1].words == ("a", "large", "tea") and heard[-1].at_ms == 2020


def test_a_spliced_hesitation_is_a_hold_of_its_length() -> None:
    spliced = _spliced(a_turn(), 0, random.Random(1))
    gap_ms = spliced.end_ms - 1900
    assert 300 <= gap_ms <= 1200
    start_ms, end_ms = spliced.holds[0]
    assert end_ms - start_ms == pytest.approx(gap_ms) and abs(start_ms - 700) <= 40
    assert spliced.words is not None and spliced.words[1].start_ms == pytest.approx(700 + gap_ms)
    assert spliced.holds[1] == pytest.approx((1000 + gap_ms, 1500 + gap_ms))
    assert len(spliced.samples) == pytest.approx(len(a_turn().samples) + gap_ms * MS, abs=1)


def fit_set() -> list[HeardTurn]:
    return [
        HeardTurn(
            a_turn(name=f"{i}"), (a_pause(1000, 1300 + 20 * i, "a large and"), a_pause(1900, None))
        )
        for i in range(30)
    ]


def test_the_fit_learns_that_an_open_word_holds_the_turn_and_that_silence_tells() -> None:
    hazard = fit(samples_of(fit_set(), frozenset()))
    assert hazard.weights.open_word < -1 and hazard.talk.logits[-1] > 1
    assert hazard.dictation.logits[-1] == pytest.approx(0.0, abs=0.1)  # nobody dictated


def test_a_spliced_hesitation_counts_for_less() -> None:
    plain = samples_of(fit_set()[:1], frozenset())
    spliced = [
        replace(heard, turn=replace(heard.turn, slices=frozenset({"hesitation"})))
        for heard in fit_set()[:1]
    ]
    assert set(plain.weights) == {1.0}
    assert set(samples_of(spliced, frozenset()).weights) == {SPLICED_WEIGHT}


def test_only_moments_at_which_a_witness_is_known_fit_its_weights() -> None:
    heard = fit_set()[:1]
    assert len(samples_of(heard, SETS["words_p_end"]).over) == 0
    told = [
        replace(step, evidence=replace(step.evidence, p_end=0.5))
        for step in heard[0].pauses[1].steps
    ]
    known = replace(heard[0], pauses=(heard[0].pauses[0], replace(heard[0].pauses[1], steps=told)))
    assert len(samples_of([known], SETS["words_p_end"]).over) == len(MOMENTS_MS)


def test_ramps_pass_one_stretch_after_the_other() -> None:
    assert ramps(KNOTS_MS[0]) == [0.0] * N_RAMPS and ramps(9999.0) == [1.0] * N_RAMPS
    assert ramps(125.0) == [1.0, 0.5, *[0.0] * (N_RAMPS - 2)]


def test_fitted_weights_survive_their_file() -> None:
    sets = fit_sets(fit_set())
    assert set(sets.hazards) == {frozenset()}  # no model told anything
    again = read_weights(as_toml(sets, ("made by a test",)))
    found, made = again.hazards[frozenset()], sets.hazards[frozenset()]
    assert found.weights.open_word == pytest.approx(made.weights.open_word, abs=1e-3)
    assert (found.talk, found.dictation) == (made.talk, made.dictation)
    assert again.preemptive_needed_ms == sets.preemptive_needed_ms


def test_a_weights_file_says_what_each_eagerness_costs() -> None:
    never, at_once = (weight_sets(Weights(bias=bias), 1.0) for bias in (-9.0, 9.0))
    assert costs(fit_set(), never)[1] == "  auto: without hesitation 0.0%, 2000 ms"
    assert costs(fit_set(), at_once)[1] == "  auto: without hesitation 100.0%, 0 ms"


def test_a_pause_earns_a_draft_while_few_enough_are_in_vain() -> None:
    def told(since_ms: float, resumed_ms: float | None, p_end: float) -> HeardPause:
        evidence = Evidence(("tea",), True, p_end)
        return HeardPause(since_ms, since_ms + 60, resumed_ms, (Step(since_ms + 120, evidence),))

    sets = weight_sets(Weights(bias=1.0, p_end=1.0))
    sure = [HeardTurn(a_turn(), (told(1900, None, 0.5),))] * 4
    doubtful = [HeardTurn(a_turn(), (told(1000, 1500, 0.3),))] * 2
    waits_ms = [wait_ms(turn.pauses[0].steps[0].evidence, sets) for turn in (sure[0], doubtful[0])]
    few, many = (preemptive_needed_ms([*sure, *doubtful[:n]], sets) for n in (1, 2))
    assert few == PREEMPTIVE_WAITS_MS[0]
    assert waits_ms[0] <= many < waits_ms[1]


def test_a_turn_in_a_call_knows_how_its_caller_pauses() -> None:
    def habits() -> list[float | None]:
        pauses = [pause for turn in in_calls(fit_set()) for pause in turn.pauses]
        return [step.evidence.pause_prior_ms for pause in pauses for step in pause.steps]

    assert None in habits() and len(set(habits())) > 5
    assert habits() == habits()


def test_a_past_of_short_answers_tells_nothing_of_how_its_caller_pauses() -> None:
    def habits(text: str) -> set[float | None]:
        pauses = (a_pause(1000, 1300, "yes"), a_pause(1900, None, text))
        others = [HeardTurn(a_turn(name=f"{i}"), pauses) for i in range(20)]
        heard = [pause for turn in in_calls(others) for pause in turn.pauses]
        return {step.evidence.pause_prior_ms for pause in heard for step in pause.steps}

    assert habits("yes please") == {None}
    assert habits("yes please thanks") == {None, 300.0}

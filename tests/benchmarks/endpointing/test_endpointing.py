"""How endpointing is judged and fitted, on turns made by hand."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.endpointing.figures import aucs
from benchmarks.endpointing.table import bars_of
from benchmarks.harness.data_folder import data_folder
from voiceloop.call.turn_taking import RETRACT_S
from voiceloop.listening.endpointing import (
    FITTED,
    WORDS_BY_MS,
    Hazard,
    Weights,
    WeightSets,
    read_weights,
)
from voiceloop.listening.evidence import Evidence
from voiceloop.listening.recipes.endpointing_set import (
    MS,
    CallerTurn,
    part_of,
)
from voiceloop.listening.recipes.forced_alignment import SpokenWord
from voiceloop.listening.recipes.hazard_fit import (
    fit,
    samples_of,
)
from voiceloop.listening.recipes.heard_turn import CHUNK_MS
from voiceloop.listening.recipes.operating_points import (
    as_toml,
    fit_sets,
)
from voiceloop.listening.recipes.pause_evidence import HeardPause, HeardTurn, Step
from voiceloop.listening.recipes.synthetic_callers import SOURCES, SPLIT, VOICES, scripted_turns
from voiceloop.listening.recipes.turn_frontier import (
    Outcome,
    hazard_moment,
    outcome,
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


def weight_sets(weights: Weights, per_second: float = 2.0) -> WeightSets:
    rise = Rise(tuple(per_second * (knot - KNOTS_MS[0]) / 1000.0 for knot in KNOTS_MS))
    return WeightSets({frozenset(): Hazard(weights, rise, rise)})


def test_the_hazard_waits_by_what_was_said() -> None:
    sets = weight_sets({"bias": 1.0, "open_word": -1.0})
    whole_ms = hazard_moment(a_pause(1000, None), sets)
    assert whole_ms is not None and 1000 + PATIENCE["auto"].least_ms < whole_ms < 1500
    assert hazard_moment(a_pause(1000, None, "a tea and"), sets) == pytest.approx(whole_ms + 500)
    assert hazard_moment(a_pause(1000, whole_ms + 100, "a tea and"), sets) is None


def test_no_end_before_the_words_of_the_pause_are_there() -> None:
    sure = weight_sets({"bias": 9.0})
    pause = a_pause(1000, None)
    pending = replace(pause.steps[0].evidence, words_are_full=False)
    assert hazard_moment(pause, sure) == 1000 + PATIENCE["auto"].least_ms
    late = replace(pause, steps=(replace(pause.steps[0], evidence=pending),))
    assert hazard_moment(late, sure) == 1000 + WORDS_BY_MS
    full = Step(1300.0, pause.steps[0].evidence)
    assert hazard_moment(replace(late, steps=(*late.steps, full)), sure) == 1300


def test_a_turn_stays_open_for_as_long_as_the_listener_keeps_it_while_a_sound_begins() -> None:
    sure = weight_sets({"bias": 9.0})
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


def fit_set() -> list[HeardTurn]:
    return [
        HeardTurn(
            a_turn(name=f"{i}"), (a_pause(1000, 1300 + 20 * i, "a large and"), a_pause(1900, None))
        )
        for i in range(30)
    ]


def test_the_fit_learns_that_an_open_word_holds_the_turn_and_that_silence_tells() -> None:
    hazard = fit(samples_of(fit_set(), frozenset()))
    assert hazard.weights["open_word"] < -1 and hazard.talk.logits[-1] > 1
    assert hazard.dictation.logits[-1] == pytest.approx(0.0, abs=0.1)  # nobody dictated


def test_fitted_weights_survive_their_file() -> None:
    sets = fit_sets(fit_set())
    assert set(sets.hazards) == {frozenset()}  # no model told anything
    again = read_weights(as_toml(sets, ("made by a test",)))
    found, made = again.hazards[frozenset()], sets.hazards[frozenset()]
    assert found.weights["open_word"] == pytest.approx(made.weights["open_word"], abs=1e-3)
    assert (found.talk, found.dictation) == (made.talk, made.dictation)
    assert again.preemptive_needed_ms == sets.preemptive_needed_ms
    assert again.unread is not None and sets.unread is not None
    assert again.unread.talk == sets.unread.talk
    assert sets.unread.weights["open_word"] == 0.0  # it has learned of no word


SAMPLES = np.zeros(16_000, np.int16)


def turn(name: str = "a", *slices: str) -> CallerTurn:
    slices = slices or ("orders",)
    return CallerTurn(name, name, "test", SAMPLES, None, (), 2000.0, (), frozenset(slices))


def pause(
    since_ms: float, lasts_ms: float | None, p_voice: float | None, *words: str
) -> HeardPause:
    told = Evidence(words=words, words_are_full=True, p_voice=p_voice, speech_ms=since_ms)
    resumed_ms = None if lasts_ms is None else since_ms + lasts_ms
    steps = (Step(since_ms + 64.0, replace(told, words_are_full=False, p_voice=None)),)
    return HeardPause(since_ms, since_ms + 64.0, resumed_ms, (*steps, Step(since_ms + 104.0, told)))


def heard(
    name: str, p_hold: float | None, p_end: float | None, lasts_ms: float = 400.0
) -> HeardTurn:
    held = pause(1000.0, lasts_ms, p_hold, "a", "large")
    return HeardTurn(turn(name), (held, pause(2000.0, None, p_end, "a", "large", "tea", "please")))


def test_a_voice_that_falls_at_every_end_tells_all_and_a_constant_one_nothing() -> None:
    sure = [heard("a", -2.0, 2.0), heard("b", -1.0, 1.0)]
    assert aucs(sure, FITTED, "real")["all"]["voice"] == 1.0
    same = [heard("a", 0.5, 0.5), heard("b", 0.5, 0.5)]
    assert aucs(same, FITTED, "real")["all"]["voice"] == 0.5


def test_bars_of_the_real_set_name_what_is_missed() -> None:
    def measured(own: float, peer: float, voice: float) -> dict[str, object]:
        waits = {"p50": 400.0}
        return {
            "policies": {
                "voiceloop": {f"cut@{ms}": own for ms in (200, 300, 400, 600)},
                "timer": {f"cut@{ms}": peer for ms in (200, 300, 400, 600)},
            },
            "auc": {"all": {"words": 0.85, "voice": voice, "both": 0.97}},
            "as shipped": {"auto": {"dictated": {"n_turns": 40, "cut": 0.05, "latency_ms": waits}}},
        }

    def missed(own: float, peer: float, voice: float, source: str) -> list[str]:
        bars = bars_of(measured(own, peer, voice), "real", source)
        assert bars
        return [bar.name for bar in bars if not bar.holds]

    assert missed(0.04, 0.1, 0.94, "moonshine") == []
    assert missed(0.04, 0.1, 0.94, "reference") == []
    assert missed(0.04, 0.1, 0.80, "reference") == ["AUC at +130 ms, voice"]
    assert missed(0.04, 0.06, 0.83, "moonshine") == [
        f"turns cut @{ms} ms, 0.6 of the better peer's" for ms in (200, 300, 400, 600)
    ]
    assert "turns cut @600 ms, real, moonshine" in missed(0.06, 0.2, 0.83, "moonshine")

"""What the endpointing benchmark makes of turns: AUC of the evidence, what ships, and the bars."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.endpointing.figures import aucs, shipped
from benchmarks.endpointing.table import bars_of
from voiceloop.listening.endpointing import FITTED, SETS
from voiceloop.listening.evidence import Evidence
from voiceloop.listening.recipes import pause_evidence
from voiceloop.listening.recipes.endpointing_set import CallerTurn
from voiceloop.listening.recipes.hazard_fit import fit_voice, samples_of
from voiceloop.listening.recipes.heard_turn import HeardWords, Pause
from voiceloop.listening.recipes.pause_evidence import HeardPause, HeardTurn, Step, heard_turn
from voiceloop.listening.recipes.voice_reading import Reading

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


def test_where_no_recognizer_tells_of_the_voice_only_words_are_judged() -> None:
    found = aucs([heard("a", None, None)], FITTED, "real")["all"]
    assert found["voice"] is None
    assert found["words"] == found["both"]


def test_a_pause_shorter_than_the_judgement_counts_for_nothing() -> None:
    found = aucs([heard("a", -2.0, 2.0), heard("b", 9.0, 1.0, lasts_ms=120.0)], FITTED, "real")
    assert (found["all"]["ends"], found["all"]["pauses"]) == (2, 1)
    assert found["all"]["voice"] == 1.0


def test_each_slice_is_judged_by_itself() -> None:
    dictated = replace(heard("b", 3.0, 3.5), turn=turn("b", "numbers"))
    found = aucs([heard("a", -3.0, -2.5), dictated], FITTED, "real")
    assert found["orders"]["voice"] == found["numbers"]["voice"] == 1.0
    assert found["all"]["voice"] == 0.75  # a number's pause above an order's end


def test_what_ships_is_told_of_dictation_apart() -> None:
    turns = [heard("a", -2.0, 2.0), replace(heard("b", -2.0, 2.0), turn=turn("b", "names"))]
    found = shipped(turns, FITTED, "auto", "real")
    assert {kind: row["n_turns"] for kind, row in found.items()} == {
        "dictated": 1, "orders": 1, "names": 1, "all others": 1,
    }  # fmt: skip
    assert all(0.0 <= row["soft"] <= row["cut"] <= 1.0 for row in found.values())


def test_bars_of_the_real_set_name_what_is_missed() -> None:
    def measured(own: float, peer: float, voice: float) -> dict[str, object]:
        waits = {"p50": 400.0}
        return {
            "policies": {
                "voiceloop": {f"cut@{ms}": own for ms in (200, 300, 400, 600)},
                "timer": {f"cut@{ms}": peer for ms in (200, 300, 400, 600)},
            },
            "auc": {"all": {"words": 0.85, "voice": voice, "both": 0.92}},
            "as shipped": {"auto": {"dictated": {"n_turns": 40, "cut": 0.1, "latency_ms": waits}}},
        }

    def missed(own: float, peer: float, voice: float, source: str) -> list[str]:
        bars = bars_of(measured(own, peer, voice), "real", source)
        assert bars
        return [bar.name for bar in bars if not bar.holds]

    assert missed(0.04, 0.1, 0.83, "moonshine") == []
    assert missed(0.04, 0.1, 0.83, "reference") == []
    assert missed(0.04, 0.1, 0.80, "reference") == ["AUC at +130 ms, voice"]
    assert missed(0.04, 0.06, 0.83, "moonshine") == [
        f"turns cut @{ms} ms, 0.6 of the better peer's" for ms in (200, 300, 400, 600)
    ]
    assert "turns cut @600 ms, real, moonshine" in missed(0.06, 0.2, 0.83, "moonshine")


def test_the_voice_is_told_with_the_words_of_its_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses = (Pause(1064.0, 1000.0, 1400.0, 900.0, None, None),
              Pause(2064.0, 2000.0, None, 1500.0, None, None))  # fmt: skip
    monkeypatch.setattr(pause_evidence, "pauses_of", lambda turn: pauses)
    readings = [Reading(1064.0, 1010.0), Reading(1256.0, 1256.0), Reading(2064.0, 2010.0)]
    words = [HeardWords(900.0, ("a",), False), HeardWords(1164.0, ("a", "large"), True),
             HeardWords(2164.0, ("a", "large", "tea"), True)]  # fmt: skip
    found = heard_turn(turn(), words, None, readings, lambda reading: reading.heard_to_ms)
    told = [[(s.from_ms, s.evidence.p_voice) for s in pause.steps] for pause in found.pauses]
    assert told == [
        [(1064.0, None), (1164.0, 1010.0), (readings[1].told_ms, 1256.0)],
        [(2064.0, None), (2164.0, 2010.0)],
    ]
    assert found.pauses[0].steps[-1].evidence.words == ("a", "large")
    blind = heard_turn(turn(), words, None)
    assert all(step.evidence.p_voice is None for p in blind.pauses for step in p.steps)


def test_the_voice_is_weighed_beside_words_that_keep_their_proportions() -> None:
    words = FITTED.hazards[SETS["words"]]
    turns = [heard(f"turn {i}", -1.0 - i / 10, 1.0 + i / 10) for i in range(8)]
    found = fit_voice(samples_of(turns, SETS["words_p_voice"]), words).weights
    assert found.p_voice > 0.1
    assert found.words_so_far > 0.0
    share = found.words_so_far / words.weights.words_so_far
    for name in (
        "filler",
        "closing",
        "answers",
        "number_complete",
    ):  # of which these turns have none
        assert getattr(found, name) == pytest.approx(share * getattr(words.weights, name))

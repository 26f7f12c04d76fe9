"""The figures of one or more calls in plain JSON values: what turns.json and --json hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from clients.call.result import Ahead, CallResult, TurnResult
from clients.report.percentiles import Distribution, percentile
from clients.report.waterfall import Waterfall, stage_names


def summary_of(calls: Sequence[CallResult]) -> dict[str, Any]:
    """Percentiles and counts over all turns of ``calls``; times in ms."""
    turns = [turn for call in calls for turn in call.turns]
    expecting = [turn for turn in turns if turn.expect]
    barge_ins = [turn.barge_in for turn in turns if turn.barge_in is not None]
    interrupting = [turn for turn in turns if turn.interrupts]
    waterfalls = [turn.waterfall for turn in turns if turn.waterfall is not None]
    return {
        "calls": len(calls),
        "n_turns": len(turns),
        "unanswered": sum(not turn.answered for turn in turns),
        "cut_ins": sum(turn.cut_in for turn in turns),
        "soft_cuts": sum(turn.cut_is_soft for turn in turns),
        "hard_cuts": sum(turn.cut_in and not turn.cut_is_soft for turn in turns),
        "heard_over_soft_cut_ms": _known([t.heard_over_ms for t in turns if t.cut_is_soft]),
        "words_lost": sum(turn.n_words_lost for turn in turns if not turn.cut_in),
        "words_lost_around_soft_cuts": sum(t.n_words_lost for t in turns if t.cut_is_soft),
        "hesitations": sum(turn.hesitates for turn in turns),
        "hesitations_cut": sum(turn.hesitation_cut for turn in turns),
        "turns_with_expected_words": len(expecting),
        "turns_with_words_found": sum(not turn.missing for turn in expecting),
        "gap_ms": _known([turn.gap_ms for turn in turns]),
        "audible_ms": _known([turn.audible_ms for turn in turns]),
        "barge_ins_scripted": len(interrupting),
        "barge_ins_that_stopped": sum(turn.barge_in is not None for turn in interrupting),
        "barge_in_ducked_ms": _known([b.ducked_ms for b in barge_ins]),
        "barge_in_ducked_buffered_ms": _known([b.ducked_buffered_ms for b in barge_ins]),
        "barge_in_wire_ms": asdict(Distribution.of([b.wire_ms for b in barge_ins])),
        "barge_in_audible_ms": asdict(Distribution.of([b.audible_ms for b in barge_ins])),
        "waterfalls": len(waterfalls),
        "stage_p50_ms": stage_medians(waterfalls),
        "waterfall_worst_error_ms": max((abs(w.sum_error_ms) for w in waterfalls), default=None),
        "waterfall_missing_marks": sorted({m for w in waterfalls for m in w.missing_marks}),
        **_ahead([turn.ahead for turn in turns if turn.ahead is not None]),
        "spurious_speech": sum(call.spurious_speech for call in calls),
        "underruns": sum(call.underruns for call in calls),
        "errors": [error for call in calls for error in call.errors],
    }


def _known(values_ms: Sequence[float | None]) -> dict[str, Any]:
    """Return the figures of those that are known; ``n`` says how many these are."""
    return asdict(Distribution.of([ms for ms in values_ms if ms is not None]))


def _ahead(turns: Sequence[Ahead]) -> dict[str, Any]:
    """Return what was done before the turns were over; shares of 1, None where no server told."""
    n_turn_tokens = sum(turn.turn_tokens for turn in turns)
    generated = sum(turn.reply_tokens + turn.discarded + turn.unheard for turn in turns)
    return {
        "turns_told": len(turns),
        "turn_tokens_resident": _share(sum(turn.resident for turn in turns), n_turn_tokens),
        "left_to_prefill": asdict(Distribution.of([float(turn.left) for turn in turns])),
        "salvaged": sum(turn.draft == "salvaged" for turn in turns),
        "prefetched": sum(turn.prefetched for turn in turns),
        "clauses_held": _share(sum(turn.clause_was_held for turn in turns), len(turns)),
        "reply_tokens_wasted": _share(sum(turn.discarded for turn in turns), generated),
        "reply_tokens_unheard": _share(sum(turn.unheard for turn in turns), generated),
    }


def _share(part: int, whole: int) -> float | None:
    return round(part / whole, 4) if whole else None


def stage_medians(waterfalls: Sequence[Waterfall]) -> dict[str, float]:
    """The median of every stage in ms, in the order of a turn; a turn without the stage counts 0.

    Medians of parts do not add up to the median of the whole.
    """
    medians = {}
    for name in stage_names():
        lengths = [sum(s.ms for s in w.stages if s.name == name) for w in waterfalls]
        if any(lengths):
            medians[name] = round(percentile(lengths, 50), 1)
    return medians


def turn_json(turn: TurnResult) -> dict[str, Any]:
    """One turn as JSON values, times rounded to 0.01 ms and 1 ms of the call."""
    data = asdict(turn)
    for key in ("gap_ms", "audible_ms"):
        data[key] = None if data[key] is None else round(data[key], 2)
    for key in ("onset_at", "end_at", "answer_at", "answer_end_at"):
        data[key.replace("_at", "_s")] = None if data[key] is None else round(data[key], 3)
        del data[key]
    if turn.barge_in is not None:
        data["barge_in"] = {
            name: None if ms is None else round(ms, 2) for name, ms in asdict(turn.barge_in).items()
        }
    if turn.waterfall is not None:
        data["waterfall"] = {
            "stages": [{"name": s.name, "ms": round(s.ms, 2)} for s in turn.waterfall.stages],
            "sum_error_ms": round(turn.waterfall.sum_error_ms, 3),
            "missing_marks": list(turn.waterfall.missing_marks),
        }
        if turn.waterfall.speakers:
            data["speakers"] = list(turn.waterfall.speakers)
    return data

"""What a call must hold: the bars of ``benchmarks.turn_latency``, in sets.

"embedded" is for the scripted call, "human" for human callers, whose words no script knows.
"""

from __future__ import annotations

from typing import Any

from benchmarks.harness.harness import Bar

EMBEDDED, HUMAN = "embedded", "human"
GAP_MS = {EMBEDDED: (350, 700), HUMAN: (550, 1000)}  # p50, p95
MOST_CUT_INS = 3  # percent, of both kinds together; people have two bars
MOST_HARD_CUTS, MOST_SOFT = 3, 6
HEARD_OVER_MS = 200
BARGE_IN_MS, FAKES_BARGE_IN_MS = (250, 280), (300, 320)  # silent on the wire, audible
DUCKED_MS = 120
RUNTIME_MS = 60  # of our own beside an endpoint timer
SLOWEST_MS = 1500


def bars_of(data: dict[str, Any], ready_s: float, resident_mb: float, chosen: str) -> list[Bar]:
    """The lines of one set. data: `clients.report.call_summary.summary_of`; chosen: a set's name.

    "fakes T" stands for scripted models and a timer of T ms: a hesitation is longer than the timer
    and must be cut, so cut-ins, words and memory say nothing there.
    """
    bars = [
        Bar("unanswered turns", data["unanswered"], 0, ""),
        Bar("underruns", data["underruns"], 0, ""),
    ]
    if chosen.startswith("fakes"):
        endpoint_ms = float(chosen.split()[1])
        name = "gap p50, runtime alone"
        bars.append(Bar(name, data["gap_ms"]["p50"], endpoint_ms + RUNTIME_MS))
        return bars + _barge_in(data, are_real=False) + _waterfall(data)
    bars += _gap(data, chosen)
    if chosen == HUMAN:
        return bars + _waterfall(data)
    words = _percent(data["turns_with_words_found"], data["turns_with_expected_words"])
    bars += [
        Bar("hesitations cut", data["hesitations_cut"], 0, ""),
        Bar("answers with the scripted words", words, 90, "%", at_least=True),
        Bar("start to /readyz", ready_s, 6, "s"),
        Bar("resident memory, all processes", resident_mb, 1400, "MB"),
    ]
    return bars + _ahead(data) + _barge_in(data, are_real=True) + _waterfall(data)


def _gap(data: dict[str, Any], chosen: str) -> list[Bar]:
    p50, p95 = GAP_MS[chosen]
    gap, over = data["gap_ms"], data["heard_over_soft_cut_ms"]
    bars = [
        Bar("gap p50", gap["p50"], p50),
        Bar("gap p95", gap["p95"], p95),
        Bar("hard cuts", _percent(data["hard_cuts"], data["n_turns"]), MOST_HARD_CUTS, "%"),
        Bar("soft cuts: taken back", _percent(data["soft_cuts"], data["n_turns"]), MOST_SOFT, "%"),
    ]
    if chosen == EMBEDDED:
        cut_ins = _percent(data["cut_ins"], data["n_turns"])
        bars.append(Bar("cut-ins", cut_ins, MOST_CUT_INS, "%"))
        bars.append(Bar("slowest gap", gap["most"], SLOWEST_MS))
    if over["n"]:
        name = "heard over the caller after a soft cut, p95"
        bars.append(Bar(name, over["p95"], HEARD_OVER_MS, n=over["n"]))
        lost = data["words_lost_around_soft_cuts"]
        bars.append(Bar("words lost around soft cuts", lost, 0, "", n=data["soft_cuts"]))
    return bars


def _ahead(data: dict[str, Any]) -> list[Bar]:
    def percent(key: str) -> float | None:
        return None if data[key] is None else 100.0 * data[key]

    return [
        Bar("tokens of this turn resident", percent("turn_tokens_resident"), 80, "%", True),
        Bar("tokens left to prefill, p90", data["left_to_prefill"]["p90"], 16, ""),
        Bar("held clause ready at release", percent("clauses_held"), 60, "%", True),
        Bar("reply tokens discarded", percent("reply_tokens_wasted"), 30, "%"),
    ]


def _barge_in(data: dict[str, Any], *, are_real: bool) -> list[Bar]:
    def p95(name: str, key: str, limit_ms: int) -> Bar:
        figure = data[key]
        return Bar(f"barge-in p95, {name}", figure["p95"], limit_ms, n=figure["n"])

    # A percentile is of those that stopped the agent: one that never did is in none of them.
    n_scripted, n_stopped = data["barge_ins_scripted"], data["barge_ins_that_stopped"]
    stopped = 100.0 * n_stopped / n_scripted if n_scripted else None
    wire_ms, audible_ms = BARGE_IN_MS if are_real else FAKES_BARGE_IN_MS
    ducked = [p95("ducked", "barge_in_ducked_ms", DUCKED_MS)] if are_real else []
    return [
        Bar("scripted barge-ins that stopped the agent", stopped, 100, "%", True, n=n_scripted),
        *ducked,
        p95("silent on the wire", "barge_in_wire_ms", wire_ms),
        p95("audible at the client", "barge_in_audible_ms", audible_ms),
    ]


def _waterfall(data: dict[str, Any]) -> list[Bar]:
    untold = data["gap_ms"]["n"] - data["waterfalls"]
    return [
        Bar("turns without a waterfall", untold, 0, ""),
        Bar("waterfall: sum against gap, worst", data["waterfall_worst_error_ms"], 10),
        Bar("waterfall: marks missing", len(data["waterfall_missing_marks"]), 0, ""),
    ]


def _percent(part: int, whole: int) -> float:
    return 100.0 * part / max(1, whole)

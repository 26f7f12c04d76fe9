"""Anticipation taken apart: which mechanisms there are to switch off, and the table of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

SWITCH = "VOICELOOP_ANTICIPATION_"
OFF = (
    "prefill", "p_end", "speculative_reply", "held_clause", "prefix_cache", "speculative_decoding",
    "tool_calls",
)  # fmt: skip
# Variants by name, and what each adds to the server's environment.
MECHANISMS: dict[str, dict[str, str]] = {
    "all on": {},
    **{f"no {name.replace('_', ' ')}": {f"{SWITCH}{name.upper()}": "0"} for name in OFF},
    "all off": {f"{SWITCH}{name.upper()}": "0" for name in OFF},
    # An agent that looks things up in documents, whose pages are searched for the same questions.
    "documents": {"VOICELOOP_AGENT": "library"},
    "documents, no retrieval": {"VOICELOOP_AGENT": "library", f"{SWITCH}RETRIEVAL": "0"},
    # A window so short that the bundled call fills it: it moves on in silence, or in a turn.
    "short window": {"VOICELOOP_CONTEXT_TOKENS": "700"},
    "short window, no slide ahead": {"VOICELOOP_CONTEXT_TOKENS": "700", f"{SWITCH}SLIDE": "0"},
}


def print_ablation(summaries: Mapping[str, Mapping[str, Any]]) -> None:
    """One line a variant. summaries: of `clients.report.call_summary.summary_of`."""
    heads = ("n", "p50", "p90", "p95", "p99", "cut-ins", "resident", "held", "waste")
    print(f"\n{'gap, ms':<26}" + "".join(f"{head:>9}" for head in heads))
    for name, data in summaries.items():
        gap = data["gap_ms"]
        cells = [_cell(gap[key]) for key in ("p50", "p90", "p95", "p99")]
        cells.append(_cell(100.0 * data["cut_ins"] / max(1, data["n_turns"]), "%"))
        for key in ("turn_tokens_resident", "clauses_held", "reply_tokens_wasted"):
            cells.append(_cell(None if data[key] is None else 100.0 * data[key], "%"))
        print(f"{name:<26}{gap['n']:>9}" + "".join(f"{cell:>9}" for cell in cells))


def _cell(value: float | None, unit: str = "") -> str:
    return "-" if value is None else f"{value:.0f}{unit}"

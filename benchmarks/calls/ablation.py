"""Anticipation taken apart: which mechanisms there are to switch off, and the table of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.harness.harness import Bar, cell

OFF, DRAFTER = "VOICELOOP_ANTICIPATION_OFF", "VOICELOOP_ENGINE_DRAFTER"
DECODING = "speculative_decoding"  # the one mechanism that has a key of its own
EMBEDDED = ("--preset", "embedded")  # named: the server's own choice is what is on disk
AGENT = Path(__file__).parent / "juniper.toml"
# A trained model that is no toy beside what it is asked: 135M, ten times the embedded agent's.
# As published: an adapter would say other replies than those that were measured.
PLAIN = ("--llm-model", "smollm2-135m", "--llm-adapter", "none")
SMOLLM2 = (*EMBEDDED, *PLAIN, "--agent", str(AGENT))
ALL_ON, ALL_OFF = "all on", "all off"
MOST_OF_ALL_OFF = 0.6  # of the gap's p50


@dataclass(frozen=True, slots=True)
class Variant:
    """One server: arguments of ``voiceloop serve``, and what is added to its environment.

    asks_service: its language model is the stub service (`remote_brain`), one of its own.
    """

    arguments: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    asks_service: bool = False


def without(*names: str) -> dict[str, str]:
    """The environment of a server that does without these mechanisms."""
    parts = ",".join(name for name in names if name != DECODING)
    switched = {OFF: parts} if parts else {}
    return switched | ({DRAFTER: "none"} if DECODING in names else {})


def _one_off_each(
    arguments: tuple[str, ...], names: Sequence[str], *, asks_service: bool = False
) -> dict[str, Variant]:
    """All on, each off in turn, all of them off."""

    def variant(*off: str) -> Variant:
        return Variant(arguments, without(*off), asks_service)

    return {
        ALL_ON: variant(),
        **{f"no {name.replace('_', ' ')}": variant(name) for name in names},
        ALL_OFF: variant(*names),
    }


# What acts with any language model; the rest is the engine's own, or the embedded agent's tools'.
ANY_BRAIN = ("prefill", "p_end", "p_voice", "speculative_reply", "held_clause", "early_start")
# Servers by name, by what is asked of them: everything of the embedded agent, only what ends a
# turn, or a trained model.
ABLATIONS: dict[str, dict[str, Variant]] = {
    "embedded": {
        **_one_off_each(
            EMBEDDED, (*ANY_BRAIN, "prefix_cache", DECODING, "tool_calls"),
        ),
        # An agent that looks things up, its pages searched for the same questions.
        "documents": Variant(EMBEDDED, {"VOICELOOP_AGENT": "library"}),
        "documents, no retrieval": Variant(
            EMBEDDED, {"VOICELOOP_AGENT": "library", **without("retrieval")}
        ),
        # A window so short that the bundled call fills it: it moves on in silence, or in a turn.
        "short window": Variant(EMBEDDED, {"VOICELOOP_CONTEXT_TOKENS": "700"}),
        "short window, no slide ahead": Variant(
            EMBEDDED, {"VOICELOOP_CONTEXT_TOKENS": "700", **without("slide")}
        ),
    },
    "ends": _one_off_each(EMBEDDED, ("p_end", "p_voice", "early_start")),
    "smollm2": _one_off_each(
        SMOLLM2, ("prefill", "prefix_cache", DECODING, "speculative_reply")
    ),
    "smollm2-whole": _one_off_each(SMOLLM2, (*ANY_BRAIN, "prefix_cache", DECODING)),
    # Ears and voice are the embedded ones: the brain alone differs.
    "service": _one_off_each(EMBEDDED, ANY_BRAIN, asks_service=True),
}  # fmt: skip
# The sets that `--ablate brains` plays one after the other, each interleaved within itself: the
# servers of all of them at once are more than a machine's memory holds.
BRAINS = {"13M": "embedded", "SmolLM2-135M": "smollm2-whole", "a service": "service"}


def ablation_bars(name: str, summaries: Mapping[str, Mapping[str, Any]]) -> list[Bar]:
    """What all mechanisms together have to gain, where they are held to it: by the real model."""
    if name != "smollm2":
        return []
    on, off = (summaries[one]["gap_ms"]["p50"] for one in (ALL_ON, ALL_OFF))
    ratio = on / off if on is not None and off else None
    return [Bar("gap p50, all four on over all four off", ratio, MOST_OF_ALL_OFF, "x")]


def print_ablation(summaries: Mapping[str, Mapping[str, Any]]) -> None:
    """One line a variant. summaries: of `clients.report.call_summary.summary_of`.

    salvaged: replies kept though words had changed; ahead: calls and searches begun before the end.
    """
    heads = ("n", "p50", "p90", "p95", "p99", "cut-ins", "resident", "held", "waste",
             "salvaged", "ahead")  # fmt: skip
    print(f"\n{'gap, ms':<26}" + "".join(f"{head:>9}" for head in heads))
    for name, data in summaries.items():
        gap = data["gap_ms"]
        cells = [cell(gap[key]) for key in ("p50", "p90", "p95", "p99")]
        cells.append(cell(100.0 * data["cut_ins"] / max(1, data["n_turns"]), "%"))
        for key in ("turn_tokens_resident", "clauses_held", "reply_tokens_wasted"):
            cells.append(cell(None if data[key] is None else 100.0 * data[key], "%"))
        cells += [str(data[key]) for key in ("salvaged", "prefetched")]
        print(f"{name:<26}{gap['n']:>9}" + "".join(f"{cell:>9}" for cell in cells))

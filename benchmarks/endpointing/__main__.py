"""Endpointing measured and fitted: ``python -m benchmarks.endpointing [--fit] [--check]``.

After the protocol of eot-bench, offline, on the audio clock: the frontier of cut turns against mean
decision latency, for VoiceLoop's endpointing, the fixed timer and Smart Turn v3.2, on the same
turns, voice detector and pauses. Two transcript sources are reported apart: the embedded recognizer
("embedded") and the true words as a good recognizer would give them ("reference"). Figures do not
depend on the machine's load, and do not compare with eot-bench's own: it is another set.

``--fit`` fits the weights on the speakers of the fit part and writes them to
``voiceloop/listening/endpointing_weights.toml``; run it again for another checkpoint of the agent.
"""

from __future__ import annotations

import argparse
import sys
import zlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

from benchmarks.endpointing.smart_turn import ASKED_AFTER_MS, INFERENCE_MS, SmartTurn
from benchmarks.endpointing.table import LATENCIES_MS, bars_of, print_table
from benchmarks.harness.command_line import benchmark_parser, exit_code, run
from benchmarks.harness.data_folder import OF_TURNS, data_with
from benchmarks.harness.harness import RESULTS, bar_table, results, write_results
from clients.outputs import check_file, prepare_folder
from clients.provenance import provenance
from voiceloop.listening.endpointing import FITTED, SETS, WeightSets
from voiceloop.listening.recipes.caller_past import SAME, in_calls
from voiceloop.listening.recipes.end_probability import EndProbability
from voiceloop.listening.recipes.endpointing_set import (
    COPIES,
    UNSEEN,
    CallerTurn,
    caller_turns,
    marked,
)
from voiceloop.listening.recipes.hazard_fit import samples_of
from voiceloop.listening.recipes.heard_turn import EmbeddedRecognizer, pauses_of
from voiceloop.listening.recipes.operating_points import as_toml, costs, fit_sets, scored_turns
from voiceloop.listening.recipes.pause_evidence import HeardTurn, heard_turn
from voiceloop.listening.recipes.recognizers import DEFAULT, OFFLINE
from voiceloop.listening.recipes.reference_replay import replay
from voiceloop.listening.recipes.synthetic_callers import Part, said_in_training
from voiceloop.listening.recipes.turn_frontier import (
    LONGEST_MS,
    Outcome,
    Point,
    bootstrap_by_speaker,
    cut_at,
    frontier,
    hazard_moment,
    latency_at,
    outcome,
    point,
    staged_moment,
    timer_moment,
)
from voiceloop.listening.release import LONGEST_WAIT_MS, Eagerness

Source = Literal["reference", "embedded"]
ROOT = Path(__file__).resolve().parents[2]
WEIGHTS = ROOT / "voiceloop" / "listening" / "endpointing_weights.toml"
AGENT = ROOT / "engine" / "embedded" / "agent"
SLICES = ("human", "synthetic", "hesitation", "digits", "short", *sorted(COPIES), UNSEEN, "orders")
HEADLINES = ("cut@300", "cut@600", "latency@5%", "latency@10%")  # with intervals
TIMERS_MS = range(60, 2001, 20)
SWEPT_CUT_COSTS_S = np.geomspace(0.02, 200.0, 81)
N_DRAWS = 200
# Decoding is slow: of the turns that the embedded recognizer hears, one in so many is taken.
EMBEDDED_EVERY = 4
ORDERS_EVERY = 3

PASTS = (SAME, 0.65, 0.8)  # turns before that hesitate as this one does: the set cannot tell

STATEMENT = (("assistant", "Alright, that is done."),)

Policy = tuple[str, list[Outcome]]  # one setting of it, and what became of every turn


@dataclass(frozen=True, slots=True)
class Hearing:
    """Where turns come from and what is asked about them."""

    data: Path
    ask_end: EndProbability | None
    recognizer: str = DEFAULT

    def turns(self, part: Part, source: Source) -> list[HeardTurn]:
        """Turns as one transcript source hears them."""
        turns = caller_turns(self.data, part)
        if part == "test":
            turns = marked(turns, said_in_training(self.data / "dialogues"))
        if source == "reference":
            return [
                self._heard(turn, replay(turn, pauses_of(turn)))
                for turn in turns
                if turn.words is not None
            ]
        recognizer = EmbeddedRecognizer(self.recognizer)
        return [self._heard(turn, recognizer.hear(turn)) for turn in _thinned(turns, part)]

    def _heard(self, turn: CallerTurn, words: Any) -> HeardTurn:
        turn = _after_a_statement(turn)
        ask = None if self.ask_end is None else partial(self.ask_end.after, turn.history)
        return heard_turn(turn, words, ask)


def _after_a_statement(turn: CallerTurn) -> CallerTurn:
    """Half of the human turns answer no question: what the agent said last is not theirs anyway."""
    if "human" not in turn.slices or zlib.crc32(f"after {turn.name}".encode()) % 2:
        return turn
    return replace(turn, history=STATEMENT)


def _thinned(turns: Sequence[CallerTurn], part: Part) -> list[CallerTurn]:
    """One in so many; to fit, all human turns without hesitation: there are few enough."""
    orders = [turn for turn in turns if "orders" in turn.slices]
    others = [turn for turn in turns if not turn.slices & ({"orders"} | COPIES)]
    # By the name: every nth would fall in step with the plain and hesitating copies of a clip.
    chosen = [
        turn
        for turn in others
        if zlib.crc32(turn.name.encode()) % EMBEDDED_EVERY == 0
        or (part == "fit" and "human" in turn.slices and "hesitation" not in turn.slices)
    ]
    return orders[::ORDERS_EVERY] + chosen


# -- policies ------------------------------------------------------------------------------------


def hazard_settings(heard: Sequence[HeardTurn], weights: WeightSets) -> list[Policy]:
    """What a cut is worth in seconds of waiting: the one number of an eagerness."""
    turns = scored_turns(heard, weights)
    return [
        (f"{cost:.2f} s", [turn.outcome(float(cost), LONGEST_MS) for turn in turns])
        for cost in SWEPT_CUT_COSTS_S
    ]


def timer_settings(heard: Sequence[HeardTurn]) -> list[Policy]:
    return [
        (f"{ms} ms", [outcome(t, [timer_moment(p, ms) for p in t.pauses]) for t in heard])
        for ms in TIMERS_MS
    ]


def smart_turn_settings(heard: Sequence[HeardTurn]) -> list[Policy]:
    """Threshold x action delay x timeout: it is given the best of each at every latency."""
    model = SmartTurn()
    asked = [[model.p_over(t.turn, pause) for pause in pauses_of(t.turn)] for t in heard]
    found = []
    for threshold in (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98):
        for extra_ms in (0, 100, 200, 400, 600):
            for timeout_ms in (500, 700, 900, 1100, 1300, 1600, 2000, 2500):
                delay_ms = ASKED_AFTER_MS + INFERENCE_MS + extra_ms
                outcomes = []
                for turn, answers in zip(heard, asked, strict=True):
                    pairs = zip(turn.pauses, answers, strict=True)
                    outcomes.append(
                        outcome(
                            turn,
                            [
                                staged_moment(p, p_over, threshold, delay_ms, timeout_ms)
                                for p, p_over in pairs
                            ],
                        )
                    )
                found.append((f"{threshold}, {delay_ms:.0f} ms, {timeout_ms} ms", outcomes))
    return found


# -- figures -------------------------------------------------------------------------------------


def best_of(settings: Sequence[Policy], chosen: Sequence[int] | None = None) -> list[Point]:
    """The frontier over some of the turns."""
    if chosen is None:
        return frontier(point(name, outcomes) for name, outcomes in settings)
    return frontier(point(name, [outcomes[i] for i in chosen]) for name, outcomes in settings)


def figures_of(best: Sequence[Point]) -> dict[str, float | None]:
    row: dict[str, float | None] = {f"cut@{ms}": cut_at(best, ms) for ms in LATENCIES_MS}
    row["latency@5%"] = latency_at(best, 0.05)
    row["latency@10%"] = latency_at(best, 0.10)
    return row


def intervals_of(settings: Sequence[Policy], speakers: Sequence[str], seed: int) -> dict[str, Any]:
    """95 % of the draws of speakers, for the four headline figures."""
    cuts = np.array([[o.cut for o in outcomes] for _, outcomes in settings], dtype=float)
    waits = np.array([[o.latency_ms for o in outcomes] for _, outcomes in settings])
    drawn: dict[str, list[float]] = {}
    for chosen in bootstrap_by_speaker(speakers, N_DRAWS, seed):
        pairs = zip(waits[:, chosen].mean(axis=1), cuts[:, chosen].mean(axis=1), strict=True)
        best = frontier(Point("", float(ms), float(cut)) for ms, cut in pairs)
        for name, value in figures_of(best).items():
            if value is not None and name in HEADLINES:
                drawn.setdefault(name, []).append(value)
    return {
        name: [round(float(x), 4) for x in np.percentile(values, [2.5, 97.5])]
        for name, values in drawn.items()
    }


def measure(heard: Sequence[HeardTurn], weights: WeightSets, *, peer: bool) -> dict[str, Any]:
    """Every policy over all turns (without the copies) and over each slice."""
    policies = {"voiceloop": hazard_settings(heard, weights), "timer": timer_settings(heard)}
    if peer:
        policies["smart turn v3.2"] = smart_turn_settings(heard)
    chosen = [i for i, h in enumerate(heard) if not h.turn.slices & COPIES]
    measured: dict[str, Any] = {"n_turns": len(chosen), "policies": {}}
    for name, settings in policies.items():
        kept = [(label, [outcomes[i] for i in chosen]) for label, outcomes in settings]
        best = best_of(kept)
        slices = {}
        for slice_name in SLICES:
            members = [i for i, h in enumerate(heard) if slice_name in h.turn.slices]
            if slice_name not in COPIES:
                members = [i for i in members if not heard[i].turn.slices & COPIES]
            if members:
                slices[slice_name] = {
                    "n_turns": len(members), **figures_of(best_of(settings, members)),
                }  # fmt: skip
        measured["policies"][name] = {
            **figures_of(best),
            "intervals": intervals_of(kept, [heard[i].turn.speaker for i in chosen], 0),
            "frontier": [asdict(p) for p in best],
            "slices": slices,
        }
    measured["as shipped"] = {name: shipped(heard, weights, name) for name in LONGEST_WAIT_MS}
    measured["as shipped, in calls"] = {
        f"auto, past alike in {same:.0%}": shipped(in_calls(heard, same), weights, "auto")
        for same in PASTS
    }
    return measured


def shipped(
    heard: Sequence[HeardTurn], weights: WeightSets, eagerness: Eagerness
) -> dict[str, Any]:
    """What a caller gets at one eagerness, human and synthetic, plain and hesitating.

    Turns of the set as it is are the first of their call.
    """
    found = {}
    for voice in ("human", "synthetic"):
        for kind in ("plain", "hesitation"):
            members = [
                h
                for h in heard
                if voice in h.turn.slices
                and ("hesitation" in h.turn.slices) == (kind == "hesitation")
                and not h.turn.slices & COPIES
            ]
            outcomes = [
                outcome(h, [hazard_moment(p, weights, eagerness) for p in h.pauses])
                for h in members
            ]
            waits = [o.latency_ms for o in outcomes] or [0.0]
            found[f"{voice}, {kind}"] = {
                "n_turns": len(members),
                "cut": sum(o.cut for o in outcomes) / max(1, len(outcomes)),
                "latency_ms": {f"p{q}": float(np.percentile(waits, q)) for q in (10, 50, 90, 95)},
            }
    return found


# -- commands ------------------------------------------------------------------------------------


def fit_weights(hearing: Hearing) -> str:
    """The weights file, fitted on both transcript sources of the fit part."""
    sources: tuple[Source, ...] = ("reference", "embedded")
    turns = [turn for source in sources for turn in in_calls(hearing.turns("fit", source))]
    checkpoint = "none" if hearing.ask_end is None else hearing.ask_end.checkpoint
    n_samples = len(samples_of(turns, SETS["words"]).over)
    sets = fit_sets(turns)
    comment = (
        "Written by `python -m benchmarks.endpointing --fit`; what each weight means stands in",
        "voiceloop/listening/evidence.py (`terms`). Not to be edited by hand.",
        f"agent checkpoint: {checkpoint}; {len(turns)} turns, {n_samples} moments.",
        "Of the fit's own turns each eagerness cuts, and after the rest it waits (median):",
        *costs(turns, sets),
        f"date: {provenance()['date']}",
    )
    return as_toml(sets, comment)


def parser() -> argparse.ArgumentParser:
    arguments = benchmark_parser(
        "endpointing",
        "Turns cut against decision latency, for VoiceLoop's endpointing, a fixed timer and Smart "
        "Turn, offline on the shared data (VOICELOOP_DATA); or fit the weights. A run that is "
        "interrupted writes nothing.",
    )
    arguments.add_argument(
        "--fit", action="store_true", help=f"fit the weights and write {WEIGHTS.name} instead"
    )
    arguments.add_argument(
        "--model", type=Path, metavar="DIR", default=AGENT,
        help="the agent that tells the end-of-turn probability (default: the embedded one)",
    )  # fmt: skip
    arguments.add_argument(
        "--no-p-end",
        action="store_true",
        help="do without the end-of-turn probability: words and prosody alone",
    )
    arguments.add_argument("--no-peer", action="store_true", help="leave Smart Turn out")
    arguments.add_argument(
        "--source", choices=("reference", "embedded", "both"), default="both",
        help="whose words: true ones, the embedded recognizer's (default: %(default)s)",
    )  # fmt: skip
    arguments.add_argument(
        "--recognizer", choices=OFFLINE, default=DEFAULT,
        help="whose words the embedded recognizer's are (default: %(default)s)",
    )  # fmt: skip
    arguments.add_argument("--check", action="store_true", help="exit 1 where a bar is missed")
    return arguments


def main() -> int:
    arguments = parser()
    chosen = arguments.parse_args()
    if chosen.check and (chosen.fit or chosen.source == "embedded"):
        arguments.error("--check: expected the reference replay with it, whose bars these are")
    if chosen.fit:
        check_file(WEIGHTS)
    else:
        prepare_folder(RESULTS)
    ask_end = None
    if not chosen.no_p_end:
        if not (chosen.model / "config.json").is_file():
            arguments.error(
                f"--model: expected a model in {chosen.model}, found no config.json "
                "(--no-p-end does without)"
            )
        ask_end = EndProbability(chosen.model)
    hearing = Hearing(data_with(*OF_TURNS), ask_end, chosen.recognizer)
    if chosen.fit:
        WEIGHTS.write_text(fit_weights(hearing), encoding="utf-8")
        print(WEIGHTS.read_text(encoding="utf-8"))
        return 0
    sources = ("reference", "embedded") if chosen.source == "both" else (chosen.source,)
    measured, bars = {}, []
    for source in sources:
        measured[source] = measure(hearing.turns("test", source), FITTED, peer=not chosen.no_peer)
        print_table(source, measured[source])
        if source == "reference":
            bars = bars_of(measured[source])
    print(bar_table(bars))
    settings = {
        "checkpoint": ask_end.checkpoint if ask_end else None,
        "sources": list(sources),
        "recognizer": chosen.recognizer,
    }
    path = write_results(results("endpointing", 0, settings, bars, **measured))
    print(f"results: {path}")
    return exit_code(bars, None, is_checked=chosen.check)


if __name__ == "__main__":
    sys.exit(run(main))

"""What `benchmarks.endpointing` measured, as a table, and against its peers as bars.

Owns the latencies at which frontiers are compared and what is held against whom.
"""

from __future__ import annotations

from typing import Any

from benchmarks.harness.harness import Bar
from voiceloop.listening.recipes.endpointing_set import COPIES, UNSEEN
from voiceloop.listening.recipes.turn_frontier import Point, most_above

LATENCIES_MS = (200, 300, 400, 600, 800, 1000, 1200)
EVERY_MS = range(200, 1201, 10)
# Points of turns cut at a mean latency, by set and source; and of those of the better peer.
MOST_CUT: dict[tuple[str, str], dict[int, float]] = {
    ("real", "moonshine"): {200: 18.0, 300: 11.0, 400: 8.0, 600: 5.0},
    ("spliced", "reference"): {200: 26.0, 300: 14.0, 400: 10.0, 600: 6.0},
}
SHARE_OF_PEER = 0.6
LEAST_AUC = {"voice": 0.935, "words": 0.84, "both": 0.965}
MOST_DICTATED_CUT, DICTATED_P50_MS = 7.0, 450.0


def bars_of(measured: dict[str, Any], set_name: str, source: str) -> list[Bar]:
    """What is aimed at on this set by this source; none where nothing is."""
    bars = []
    for ms, most in MOST_CUT.get((set_name, source), {}).items():
        cut = measured["policies"]["voiceloop"].get(f"cut@{ms}")
        name = f"turns cut @{ms} ms, {set_name}, {source}"
        bars.append(Bar(name, None if cut is None else 100 * cut, most, "%"))
    if set_name == "real":
        bars += _bars_of_real(measured, source)
    elif source == "reference":
        bars += _bars_under_peers(measured)
    return bars


def _bars_of_real(measured: dict[str, Any], source: str) -> list[Bar]:
    bars = []
    if source == "moonshine":
        own = measured["policies"]["voiceloop"]
        for ms in MOST_CUT["real", "moonshine"]:
            theirs = [
                policy[f"cut@{ms}"]
                for name, policy in measured["policies"].items()
                if name != "voiceloop" and policy[f"cut@{ms}"] is not None
            ]
            if theirs:
                cut, most = own[f"cut@{ms}"], 100 * SHARE_OF_PEER * min(theirs)
                name = f"turns cut @{ms} ms, {SHARE_OF_PEER} of the better peer's"
                bars.append(Bar(name, None if cut is None else 100 * cut, most, "%"))
    if source == "reference":
        found = measured["auc"].get("all", {})
        bars += [
            Bar(f"AUC at +130 ms, {name}", found.get(name), least, "", at_least=True)
            for name, least in LEAST_AUC.items()
        ]
        if dictated := measured["as shipped"]["auto"].get("dictated"):
            n_turns = dictated["n_turns"]
            cut, p50_ms = 100 * dictated["cut"], dictated["latency_ms"]["p50"]
            bars.append(Bar("dictated turns cut", cut, MOST_DICTATED_CUT, "%", n=n_turns))
            bars.append(Bar("dictated turns, p50 of the rest", p50_ms, DICTATED_P50_MS, n=n_turns))
    return bars


def _bars_under_peers(measured: dict[str, Any]) -> list[Bar]:
    """The frontier against those of the peers, in points of turns cut:

    of all turns, of those with unseen words, and of the copies in noise and over the telephone.
    """
    policies = measured["policies"]
    best = {name: [Point(**p) for p in policy["frontier"]] for name, policy in policies.items()}
    bars = []
    for peer in [name for name in policies if name != "voiceloop"]:
        margin = most_above(best["voiceloop"], best[peer], EVERY_MS)
        above = None if margin is None else 100 * margin
        ends = f"{EVERY_MS[0]} to {EVERY_MS[-1]} ms"
        bars.append(Bar(f"points above {peer}, the most from {ends}", above, 0.0, "%"))
        for part in (None, UNSEEN, *sorted(COPIES)):
            rows = [
                policies[name] if part is None else policies[name]["slices"].get(part, {})
                for name in ("voiceloop", peer)
            ]
            for ms in LATENCIES_MS:
                own, other = (row.get(f"cut@{ms}") for row in rows)
                if other is not None:
                    value = None if own is None else 100 * own
                    name = f"turns cut @{ms} ms, under {peer}{f', {part}' if part else ''}"
                    bars.append(Bar(name, value, 100 * other, "%"))
    return bars


def _as_text(intervals: dict[str, Any]) -> str:
    return ", ".join(
        f"{key} {100 * low:.1f}-{100 * high:.1f} %"
        if key.startswith("cut")
        else f"{key} {low:.0f}-{high:.0f} ms"
        for key, (low, high) in sorted(intervals.items())
    )


def print_table(source: str, measured: dict[str, Any]) -> None:
    print(f"\n{source}: {measured['n_turns']} turns; share of turns cut at a mean latency")
    heads = [f"@{ms}" for ms in LATENCIES_MS]
    print(f"{'':<34}{'n':>5}" + "".join(f"{h:>8}" for h in [*heads, "ms@5%", "ms@10%"]))
    for name, policy in measured["policies"].items():
        rows = [(name, {"n_turns": measured["n_turns"], **policy})]
        rows += [(f"  {name}, {part}", row) for part, row in policy["slices"].items()]
        for label, row in rows:
            cuts = [row[f"cut@{ms}"] for ms in LATENCIES_MS]
            cells = ["-" if cut is None else f"{100 * cut:.1f}%" for cut in cuts]
            waits = [row["latency@5%"], row["latency@10%"]]
            cells += ["-" if ms is None else f"{ms:.0f}" for ms in waits]
            print(f"{label:<34}{row['n_turns']:>5}" + "".join(f"{cell:>8}" for cell in cells))
        print(f"  {name}, 95 % of draws of speakers: {_as_text(policy['intervals'])}")
    for part, row in measured["auc"].items():
        parts = [
            f"{name} {row[name]:.3f}"
            for name in ("words", "voice", "both")
            if row[name] is not None
        ]
        counts = f"{row['ends']} ends, {row['pauses']} pauses"
        print(f"AUC at +130 ms, {part}: {', '.join(parts)} ({counts})")
    shipped = measured["as shipped"] | measured.get("as shipped, in calls", {})
    for eagerness, kinds in shipped.items():
        for kind, row in kinds.items():
            rest = ", ".join(f"{q} {ms:.0f}" for q, ms in row["latency_ms"].items())
            cut = f"{100 * row['cut']:.1f} % of {row['n_turns']} cut"
            soft = f"{100 * row['soft']:.1f} % softly"
            print(f"eagerness {eagerness}, {kind}: {cut}, {soft}; of the rest ms: {rest}")

"""Where each eagerness ends a turn: the settings of a fitted hazard, chosen from budgets.

Owns what a setting may cost, in turns cut, the search for the fastest that costs no more, the wait
that earns a preemptive reply, and the weights file. Every hesitation of the set is 300-1200 ms long
and falls anywhere between words, so most of them look like ends: a caller who never hesitates pays
for those who do. The table of settings and their gaps stands in LOG.md. `told` turns and settings
are those with the end-of-turn (EOT) probability, `blind` ones those without.

The budgets are no aims of their own: they name points of the frontier, found by trial. Those of
auto name the one whose live calls keep a p50 of 350 ms and a p95 of 700; of the test's human clips
3 % are cut where of all the fit's plain turns 0.5 % are. Those of high name a p50 of 200 ms with
instant models, and cut 8 % of those clips; medium and low halve the cut hesitations, twice. What
each comes to, and which are missed, is written into the weights file; the test's figures stand in
LOG.md, "a head that reads the end of the turn".
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from voiceloop.listening.endpointing import (
    LONGEST_WAIT_MS,
    Eagerness,
    Hazard,
    OperatingPoint,
    WeightSets,
    wait_ms,
)
from voiceloop.listening.recipes.hazard_fit import fit, samples_of
from voiceloop.listening.recipes.pause_evidence import HeardTurn
from voiceloop.listening.recipes.turn_frontier import (
    Outcome,
    ScoredPause,
    moment_at,
    outcome,
    scored,
)
from voiceloop.reply.preemptive import MAX_PAUSED_MS

THRESHOLDS = tuple(round(float(x), 2) for x in np.arange(-1.0, 6.01, 0.1))

# Without the EOT probability fewer holds can be told from ends, and each would be waited for.
BLIND_MORE = 0.05  # of the hesitating turns may be cut then


@dataclass(frozen=True, slots=True)
class Budget:
    """What a setting may cost: shares of the fit's turns that are cut.

    plain: of those without hesitation. hesitating: of the others. min_delays_ms: what may be chosen
    where the end is confident; one alone is set and not fitted. unconfident_more_ms: how much
    longer where it is not; see `OperatingPoint`.
    """

    plain: float
    hesitating: float
    min_delays_ms: Sequence[int]
    unconfident_more_ms: Sequence[int]

    def most_hesitating(self, is_told: bool) -> float:
        return self.hesitating if is_told else self.hesitating + BLIND_MORE


# Set from live calls, not fitted: the commas of one breath ("everything, thank you, goodbye") pause
# for up to 230 ms, and the detector lets go 80 ms late. Of 48 turns of the bundled call 3 were cut
# there at 280 ms, of 96 still 2 at 320, when one delay held for all confident ends. But the longest
# of these pauses are not those of most confidence.
AUTO_MIN_DELAY_MS = 280
AUTO_UNCONFIDENT_MORE_MS = 120
# An eager agent takes that risk. Learners pause longer, and what they say is misheard: their ends
# and holds are the unconfident ones, a scripted call's ends are not.
BUDGETS: dict[Eagerness, Budget] = {
    "high": Budget(0.06, 0.34, (160, 180), (40,)),
    "auto": Budget(0.012, 0.31, (AUTO_MIN_DELAY_MS,), (AUTO_UNCONFIDENT_MORE_MS,)),
    "medium": Budget(0.015, 0.17, range(330, 541, 30), (0, 80, 160)),
    "low": Budget(0.01, 0.08, range(400, 701, 50), (0, 100, 200)),
}
# Logits before any silence, read off the bundled call, whose figures are kinder for it: of its ends
# half lie above 2.5. Of its commas those that pause longest lie at 1.6 and less, and above 2.5 but
# "everything, thank you", of 230 ms.
UNCONFIDENT, CONFIDENT = 1.0, 3.0
N_HIGHER = 6  # thresholds tried above what the hesitating turns need, 0.1 apart
MOST_PREEMPTIVE_IN_VAIN = 0.2
PREEMPTIVE_WAITS_MS = range(1200, 299, -20)


@dataclass(frozen=True, slots=True)
class Cost:
    """Of one setting: the share of turns cut, and their mean latency."""

    cut: float
    latency_ms: float


@dataclass(frozen=True, slots=True)
class ScoredTurn:
    heard: HeardTurn
    pauses: tuple[ScoredPause, ...]

    def outcome(self, told: OperatingPoint, blind: OperatingPoint, longest_ms: float) -> Outcome:
        moments = [moment_at(pause, told, blind, longest_ms) for pause in self.pauses]
        return outcome(self.heard, moments)


def scored_turns(heard: Iterable[HeardTurn], sets: WeightSets) -> list[ScoredTurn]:
    return [ScoredTurn(turn, tuple(scored(pause, sets) for pause in turn.pauses)) for turn in heard]


def _is_plain(turn: ScoredTurn) -> bool:
    return "hesitation" not in turn.heard.turn.slices


def cost(
    turns: Sequence[ScoredTurn], told: OperatingPoint, blind: OperatingPoint, eagerness: Eagerness
) -> Cost:
    """What the setting costs these turns; blind: what serves until the EOT probability is known."""
    outcomes = [turn.outcome(told, blind, LONGEST_WAIT_MS[eagerness]) for turn in turns]
    waits = [o.latency_ms for o in outcomes] or [0.0]
    cut = sum(o.cut for o in outcomes) / max(1, len(outcomes))
    return Cost(cut, float(np.mean(waits)))


def chosen_setting(
    turns: Sequence[ScoredTurn],
    eagerness: Eagerness,
    blind: OperatingPoint | None,
    least: OperatingPoint,
) -> OperatingPoint:
    """The setting with the least mean wait after plain turns that stays within the budget.

    blind: what serves until the EOT probability is known; None: the turns are without it, and the
    setting to be chosen is that one. least: that of the next more eager, which it nowhere
    undercuts. Hesitations are longer than most min delays, so that their budget sets the least
    threshold, and the other's the delays. Where nothing stays within that one, the longest delays:
    `costs` says so.
    """
    budget = BUDGETS[eagerness]
    most_hesitating = budget.most_hesitating(is_told=blind is not None)
    plain = [turn for turn in turns if _is_plain(turn)]
    hesitating = [turn for turn in turns if not _is_plain(turn)]

    def judged(members: Sequence[ScoredTurn], setting: OperatingPoint) -> Cost:
        return cost(members, setting, blind or setting, eagerness)

    delays_ms = [
        (min_ms, min_ms + more_ms)
        for min_ms in map(float, budget.min_delays_ms)
        for more_ms in budget.unconfident_more_ms
        if min_ms >= least.min_delay_ms and min_ms + more_ms >= least.unconfident_delay_ms
    ]
    delays_ms = delays_ms or [(least.min_delay_ms, least.unconfident_delay_ms)]
    threshold = THRESHOLDS[-1]
    for threshold in THRESHOLDS:
        shortest = OperatingPoint(threshold, *delays_ms[0], CONFIDENT, UNCONFIDENT)
        if threshold >= least.threshold and judged(hesitating, shortest).cut <= most_hesitating:
            break
    higher = [round(threshold + step / 10, 2) for step in range(N_HIGHER)]
    affordable: list[tuple[float, OperatingPoint]] = []
    for tried, delays in itertools.product(higher, delays_ms):
        setting = OperatingPoint(tried, *delays, CONFIDENT, UNCONFIDENT)
        found = judged(plain, setting)
        if found.cut <= budget.plain:
            affordable.append((found.latency_ms, setting))
    if affordable:
        return min(affordable, key=lambda pair: pair[0])[1]
    return OperatingPoint(threshold, *delays_ms[-1], CONFIDENT, UNCONFIDENT)


def chosen_settings(
    turns: Sequence[ScoredTurn], blind: Mapping[Eagerness, OperatingPoint] | None = None
) -> dict[Eagerness, OperatingPoint]:
    chosen: dict[Eagerness, OperatingPoint] = {}
    least = OperatingPoint(THRESHOLDS[0])
    for name in BUDGETS:  # the most eager first
        least = chosen[name] = chosen_setting(turns, name, blind[name] if blind else None, least)
    return chosen


def costs(heard: Sequence[HeardTurn], sets: WeightSets, *, is_told: bool) -> list[str]:
    """A line for each eagerness: the share of these turns it cuts, beside its budget."""
    turns = scored_turns(heard, sets)
    kinds = (
        ("without hesitation", [turn for turn in turns if _is_plain(turn)]),
        ("hesitating", [turn for turn in turns if not _is_plain(turn)]),
    )
    lines = []
    for name, budget in BUDGETS.items():
        told, blind = sets.with_p_end.settings[name], sets.without_p_end.settings[name]
        parts = []
        most_of_each = (budget.plain, budget.most_hesitating(is_told))
        for (kind, members), most in zip(kinds, most_of_each, strict=True):
            cut = cost(members, told, blind, name).cut
            missed = ", MISSED" if cut > most else ""
            parts.append(f"{kind} {cut:.1%} (budget {most:.1%}{missed})")
        lines.append(f"  {name}: {'; '.join(parts)}")
    return lines


def preemptive_needed_ms(heard: Iterable[HeardTurn], sets: WeightSets) -> float:
    """The longest wait at which few enough preemptive replies begin in pauses that are no end."""
    begun: list[tuple[float, bool]] = []  # wait, whether the turn was over
    for turn in heard:
        for pause in turn.pauses:
            told = [step for step in pause.steps if step.evidence.p_end is not None]
            if told and told[0].from_ms - pause.since_ms <= MAX_PAUSED_MS:
                is_over = told[0].from_ms >= turn.turn.end_ms
                begun.append((wait_ms(told[0].evidence, sets), is_over))
    for longest_ms in PREEMPTIVE_WAITS_MS:
        ends = [is_over for needed_ms, is_over in begun if needed_ms <= longest_ms]
        if ends and ends.count(False) <= MOST_PREEMPTIVE_IN_VAIN * len(ends):
            return float(longest_ms)
    return 0.0


def fit_both(told: Sequence[HeardTurn], blind: Sequence[HeardTurn]) -> WeightSets:
    """Both sets of weights with their settings; told: turns with the EOT probability, or none."""
    blind_weights = fit(samples_of(blind, with_p_end=False))
    told_weights = fit(samples_of(told, with_p_end=True)) if told else blind_weights
    sets = WeightSets(Hazard(told_weights, {}), Hazard(blind_weights, {}))
    blind_settings = chosen_settings(scored_turns(blind, sets))
    told_settings = blind_settings
    if told:
        told_settings = chosen_settings(scored_turns(told, sets), blind_settings)
    hazards = Hazard(told_weights, told_settings), Hazard(blind_weights, blind_settings)
    fitted = WeightSets(*hazards)
    return WeightSets(*hazards, preemptive_needed_ms=preemptive_needed_ms(told, fitted))


def as_toml(sets: WeightSets, comment: Sequence[str]) -> str:
    """The weights as the file that `voiceloop.listening.endpointing` reads."""
    lines = [f"# {line}" for line in comment]
    lines += ["", f"preemptive_needed_ms = {sets.preemptive_needed_ms!r}"]
    for name in ("with_p_end", "without_p_end"):
        hazard: Hazard = getattr(sets, name)
        lines += ["", f"[{name}.weights]"]
        lines += [f"{key} = {round(v, 4)!r}" for key, v in asdict(hazard.weights).items()]
        for eagerness, setting in hazard.settings.items():
            lines += ["", f"[{name}.settings.{eagerness}]"]
            lines += [f"{key} = {value!r}" for key, value in asdict(setting).items()]
    return "\n".join(lines) + "\n"

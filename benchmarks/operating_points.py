"""Where each eagerness ends a turn: the settings of a fitted hazard, chosen from budgets.

Owns what a setting may cost, in turns cut, the search for the fastest that costs no more, the wait
that earns a draft, and the weights file. Every hesitation of the set is 300-1200 ms long and falls
anywhere between words, so most of them look like ends: a caller who never hesitates pays for those
who do. The table of settings and their gaps stands in LOG.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from benchmarks.hazard_fit import fit, samples_of
from benchmarks.pause_evidence import HeardTurn
from benchmarks.turn_frontier import Outcome, ScoredPause, moment_at, outcome, scored
from voiceloop.endpointing import LONGEST_WAIT_MS, Eagerness, Hazard, Setting, WeightSets, wait_ms

THRESHOLDS = tuple(round(float(x), 2) for x in np.arange(-1.0, 6.01, 0.1))


@dataclass(frozen=True, slots=True)
class Budget:
    """What a setting may cost: shares of the fit's turns that are cut.

    plain: of those without hesitation. hesitating: of the others. The waits are what may be
    chosen: where the end is sure, and how much longer where it is not.
    """

    plain: float
    hesitating: float
    least_waits_ms: Sequence[int]
    unsure_more_ms: Sequence[int]


# The commas of one breath ("everything, thank you, goodbye") pause for up to 230 ms, and the
# detector lets go 80 ms late: in calls 3 of 48 turns were cut there at 280 ms and none at 320. An
# eager agent takes that risk. Learners pause longer, and what they say is misheard: their ends and
# holds are the unsure ones, a scripted call's ends are not.
BUDGETS: dict[Eagerness, Budget] = {
    "high": Budget(0.04, 0.38, (160, 180, 200), (0, 40, 80)),
    "auto": Budget(0.012, 0.36, (320,), (0, 40, 80)),
    "medium": Budget(0.015, 0.20, range(330, 541, 30), (0, 80, 160)),
    "low": Budget(0.01, 0.10, range(400, 701, 50), (0, 100, 200)),
}
SURE = (0.8, 1.0, 1.2)  # logits before any silence
MOST_DRAFTS_IN_VAIN = 0.25
DRAFT_WAITS_MS = range(1200, 299, -20)
DRAFT_WITHIN_MS = 250.0  # later in a pause none is begun (`voiceloop.drafts`)


@dataclass(frozen=True, slots=True)
class Cost:
    """Of one setting: the share of turns cut, and their median and mean latency."""

    cut: float
    latency_ms: tuple[float, float]


@dataclass(frozen=True, slots=True)
class ScoredTurn:
    heard: HeardTurn
    pauses: tuple[ScoredPause, ...]

    def outcome(self, told: Setting, blind: Setting, longest_ms: float) -> Outcome:
        moments = [moment_at(pause, told, blind, longest_ms) for pause in self.pauses]
        return outcome(self.heard, moments)


def scored_turns(heard: Iterable[HeardTurn], sets: WeightSets) -> list[ScoredTurn]:
    return [ScoredTurn(turn, tuple(scored(pause, sets) for pause in turn.pauses)) for turn in heard]


def chosen_setting(
    turns: Sequence[ScoredTurn], eagerness: Eagerness, blind: Setting | None, least: Setting
) -> Setting:
    """The setting with the least median wait after plain turns that stays within the budget.

    blind: what serves until P(end) is known; None: the turns are without it, and the setting to be
    chosen is that one. least: that of the next more eager, which it nowhere undercuts. Hesitations
    are longer than any least wait, so that their budget sets the threshold, and the other's the
    waits.
    """
    budget, longest_ms = BUDGETS[eagerness], LONGEST_WAIT_MS[eagerness]
    plain = [turn for turn in turns if "hesitation" not in turn.heard.turn.slices]
    hesitating = [turn for turn in turns if "hesitation" in turn.heard.turn.slices]

    def judged(members: Sequence[ScoredTurn], setting: Setting) -> Cost:
        outcomes = [turn.outcome(setting, blind or setting, longest_ms) for turn in members]
        waits = [o.latency_ms for o in outcomes] or [0.0]
        cut = sum(o.cut for o in outcomes) / max(1, len(outcomes))
        return Cost(cut, (float(np.median(waits)), float(np.mean(waits))))

    waits_ms = [
        (least_ms, least_ms + more_ms)
        for least_ms in map(float, budget.least_waits_ms)
        for more_ms in budget.unsure_more_ms
        if least_ms >= least.least_wait_ms and least_ms + more_ms >= least.unsure_wait_ms
    ]
    longest_waits = waits_ms[-1] if waits_ms else (least.least_wait_ms, least.unsure_wait_ms)
    threshold = THRESHOLDS[-1]
    for threshold in THRESHOLDS:
        cut = judged(hesitating, Setting(threshold, *longest_waits, SURE[0])).cut
        if threshold >= least.threshold and cut <= budget.hesitating:
            break
    affordable: list[tuple[tuple[float, float], Setting]] = []
    for waits in waits_ms:
        for sure in SURE:
            setting = Setting(threshold, *waits, sure)
            cost = judged(plain, setting)
            if sure >= least.sure and cost.cut <= budget.plain:
                affordable.append((cost.latency_ms, setting))
    if affordable:
        return min(affordable, key=lambda pair: pair[0])[1]
    # The budget is too small for any: the longest waits cost the least.
    return Setting(threshold, *longest_waits, SURE[-1])


def chosen_settings(
    turns: Sequence[ScoredTurn], blind: Mapping[Eagerness, Setting] | None = None
) -> dict[Eagerness, Setting]:
    chosen: dict[Eagerness, Setting] = {}
    least = Setting(THRESHOLDS[0])
    for name in BUDGETS:  # the most eager first
        least = chosen[name] = chosen_setting(turns, name, blind and blind[name], least)
    return chosen


def draft_needed_ms(heard: Iterable[HeardTurn], sets: WeightSets) -> float:
    """The longest wait at which few enough of the drafts are begun in pauses that are no end."""
    begun: list[tuple[float, bool]] = []  # wait, whether the turn was over
    for turn in heard:
        for pause in turn.pauses:
            told = [step for step in pause.steps if step.evidence.p_end is not None]
            if told and told[0].from_ms - pause.since_ms <= DRAFT_WITHIN_MS:
                is_over = told[0].from_ms >= turn.turn.end_ms
                begun.append((wait_ms(told[0].evidence, sets), is_over))
    for longest_ms in DRAFT_WAITS_MS:
        ends = [is_over for needed_ms, is_over in begun if needed_ms <= longest_ms]
        if ends and ends.count(False) <= MOST_DRAFTS_IN_VAIN * len(ends):
            return float(longest_ms)
    return 0.0


def fit_both(told: Sequence[HeardTurn], blind: Sequence[HeardTurn]) -> WeightSets:
    """Both sets of weights with their settings; told: turns with P(end), or none."""
    blind_weights = fit(samples_of(blind, with_p_end=False))
    told_weights = fit(samples_of(told, with_p_end=True)) if told else blind_weights
    sets = WeightSets(Hazard(told_weights, {}), Hazard(blind_weights, {}))
    blind_settings = chosen_settings(scored_turns(blind, sets))
    told_settings = blind_settings
    if told:
        told_settings = chosen_settings(scored_turns(told, sets), blind_settings)
    hazards = Hazard(told_weights, told_settings), Hazard(blind_weights, blind_settings)
    fitted = WeightSets(*hazards)
    return WeightSets(*hazards, draft_needed_ms=draft_needed_ms(told, fitted))


def as_toml(sets: WeightSets, comment: Sequence[str]) -> str:
    """The weights as the file that `voiceloop.endpointing` reads."""
    lines = [f"# {line}" for line in comment]
    lines += ["", f"draft_needed_ms = {sets.draft_needed_ms!r}"]
    for name in ("with_p_end", "without_p_end"):
        hazard: Hazard = getattr(sets, name)
        lines += ["", f"[{name}.weights]"]
        lines += [f"{key} = {round(v, 4)!r}" for key, v in asdict(hazard.weights).items()]
        for eagerness, setting in hazard.settings.items():
            lines += ["", f"[{name}.settings.{eagerness}]"]
            lines += [f"{key} = {value!r}" for key, value in asdict(setting).items()]
    return "\n".join(lines) + "\n"

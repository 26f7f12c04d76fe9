"""What the judge of a canary lets pass: ``python -m benchmarks.canary_trials [--trials 200]``.

The judge and the counts of the product are given seeded calls: of a canary that is no different,
with its margins and with none, which is the hardest to tell; and of some that
are worse. Calls differ from each other as callers do, so that their turns are alike; many go on at
once, and the judge looks after each turn. Assumed, not measured: how much calls differ (60 ms of
gap), and how often what goes wrong.
"""

from __future__ import annotations

import logging
import random
import statistics
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from benchmarks.harness.command_line import Benchmark, run
from benchmarks.harness.harness import Bar
from voiceloop.canary.judge import MARGINS
from voiceloop.canary.trial import Trial
from voiceloop.canary.turns import Measure, TurnFigures
from voiceloop.operation import CanarySettings

MOST_FALSE, MOST_TURNS = 0.05, 100.0  # of canaries that are no different; until 200 ms are found
SHARE = 0.2  # of the calls of a trial
AT_ONCE = 24  # calls
TURNS_OF_CALL = 8.0  # in the mean
LATER_MS = 200.0
NO_MARGINS = dict.fromkeys(MARGINS, 0.0)
BASELINE, CANARY = "v1", "v2"


@dataclass(frozen=True, slots=True)
class Behaviour:
    """How one version answers: gaps in milliseconds, the rest as shares of turns or of calls."""

    gap_ms: float = 290.0
    late: float = 0.02  # of turns, by a second in the mean
    cut_ins: float = 0.02
    failures: float = 0.004
    tool_calls: float = 0.3  # of turns
    wrong_tool_calls: float = 0.03
    tokens: float = 24.0


PLAIN = Behaviour()
WORSE: Mapping[str, Behaviour] = {
    "200 ms later": replace(PLAIN, gap_ms=PLAIN.gap_ms + LATER_MS),
    "a tenth of turns fail": replace(PLAIN, failures=0.1),
    "15 % of callers cut in on": replace(PLAIN, cut_ins=0.15),
    "a third of its calls are wrong": replace(PLAIN, wrong_tool_calls=0.33),
    "answers half as long": replace(PLAIN, tokens=PLAIN.tokens / 2),
}


@dataclass(slots=True)
class SimulatedCall:
    """One caller. gap_ms, verbosity: how this call differs from others."""

    id: str
    version: str
    n_left: int
    gap_ms: float
    verbosity: float
    impatience: float


@dataclass(slots=True)
class SimulatedTrial:
    """Calls of both versions, until the canary is given up or has had so many turns."""

    settings: CanarySettings
    canary: Behaviour
    seed: int
    margins: Mapping[Measure, float] = field(default_factory=lambda: MARGINS)
    n_turns: int = field(init=False, default=0)  # of the canary

    def run(self, most_turns: int) -> bool:
        """Whether it was given up."""
        draw = random.Random(self.seed)
        trial = Trial(replace(self.settings, version=CANARY), margins=self.margins)
        calls = [self._new_call(draw, trial, number) for number in range(AT_ONCE)]
        n_begun = AT_ONCE
        while self.n_turns < most_turns:
            place = draw.randrange(AT_ONCE)
            call = calls[place]
            self._turn(draw, trial, call)
            if trial.worse is not None:
                return True
            if not call.n_left:
                calls[place] = self._new_call(draw, trial, n_begun)
                n_begun += 1
        return False

    def _new_call(self, draw: random.Random, trial: Trial, number: int) -> SimulatedCall:
        version = CANARY if draw.random() < self.settings.share else BASELINE
        call = SimulatedCall(
            f"call {number}",
            version,
            1 + int(draw.expovariate(1.0 / (TURNS_OF_CALL - 1.0))),
            draw.gauss(0.0, 60.0),
            draw.lognormvariate(0.0, 0.3),
            draw.lognormvariate(0.0, 0.7),
        )
        trial.assign(call.id, version)
        return call

    def _turn(self, draw: random.Random, trial: Trial, call: SimulatedCall) -> None:
        is_canary = call.version == CANARY
        how = self.canary if is_canary else PLAIN
        self.n_turns += is_canary
        call.n_left -= 1
        gap_ms = max(60.0, how.gap_ms + call.gap_ms + draw.gauss(0.0, 80.0))
        if draw.random() < how.late:
            gap_ms += draw.expovariate(1.0 / 1000.0)
        has_failed = draw.random() < how.failures
        calls_tool = draw.random() < how.tool_calls
        trial.observe_turn(
            call.id,
            TurnFigures(
                gap_ms=None if has_failed else gap_ms,
                has_failed=has_failed,
                n_tokens=max(1, round(how.tokens * call.verbosity * draw.lognormvariate(0.0, 0.5))),
                n_tool_calls=int(calls_tool),
                n_wrong_tool_calls=int(calls_tool and draw.random() < how.wrong_tool_calls),
            ),
        )
        if draw.random() < min(0.9, how.cut_ins * call.impatience):
            trial.observe_cut(call.id)


def n_given_up(
    settings: CanarySettings,
    trials: int,
    most_turns: int,
    seed: int,
    margins: Mapping[Measure, float] = MARGINS,
) -> int:
    """Of so many trials of a canary that is no different."""
    return sum(
        SimulatedTrial(settings, PLAIN, seed + number, margins).run(most_turns)
        for number in range(trials)
    )


def turns_until(settings: CanarySettings, canary: Behaviour, trials: int, seed: int) -> list[int]:
    """Turns of the canary until it is given up; of one that is not, those it was looked at for."""
    found = []
    for number in range(trials):
        trial = SimulatedTrial(settings, canary, seed + number)
        trial.run(2000)
        found.append(trial.n_turns)
    return found


def main() -> int:
    command = Benchmark("canary_trials", __doc__ or "", seed="the calls")
    command.count("--trials", 200, "of each canary")
    command.count("--turns", 1000, "of a canary that is no different")
    chosen = command.parse()
    logging.getLogger("voiceloop").setLevel(logging.CRITICAL)  # each trial tells of its end
    bars = []
    told = CanarySettings(share=SHARE)
    for name, margins in (("its margins", MARGINS), ("no margins", NO_MARGINS)):
        n_false = n_given_up(told, chosen.trials, chosen.turns, chosen.seed, margins)
        title = f"no different, {name}: given up in {chosen.turns} turns"
        share = 100.0 * n_false / chosen.trials
        bars.append(Bar(title, share, 100.0 * MOST_FALSE, "%", n=chosen.trials))
    rows = {}
    for name, canary in WORSE.items():
        found = sorted(turns_until(told, canary, chosen.trials, chosen.seed))
        p95 = float(found[int(0.95 * (len(found) - 1))])
        rows[name] = {"p50": statistics.median(found), "p95": p95}
        print(f"{name:<32} given up after {rows[name]['p50']:.0f} turns (p50), {p95:.0f} (p95)")
    p95 = rows["200 ms later"]["p95"]
    bars.append(Bar("200 ms later: turns, p95", p95, MOST_TURNS, "", n=chosen.trials))
    return command.finish({"trials": chosen.trials, "turns": chosen.turns}, bars, until=rows)


if __name__ == "__main__":
    sys.exit(run(main))

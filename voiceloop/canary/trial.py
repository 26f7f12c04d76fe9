"""The trial of a canary as one server sees it: which calls have it, and how their turns went."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum

import msgspec

from voiceloop.canary.judge import MARGINS, Comparison, Worse, compare, judge
from voiceloop.canary.turns import Measure, Sums, TurnFigures, Turns, Variant
from voiceloop.operation import NO_CANARY, PROMISED, CanarySettings, Slo

log = logging.getLogger(__name__)

# A later answer is late, by how much ever: one such must not hide what the others are.
TIMES_PROMISED = 1.25
MOST_CALLS = 10_000  # whose sums so far are remembered; the oldest begins anew


class TrialState(Enum):
    """How far the trial of a canary has come."""

    NONE = "none"  # nothing is tried
    TRYING = "trying"
    GIVEN_UP = "given up"  # it was worse: no new call goes to it


class Canary(msgspec.Struct, frozen=True):
    """Versions of workers that are tried. serial: of the trial, higher than that of any before."""

    serial: int
    versions: tuple[str, ...]


class TrialReport(msgspec.Struct, frozen=True):
    """The counts of one server in a trial."""

    serial: int
    turns: dict[Variant, dict[Measure, Sums]]


class TrialStatus(msgspec.Struct, frozen=True):
    """A trial, for a person to read. given_up: what for; "": it is not."""

    state: TrialState
    versions: tuple[str, ...]
    measures: tuple[Comparison, ...]
    given_up: str = ""


def status_of(
    state: TrialState, versions: Iterable[str], turns: Turns, given_up: str
) -> TrialStatus:
    return TrialStatus(state, tuple(sorted(versions)), compare(turns), given_up)


@dataclass(slots=True)
class _Call:
    """One call of a trial, with its sums so far."""

    variant: Variant
    so_far: dict[Measure, tuple[float, float]] = field(default_factory=dict)


class Trial:
    """The trial of one server: `begin`, then what calls were given and what became of their turns.

    settings: its own canary, which it judges itself; else who names one by `begin` judges.
    promised: of whose `gap_ms` answers may be so much later before they count as no later still.
    margins: by how much each measure may be worse.
    """

    def __init__(
        self,
        settings: CanarySettings = NO_CANARY,
        promised: Slo = PROMISED,
        margins: Mapping[Measure, float] = MARGINS,
    ) -> None:
        self.settings = settings
        self._margins = margins
        self._most_gap_ms = TIMES_PROMISED * promised.gap_ms
        self.worse: Worse | None = None  # why it was given up
        own = Canary(0, (settings.version,)) if settings.version else None
        self._own = self._canary = own
        self._calls: OrderedDict[str, _Call] = OrderedDict()
        self._turns: dict[Variant, dict[Measure, Sums]] = {}

    @property
    def state(self) -> TrialState:
        if self._canary is None:
            return TrialState.NONE
        return TrialState.TRYING if self.worse is None else TrialState.GIVEN_UP

    @property
    def versions(self) -> Collection[str]:
        """Return the versions of workers that are tried."""
        return self._canary.versions if self._canary is not None else ()

    @property
    def own_share(self) -> float | None:
        """Return the share of new calls for the canary of this server's own settings; None where it
        has none.
        """
        if self._own is None or self._canary is not self._own:
            return None
        return 0.0 if self.worse is not None else self.settings.share

    def begin(self, named: Canary | None) -> None:
        """Begin the trial of this one; None: none but that of the settings."""
        canary = named if named is not None else self._own
        if canary != self._canary:
            self._canary, self.worse = canary, None
            self._calls.clear()
            self._turns.clear()

    # --- counted ---

    def assign(self, call_id: str, version: str) -> None:
        """A worker of this version has a stream of the call.

        A call that had the canary once counts as its own to the end, wherever it goes from there:
        what drove it away is to be seen.
        """
        if self._canary is None:
            return
        is_canary = version in self._canary.versions
        call = self._calls.get(call_id)
        if call is None:
            variant = Variant.CANARY if is_canary else Variant.BASELINE
            self._calls[call_id] = _Call(variant)
            while len(self._calls) > MOST_CALLS:
                self._calls.popitem(last=False)
        elif is_canary and call.variant is Variant.BASELINE:
            self._calls[call_id] = _Call(Variant.CANARY)

    def observe_turn(self, call_id: str, figures: TurnFigures) -> None:
        if (call := self._calls.get(call_id)) is None:
            return
        self._calls.move_to_end(call_id)
        for measure, n, total in figures.values(self._most_gap_ms):
            self._add(call, measure, n, total)
        self._judge()

    def observe_cut(self, call_id: str) -> None:
        """The agent began before this caller had ended."""
        if (call := self._calls.get(call_id)) is not None:
            self._add(call, Measure.CUT_INS, 0, 1.0)

    def _add(self, call: _Call, measure: Measure, n: float, total: float) -> None:
        sums = self._turns.setdefault(call.variant, {}).setdefault(measure, Sums())
        n_before, total_before = call.so_far.get(measure, (0.0, 0.0))
        sums.add((n_before, total_before), n, total, total * total)
        call.so_far[measure] = n_before + n, total_before + total

    # --- judged ---

    def _judge(self) -> None:
        if not self.own_share:
            return
        self.worse = judge(self._turns, self._margins)
        if self.worse is not None:
            told = "the canary %s is given up, and takes no new call: %s"
            log.error(told, self.settings.version, self.worse)

    # --- told ---

    def report(self) -> TrialReport | None:
        """Return what was counted so far; None while nothing is tried."""
        if self._canary is None:
            return None
        return TrialReport(self._canary.serial, self._turns)

    def status(self) -> TrialStatus:
        given_up = str(self.worse) if self.worse is not None else ""
        return status_of(self.state, self.versions, self._turns, given_up)

"""A file of scenarios: what callers say, what the agent must do, how long it may take.

Owns the strict reading of that file. A scenario is a list of turns; a turn with ``when`` is said
only where the agent's last answer holds one of its phrases, so one scenario follows an agent that
asks in one order or another.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clients.errors import ScenarioError

MAX_SCENARIOS, MAX_TURNS = 200, 200
MAX_SCENARIO_BYTES = 1024 * 1024
MAX_BUDGET_MS = 600_000.0
ANY = "*"  # as an argument's value: whatever it is

SCENARIO_KEYS = {
    "name", "lines", "turns", "contains", "lacks", "calls", "ends", "most_turns", "judge",
}  # fmt: skip
TURN_KEYS = {"say", "when", "contains", "lacks", "calls"}


@dataclass(frozen=True, slots=True)
class ExpectedCall:
    """A tool that must be called; of its arguments those that are named must have these values."""

    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Expectation:
    """The rule for one answer, or for all: it has each of ``contains`` and none of ``lacks``.

    Alternatives are parted by "|". ``calls``: tools that must be called, each at least once.
    """

    contains: tuple[str, ...] = ()
    lacks: tuple[str, ...] = ()
    calls: tuple[ExpectedCall, ...] = ()


@dataclass(frozen=True, slots=True)
class ScenarioTurn:
    """One turn of the caller, and its condition: phrases of the agent's last answer; none: in any
    case.
    """

    say: str
    when: tuple[str, ...] = ()
    expected: Expectation = Expectation()


@dataclass(frozen=True, slots=True)
class Scenario:
    """``expected``: of the whole call. ``ends``: phrases of which the last answer holds one.

    ``judge``: what a model is asked of the transcript; a yes passes.
    """

    name: str
    turns: tuple[ScenarioTurn, ...]
    expected: Expectation = Expectation()
    ends: tuple[str, ...] = ()
    most_turns: int | None = None
    judge: str = ""


@dataclass(frozen=True, slots=True)
class Budgets:
    """The 95th percentile of each surface, in ms; None: not judged.

    chat: from a typed turn to the first token; voice: from the caller's last sound to the agent's
    first; tool: the same of a turn in which the agent called a tool, typed or spoken.
    """

    chat_ms: float | None = None
    voice_ms: float | None = None
    tool_ms: float | None = None


@dataclass(frozen=True, slots=True)
class ScenarioFile:
    """``results``: by tool, what the caller's side answers where the agent leaves that to it."""

    scenarios: tuple[Scenario, ...]
    budgets: Budgets
    results: Mapping[str, Any]


def load_scenarios(path: Path) -> ScenarioFile:
    """Raises: ScenarioError: the file is absent, no TOML, or says what no scenario can."""
    data = _read(path)
    _known(data, {"budgets", "results", "scenarios"}, str(path))
    entries = data.get("scenarios", [])
    if not isinstance(entries, list) or not 0 < len(entries) <= MAX_SCENARIOS:
        found = len(entries) if isinstance(entries, list) else repr(entries)[:40]
        raise ScenarioError(f"{path}: expected 1 to {MAX_SCENARIOS} [[scenarios]], found {found}")
    scenarios = tuple(_scenario(one, f"scenarios[{n}]", path) for n, one in enumerate(entries))
    names = [one.name for one in scenarios]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ScenarioError(f"{path}: expected each name once, found {twice!r} twice")
    return ScenarioFile(scenarios, _budgets(data, path), _table(data, "results", str(path)))


def _read(path: Path) -> dict[str, Any]:
    try:
        if path.stat().st_size > MAX_SCENARIO_BYTES:
            raise ScenarioError(f"expected scenarios at {path}, found over a megabyte")
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ScenarioError(f"expected a file of scenarios at {path}, found none") from error
    except (ValueError, RecursionError) as error:  # no TOML, no UTF-8
        raise ScenarioError(f"expected TOML in {path}, found a mistake: {error}") from error


def _scenario(entry: Any, where: str, path: Path) -> Scenario:
    where = f"{path}: {where}"
    if not isinstance(entry, dict):
        raise ScenarioError(f"{where}: expected a table, found {entry!r:.40}")
    _known(entry, SCENARIO_KEYS, where)
    name, judge = _text(entry, "name", where), _text(entry, "judge", where, default="")
    if ("lines" in entry) == ("turns" in entry):
        found = "both" if "lines" in entry else "neither"
        raise ScenarioError(f"{where}: expected lines or turns, found {found}")
    if "lines" in entry:
        turns = tuple(ScenarioTurn(line) for line in _texts(entry, "lines", where))
    else:
        listed = entry["turns"]
        if not isinstance(listed, list):
            raise ScenarioError(f"{where}.turns: expected a list, found {listed!r:.40}")
        turns = tuple(_turn(one, f"{where}.turns[{n}]") for n, one in enumerate(listed))
    if not 0 < len(turns) <= MAX_TURNS:
        raise ScenarioError(f"{where}: expected 1 to {MAX_TURNS} turns, found {len(turns)}")
    most = entry.get("most_turns")
    if most is not None and (isinstance(most, bool) or not isinstance(most, int) or most < 1):
        raise ScenarioError(f"{where}.most_turns: expected a whole number from 1, found {most!r}")
    ends = _texts(entry, "ends", where)
    return Scenario(name, turns, _expectation(entry, where), ends, most, judge)


def _turn(entry: Any, where: str) -> ScenarioTurn:
    if not isinstance(entry, dict):
        raise ScenarioError(f"{where}: expected a table, found {entry!r:.40}")
    _known(entry, TURN_KEYS, where)
    when = _texts(entry, "when", where)
    return ScenarioTurn(_text(entry, "say", where), when, _expectation(entry, where))


def _expectation(entry: Mapping[str, Any], where: str) -> Expectation:
    calls = entry.get("calls", [])
    if not isinstance(calls, list):
        raise ScenarioError(f"{where}.calls: expected a list, found {calls!r:.40}")
    found = []
    for number, call in enumerate(calls):
        place = f"{where}.calls[{number}]"
        if not isinstance(call, dict):
            raise ScenarioError(f"{place}: expected a table, found {call!r:.40}")
        _known(call, {"name", "arguments"}, place)
        found.append(ExpectedCall(_text(call, "name", place), _table(call, "arguments", place)))
    contains, lacks = _texts(entry, "contains", where), _texts(entry, "lacks", where)
    return Expectation(contains, lacks, tuple(found))


def _budgets(data: Mapping[str, Any], path: Path) -> Budgets:
    table = _table(data, "budgets", str(path))
    _known(table, set(Budgets.__slots__), f"{path}: budgets")
    for key, value in table.items():
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not 0 < value <= MAX_BUDGET_MS:
            wanted = f"a number of ms up to {MAX_BUDGET_MS:.0f}"
            raise ScenarioError(f"{path}: budgets.{key}: expected {wanted}, found {value!r}")
    return Budgets(**{key: float(value) for key, value in table.items()})


def _known(entry: Mapping[str, Any], keys: set[str], where: str) -> None:
    unknown = next((key for key in entry if key not in keys), None)
    if unknown is not None:
        listed = ", ".join(sorted(keys))
        raise ScenarioError(f"{where}: expected one of {listed}, found {unknown!r}")


def _text(entry: Mapping[str, Any], key: str, where: str, default: str | None = None) -> str:
    value = entry.get(key, default)
    if not isinstance(value, str) or (default is None and not value.strip()):
        raise ScenarioError(f"{where}.{key}: expected a text, found {value!r:.40}")
    return value


def _texts(entry: Mapping[str, Any], key: str, where: str) -> tuple[str, ...]:
    value = entry.get(key, [])
    if not isinstance(value, list) or not all(isinstance(one, str) and one for one in value):
        raise ScenarioError(f"{where}.{key}: expected a list of texts, found {value!r:.40}")
    return tuple(value)


def _table(entry: Mapping[str, Any], key: str, where: str) -> Mapping[str, Any]:
    value = entry.get(key, {})
    if not isinstance(value, dict):
        raise ScenarioError(f"{where}.{key}: expected a table, found {value!r:.40}")
    return value

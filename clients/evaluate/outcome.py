"""The record of one scenario, judged by its rules.

Owns the record of a played scenario and the rules that judge it. Phrases are looked for as whole
words, in any case; alternatives are parted by "|".
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from clients.evaluate.scenario import ANY, ExpectedCall, Scenario, ScenarioTurn


class Surface(Enum):
    """A kind of wait that a latency budget bounds."""

    CHAT = "chat"
    VOICE = "voice"
    TOOL = "tool"


@dataclass(frozen=True, slots=True)
class Called:
    """The agent called a tool."""

    name: str
    arguments: Mapping[str, Any]


@dataclass(slots=True)
class PlayedTurn:
    """One turn that was said. heard: what the agent's recognizer made of it, where it was spoken.

    wait_ms: to the first token, or the first sound; None where no answer came, or it was cut.
    is_cut: the agent was heard before the caller had ended.
    """

    turn: ScenarioTurn
    answer: str = ""
    heard: str | None = None
    calls: list[Called] = field(default_factory=list)
    wait_ms: float | None = None
    is_cut: bool = False

    @property
    def surface(self) -> Surface:
        if self.calls:
            return Surface.TOOL
        return Surface.CHAT if self.heard is None else Surface.VOICE


@dataclass(slots=True)
class Played:
    """One scenario as it was played. broken: why the call did not come to its end, if it did not.

    verdict: what the judging model said, None where none was asked. part: of a server's two models,
    that was to answer; None: as the server has it.
    """

    scenario: Scenario
    turns: list[PlayedTurn] = field(default_factory=list)
    broken: str = ""
    verdict: str | None = None
    part: str | None = None

    def transcript(self) -> str:
        lines = []
        for one in self.turns:
            lines.append(f"Caller: {one.turn.say}")
            lines += [f"(the agent calls {call.name} {dict(call.arguments)})" for call in one.calls]
            lines.append(f"Agent: {one.answer}")
        return "\n".join(lines)


def failures(played: Played) -> list[str]:
    """Return what was expected and was not so, one sentence each; empty where the scenario
    passes.
    """
    found = [f"the call broke off: {played.broken}"] if played.broken else []
    for number, one in enumerate(played.turns, 1):
        where, expected = f"turn {number} ({one.turn.say[:40]!r})", one.turn.expected
        if one.is_cut:
            found.append(f"{where}: expected an agent that hears it out, found one that cut in")
        if not one.answer:
            found.append(f"{where}: expected an answer, found none")
        found += _words(where, one.answer, expected.contains, expected.lacks)
        found += _calls(where, one.calls, expected.calls)
    if not played.turns and not played.broken:
        found.append("the call: expected a turn that is said, found none")
    scenario = played.scenario
    whole = "\n".join(one.answer for one in played.turns)
    found += _words("the call", whole, scenario.expected.contains, scenario.expected.lacks)
    every = [call for one in played.turns for call in one.calls]
    found += _calls("the call", every, scenario.expected.calls)
    last = played.turns[-1].answer if played.turns else ""
    if scenario.ends and not any(holds(last, phrase) for phrase in scenario.ends):
        wanted = " or ".join(map(repr, scenario.ends))
        found.append(f"the call: expected an end with {wanted}, found {last[:60]!r}")
    if scenario.most_turns is not None and len(played.turns) > scenario.most_turns:
        n_turns = len(played.turns)
        found.append(f"the call: expected at most {scenario.most_turns} turns, found {n_turns}")
    if played.verdict is not None and not is_yes(played.verdict):
        found.append(f"the judge: {played.verdict[:200]}")
    return found


def holds(text: str, phrase: str) -> bool:
    """Whether the text holds one of the alternatives, as whole words."""
    seen = _plain(text)
    return any(
        re.search(rf"(?<!\w){re.escape(_plain(one))}(?!\w)", seen) is not None
        for one in phrase.split("|")
        if one.strip()
    )


def is_yes(verdict: str) -> bool:
    return re.match(r"\W*yes\b", verdict, re.IGNORECASE) is not None


def _plain(text: str) -> str:
    return " ".join(text.lower().replace("\u2019", "'").split())


def _words(where: str, answer: str, contains: Iterable[str], lacks: Iterable[str]) -> Iterable[str]:
    for phrase in contains:
        if not holds(answer, phrase):
            yield f"{where}: expected {phrase!r}, found {answer[:80]!r}"
    for phrase in lacks:
        if holds(answer, phrase):
            yield f"{where}: expected nothing of {phrase!r}, found {answer[:80]!r}"


def _calls(where: str, called: Sequence[Called], wanted: Iterable[ExpectedCall]) -> Iterable[str]:
    for call in wanted:
        if not any(_fits(one, call) for one in called):
            shown = ", ".join(f"{one.name} {dict(one.arguments)}" for one in called) or "none"
            with_ = f" with {dict(call.arguments)}" if call.arguments else ""
            yield f"{where}: expected a call of {call.name}{with_}, found {shown[:120]}"


def _fits(called: Called, wanted: ExpectedCall) -> bool:
    """As texts in any case: a model writes "Friday" or "friday", 2 or "2"."""
    if called.name != wanted.name:
        return False
    return all(
        name in called.arguments
        and (value == ANY or _plain(str(called.arguments[name])) == _plain(str(value)))
        for name, value in wanted.arguments.items()
    )

"""A check: a named rule, a function that tries it on one server, and its outcome.

Owns the list of all checks, and the two ways a check ends early (`Failed`, `Skipped`). A check's
first docstring line is the rule in one sentence; it is what the table prints.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from clients.recording import Samples

Json = dict[str, Any]
Outcome = Literal["pass", "fail", "skip"]


class Failed(Exception):
    """The server broke the rule; one sentence with what was expected and what was found."""


class Skipped(Exception):
    """The rule cannot be tried on this server; one sentence says why."""


@dataclass(frozen=True, slots=True)
class Target:
    """The server under test and how patient the checks are with it.

    ``speech``: a caller's utterance, int16 mono at 24 kHz. ``quiet_s``: how long nothing must come
    where nothing may come. ``idle_timeout_ms``: of the check that waits for one; the hosted
    service takes no less than 5000.
    """

    url: str
    speech: Samples
    key: str | None = None
    model: str = "gpt-realtime"
    timeout_s: float = 15.0
    quiet_s: float = 0.5
    idle_timeout_ms: int = 5000


Try = Callable[[Target], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Check:
    """``topic`` groups the table; ``rule`` is what holds on a server that passes."""

    name: str
    topic: str
    rule: str
    attempt: Try


@dataclass(frozen=True, slots=True)
class Result:
    check: Check
    outcome: Outcome
    sentence: str
    seconds: float


class Checks:
    """The checks of one topic, in the order they are written."""

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.all: list[Check] = []

    def __call__(self, name: str) -> Callable[[Try], Try]:
        """Decorate ``async def rule(target)``; its docstring is the rule."""

        def add(attempt: Try) -> Try:
            rule = " ".join((attempt.__doc__ or "").split())
            self.all.append(Check(name, self.topic, rule, attempt))
            return attempt

        return add


def expect(holds: bool, wanted: str, found: object) -> None:
    """Raises Failed("expected WANTED, found FOUND") unless it holds."""
    if not holds:
        raise Failed(f"expected {wanted}, found {shown(found)}")


def expect_equal(what: str, wanted: object, found: object) -> None:
    """Raises: Failed."""
    expect(found == wanted, f"{what} to be {shown(wanted)}", found)


def expect_order(found: Sequence[str], wanted: Sequence[str]) -> None:
    """These events, in this order, and none of them elsewhere. Others may stand between them.

    Raises: Failed.
    """
    relevant = [kind for kind in found if kind in set(wanted)]
    collapsed = [k for i, k in enumerate(relevant) if i == 0 or relevant[i - 1] != k]
    if collapsed != list(wanted):
        at = next(
            (i for i, (a, b) in enumerate(zip(collapsed, wanted, strict=False)) if a != b),
            min(len(collapsed), len(wanted)),
        )
        what = wanted[at] if at < len(wanted) else "nothing more"
        seen = collapsed[at] if at < len(collapsed) else "none"
        raise Failed(f"expected {what} as event {at + 1} of {len(wanted)}, found {seen}")


def of(value: Any, path: str) -> Any:
    """The value at a dotted path of an event, ``session.audio.input`` or ``output.0.id``.

    Raises: Failed: there is no such field.
    """
    here = value
    for step in path.split("."):
        if isinstance(here, dict) and step in here:
            here = here[step]
        elif isinstance(here, list) and step.isdigit() and int(step) < len(here):
            here = here[int(step)]
        else:
            kind = value.get("type", "the event") if isinstance(value, dict) else "the value"
            raise Failed(f"expected {path} in {kind}, found no {step!r}")
    return here


def shown(value: object) -> str:
    """A value in a sentence: short."""
    text = "nothing" if value is None else value if isinstance(value, str) else repr(value)
    return text if len(text) <= 160 else text[:157] + "..."

"""A model that works step by step, until it has nothing left to do."""

from __future__ import annotations

from typing import Any, Protocol


class Stepping(Protocol):
    """An engine, a recognizer, a voice, or a worker's role of one."""

    def has_work(self) -> bool: ...

    def step(self) -> list[Any]: ...


def drain(model: Stepping) -> list[Any]:
    """All events of the steps that are left."""
    events: list[Any] = []
    while model.has_work():
        events += model.step()
    return events

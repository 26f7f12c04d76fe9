"""What is to be done about a cluster's processes, as its directory says. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from voiceloop.cluster.control.plan import Group


@dataclass(frozen=True, slots=True)
class Start:
    """Place one process of this group, on none of the machines to avoid.

    machine: where, as long as it is there and has room; anywhere where none is named. relieves: the
    machine that another one leaves for it. yields: there are enough without it, and while it loads
    those that serve beside it come first.
    """

    name: str
    group: Group
    avoid: tuple[str, ...]
    machine: str = ""
    relieves: str = ""
    yields: bool = False

    def __str__(self) -> str:
        told = f" on {self.machine}, for one that leaves {self.relieves}" if self.relieves else ""
        return f"{self.name}{told}"


@dataclass(frozen=True, slots=True)
class Remove:
    """End what is left of this host."""

    name: str


@dataclass(frozen=True, slots=True)
class GiveUpCanary:
    """It was worse, and is drained by now; nothing is to be done but to say so."""

    why: str


@dataclass(frozen=True, slots=True)
class GiveUpMove:
    """This process did not come to its new place, or not get ready there, and is drained by now."""

    name: str


Action = Start | Remove | GiveUpCanary | GiveUpMove

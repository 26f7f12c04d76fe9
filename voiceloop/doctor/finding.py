"""The finding of one check of the doctor, and its remedy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "note", "problem"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing looked at. ``remedy`` is what a person can do; empty when all is well."""

    level: Level
    subject: str
    found: str
    remedy: str = ""

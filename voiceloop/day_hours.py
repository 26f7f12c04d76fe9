"""Hours of the day, as ``21:00-08:00``: how a key is written that names them, and what lies within.

Pure: the time of day is passed in.
"""

from __future__ import annotations

from datetime import time

_TIME = r"([01]\d|2[0-3]):[0-5]\d"
PATTERN = f"|{_TIME}-{_TIME}"
WANTED = "two times, as 21:00-08:00"


def lies_within(hours: str, now: time) -> bool:
    """Whether this time lies in these hours, which may go past midnight; "": in none."""
    if not hours:
        return False
    begins, ends = (time.fromisoformat(text) for text in hours.split("-"))
    return begins <= now < ends if begins <= ends else now >= begins or now < ends

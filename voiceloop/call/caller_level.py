"""How loud this caller speaks, which tells a bystander and an echo from the caller.

Owns the levels of the caller's latest turns, and what a softer sound is worth as evidence. Pure;
dB, of the loud parts of a sound.
"""

from __future__ import annotations

import math
from collections import deque
from statistics import median

# A shorter turn ("yes") is often softer than the same person's sentences: of people on the
# telephone 8 % of the shorter ones lie 8 dB below their median, and 2 % of the others (LOG.md,
# 2026-11-24, "a caller by the level").
LEAST_TURN_MS = 900.0
LEAST_TURNS = 2
# Around the median of their earlier turns people's turns of that length lie by 2.2 dB (551 turns of
# 92 people, LOG.md as above), and here by a little more; two in a hundred are taken to lie
# anywhere, as after a step aside.
SPREAD_DB, OUTLIERS = 2.3, 0.02
# Somebody else, or the loudspeaker, is heard at any level below the caller's. Chosen: from the next
# chair to the next room.
ELSEWHERE_RANGE_DB = 23.0
KEPT_TURNS = 4
# A sound that was kept out for its level alone and comes again so soon may be a caller who has
# turned away: it is judged without. Chosen: who was not heard says it again within seconds.
SECOND_TRY_MS = 4000.0


class CallerLevel:
    """`take` the turns; `log_odds` of a sound that may be somebody else's."""

    def __init__(self) -> None:
        self._levels: deque[float] = deque(maxlen=KEPT_TURNS)
        self._kept_out_ms = -SECOND_TRY_MS

    def take(self, level_db: float | None, speech_ms: float) -> None:
        """A turn of the caller's, and how long it lasted."""
        if level_db is not None and speech_ms >= LEAST_TURN_MS:
            self._levels.append(level_db)

    def keep_out(self, end_ms: float) -> None:
        """Words were not heeded because they were soft, and nothing else spoke against them."""
        self._kept_out_ms = end_ms

    def is_second_try(self, onset_ms: float) -> bool:
        """Whether a sound that begins there comes soon after one that was kept out."""
        return 0.0 <= onset_ms - self._kept_out_ms < SECOND_TRY_MS

    def log_odds(self, level_db: float | None, onset_ms: float) -> float:
        """What a sound's level says of whether it is the caller's, and never for it: natural
        logarithm, 0 or less. 0 where the caller's level is not known yet, or the sound is the
        second try of one that was kept out. onset_ms: where it begins.
        """
        is_known = len(self._levels) >= LEAST_TURNS
        if level_db is None or not is_known or self.is_second_try(onset_ms):
            return 0.0
        # Who takes the telephone over, or another microphone, has said two turns as soft as this.
        known_db = min(median(self._levels), max(list(self._levels)[-LEAST_TURNS:]))
        return log_odds_of(known_db - level_db)


def log_odds_of(below_db: float) -> float:
    """Of a sound that is so much softer than the caller."""
    elsewhere = 1.0 / ELSEWHERE_RANGE_DB
    normal = math.exp(-0.5 * (below_db / SPREAD_DB) ** 2) / (SPREAD_DB * math.sqrt(2.0 * math.pi))
    callers = (1.0 - OUTLIERS) * normal + OUTLIERS * elsewhere
    return min(0.0, math.log(callers / elsewhere)) if below_db > 0.0 else 0.0

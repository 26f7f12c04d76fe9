"""A caller's loudspeaker, modelled: what the jitter buffer of a client would have played.

Received audio is laid on the monotonic clock: playing starts 40 ms after the first piece arrives,
goes on without a break while pieces arrive in time, and starts again with the same buffer after
it ran dry. ``flush`` cuts at a moment, as a client does on ``speech_started``, and says how much
of the item was heard, which is what ``conversation.item.truncate`` wants to know.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from clients.recording import Samples
from clients.report.waveform import first_audible, last_audible

BUFFER_MS = 40.0


@dataclass(slots=True)
class Piece:
    """Audio of one item on the clock: it plays from ``starts_at`` (monotonic seconds)."""

    item_id: str
    samples: Samples
    starts_at: float

    def ends_at(self, rate_hz: int) -> float:
        return self.starts_at + len(self.samples) / rate_hz


@dataclass(frozen=True, slots=True)
class Interrupted:
    """The part of an item that a flush cut off, and how much of it was heard."""

    item_id: str
    played_ms: float


class Playout:
    """One loudspeaker. Samples are mono int16 at ``rate_hz``; times are monotonic seconds."""

    def __init__(self, rate_hz: int, buffer_ms: float = BUFFER_MS) -> None:
        self.rate_hz = rate_hz
        self.buffer_s = buffer_ms / 1000.0
        self.dry_at: list[float] = []  # when it ran dry in the middle of an item
        self._pieces: list[Piece] = []

    def push(self, item_id: str, samples: Samples, arrived_at: float) -> None:
        """Queue audio that arrived at ``arrived_at``, after what is queued already."""
        if len(samples) == 0:
            return
        starts_at = arrived_at + self.buffer_s
        if self._pieces:
            previous_end = self._pieces[-1].ends_at(self.rate_hz)
            if arrived_at <= previous_end:
                starts_at = previous_end
            elif self._pieces[-1].item_id == item_id:
                self.dry_at.append(previous_end)
        self._pieces.append(Piece(item_id, samples, starts_at))

    def flush(self, at: float) -> Interrupted | None:
        """Stop playing at ``at`` and drop what is queued; None if nothing was playing."""
        playing = [p for p in self._pieces if p.ends_at(self.rate_hz) > at]
        if not playing:
            return None
        item_id = playing[0].item_id
        for piece in playing:
            n_played = max(0, round((at - piece.starts_at) * self.rate_hz))
            piece.samples = piece.samples[:n_played]
        self._pieces = [p for p in self._pieces if len(p.samples)]
        n_heard = sum(len(p.samples) for p in self._pieces if p.item_id == item_id)
        return Interrupted(item_id, 1000.0 * n_heard / self.rate_hz)

    @property
    def idle_at(self) -> float:
        """Return when the last queued sample will have been played; 0.0 where nothing ever was."""
        return self._pieces[-1].ends_at(self.rate_hz) if self._pieces else 0.0

    def first_audible_at(
        self, after: float = 0.0, item_ids: frozenset[str] | None = None
    ) -> float | None:
        """Return when the first sample above -45 dBFS plays at or after ``after``, of these
        items.
        """
        for piece in self._pieces:
            if item_ids is not None and piece.item_id not in item_ids:
                continue
            skip = max(0, round((after - piece.starts_at) * self.rate_hz))
            position = first_audible(piece.samples, skip)
            if position is not None:
                return piece.starts_at + position / self.rate_hz
        return None

    def last_audible_at(self, item_ids: frozenset[str] | None = None) -> float | None:
        """Return when the last sample above -45 dBFS plays, of these items."""
        for piece in reversed(self._pieces):
            if item_ids is not None and piece.item_id not in item_ids:
                continue
            position = last_audible(piece.samples)
            if position is not None:
                return piece.starts_at + (position + 1) / self.rate_hz
        return None

    def render(self, starts_at: float, n_samples: int) -> Samples:
        """Return what was heard from ``starts_at`` on: ``n_samples`` int16, silence where none
        played.
        """
        track = np.zeros(n_samples, dtype=np.int16)
        for piece in self._pieces:
            position = round((piece.starts_at - starts_at) * self.rate_hz)
            begin, end = max(0, position), min(n_samples, position + len(piece.samples))
            if begin < end:
                track[begin:end] = piece.samples[begin - position : end - position]
        return track

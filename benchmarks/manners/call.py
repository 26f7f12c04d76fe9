"""One trial over the wire: a question, and a sound over the long answer to it, or after a short.

Owns what is done to the agent's answer, judged by the caller's loudspeaker alone: an agent that
went on, or fell silent for a moment and then said the rest, ignored the sound; one that said much
less, or more than its answer, did not.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from time import monotonic
from typing import Any

import numpy as np
from scipy.signal import fftconvolve

from benchmarks.calls.human_turns import HumanTurn
from benchmarks.manners.sounds import ECHO_DB, Part, Trial
from benchmarks.peers.call import (
    INTERRUPT_AFTER_S,
    Heard,
    Line,
    MeasuredTurn,
    PeerCall,
    silent_after,
)
from clients.connection import RATE_HZ
from clients.playout import Playout
from clients.recording import Recording, Samples, to_int16

# Of the answer so much is heard where the sound was ignored: a voice that was paused may lose a
# word; an agent that answers a bystander says its answer and more.
LEAST_HEARD, MOST_HEARD = 0.75, 1.12
ROOM_MS = 200.0  # of the echo
SILENT_BEFORE_S, SILENT_AFTER_S = 1.5, 3.0  # of the agent, around a sound in its silence


class EchoLine:
    """A line whose microphone also hears the loudspeaker, while `delay_ms` is not None."""

    def __init__(self, line: Line) -> None:
        self._line = line
        self.told: list[dict[str, Any]] = line.told
        self.loudspeaker: Playout | None = None
        self.delay_ms: float | None = None
        rng = np.random.default_rng(5)
        n = int(ROOM_MS * RATE_HZ / 1000.0)
        tail = rng.standard_normal(n) * np.exp(-6.9 * np.arange(n) / n)
        tail[: RATE_HZ // 500] = 0.0
        self._room = tail / max(float(np.sqrt(np.sum(tail**2))), 1e-9) * 0.7
        self._room[0] = 1.0

    async def append_audio(self, samples: Samples) -> None:
        if self.delay_ms is not None and self.loudspeaker is not None:
            n_before = len(self._room) - 1
            n = n_before + len(samples)
            at = monotonic() - self.delay_ms / 1000.0 - n / RATE_HZ
            played = self.loudspeaker.render(at, n).astype(np.float64)
            echo = fftconvolve(played, self._room, "valid") * 10.0 ** (-ECHO_DB / 20.0)
            samples = to_int16(samples + echo)
        await self._line.append_audio(samples)

    def heard(self) -> AsyncIterator[Heard]:
        return self._line.heard()

    async def close(self) -> None:
        await self._line.close()


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one sound. heard_share: of the answer's length, and 1 more of what was said to a
    sound in silence; wire_ms: from the voice's onset
    to silence on the wire, where the agent fell silent for good; None: it never spoke.
    """

    part: Part
    name: str
    heard_share: float
    wire_ms: float | None

    @property
    def ignored(self) -> bool:
        return LEAST_HEARD <= self.heard_share <= MOST_HEARD

    @property
    def yielded(self) -> bool:
        return self.heard_share < LEAST_HEARD


class MannersCall(PeerCall):
    """A call of trials: `run_trials` in place of `run`. answer_ms: audible of the long answer."""

    def __init__(
        self,
        line: Line,
        tell: Callable[[int, str], Awaitable[None]],
        *,
        seed: int,
        answer_ms: float,
    ) -> None:
        self._answer_ms = answer_ms
        self._echo = EchoLine(line)
        super().__init__(self._echo, tell, seed=seed)
        self._echo.loudspeaker = self._playout

    async def run_trials(
        self, asked: list[tuple[int, HumanTurn, int | None, Trial]]
    ) -> tuple[list[MeasuredTurn], list[Outcome]]:
        """(the stubs' number of the question, the question, that of the sound, the sound)."""
        turns: list[MeasuredTurn] = []
        outcomes: list[Outcome] = []
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._listen()), group.create_task(self._uplink.run())]
            await self._greeted()
            for number, turn, of_sound, trial in asked:
                measured, outcome = await self._try(number, turn, of_sound, trial)
                turns.append(measured)
                outcomes += [outcome] if outcome is not None else []
            for task in tasks:
                task.cancel()
        await self._line.close()
        return turns, outcomes

    async def _try(
        self, number: int, turn: HumanTurn, of_sound: int | None, trial: Trial
    ) -> tuple[MeasuredTurn, Outcome | None]:
        await self._tell(number, "short" if trial.is_in_silence else "long")
        self._echo.delay_ms = trial.delay_ms or None
        onset_at, end_at = await self._say(turn)
        await self._until_answered(end_at)
        begins_at = monotonic()
        if trial.is_in_silence:
            await self._until_quiet()
        await asyncio.sleep(SILENT_BEFORE_S if trial.is_in_silence else INTERRUPT_AFTER_S)
        await self._tell(number if of_sound is None else of_sound, "short")
        sound_at = until = monotonic()
        if len(trial.samples):
            said = Recording(trial.samples, 16_000).at_rate(RATE_HZ).samples
            position = self._uplink.say(said)
            await self._until(lambda: not self._uplink.speaking, float("inf"))
            sound_at = self._uplink.sent_at(position + int(trial.onset_ms * RATE_HZ / 1000.0))
            await asyncio.sleep(SILENT_AFTER_S if trial.is_in_silence else 1.0)
        await self._until_quiet()
        self._echo.delay_ms = None
        measured = self._measured(turn, turn.kind, onset_at, end_at, until)
        since = sound_at if trial.is_in_silence else begins_at
        heard_ms = self._heard_ms(since, monotonic())
        if not measured.answered:
            return measured, None
        arrivals = [1000.0 * (at - sound_at) for at in self._audible if at >= sound_at]
        share = len(heard_ms) / self._answer_ms + trial.is_in_silence
        wire_ms = silent_after(arrivals) if share < LEAST_HEARD else None
        return measured, Outcome(trial.part, trial.name, share, wire_ms)

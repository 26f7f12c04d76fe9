"""One caller on an open line: a microphone that never stops, an ear, and what was heard so far.

Three tasks on one event loop: the line (20 ms frames, always), the ear (server events into the
record and the modelled loudspeaker) and whoever drives the call: a script (`simulated_call.py`),
or a person or a program, turn by turn (`clients/console/`). Like a stock client it flushes on
``speech_started`` and truncates the item to what was heard.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from clients.call.record import CallRecord, Spoken
from clients.call.result import CallResult, TurnResult, call_result
from clients.call.script import Utterance
from clients.connection import RATE_HZ, RealtimeConnection, Received
from clients.errors import ConnectionFailed
from clients.uplink import Uplink


@dataclass(frozen=True, slots=True)
class CallOptions:
    """How a call is played.

    ``answer_timeout_s``: how long the caller waits for a first sound; ``turn_timeout_s``: after how
    long the caller speaks over an agent that does not end. ``turn_detection``: what the
    session asks for in the protocol's words, None for the server's own default. ``agent_voice``:
    "" for the agent's own.
    """

    seed: int = 0
    noise_dbfs: float = -62.0
    greeting_wait_s: float = 2.0
    answer_timeout_s: float = 8.0
    turn_timeout_s: float = 15.0
    farewell_s: float = 0.5
    turn_detection: Mapping[str, Any] | None = None
    agent_voice: str = ""


class Observer(Protocol):
    """An object that is told of a call while it runs. Called on the event loop: must return at
    once.
    """

    def received(self, received: Received) -> None: ...

    def speaks(self, utterance: Utterance) -> None: ...

    def finished(self, turn: TurnResult) -> None: ...


class OpenCall:
    """An open connection as a call, which `hold` lets somebody drive once."""

    def __init__(
        self,
        connection: RealtimeConnection,
        *,
        voice: str = "",
        options: CallOptions | None = None,
        observer: Observer | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.options = options or CallOptions()
        self._connection = connection
        self._voice = voice
        self._observer = observer
        self._clock = clock
        self._changed = asyncio.Event()
        self._configured = False
        self._ended = False
        self._n_reported = 0
        self._n_over = 0  # turns that were answered, or waited for in vain
        self.record = CallRecord()
        self.uplink = Uplink(
            connection, seed=self.options.seed, noise_dbfs=self.options.noise_dbfs, clock=clock
        )
        self.record.sent_at = self.uplink.sent_times

    async def hold(self, drive: Callable[[], Awaitable[None]]) -> CallResult:
        """Hold the call until `drive` returns, and measure it.

        Raises:
            ConnectionFailed: the server hung up, or never opened the session.
        """
        try:
            async with asyncio.TaskGroup() as group:
                ear = group.create_task(self._listen())
                await self._open_session()
                line = group.create_task(self.uplink.run())
                await drive()
                line.cancel()
                self._ended = True
                await self._connection.close()
                await ear
        except* ConnectionFailed as failed:
            raise ConnectionFailed(str(failed.exceptions[0])) from failed
        return call_result(self.record, self._voice)

    def so_far(self) -> CallResult | None:
        """Return what there was of a call that was not brought to its end: the turns that were
        over.

        None where nothing had been said or heard. The agent's sound that had come and was not
        played yet is none of the recording.
        """
        if not self.record.sent_at:
            return None
        self.record.playout.flush(self._clock())
        return call_result(self.record, self._voice, self._n_over)

    # --- what a driver does ---

    async def greeted(self) -> None:
        """Return once the agent has greeted the caller, or has not begun to in time."""
        greeting_by = self._clock() + self.options.greeting_wait_s
        await self.until(lambda: bool(self.record.replies), greeting_by)
        await self.agent_finished()

    async def say(self, utterance: Utterance) -> None:
        """Return when all of it was sent."""
        position = self.uplink.say(utterance.recording.samples)
        self.record.spoken.append(Spoken(utterance, position))
        if self._observer is not None:
            self._observer.speaks(utterance)
        await self.until(lambda: not self.uplink.speaking, self._clock() + 3600.0)

    async def agent_finished(self) -> None:
        """Return once no answer is open and all was heard, or after ``turn_timeout_s``."""
        await self.until(self._has_finished, self._clock() + self.options.turn_timeout_s)

    async def answered(self) -> None:
        """Return once the agent has answered and finished, or gave no sound in time."""
        if not self.record.spoken:
            return
        end_at = self._last_end_at()
        deadline = end_at + self.options.answer_timeout_s

        def is_heard() -> bool:
            heard = self.record.playout.first_audible_at(end_at)
            return heard is not None and heard <= self._clock()

        if await self.until(is_heard, deadline):
            await self.agent_finished()

    async def answer_begun(self, wait_s: float) -> None:
        """Return ``wait_s`` after the current answer became audible (or when it is over)."""
        end_at = self._last_end_at()

        def interrupts() -> bool:
            heard = self.record.playout.first_audible_at(end_at)
            return heard is not None and self._clock() >= heard + wait_s

        await self.until(interrupts, end_at + self.options.answer_timeout_s + wait_s)

    def report_finished(self) -> None:
        """Tell the observer about the turns that are over since the last time."""
        self._n_over = len(self.record.spoken)
        if self._observer is None:
            return
        turns = call_result(self.record, self._voice).turns
        for turn in turns[self._n_reported :]:
            self._observer.finished(turn)
        self._n_reported = len(turns)

    async def until(self, holds: Callable[[], bool], deadline: float) -> bool:
        """Wait until ``holds()``, looked at on every event and every 10 ms; False at the deadline.

        Most conditions depend on the clock (audio has been played), not on an event alone.
        """
        while not holds():
            if self._clock() >= deadline:
                return False
            self._changed.clear()
            try:
                async with asyncio.timeout(0.01):
                    await self._changed.wait()
            except TimeoutError:
                continue
        return True

    # --- its tasks ---

    async def _listen(self) -> None:
        async for received in self._connection.events():
            if received.type == "session.updated":
                self._configured = True
            if received.type == "error" and not self._configured:
                raise ConnectionFailed(f"The server opened no session: {_told(received.event)}")
            interrupted = self.record.receive(received)
            self._changed.set()
            if self._observer is not None:
                self._observer.received(received)
            if interrupted is not None:
                await self._connection.truncate(interrupted)
        if not self._ended:
            raise ConnectionFailed(
                f"The call ended, for the connection closed: {self._connection.ended_by}"
            )

    async def _open_session(self) -> None:
        settings = session_settings(self.options.turn_detection, self.options.agent_voice)
        await self._connection.send({"type": "session.update", "session": settings})
        if not await self.until(lambda: self._configured, self._clock() + 10.0):
            raise ConnectionFailed("The server did not answer session.update within 10 s.")

    def _last_end_at(self) -> float:
        """Return when the last sample of what the caller said last was sent."""
        last = self.record.spoken[-1]
        return self.uplink.sent_at(last.position + last.utterance.end - 1)

    def _has_finished(self) -> bool:
        return not self.record.answering and self._clock() >= self.record.playout.idle_at


def _told(event: Mapping[str, Any]) -> str:
    """Return what an error event says."""
    error = event.get("error")
    return str(error.get("message") if isinstance(error, Mapping) else error)


def session_settings(
    turn_detection: Mapping[str, Any] | None = None, voice: str = ""
) -> dict[str, Any]:
    """The session a call asks for: GA names only, so any Realtime server understands it."""
    pcm = {"type": "audio/pcm", "rate": RATE_HZ}
    heard: dict[str, Any] = {"format": pcm, "transcription": {"model": "whisper-1"}}
    if turn_detection is not None:
        heard["turn_detection"] = dict(turn_detection)
    return {
        "type": "realtime",
        "output_modalities": ["audio"],
        "audio": {"input": heard, "output": {"format": pcm} | ({"voice": voice} if voice else {})},
    }

"""One simulated caller: plays the utterances of a call in real time, each when its script says."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from clients.call.open_call import CallOptions, Observer, OpenCall
from clients.call.result import CallResult
from clients.call.script import Utterance
from clients.connection import RealtimeConnection


class SimulatedCall(OpenCall):
    """Play ``utterances`` into an open connection, once.

    ``skips``: asked of each once the answer before it is over; one that it names is left out.
    """

    def __init__(
        self,
        connection: RealtimeConnection,
        utterances: tuple[Utterance, ...],
        *,
        voice: str = "",
        options: CallOptions | None = None,
        observer: Observer | None = None,
        skips: Callable[[Utterance], bool] = lambda utterance: False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(connection, voice=voice, options=options, observer=observer, clock=clock)
        self._utterances = utterances
        self._skips = skips

    async def run(self) -> CallResult:
        """Play the call to its end and measure it. Raises: ConnectionFailed, as `hold`."""
        return await self.hold(self._direct)

    async def _direct(self) -> None:
        """Let the agent greet, then speak turn by turn."""
        await self.greeted()
        for utterance in self._utterances:
            wait_s = utterance.turn.wait_ms / 1000.0
            if utterance.turn.after == "barge_in" and self.record.spoken:
                await self.answer_begun(wait_s)
            else:
                await self.answered()
                await asyncio.sleep(wait_s)
                self.report_finished()
            if not self._skips(utterance):
                await self.say(utterance)
        await self.answered()
        await asyncio.sleep(self.options.farewell_s)
        self.report_finished()

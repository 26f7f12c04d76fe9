"""A caller who speaks: plays one scenario as sound, in real time.

What the caller says is spoken by the server's own voice beforehand (``/v1/audio/speech``) and
played into the call as the bundled recordings are.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from clients.call.result import TurnResult
from clients.call.script import Utterance
from clients.call.simulated_call import SimulatedCall
from clients.call.speaking import spoken
from clients.connection import RealtimeConnection, Received
from clients.errors import ConnectionFailed
from clients.evaluate.outcome import Played, PlayedTurn, holds
from clients.evaluate.scenario import Scenario
from clients.evaluate.tool_watch import ToolWatch

WAIT_MS = 600.0  # between the agent's last sound and the caller's first, as in the bundled call


async def utterances_of(
    scenario: Scenario, url: str, key: str | None, voice: str
) -> tuple[Utterance, ...]:
    """The caller's turns as sound, each named by its number. Raises: ConnectionFailed."""
    said = [turn.say for turn in scenario.turns]
    return await spoken(said, url, key, voice, wait_ms=WAIT_MS)


class SpokenScenario:
    """One scenario as it is played: watches the call, and says which turns are left out."""

    def __init__(
        self, connection: RealtimeConnection, scenario: Scenario, results: Mapping[str, Any]
    ) -> None:
        self.played = Played(scenario)
        self._connection = connection
        self._said: dict[str, PlayedTurn] = {}  # by the name of its utterance
        self._tools = ToolWatch(results)
        self._sending: set[asyncio.Task[None]] = set()

    # --- as an observer of the call ---

    def received(self, received: Received) -> None:
        for event in self._tools.observe(received):
            task = asyncio.get_running_loop().create_task(self._connection.send(event))
            self._sending.add(task)
            task.add_done_callback(self._sending.discard)

    def speaks(self, utterance: Utterance) -> None:
        self._take_calls()
        name = utterance.turn.name
        one = self._said[name] = PlayedTurn(self.played.scenario.turns[int(name)], heard="")
        self.played.turns.append(one)

    def finished(self, turn: TurnResult) -> None:
        self._take_calls()
        one = self._said[turn.name]
        one.answer, one.heard, one.wait_ms = turn.answer, turn.heard, turn.gap_ms
        one.is_cut = turn.cut_in

    def skips(self, utterance: Utterance) -> bool:
        """Whether the caller leaves this turn out, after what the agent has said last."""
        when = self.played.scenario.turns[int(utterance.turn.name)].when
        last = self.played.turns[-1].answer if self.played.turns else ""
        return bool(when) and not any(holds(last, phrase) for phrase in when)

    def _take_calls(self) -> None:
        if self.played.turns:
            self.played.turns[-1].calls += self._tools.take_calls()


async def play_spoken(
    connection: RealtimeConnection,
    scenario: Scenario,
    results: Mapping[str, Any],
    utterances: tuple[Utterance, ...],
) -> Played:
    """As `play_typed`."""
    watch = SpokenScenario(connection, scenario, results)
    call = SimulatedCall(connection, utterances, observer=watch, skips=watch.skips)
    try:
        await call.run()
    except ConnectionFailed as error:
        watch.played.broken = str(error)
    return watch.played

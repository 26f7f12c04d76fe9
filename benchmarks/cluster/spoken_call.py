"""A caller who speaks: one call of a cluster, whose gaps are measured where he hears them."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from functools import cache

from clients.call.open_call import CallOptions
from clients.call.script import Utterance, load_call, load_utterances
from clients.call.simulated_call import SimulatedCall
from clients.connection import RATE_HZ
from clients.errors import ClientError
from clients.resuming import ResumingConnection

QUESTIONS = ("hours", "price", "food")  # of the bundled call: without a pause or an interruption
ROUNDS = 2
LONGEST_S = 180.0  # of a call: each of its six turns unanswered takes less


@cache
def utterances() -> tuple[Utterance, ...]:
    script = load_call()
    said = load_utterances(script, script.voices[0], RATE_HZ)
    return tuple(one for one in said if one.turn.name in QUESTIONS) * ROUNDS


@dataclass(slots=True)
class SpokenCall:
    """Questions one after the other.

    waits: of each turn when it ended, and its gap in seconds; n_unanswered: turns without an
    answer; lost: why the call is.
    """

    url: str
    seed: int = 0
    waits: list[tuple[float, float]] = field(default_factory=list)
    n_unanswered: int = 0
    n_resumed: int = 0
    n_placed_again: int = 0
    lost: str = ""

    async def run(self) -> SpokenCall:
        try:
            line = await ResumingConnection.open(self.url, extras={"greeting": "0"})
        except ClientError as error:
            self.lost = f"not let in: {error}"
            return self
        options = CallOptions(seed=self.seed, greeting_wait_s=0.0)
        call = SimulatedCall(line, utterances(), options=options)
        try:
            async with asyncio.timeout(LONGEST_S):
                await call.run()
        except (ClientError, TimeoutError) as error:
            self.lost = str(error) or "it did not come to its end"
        finally:
            self.n_resumed = line.n_resumed
            await line.close()
        if (result := call.so_far()) is not None:
            begins_s = call.record.starts_at
            for turn in result.turns:
                if turn.gap_ms is not None:
                    self.waits.append((begins_s + turn.end_at, turn.gap_ms / 1000.0))
                elif not turn.answered:
                    self.n_unanswered += 1
        return self

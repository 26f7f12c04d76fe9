"""A caller who types: one call of a cluster, which outlives what is killed meanwhile."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import Any

from websockets.exceptions import InvalidStatus

from clients.connection import typed
from clients.errors import ClientError
from clients.resuming import ResumingConnection

MOST_PLACED_AGAIN = 3
PLACED_AGAIN_S = 0.2
ANSWER_WAIT_S = 30.0  # a call without an answer for so long is lost


@dataclass(slots=True)
class TypedCall:
    """Turns one after the other.

    waits: of each answer; lost: why the call is. n_placed_again: times that its server went before
    it had said a word, or a ticket had come; it is placed anew, as by whoever hears nothing.
    """

    url: str
    instructions: str
    n_turns: int
    pause_s: float
    question: str = "please"
    waits: list[tuple[float, float]] = field(default_factory=list)  # asked at, seconds
    n_resumed: int = 0
    n_placed_again: int = 0
    n_unanswered: int = 0  # a turn without an answer is a call that is lost
    lost: str = ""
    _began_s: float = 0.0

    async def run(self) -> TypedCall:
        self._began_s = time.monotonic()
        while await self._place():
            self.n_placed_again += 1
        return self

    async def _place(self) -> bool:
        """One line, and what it is resumed by; whether the call is to be placed again."""
        try:
            line = await ResumingConnection.open(self.url, extras={"greeting": "0"})
        except ClientError as error:
            was_answered = isinstance(error.__cause__, InvalidStatus)
            if not was_answered and self.n_placed_again < MOST_PLACED_AGAIN:
                await asyncio.sleep(PLACED_AGAIN_S)
                return True
            self.lost = f"not let in: {error}"
            return False
        try:
            await self._talk(line)
        except StopAsyncIteration as error:
            if not self.waits and self.n_placed_again < MOST_PLACED_AGAIN:
                return True
            self.lost = f"broke after {len(self.waits)} answers: {error}"
        except (ClientError, TimeoutError) as error:
            self.lost = f"{type(error).__name__} {error}"
        finally:
            self.n_resumed += line.n_resumed
            await line.close()
        return False

    async def _talk(self, line: ResumingConnection) -> None:
        session = {
            "type": "realtime",
            "instructions": self.instructions,
            "output_modalities": ["text"],
        }
        events = aiter(line.events())
        await line.send({"type": "session.update", "session": session})
        for turn in range(self.n_turns):
            asked_s = time.monotonic() if turn else self._began_s  # of the first, all its lines
            async with asyncio.timeout(ANSWER_WAIT_S):
                await self._ask(line, events, f"Question {turn}, {self.question}?")
            self.waits.append((asked_s, time.monotonic() - asked_s))
            await asyncio.sleep(self.pause_s)

    async def _ask(self, line: ResumingConnection, events: Any, text: str) -> None:
        """Ask until an answer is whole; what a broken line took is asked again."""
        item = typed(text)
        await line.send({"type": "conversation.item.create", "item": item})
        await line.send({"type": "response.create"})
        async for received in events:
            match received.type:
                case "voiceloop.resumed":
                    await line.send({"type": "conversation.item.create", "item": item})
                    await line.send({"type": "response.create"})
                case "response.done":
                    if received.event["response"]["status"] == "completed":
                        return
                    await line.send({"type": "response.create"})
        raise StopAsyncIteration(line.ended_by or "the line has ended")

"""A caller who types: plays one scenario as text, turn by turn."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from clients.connection import RealtimeConnection, Received, typed
from clients.errors import ConnectionFailed
from clients.evaluate.outcome import Played, PlayedTurn, holds
from clients.evaluate.scenario import Scenario
from clients.evaluate.tool_watch import ToolWatch

MARK = "voiceloop.evaluate"  # in the metadata of a response: which turn asked for it
ANSWERS = ("response.output_text.delta", "response.output_text.done", "response.done")
ANSWER_TIMEOUT_S = 60.0  # of a whole turn, with the tools in it


async def play_typed(
    connection: RealtimeConnection,
    scenario: Scenario,
    results: Mapping[str, Any],
    clock: Callable[[], float] = time.monotonic,
) -> Played:
    """Never raises for what the agent does: a call that breaks off says so in the outcome."""
    played, events = Played(scenario), connection.events()
    try:
        settings = {"type": "realtime", "output_modalities": ["text"]}
        await connection.send({"type": "session.update", "session": settings})
        tools, last = ToolWatch(results), ""
        for turn in scenario.turns:
            if turn.when and not any(holds(last, phrase) for phrase in turn.when):
                continue
            one = PlayedTurn(turn)
            played.turns.append(one)
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                await _say(connection, events, one, tools, clock)
            last = one.answer
    except ConnectionFailed as error:
        played.broken = str(error)
    except TimeoutError:
        played.broken = f"no answer within {ANSWER_TIMEOUT_S:.0f} s"
    finally:
        await connection.close()
    return played


async def _say(
    connection: RealtimeConnection,
    events: AsyncIterator[Received],
    one: PlayedTurn,
    tools: ToolWatch,
    clock: Callable[[], float],
) -> None:
    """One turn, until the agent has nothing more to say to it.

    What belongs to a response from before, or one that the agent began by itself, is passed over.
    """
    await connection.send({"type": "conversation.item.create", "item": typed(one.turn.say)})
    asked_at, mark = clock(), {MARK: secrets.token_hex(8)}
    await connection.send({"type": "response.create", "response": {"metadata": mark}})
    answering: set[str] = set()  # the response that was asked for, and those behind it
    pieces: list[str] = []
    async for received in events:
        for event in tools.observe(received):
            await connection.send(event)
        match received.type:
            case "response.created":
                response = received.event["response"]
                if answering or response.get("metadata") == mark:
                    answering.add(response["id"])
            case kind if kind in ANSWERS and _response_id(received) not in answering:
                continue
            case "response.output_text.delta":
                if one.wait_ms is None:
                    one.wait_ms = 1000.0 * (received.at - asked_at)
                pieces.append(received.event["delta"])
            case "response.output_text.done":
                pieces.append(" ")
            case "error":
                raise ConnectionFailed(str(received.event["error"].get("message", "an error")))
            case "response.done" if tools.is_settled:
                break
    else:
        raise ConnectionFailed(f"the server hung up: {connection.ended_by}")
    one.answer, one.calls = "".join(pieces).strip(), tools.take_calls()


def _response_id(received: Received) -> str:
    event = received.event
    return str(event.get("response_id") or event.get("response", {}).get("id", ""))

"""Many agents on one server, agents that are Python classes, and a file that is saved: the costs.

``python -m benchmarks.agents --check``: twenty agents beside one, in memory and in the first token
of each one's first turn; the first token of a call while another call's hooks sleep, raise and
loop for ever, beside the same call alone; and with ``--reload`` how soon a line that was saved is
heard in the open call. Typed turns, the embedded preset.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.harness.command_line import Benchmark, run
from benchmarks.harness.harness import RESULTS, Bar
from clients.connection import RealtimeConnection, typed
from clients.errors import ConnectionFailed
from clients.server_process import running_server

N_AGENTS = 20
MEMORY_MB, SLOWER, BESIDE, RELOADED_S = 60.0, 1.25, 1.05, 1.0
ANSWER_S = 30.0
SETTLED_S = 3.0  # after the start: kept lines are spoken behind it

DESK = """
import time
from voiceloop.python_agent import Agent

class Desk(Agent):
    instructions = "You sit at the desk of a cafe. Answer in one short sentence."

    def on_user_turn(self, words):
        if "sleep" in words:
            time.sleep(2.0)
        if "raise" in words:
            raise ValueError
        while "loop" in words:
            pass
"""


DOORS = ("green", "yellow", "white", "black", "brown", "purple")
DOOR = """
name = "Doors"
instructions = "You stand at the {0} door."
[[answer]]
questions = ["which door"]
text = "Take the {0} door."
"""


def shop(number: int) -> str:
    hours = f"The shop opens at {7 + number % 4} and closes at {17 + number % 5}."
    told = (
        f"You answer the telephone of shop number {number}. {hours} " + "Be brief and kind. " * 12
    )
    return f'name = "Shop {number}"\ninstructions = "{told}"\nfallback = "Shop {number}: again?"\n'


async def first_token_ms(connection: RealtimeConnection, words: str) -> float:
    """From a typed turn to the first of its answer; the answer is read to its end."""
    await connection.send({"type": "conversation.item.create", "item": typed(words)})
    asked_s, first_s = time.perf_counter(), 0.0
    asked = {"output_modalities": ["text"]}
    await connection.send({"type": "response.create", "response": asked})
    async with asyncio.timeout(ANSWER_S):
        async for event in connection.events():
            if event.type == "response.output_text.delta" and not first_s:
                first_s = time.perf_counter()
            if event.type == "response.done":
                break
    if not first_s:
        raise ConnectionFailed("expected an answer, found none")
    return 1000.0 * (first_s - asked_s)


async def many(found: dict[str, Any]) -> None:
    """One agent, then twenty."""
    for n_agents in (1, N_AGENTS):
        with tempfile.TemporaryDirectory() as folder:
            for number in range(n_agents):
                (Path(folder) / f"shop{number}.toml").write_text(shop(number))
            arguments = ("--preset", "embedded", "--agents", folder)
            async with running_server(arguments, log=RESULTS / "agents-server.log") as server:
                await asyncio.sleep(SETTLED_S)
                memory_mb, firsts_ms = server.resident_mb(), []
                for number in range(n_agents):
                    url = server.url.replace("/v1/", f"/agents/shop{number}/v1/")
                    connection = await RealtimeConnection.open(url)
                    firsts_ms.append(await first_token_ms(connection, "When do you open?"))
                    await connection.close()
                found[f"{n_agents} agents"] = {
                    "ready_s": server.ready_s,
                    "resident_mb": memory_mb,
                    "first_token_ms": firsts_ms,
                }


async def hooks(n_turns: int, found: dict[str, Any]) -> None:
    """A call alone and beside one whose hooks are bad, in turns."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "desk.py").write_text(DESK)
        arguments = ("--preset", "embedded", "--agent", str(Path(folder) / "desk.py"))
        async with running_server(arguments, log=RESULTS / "agents-server.log") as server:
            caller = await RealtimeConnection.open(server.url)
            for words in ("hello", "raise", "sleep", "loop"):
                other = await RealtimeConnection.open(server.url)
                stop = asyncio.Event()
                beside = asyncio.create_task(_talk(other, words, stop))
                found[f"beside {words}"] = [
                    await first_token_ms(caller, "What do you have?") for _ in range(n_turns)
                ]
                stop.set()
                found[f"turns of {words}"] = await beside
                await other.close()
            await caller.close()


async def reload(found: dict[str, Any]) -> None:
    """Save another line again and again; until its first sound, in a call that is open: it is asked
    for once the server has told the call of it.
    """
    found["saved to heard, s"] = waits = []
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "doors.toml"
        file.write_text(DOOR.format("red"))
        arguments = ("--preset", "embedded", "--agent", str(file), "--reload")
        async with running_server(arguments, log=RESULTS / "agents-server.log") as server:
            connection = await RealtimeConnection.open(server.url)
            for door in DOORS:
                file.write_text(DOOR.format(door))
                saved_s = time.perf_counter()
                async with asyncio.timeout(ANSWER_S):
                    async for event in connection.events():
                        if event.type == "session.updated":
                            break
                sounded_s, said = await heard(connection, "Which door?")
                if door not in said:
                    raise ConnectionFailed(f"expected the {door} door, found {said!r}")
                waits.append(sounded_s - saved_s)
            await connection.close()


async def heard(connection: RealtimeConnection, words: str) -> tuple[float, str]:
    """When the spoken answer to a typed turn begins, and its words."""
    await connection.send({"type": "conversation.item.create", "item": typed(words)})
    await connection.send({"type": "response.create"})
    sounded_s, said = 0.0, ""
    async with asyncio.timeout(ANSWER_S):
        async for event in connection.events():
            if event.type == "response.output_audio.delta" and not sounded_s:
                sounded_s = time.perf_counter()
            if event.type == "response.output_audio_transcript.done":
                said = event.event["transcript"]
            if event.type == "response.done":
                break
    return sounded_s, said


async def _talk(connection: RealtimeConnection, words: str, stop: asyncio.Event) -> int:
    """Say the same until told to stop; how many turns were answered."""
    n_answered = 0
    while not stop.is_set():
        await first_token_ms(connection, words)
        n_answered += 1
        await asyncio.sleep(0.2)
    return n_answered


def main() -> int:
    command = Benchmark("agents", "Many agents on one server, and hooks that misbehave.")
    command.count("--turns", 40, "so many turns of the call beside each bad one")
    chosen = command.parse()
    found: dict[str, Any] = {}
    command.measure(_measure(chosen.turns, found))
    if len(found.get("saved to heard, s", ())) < len(DOORS):
        return command.without_results()
    one, twenty = found["1 agents"], found[f"{N_AGENTS} agents"]
    more_mb = twenty["resident_mb"] - one["resident_mb"]
    first, firsts = one["first_token_ms"][0], twenty["first_token_ms"]
    bars = [
        Bar("memory of twenty agents over one", more_mb, MEMORY_MB, "MB"),
        Bar("first token of each, p50, over one's", statistics.median(firsts) / first, SLOWER, ""),
    ]
    alone = _p95(found["beside hello"])
    for words in ("raise", "sleep", "loop"):
        ratio = _p95(found[f"beside {words}"]) / alone
        bars.append(Bar(f"beside hooks that {words}, p95 over alike", ratio, BESIDE, ""))
        bars.append(Bar(f"turns answered there ({words})", found[f"turns of {words}"], 1, "", True))
    slowest_s = max(found["saved to heard, s"])
    bars.append(Bar(f"a saved line is heard, slowest of {len(DOORS)}", slowest_s, RELOADED_S, "s"))
    return command.finish({"turns": chosen.turns, "agents": N_AGENTS}, bars, **found)


async def _measure(n_turns: int, found: dict[str, Any]) -> None:
    await many(found)
    await hooks(n_turns, found)
    await reload(found)


def _p95(values: list[float]) -> float:
    return sorted(values)[min(len(values) - 1, int(0.95 * len(values)))]


if __name__ == "__main__":
    sys.exit(run(main))

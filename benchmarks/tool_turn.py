"""What a tool costs the gap: ``python -m benchmarks.tool_turn [--calls 9] [--tool-ms 300]``.

Two questions of the bundled call, a price and the opening hours, go into ``voiceloop serve`` in
each of its voices, in real time, to five servers by turns. In one the answer stands in the
instructions ("none"), in one in a table of the agent file ("table"), in three a service on the
loopback has it after so many milliseconds ("tool"); one of these does nothing for it ahead of the
turn's end ("tool, not ahead"), and one has a line of its own said meanwhile ("tool, a line"). What
a tool adds is the difference of the medians; only turns count that were answered with what the tool
alone knows. The gap ends with the first sound, so that of a line with the line's.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from benchmarks.calls.ablation import without
from benchmarks.harness.command_line import Benchmark, run
from benchmarks.harness.harness import RESULTS, Bar, interleaved
from clients.call.open_call import CallOptions
from clients.call.result import TurnResult
from clients.call.script import CallScript, Utterance, load_call, load_utterances
from clients.call.simulated_call import SimulatedCall
from clients.connection import RATE_HZ, RealtimeConnection, own_key
from clients.progress import progress_bar
from clients.report.percentiles import percentile
from clients.server_process import running_server

EXTRAS = {"greeting": "1", "voiceloop.timeline": "1"}
ASKED = ("hours", "price")  # turns of the bundled call
MOST_ADDED_MS = 120.0
WITHOUT, TOOL, WITH_LINE = "none", "tool", "tool, a line"
VARIANTS = (WITHOUT, "table", TOOL, "tool, not ahead", WITH_LINE)
LINE = "Let me see."
ANSWERS = {"get_price": {"price": "$4.25"}, "get_opening_hours": {"hours": "8 am to 6 pm"}}
LOOKING_UP = """
name = "Ava"
greeting = "Hi, this is Ava at Juniper Cafe. What would you like to know?"
instructions = '''
You are Ava, the friendly voice assistant of Juniper Cafe, a small cafe. \\
You help callers with questions about the cafe. \\
On the menu: blueberry muffin, butter croissant, cinnamon roll, carrot cake. \\
You find us near the library. \\
Answer in short sentences.'''
hotwords = ["carrot cake", "Saturday"]

[[tools]]
name = "get_price"
description = "Price of one item."
side_effect_free = true
{price}

[tools.parameters]
type = "object"
required = ["item"]
properties = {{ item = {{ type = "string" }} }}

[[tools]]
name = "get_opening_hours"
description = "Opening hours of a day."
side_effect_free = true
{hours}

[tools.parameters]
type = "object"
required = ["day"]
properties = {{ day = {{ type = "string" }} }}
"""


def agent_file(url: str | None, line: str = "") -> str:
    """An agent that looks prices and hours up: at a service, or (None) in the file itself.

    line: said while the service is waited for.
    """
    keys = []
    for name, answer in ANSWERS.items():
        told = json.dumps(answer)
        served = f'url = "{url}/{name}"\nsay = "{line}"'
        keys.append(f"result = '{told}'" if url is None else served)
    return LOOKING_UP.format(price=keys[0], hours=keys[1])


@asynccontextmanager
async def slow_service(tool_ms: int) -> AsyncIterator[str]:
    """A service that answers a tool's call after so long; its address."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                length = next(
                    int(line.split(":")[1])
                    for line in head.lower().splitlines()
                    if line.startswith("content-length:")
                )
                await reader.readexactly(length)
                await asyncio.sleep(tool_ms / 1000)
                body = json.dumps(ANSWERS[head.split()[1].strip("/")]).encode()
                told = f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
                writer.write(b"HTTP/1.1 200 OK\r\n" + told.encode() + body)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()  # the caller of the tool has gone, or needs no more

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def measure(
    chosen: argparse.Namespace, names: Sequence[str], turns: dict[str, list[TurnResult]]
) -> None:
    """Add the turns by variant. Raises: ClientError: no server started, or a call broke off."""
    script = load_call()
    async with AsyncExitStack() as running:
        scratch = Path(running.enter_context(tempfile.TemporaryDirectory()))
        url = await running.enter_async_context(slow_service(chosen.tool_ms))
        files = {"table": agent_file(None), "tool": agent_file(url), "line": agent_file(url, LINE)}
        for name, text in files.items():
            (scratch / f"{name}.toml").write_text(text, encoding="utf-8")
        variants: dict[str, tuple[str, Mapping[str, str]]] = {
            WITHOUT: ("cafe", {}),
            "table": (str(scratch / "table.toml"), {}),
            TOOL: (str(scratch / "tool.toml"), {}),
            "tool, not ahead": (str(scratch / "tool.toml"), without("tool_calls")),
            WITH_LINE: (str(scratch / "line.toml"), {}),
        }
        servers = {}
        for name in names:
            agent, environment = variants[name]
            arguments = ("--preset", "embedded", "--agent", agent)
            log = RESULTS / f"tool_turn-{name.replace(', ', '-').replace(' ', '-')}.log"
            started = running_server(arguments, log=log, environment=environment)
            servers[name] = await running.enter_async_context(started)
        rounds = list(interleaved(names, chosen.calls))
        with progress_bar("calls", len(rounds)) as progress:
            for done, turn in enumerate(rounds):
                voice = script.voices[turn.index % len(script.voices)]
                connection = await RealtimeConnection.open(
                    servers[turn.variant].url, key=own_key(servers[turn.variant].url), extras=EXTRAS
                )
                options = CallOptions(seed=chosen.seed + turn.index)
                said = questions(script, voice)
                call = await SimulatedCall(connection, said, voice=voice, options=options).run()
                turns.setdefault(turn.variant, []).extend(call.turns)
                progress(done + 1)


def questions(script: CallScript, voice: str) -> tuple[Utterance, ...]:
    said = load_utterances(script, voice, RATE_HZ)
    return tuple(utterance for utterance in said if utterance.turn.name in ASKED)


def gaps_ms(turns: list[TurnResult]) -> list[float]:
    """Of the turns that were answered as they should be, and not cut."""
    return [
        turn.gap_ms
        for turn in turns
        if turn.gap_ms is not None and not turn.missing and not turn.cut_in
    ]


def added_ms(turns: Mapping[str, list[TurnResult]], variant: str) -> float | None:
    """The difference of the medians against the turns without a tool."""
    with_tool, without = gaps_ms(turns.get(variant, [])), gaps_ms(turns.get(WITHOUT, []))
    return percentile(with_tool, 50) - percentile(without, 50) if with_tool and without else None


def main() -> int:
    command = Benchmark(
        "tool_turn", "What a tool of an agent costs the gap.", seed="the room noise"
    )
    command.count("--calls", 9, "of each server, two questions a call")
    command.count("--tool-ms", 300, "how long the service takes", at_least=0)
    command.several("--only", VARIANTS[1:], "against no tool (default: all)")
    chosen = command.parse()
    names = [name for name in VARIANTS if name in (WITHOUT, *(chosen.only or VARIANTS))]
    turns: dict[str, list[TurnResult]] = {}
    command.measure(measure(chosen, names, turns))
    if not turns:
        return command.without_results()
    rows = {}
    for name, of in turns.items():
        gaps, added = gaps_ms(of), added_ms(turns, name)
        row = {"n": len(gaps), "n_asked": len(of), "added_p50": added}
        row |= {f"p{p}": percentile(gaps, p) if gaps else None for p in (50, 95)}
        rows[name] = row
        cells = (f"{'-' if row[key] is None else round(row[key]):>8}" for key in row)
        print(f"{name:<18}" + "".join(cells))
    held = {TOOL: "a tool's added gap p50", WITH_LINE: "with a line of its own"}
    bars = [
        Bar(told, added_ms(turns, name), MOST_ADDED_MS)
        for name, told in held.items()
        if name in names
    ]
    settings = {"calls": chosen.calls, "tool_ms": chosen.tool_ms, "variants": names}
    return command.finish(settings, bars, variants=rows)


if __name__ == "__main__":
    sys.exit(run(main))

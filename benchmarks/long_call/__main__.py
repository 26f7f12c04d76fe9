"""An hour's call: ``python -m benchmarks.long_call [--minutes 60] [--preset embedded] [--check]``.

The real server, its models in their workers, and one client that types a call: as many words as
people say in so many minutes, 20 facts among them, and between two turns a silence that is shorter
than any caller's. Three agents, turn by turn: one keeps facts and slides in silence, one slides in
silence and keeps nothing, one has the window as it was before both ("blind").
Recall: the share of the facts that stand in the last prompt which the model was given. What a slide
costs: the 95th percentile of the time to the first token in turns before or in which the window
slid, less the median of all others of that call.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from benchmarks.harness.command_line import Benchmark, run
from benchmarks.harness.harness import Bar
from benchmarks.long_call.call import PLANTED, Turn, items_of, recalled, turns_of
from clients.connection import RealtimeConnection, own_key
from clients.progress import progress_bar
from clients.report.percentiles import percentile
from voiceloop.agent import AgentConfig
from voiceloop.backends import Branch, ChatMessage, GenerateParams, LanguageModel, Tool
from voiceloop.config import Ahead, Config
from voiceloop.models.opening import open_backends
from voiceloop.models.presets import context_tokens, resolve_agent
from voiceloop.server.app import Gateway, build_app
from voiceloop.server.process import listen, make_server

LEAST_RECALL_PERCENT, MOST_ADDED_MS = 90.0, 50.0
ANSWER_TIMEOUT_S = 60.0
OURS = "in silence"
VARIANTS: Mapping[str, Ahead] = {OURS: Ahead(), "in the turn": Ahead(("slide",))}


class Watched:
    """A language model that keeps the newest prompt it was asked to answer."""

    def __init__(self, model: LanguageModel) -> None:
        self._model = model
        self.prompt: tuple[ChatMessage, ...] = ()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    async def branch(
        self,
        branch_id: str,
        history: tuple[ChatMessage, ...],
        tools: tuple[Tool, ...] = (),
        tenant: str = "",
    ) -> Branch:
        branch = await self._model.branch(branch_id, history, tools, tenant)
        commit = branch.commit

        def watched(tail: tuple[ChatMessage, ...], params: GenerateParams) -> bool:
            self.prompt = (*history, *tail)
            return commit(tail, params)

        branch.commit = watched  # type: ignore[method-assign]
        return branch

    def text(self) -> str:
        return "\n".join(
            " ".join((one.content, one.behind, *(call.arguments for call in one.tool_calls)))
            for one in self.prompt
        )


@dataclass(slots=True)
class Line:
    """One typed call: the time to each first token, which turns the window slid in, what was said.

    model: None where a service keeps its own prompts.
    """

    connection: RealtimeConnection
    model: Watched | None = None
    first_ms: list[float] = field(default_factory=list)
    slid: list[str] = field(default_factory=list)  # "" where it did not
    said: list[str] = field(default_factory=list)
    n_failed: int = 0
    events: AsyncIterator[Any] = field(init=False)

    def __post_init__(self) -> None:
        self.events = self.connection.events()

    async def begin(self) -> None:
        text = {"type": "realtime", "output_modalities": ["text"]}
        await self.connection.send({"type": "session.update", "session": text})

    async def say(self, turn: Turn, number: int) -> None:
        """One turn, to the end of its answer."""
        for item in items_of(turn, number):
            await self.connection.send({"type": "conversation.item.create", "item": item})
        began_s, first_s = time.monotonic(), None
        await self.connection.send({"type": "response.create"})
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            async for received in self.events:
                if received.type == "response.output_text.delta" and first_s is None:
                    first_s = received.at
                elif received.type == "response.output_text.done":
                    self.said.append(received.event["text"])
                elif received.type == "response.done":
                    self.n_failed += received.event["response"]["status"] == "failed"
                elif received.type == "voiceloop.timeline":
                    window = received.event["timeline"].get("window", {})
                    self.slid.append(window.get("slid", ""))
                    break
        self.first_ms.append(1e3 * ((first_s or time.monotonic()) - began_s))


@asynccontextmanager
async def served(config: Config, gateway: Gateway) -> AsyncIterator[str]:
    """This gateway on a free port; its URL."""
    sock = listen(config.host, 0)
    server = make_server(build_app(gateway), config)
    serving = asyncio.create_task(server.serve(sockets=[sock]))
    try:
        yield f"ws://127.0.0.1:{sock.getsockname()[1]}/v1/realtime"
    finally:
        server.should_exit = server.force_exit = True
        await serving


async def measure(
    preset: str,
    turns: tuple[Turn, ...],
    pause_s: float,
    names: Sequence[str],
    lines: dict[str, Line],
) -> None:
    """Add the calls by variant, each turn in all of them before the next."""
    config = Config(preset=preset)
    config = replace(config, context_tokens=context_tokens(config))
    agent: AgentConfig = resolve_agent(config)
    agent = replace(agent, answer=())  # the model is to answer all of it
    async with open_backends(config, agents=(agent,)) as (backends, _):
        async with asyncio.TaskGroup() as servers:
            stop = asyncio.Event()

            async def serve(name: str, ahead: Ahead, up: asyncio.Event) -> None:
                model = Watched(backends.language_model)
                own = replace(config, anticipation=ahead)
                watched = replace(backends, language_model=model)
                async with served(own, Gateway(own, agent, watched)) as url:
                    extras = {"voiceloop.timeline": "1"}
                    connection = await RealtimeConnection.open(url, key=own_key(url), extras=extras)
                    lines[name] = Line(connection, model)
                    await lines[name].begin()
                    up.set()
                    await stop.wait()
                    await connection.close()

            for name in names:
                up = asyncio.Event()
                servers.create_task(serve(name, VARIANTS[name], up))
                await up.wait()
            with progress_bar("turns", len(turns)) as progress:
                for at, turn in enumerate(turns):
                    for line in lines.values():
                        await line.say(turn, at)
                        await asyncio.sleep(pause_s / len(lines))
                    progress(at + 1)
            stop.set()


def figures(line: Line) -> dict[str, Any]:
    told = list(zip(line.first_ms, line.slid, strict=False))  # the last may have been broken off
    slid = [ms for ms, how in told if how]
    others = [ms for ms, how in told if not how]
    found = recalled(PLANTED, line.model.text() if line.model is not None else "")
    p50 = percentile(others, 50)
    return {
        "n_turns": len(told),
        "n_failed": line.n_failed,
        "n_slides": len(slid),
        "recalled": sum(found),
        "lost": [PLANTED[at].caller for at, is_there in enumerate(found) if not is_there],
        "first_token_p50_ms": round(p50, 1),
        "first_token_p95_ms": round(percentile(others, 95), 1),
        "after_a_slide_p50_ms": round(percentile(slid, 50), 1) if slid else None,
        "after_a_slide_p95_ms": round(percentile(slid, 95), 1) if slid else None,
        "added_p95_ms": round(percentile(slid, 95) - p50, 1) if slid else None,
    }


def main() -> int:
    command = Benchmark(
        "long_call", "What an hour's call remembers, and what it costs.", seed="the talk"
    )
    command.amount("--minutes", 60.0, "minutes", "of talk", above=0.0)
    command.parser.add_argument("--preset", default="embedded", help="(default: %(default)s)")
    command.count("--pause-ms", 1500, "of silence between two turns", at_least=0)
    command.several("--only", tuple(VARIANTS), "(default: all)")
    chosen = command.parse()
    turns = turns_of(chosen.minutes, chosen.seed)
    names = [name for name in VARIANTS if name in (chosen.only or VARIANTS)]
    lines: dict[str, Line] = {}
    command.measure(measure(chosen.preset, turns, chosen.pause_ms / 1000, names, lines))
    rows = {name: figures(line) for name, line in lines.items() if "" in line.slid}
    if not rows:
        return command.without_results()
    for name, row in rows.items():
        print(f"{name:<18}" + "  ".join(f"{key} {value}" for key, value in row.items()))
    ours, bars = rows.get(OURS), []
    if ours is not None:
        recall = 100.0 * ours["recalled"] / len(PLANTED)
        bars = [
            Bar("planted facts in the prompt", recall, LEAST_RECALL_PERCENT, "%", at_least=True),
            Bar("added by a slide p95", ours["added_p95_ms"], MOST_ADDED_MS, n=ours["n_slides"]),
        ]
    settings = {"minutes": chosen.minutes, "preset": chosen.preset, "pause_ms": chosen.pause_ms}
    return command.finish(settings, bars, variants=rows)


if __name__ == "__main__":
    sys.exit(run(main))

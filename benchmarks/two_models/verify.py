"""A clause that the edge drafts and the cloud verifies, over a link of 30, 80 and 150 ms.

The edge is a server whose own model is the embedded agent's drafter, of three layers. The cloud is
a worker with the embedded agent. Both ends speak TLS through a relay in this process, which delays
and counts what passes. What is said is held against what the cloud says alone.
"""

from __future__ import annotations

import asyncio
import random
import socket
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.any_brain.served import Found
from benchmarks.harness.harness import Bar
from benchmarks.strangers import read_strangers
from benchmarks.two_models.calls import AGENT, play
from clients.report.percentiles import percentile
from clients.server_process import ServerProcess, free_port, running_server
from voiceloop.backends import (
    ChatMessage,
    Generated,
    GenerateParams,
    PreemptiveDone,
    TextDelta,
    Verified,
)
from voiceloop.cluster.remote_workers import RemoteWorkers
from voiceloop.operation import WorkerAddresses
from voiceloop.telemetry.record import Draft
from voiceloop.workers.models import WorkerBranch, WorkerLanguageModel

DRAFTER = Path(__file__).parents[2] / "engine" / "embedded" / "draft"
KEY = "the key of an edge and its cloud"
RTTS_MS = (0.0, 30.0, 80.0, 150.0)
# A lost packet is sent again, and what is behind it waits: Linux's least timeout.
RESENT_MS = 200.0
MOST_ADDED_MS, MOST_BYTES, LEAST_TURNS = 5.0, 2048, 1000
WORKER_S = 120.0  # to load a model on a busy machine


@dataclass(slots=True)
class Link:
    """Passes on what two ends say, later. rtt_ms, loss: of what comes from now on."""

    rtt_ms: float = 0.0
    loss: float = 0.0
    n_up: int = 0  # bytes to the cloud
    n_down: int = 0
    _draw: random.Random = field(default_factory=lambda: random.Random(1))

    @asynccontextmanager
    async def to(self, port: int) -> AsyncIterator[int]:
        """The port at which this port is reached through it."""

        async def relay(near: asyncio.StreamReader, near_out: asyncio.StreamWriter) -> None:
            far, far_out = await asyncio.open_connection(HOST, port)
            with suppress(OSError):
                await asyncio.gather(
                    self._pass_on(near, far_out, is_up=True),
                    self._pass_on(far, near_out, is_up=False),
                )

        async with await asyncio.start_server(relay, HOST, 0) as relaying:
            yield relaying.sockets[0].getsockname()[1]

    async def _pass_on(
        self, source: asyncio.StreamReader, target: asyncio.StreamWriter, *, is_up: bool
    ) -> None:
        loop, due_s = asyncio.get_running_loop(), 0.0
        while data := await source.read(65_536):
            self.n_up += len(data) * is_up
            self.n_down += len(data) * (not is_up)
            lost_ms = RESENT_MS if self._draw.random() < self.loss else 0.0
            due_s = max(due_s, loop.time() + (self.rtt_ms / 2 + lost_ms) / 1000)
            loop.call_at(due_s, target.write, data)
        loop.call_at(due_s, target.close)


@asynccontextmanager
async def engine(folder: Path, name: str, *arguments: str) -> AsyncIterator[int]:
    """A worker with a language model; yields its port."""
    port = free_port()
    config = folder / "cloud.toml"
    with (folder / f"{name}.log").open("wb") as log:  # noqa: ASYNC230 - once, before anything runs
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-P", "-m", "voiceloop", "worker", "--role", "engine",
            "--listen", f"{HOST}:{port}", "--config", str(config), "--preset", "embedded",
            *arguments, stdout=log, stderr=log,
        )  # fmt: skip
    try:
        yield port
    finally:
        process.terminate()
        await process.wait()


@asynccontextmanager
async def joined(port: int) -> AsyncIterator[WorkerLanguageModel]:
    """The model of a worker, once it is there."""
    settings = WorkerAddresses(engine=(f"{HOST}:{port}",), key=(KEY,))
    async with RemoteWorkers(settings) as workers:
        async with asyncio.timeout(WORKER_S):
            await workers.wait_ready()
        pool = workers.of_role("engine")
        assert pool is not None
        yield WorkerLanguageModel(pool)


def _own_address() -> str:
    """An address of this machine that is not loopback, where it has one: the ends speak TLS."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking, suppress(OSError):
        asking.connect(("192.0.2.1", 9))  # sends nothing: it chooses the address
        return str(asking.getsockname()[0])
    return "127.0.0.1"


HOST = _own_address()


@asynccontextmanager
async def edge(folder: Path, port: int, *, verifies: bool = True) -> AsyncIterator[ServerProcess]:
    """A server with the drafter, whose large model is at this port."""
    agent, config = folder / "agent.toml", folder / "edge.toml"
    text = AGENT.format(first_token_ms=5000, more="openers = ['-']")
    agent.write_text(text, encoding="utf-8")
    config.write_text(
        f'[cascade]\nmodels = ["main", "cloud"]\nverify = {str(verifies).lower()}\n'
        f'[[models]]\nname = "cloud"\nurl = "worker://{HOST}:{port}"\nkey = "{KEY}"\n',
        encoding="utf-8",
    )
    arguments = ["--preset", "embedded", "--llm-model", str(DRAFTER)]
    arguments += ["--config", str(config), "--agent", str(agent)]
    async with running_server(arguments, log=folder / "edge.log") as running:
        yield running


async def measure(found: Found, *, is_quick: bool, n_calls: int, seed: int) -> None:
    rtts = (0.0, 80.0) if is_quick else RTTS_MS
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        (folder / "cloud.toml").write_text(f'[workers]\nkey = "{KEY}"\n', encoding="utf-8")
        cloud_port = await stack.enter_async_context(engine(folder, "cloud"))
        link = Link()
        port = await stack.enter_async_context(link.to(cloud_port))
        cloud = await stack.enter_async_context(joined(cloud_port))
        rows: dict[str, dict[float, dict[str, Any]]] = {}
        for name, verifies in (("verified", True), ("whole turns", False)):
            async with edge(folder, port, verifies=verifies) as running:
                rows[name] = await _called(running, link, rtts, 1 if is_quick else n_calls, seed)
        small_port = await stack.enter_async_context(
            engine(folder, "small", "--llm-model", str(DRAFTER))
        )
        small = await stack.enter_async_context(joined(small_port))
        n_turns = 40 if is_quick else LEAST_TURNS
        alike = await _alike(cloud, small, n_turns)
    found.figures.update({"calls": rows, **alike})
    told = rows["verified"]
    for rtt_ms in rtts[1:]:
        added = told[rtt_ms]["gap_p50_ms"] - told[0.0]["gap_p50_ms"]
        name = f"verified clause at {rtt_ms:g} ms: gap p50 added"
        found.bars.append(Bar(name, added, MOST_ADDED_MS, n=told[rtt_ms]["turns"]))
    most = max(row["bytes_up"] + row["bytes_down"] for row in told.values())
    found.bars += [
        Bar("bytes a turn, both ways", most, MOST_BYTES, ""),
        Bar("turns whose text is not the cloud's", n_turns - alike["alike"], 0, "", n=n_turns),
    ]  # fmt: skip


async def _called(
    running: ServerProcess, link: Link, rtts: Sequence[float], n_calls: int, seed: int
) -> dict[float, dict[str, Any]]:
    """The bundled call by the link's round trip; these take turns, call by call."""
    gaps, drafts = {rtt: list[float]() for rtt in rtts}, {rtt: list[Draft]() for rtt in rtts}
    n_bytes, n_turns = dict.fromkeys(rtts, (0, 0)), dict.fromkeys(rtts, 0)
    await play(running, seed)  # the prompts are read
    for number in range(n_calls):
        for rtt in rtts:
            link.rtt_ms, link.n_up, link.n_down = rtt, 0, 0
            result, replies = await play(running, seed + number)
            gaps[rtt] += [turn.gap_ms for turn in result.turns if turn.gap_ms is not None]
            told = [(reply.timeline or {}).get("draft") for reply in replies]
            drafts[rtt] += [msgspec.convert(one, Draft) for one in told if one]
            up, down = n_bytes[rtt]
            n_bytes[rtt] = up + link.n_up, down + link.n_down
            n_turns[rtt] += len(result.turns)
    return {
        rtt: {
            "turns": n_turns[rtt],
            "gap_p50_ms": percentile(gaps[rtt], 50), "gap_p95_ms": percentile(gaps[rtt], 95),
            "drafts": len(drafts[rtt]),
            "verified": sum(one.n_kept is not None for one in drafts[rtt]),
            "tokens": sum(one.n_tokens for one in drafts[rtt]),
            "kept": sum(one.n_kept or 0 for one in drafts[rtt]),
            "bytes_up": n_bytes[rtt][0] / n_turns[rtt],
            "bytes_down": n_bytes[rtt][1] / n_turns[rtt],
        }
        for rtt in rtts
    }  # fmt: skip


async def _alike(
    cloud: WorkerLanguageModel, small: WorkerLanguageModel, n_turns: int
) -> dict[str, Any]:
    """Turns of strangers, greedy and drawn by a seed: said by the cloud alone, and verified."""
    asked = [
        (one.instructions, question.text)
        for one in read_strangers()
        for question in (*one.right, *one.refused)
    ]
    n_alike = n_drafted = n_kept = 0
    for number in range(n_turns):
        instructions, text = asked[number % len(asked)]
        history, tail = (ChatMessage("system", instructions),), (ChatMessage("user", text),)
        params = GenerateParams(
            max_tokens=40, seed=number, temperature=0.8 if number >= len(asked) else 0.0
        )
        alone = await cloud.branch(f"alone{number}.b", history)
        whole = await _said(alone, tail, params)
        asks, drafts = [await one.branch(f"v{number}.b", history) for one in (cloud, small)]
        for branch in (asks, drafts):
            branch.stage(1, text)
        if number % 2:  # else the cloud has begun when the draft comes
            asks.begin_preemptive(1, tail, params)
        drafts.draft(1, tail, params)
        async for event in drafts.events():
            if isinstance(event, PreemptiveDone):
                break
        await drafts.close()
        if not number % 2:
            asks.begin_preemptive(1, tail, params)
        asks.verify(1, event.tokens)
        n_drafted += len(event.tokens)
        n_kept += await _verified(asks)
        n_alike += await _said(asks, tail, params) == whole
    return {"alike": n_alike, "of": n_turns, "drafted_tokens": n_drafted, "kept_tokens": n_kept}


async def _verified(branch: WorkerBranch) -> int:
    """How many tokens were kept, as far as the clause that is made ahead goes."""
    async for event in branch.events():
        if isinstance(event, Verified):
            return event.n_kept
        if isinstance(event, PreemptiveDone):
            return 0
    raise RuntimeError("expected the end of a reply made ahead, found the stream closed")


async def _said(branch: WorkerBranch, tail: tuple[ChatMessage, ...], params: GenerateParams) -> str:
    branch.commit(tail, params)
    text = ""
    async for event in branch.events():
        if isinstance(event, TextDelta):
            text += event.text
        elif isinstance(event, Generated):
            break
    await branch.close()
    return text

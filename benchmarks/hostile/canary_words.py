"""Canary words and keys through every failure: `python -m benchmarks.hostile --part words --check`.

Each failure has words of its own: what the caller says, the instructions, a tool's arguments, a
document, and what only the failing service says. The server's keys are such words too. Afterwards
they are looked for in its log (at level debug, which holds all that the default one does), in
/metrics, /readyz and traces, in errors that its clients got, and in what a crash leaves behind.
"""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import os
import re
import resource
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import httpx
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import InvalidStatus, WebSocketException

from benchmarks.hostile.failing_services import (
    BROKEN_STREAMS,
    SHAPES,
    STATUSES,
    Reply,
    Services,
    failing_services,
    word,
)
from clients.connection import typed
from clients.server_process import ServerProcess, process_tree, running_server

ANY_WORD = re.compile(r"canary[a-z]+\d{3}x")
LATE_S = 12.0
KEYS = {
    name: f"canarykey{name}{'x' * 12}"
    for name in "client metrics secret llm stt tts shop header mcp workers".split()
}
GATEWAY = (sys.executable, "-P", "-m", "voiceloop", "gateway")
Json = dict[str, Any]
# Functions of an agent's author that fail; `what` holds the caller's words.
PYTHON_TOOLS = """
import logging, os, sys, warnings
from agent_errors import Refused

def raises(what): raise ValueError(what)
def chains(what):
    try: raise KeyError(what)
    except KeyError as error: raise RuntimeError(f"no {what}") from error
def refuses(what): raise Refused(what)
def leaves(what): sys.exit(what)
def ends(what): os._exit(3)
def returns(what): return object()
def sets(what): return {what}
def recurses(what): return recurses(what)
def bytes_(what): return what.encode() + b"\\xff"
"""
PYTHON_NAMES = re.findall(r"(?m)^def (\w+)", PYTHON_TOOLS)
AGENT = """
name = "Words"
instructions = "Answer."
fallback = "Once more?"

[[tools]]
name = "ask_shop"
url = "{url}/tool"
headers = {{ Authorization = "Bearer ${{SHOP_KEY}}" }}
deadline_ms = 800
parameters = {{ type = "object", properties = {{ what = {{ type = "string" }} }} }}

[[mcp]]
name = "shop"
url = "{url}/mcp"
headers = {{ authorization = "Bearer ${{MCP_KEY}}" }}
tools = ["find"]

[[knowledge]]
source = "{url}/search"
"""
PYTHON_TOOL = """
[[tools]]
name = "{name}"
python = "agent_tools:{name}"
parameters = {{ type = "object", properties = {{ what = {{ type = "string" }} }} }}
"""


@dataclass(slots=True)
class Ground:
    """A server, the services that it asks, and all that its clients were told of failures.

    told: of each failure the errors. is_own: of one whose client sent the words itself.
    """

    server: ServerProcess
    services: Services
    told: dict[int, list[str]] = field(default_factory=dict)
    is_own: set[int] = field(default_factory=set)
    secrets: list[str] = field(default_factory=list)

    @property
    def http(self) -> httpx.AsyncClient:
        url = f"http://127.0.0.1:{self.server.port}"
        headers = {"Authorization": f"Bearer {KEYS['client']}"}
        return httpx.AsyncClient(base_url=url, headers=headers, timeout=LATE_S)

    def dial(self, query: str = "", key: str = KEYS["client"]) -> connect:
        headers = {"Authorization": f"Bearer {key}"}
        return connect(f"{self.server.url}{query}", additional_headers=headers, max_size=None)

    @asynccontextmanager
    async def session(self, key: str = KEYS["client"]) -> AsyncIterator[ClientConnection]:
        """A connection to a server that may have been unready a moment ago."""
        while True:
            await self.until_ready()
            try:
                socket = await self.dial(key=key)
                break
            except InvalidStatus as refused:
                if refused.response.status_code != 503:
                    raise
        async with socket:
            yield socket

    async def until_ready(self) -> None:
        """A service that broke a line off counts as gone, and keeps calls out for two seconds."""
        async with self.http as http:
            for _ in range(60):
                if (await http.get("/readyz")).status_code == 200:
                    return
                await asyncio.sleep(0.1)

    def note(self, number: int, found: object) -> None:
        self.told.setdefault(number, []).append(json.dumps(found))


@dataclass(frozen=True, slots=True)
class Failure:
    """lane: of one lane one is tried after the other."""

    lane: str
    name: str
    drive: Callable[[Ground, int], Awaitable[None]]


# --- turns and requests ---------------------------------------------------------------------------


def _item(text: str) -> Json:
    return {"type": "conversation.item.create", "item": typed(text)}


def _errors_of(event: Json) -> list[object]:
    """What of an event is said of a failure."""
    found = [event[key] for key in ("error", "status_details") if event.get(key)]
    response = event.get("response")
    if isinstance(response, dict):
        found += [response.get("status_details"), response.get("error")]
    return [one for one in found if one]


async def _until(ground: Ground, number: int, socket: ClientConnection, *kinds: str) -> None:
    with suppress(TimeoutError, WebSocketException):
        async with asyncio.timeout(LATE_S):
            async for frame in socket:
                event = json.loads(frame)
                for one in _errors_of(event):
                    ground.note(number, one)
                if event["type"] in kinds:
                    return


async def _typed(ground: Ground, number: int, *, modality: str = "text", **session: Any) -> None:
    """A turn in text: it ends where its response has."""
    told = f"Answer. {word('told', number)}"
    settings = {"type": "realtime", "instructions": told, "output_modalities": [modality]}
    async with ground.session() as socket:
        await socket.send(json.dumps({"type": "session.update", "session": settings | session}))
        await socket.send(json.dumps(_item(f"A {word('said', number)}, please.")))
        await socket.send(json.dumps({"type": "response.create"}))
        await _until(ground, number, socket, "response.done")


async def _heard(ground: Ground, number: int) -> None:
    """A turn in sound, committed by hand."""
    audio = {"input": {"turn_detection": None, "transcription": {"model": "m"}}}
    sound = base64.b64encode(bytes(range(0, 200)) * 240).decode()
    ground.services.hearing = number
    async with ground.session() as socket:
        for event in (
            {"type": "session.update", "session": {"type": "realtime", "audio": audio}},
            {"type": "input_audio_buffer.append", "audio": sound},
            {"type": "input_audio_buffer.commit"},
        ):
            await socket.send(json.dumps(event))
        end = "conversation.item.input_audio_transcription."
        await _until(ground, number, socket, f"{end}failed", f"{end}completed")


async def _posted(ground: Ground, number: int, path: str, **content: Any) -> None:
    await ground.until_ready()
    async with ground.http as http:
        try:
            answer = await http.post(path, **content)
        except httpx.HTTPError:
            return
    if answer.status_code >= 400:
        ground.note(number, answer.text)
    elif "error" in answer.text:  # within a stream
        errors = [line for line in answer.text.splitlines() if '"error"' in line]
        ground.note(number, errors)


async def _chatted(ground: Ground, number: int, *, is_streamed: bool = False) -> None:
    messages = [
        {"role": "system", "content": word("told", number)},
        {"role": "user", "content": word("said", number)},
    ]
    asked = {"model": "m", "messages": messages, "stream": is_streamed}
    await _posted(ground, number, "/v1/chat/completions", json=asked)


async def _spoken(ground: Ground, number: int) -> None:
    asked = {"model": "m", "input": word("said", number), "voice": "alloy"}
    await _posted(ground, number, "/v1/audio/speech", json=asked)


# --- failures -------------------------------------------------------------------------------------

Shape = Callable[[str, str], Reply]


def _failing(lane: str, name: str, path: str, shape: Shape, ways: Sequence[Any]) -> Failure:
    """A failure of the service at this path, met by the next of these ways."""

    async def drive(ground: Ground, number: int) -> None:
        ground.services.fail(path, number, shape)
        await ways[number % len(ways)](ground, number)

    return Failure(lane, name, drive)


def _tool(lane: str, name: str, tool: str, path: str = "", shape: Shape | None = None) -> Failure:
    async def drive(ground: Ground, number: int) -> None:
        ground.services.tools[number] = tool
        if shape is not None:
            ground.services.fail(path, number, shape)
        await _typed(ground, number)

    return Failure(lane, name, drive)


def _rpc(kind: str, told: str, one: str) -> Reply:
    """As MCP has a tool's failure told, or its own, or nothing that it knows."""
    request = json.loads(told[told.index("{") :])
    answers: Json = {
        "a tool's error": {
            "result": {"isError": True, "content": [{"type": "text", "text": told}]}
        },
        "an error": {"error": {"code": -32602, "message": told, "data": {"said": told}}},
        "another result": {"result": {"content": told}},
        "another error": {"error": told},
        "a structure of its own": {"result": {"content": [], "structuredContent": [told]}},
        "another id": {"result": {"content": []}, "id": told},
    }
    answer = {"jsonrpc": "2.0", "id": request.get("id")} | answers[kind]
    return Reply(json.dumps(answer).encode(), "200 OK")


def _of_services() -> Iterator[Failure]:
    for (name, shape), status in itertools.product(SHAPES.items(), STATUSES):
        of = partial(_of_status, shape, status)
        ways = (_typed, _chatted, partial(_chatted, is_streamed=True))
        yield _failing("llm", f"llm: {name}, {status}", "/v1/chat/completions", of, ways)
    for name, broken in BROKEN_STREAMS.items():
        ways = (_typed, partial(_chatted, is_streamed=True))
        yield _failing("llm", f"llm: {name}", "/v1/chat/completions", broken, ways)
    for (name, shape), status in itertools.product(SHAPES.items(), (400, 401, 500)):
        of = partial(_of_status, shape, status)
        yield _failing("stt", f"stt: {name}, {status}", "/v1/audio/transcriptions", of, (_heard,))
        ways = (partial(_typed, modality="audio"), _spoken)
        yield _failing("tts", f"tts: {name}, {status}", "/v1/audio/speech", of, ways)
    for (name, shape), status in itertools.product(SHAPES.items(), (400, 500)):
        of = partial(_of_status, shape, status)
        yield _tool("tools", f"tool: {name}, {status}", "ask_shop", "/tool", of)
    for kind in (
        "a tool's error", "an error", "another result", "another error", "a structure of its own",
        "another id",
    ):  # fmt: skip
        yield _tool("mcp", f"mcp: {kind}", "find", "/mcp", partial(_rpc, kind))
    for name, shape in SHAPES.items():
        of = partial(_of_status, shape, 500)
        yield _failing("knowledge", f"knowledge: {name}", "/search", of, (_typed,))
        yield _tool("mcp", f"mcp: {name}", "find", "/mcp", of)
    for name in PYTHON_NAMES:
        yield _tool("python", f"python: {name}", name)


def _of_status(shape: Callable[[str, str, int], Reply], status: int, told: str, one: str) -> Reply:
    return shape(told, one, status)


def _frames(number: int) -> list[Json | str]:
    """What no client should send, with words in it."""
    said = word("said", number)
    item = _item(said)["item"]
    return [
        "{" + said, f'"{said}"', {"type": said}, {"type": "session.update", "session": said},
        {"type": "session.update", "session": {"type": said}},
        {"type": "session.update", "session": {"type": "realtime", said: said}},
        {"type": "session.update", "session": {"type": "realtime", "instructions": [said]}},
        {"type": "session.update", "session": {"type": "realtime", "tools": [{"type": said}]}},
        {"type": "session.update", "session": {"type": "realtime", "tools": [
            {"type": "mcp", "server_label": said, "server_url": f"https://{said}.example",
             "authorization": said}]}},
        {"type": "conversation.item.create", "item": item | {"role": said}},
        {"type": "conversation.item.create", "item": item | {"content": said}},
        {"type": "conversation.item.create", "item": item, "previous_item_id": said},
        {"type": "conversation.item.delete", "item_id": said},
        {"type": "conversation.item.truncate", "item_id": said, "audio_end_ms": said},
        {"type": "input_audio_buffer.append", "audio": f"{said}!"},
        {"type": "response.create", "response": {"tool_choice": said}},
        {"type": "response.create", "response": {"voice": said}},
        {"type": "response.cancel", "response_id": said},
        {"type": "voiceloop.resume", "ticket": f"rt_{said}.{said}.{said}"},
    ]  # fmt: skip


def _of_clients() -> Iterator[Failure]:
    async def framed(index: int, ground: Ground, number: int) -> None:
        frame = _frames(number)[index]
        ground.is_own.add(number)
        async with ground.session() as socket:
            await socket.send(frame if isinstance(frame, str) else json.dumps(frame))
            await _until(ground, number, socket, "error", "session.updated")

    for index in range(len(_frames(0))):
        yield Failure("frames", f"frame {index}", partial(framed, index))

    async def refused(ground: Ground, number: int, *, query: str = "", key: str = "") -> None:
        said = word("said", number)
        with suppress(InvalidStatus, WebSocketException, OSError):
            async with ground.dial(query.format(said), key.format(said) or KEYS["client"]):
                pass

    for query, key in (
        ("", "{0}"), ("", "ek_{0}.{0}"), ("?greeting={0}", ""),
        ("?model={0}&voiceloop.returns={0}", ""), ("?voiceloop.returns=rt_{0}.{0}", "{0}"),
    ):  # fmt: skip
        name = f"door: {query or key}"
        yield Failure("frames", name, partial(refused, query=query, key=key))

    async def posted(path: str, ground: Ground, number: int, **content: str) -> None:
        ground.is_own.add(number)
        filled: Json = {name: one.format(word("said", number)) for name, one in content.items()}
        await _posted(ground, number, path.format(word("said", number)), **filled)

    for path, body in (
        ("/v1/chat/completions", '{{"model": "{0}", "messages": "{0}"}}'),
        ("/v1/chat/completions", "{{{0}"), ("/v1/{0}", "{0}"),
        ("/v1/audio/speech", '{{"input": ["{0}"], "voice": "{0}"}}'),
        ("/v1/realtime/client_secrets", '{{"session": {{"type": "{0}"}}}}'),
    ):  # fmt: skip
        yield Failure("frames", f"http: {path}", partial(posted, path, content=body))

    async def uploaded(name: str, ground: Ground, number: int) -> None:
        ground.is_own.add(number)
        start = {"a.flac": b"fLaC", "a.mp3": b"ID3", "a.wav": b"RIFF\0\0\0\0WAVEfmt ", "a.m4a": b""}
        sound = start[name] + word("said", number).encode() * 20
        path, files = "/v1/audio/transcriptions", {"file": (word("said", number) + name, sound)}
        await _posted(ground, number, path, files=files, data={"model": "m"})

    for name in ("a.flac", "a.mp3", "a.wav", "a.m4a"):
        yield Failure("frames", f"decoder: {name}", partial(uploaded, name))

    async def with_secret(ground: Ground, number: int) -> None:
        async with ground.http as http:
            asked = {"session": {"type": "realtime", "instructions": word("told", number)}}
            made = (await http.post("/v1/realtime/client_secrets", json=asked)).json()
        ground.secrets.append(made["value"])
        async with ground.session(made["value"]) as socket:
            await socket.send("{" + word("said", number))
            await _until(ground, number, socket, "error")
        await _posted(ground, number, "/v1/chat/completions", content=made["value"])

    yield Failure("frames", "a client secret", with_secret)


FAILURES: tuple[Failure, ...] = (*_of_services(), *_of_clients())


# --- the servers ----------------------------------------------------------------------------------


@asynccontextmanager
async def gateway(folder: Path, log: Path) -> AsyncIterator[Ground]:
    """A gateway whose models, tools, documents and traces are services that fail as told."""
    async with failing_services() as services:
        (folder / "agent_tools.py").write_text(PYTHON_TOOLS)
        (folder / "agent_errors.py").write_text("class Refused(Exception):\n    pass\n")
        tools = "".join(PYTHON_TOOL.format(name=name) for name in PYTHON_NAMES)
        (folder / "agent.toml").write_text(AGENT.format(url=services.url) + tools)
        config = {
            "agent": str(folder / "agent.toml"), "log_level": "debug",
            "keys": [KEYS["client"]], "metrics_key": KEYS["metrics"], "secret_key": KEYS["secret"],
            **{f"{role}_url": f"{services.url}/v1" for role in ("llm", "stt", "tts")},
            **{f"{role}_key": KEYS[role] for role in ("llm", "stt", "tts")},
        }  # fmt: skip
        lines = [f"{name} = {json.dumps(value)}" for name, value in config.items()]
        lines += ["[llm.headers]", f'X-Extra = "{KEYS["header"]}"']
        lines += [
            "[slo]",
            "gap_ms = 60000",  # what fails here is late, and the next call is let in all the same
            "[anticipation]",
            "off = ['p_end', 'p_voice']",
        ]
        lines += ["[traces]", f'url = "{services.url}/v1/traces"']
        (folder / "voiceloop.toml").write_text("\n".join(lines))
        environment = {
            "SHOP_KEY": KEYS["shop"],
            "MCP_KEY": KEYS["mcp"],
            "OTEL_BSP_SCHEDULE_DELAY": "500",
        }
        async with running_server(
            ("--config", str(folder / "voiceloop.toml")),
            command=GATEWAY, log=log, environment=environment,
        ) as server:  # fmt: skip
            yield Ground(server, services)


async def drive(ground: Ground, failures: Mapping[int, Failure]) -> None:
    """Try each of them once, and a turn that goes well behind it."""
    lanes: dict[str, list[int]] = {}
    for number, failure in failures.items():
        lanes.setdefault(failure.lane, []).append(number)

    async def one_lane(numbers: list[int]) -> None:
        for number in numbers:
            await failures[number].drive(ground, number)
            if number in ground.services.unmet():  # an MCP server that is connected anew, say
                await asyncio.sleep(1.0)
                await failures[number].drive(ground, number)
            if failures[number].lane in GOOD:  # else a service that keeps failing is asked no more
                await GOOD[failures[number].lane](ground, 999)

    await asyncio.gather(*(one_lane(numbers) for numbers in lanes.values()))


async def _until_connected(ground: Ground, number: int) -> None:
    await asyncio.sleep(1.2)  # to an MCP server whose line broke; its tools are not offered before


GOOD: dict[str, Callable[[Ground, int], Awaitable[None]]] = {
    "llm": _chatted, "stt": _heard, "tts": _spoken, "mcp": _until_connected,
}  # fmt: skip


@dataclass(slots=True)
class Leaks:
    """By the place where it was found, the words and keys that were."""

    n_failures: int = 0
    missed: list[str] = field(default_factory=list)
    found: dict[str, list[str]] = field(default_factory=dict)

    @property
    def n_found(self) -> int:
        return sum(len(found) for found in self.found.values())

    def search(self, place: str, text: str, secrets: Sequence[str] = ()) -> None:
        words = {one for one in ANY_WORD.findall(text) if "999x" not in one}
        keys = {key for key in (*KEYS.values(), *secrets) if key in text}
        if words | keys:
            self.found.setdefault(place, []).extend(sorted(words | keys))

    def read(self, place: str, file: Path, secrets: Sequence[str] = ()) -> None:
        self.search(place, file.read_text(errors="replace"), secrets)


async def observed(ground: Ground, leaks: Leaks) -> None:
    """Look for them in all that the server tells of itself, and in what its clients were told."""
    async with ground.http as http:
        operator = {"Authorization": f"Bearer {KEYS['metrics']}"}
        for path in ("/metrics", "/readyz", "/healthz", "/openapi.json", "/v1/agent"):
            for headers in ({}, operator):
                leaks.search(path, (await http.get(path, headers=headers)).text, ground.secrets)
    await asyncio.sleep(1.2)  # traces are sent each half second
    for body in ground.services.collected:
        leaks.search("traces", body.decode("latin-1"), ground.secrets)
    for number, told in ground.told.items():
        text = "\n".join(told)
        if number in ground.is_own:  # whoever sent them is told which words were wrong
            text = text.replace(word("said", number), "").replace(KEYS["client"], "")
        leaks.search(f"the wire: {number:03d}", text, ground.secrets)


async def through_services(failures: Mapping[int, Failure], leaks: Leaks, log: Path) -> None:
    """Try these at a gateway. Missed are those that never came to the service that was to fail."""
    with tempfile.TemporaryDirectory() as folder:
        async with gateway(Path(folder), log) as ground:
            await drive(ground, failures)
            await observed(ground, leaks)
    leaks.read("the log", log, ground.secrets)
    leaks.n_failures += len(failures)
    leaks.missed += [failures[number].name for number in sorted(ground.services.unmet())]


# --- workers --------------------------------------------------------------------------------------

CRASHES = (signal.SIGSEGV, signal.SIGABRT, signal.SIGKILL)


def _of_workers() -> Iterator[Failure]:
    async def asked(ground: Ground, number: int, **more: Any) -> None:
        said = word("said", number)
        filled = json.loads(json.dumps(more).replace("WORD", said))
        messages = [{"role": "user", "content": said * filled.pop("times", 1)}]
        request = {"model": "m", "messages": messages, "max_tokens": 8} | filled
        ground.is_own.add(number)
        await _posted(ground, number, "/v1/chat/completions", json=request)

    def schema(written: Json) -> Json:
        form = {"type": "json_schema", "json_schema": {"name": "WORD", "schema": written}}
        return {"response_format": form}

    tool = {"name": "WORD", "parameters": {"type": "object", "properties": {"WORD": "WORD"}}}
    for more in (
        schema({"type": "WORD"}), schema({"type": "string", "pattern": "(WORD"}),
        schema({"$ref": "#/WORD"}), {"tools": [{"type": "function", "function": tool}]},
        {"times": 9000}, {"stop": "WORD", "n": 99},
    ):  # fmt: skip
        yield Failure("workers", f"engine: {next(iter(more))}", partial(asked, **more))

    async def crashed(at: int, by: signal.Signals, ground: Ground, number: int) -> None:
        while len(workers := sorted(process_tree(ground.server.pid)[1:])) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.1)  # one that has ended is not started yet
        talking = asyncio.create_task(_typed(ground, number, modality="audio"))
        await asyncio.sleep(0.15)
        with suppress(ProcessLookupError):
            os.kill(workers[at], by)
        await talking

    for at, by in itertools.product((0, 1), CRASHES):
        yield Failure("workers", f"worker {at}: {by.name}", partial(crashed, at, by))


WORKER_FAILURES: tuple[Failure, ...] = tuple(_of_workers())


async def through_workers(failures: Mapping[int, Failure], leaks: Leaks, log: Path) -> None:
    """Try these at a server with models of its own, whose processes may leave a core."""
    here = Path.cwd()
    cores = set(here.glob("core*"))
    bound = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (bound[1], bound[1]))
    told = {"LOG_LEVEL": "debug", "KEYS": KEYS["client"], "METRICS_KEY": KEYS["metrics"]}
    environment = {f"VOICELOOP_{name}": value for name, value in told.items()}
    try:
        async with running_server(
            ("--preset", "embedded"), log=log, environment=environment
        ) as server:
            ground = Ground(server, Services())
            await drive(ground, failures)
            await observed(ground, leaks)
    finally:
        resource.setrlimit(resource.RLIMIT_CORE, bound)
    leaks.read("the log of workers", log)
    for core in set(here.glob("core*")) - cores:
        leaks.found.setdefault("cores", []).append(core.name)
    leaks.n_failures += len(failures)


async def leaks_of_all(leaks: Leaks, folder: Path) -> None:
    """Every failure there is, one server after the other; their logs stay in the folder."""
    await through_services(dict(enumerate(FAILURES)), leaks, folder / "hostile_words.log")
    workers = dict(enumerate(WORKER_FAILURES, len(FAILURES)))
    await through_workers(workers, leaks, folder / "hostile_words_workers.log")

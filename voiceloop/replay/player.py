"""Plays kept calls into a gateway of this process, and keeps them anew.

Owns the line of such a call (`ReplayLine`: frames in the caller's time, the client's events when
they came, recorded results where a tool is called), and the server around it: all that a served one
has but sockets. No tool acts, for what it would do has been done.
"""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from audio.codec import encode
from audio.resample import Resampler
from voiceloop.agent import AgentConfig
from voiceloop.backends import Backends
from voiceloop.call.connection import Disconnected, Hello
from voiceloop.config import Config
from voiceloop.models.opening import open_backends
from voiceloop.operation import RecordingSettings
from voiceloop.realtime.settings import AudioFormat
from voiceloop.recording.timeline import RATE_HZ
from voiceloop.replay.clock import SkippingLoop
from voiceloop.replay.kept import KeptFiles, canonical
from voiceloop.server.app import Gateway
from voiceloop.tools.caller import NOBODY, Caller
from voiceloop.tools.executor import ToolFailed
from voiceloop.workers.client import Settling, WorkerConnection

FRAME_S = 0.02
REST_S = 3.0  # behind the caller's last frame: the last answer may be later than it was
TENANT = "replay"


class RecordedResults:
    """A tool: what came of the same call then, after as long as it took then."""

    def __init__(self, name: str, results: Mapping[tuple[str, str], list[tuple[str, float]]]):
        self._name = name
        self.results = results

    async def run(self, key: str, arguments: Mapping[str, Any], caller: Caller = NOBODY) -> str:
        asked = self._name, json.dumps(arguments, sort_keys=True)
        if not (found := self.results.get(asked)):
            raise ToolFailed(
                f"expected a call of {self._name} as in the recording, found another",
                told="not found",
            )
        output, wait_s = found[0]
        await asyncio.sleep(wait_s)
        return output


class ReplayLine:
    """A `Transport`: the caller of one kept call. tools: those that its client answers."""

    line = phone = None

    def __init__(self, kept: KeptFiles, hello: Hello, tools: frozenset[str]) -> None:
        self.hello = hello
        self._kept, self._tools = kept, tools
        self.session_id = ""
        self._results = kept.results()
        self._answers: asyncio.Queue[str] = asyncio.Queue(1024)
        self._format = AudioFormat()
        self._resampler = Resampler(RATE_HZ, self._format.rate)
        self._frames = self._played()

    async def receive(self) -> str:
        if not self._answers.empty():
            return self._answers.get_nowait()
        frame = await anext(self._frames, None)
        if frame is None:
            raise Disconnected
        return frame

    async def send(self, data: str) -> None:
        event = json.loads(data)
        if event["type"] in ("session.created", "session.updated"):
            self.session_id = event["session"]["id"]
            heard = event["session"].get("audio", {}).get("input", {}).get("format")
            if heard and heard != self._format.to_wire():
                self._format = AudioFormat(**{"rate": 8000, **heard})
                self._resampler = Resampler(RATE_HZ, self._format.rate)
        item = event.get("item") or {}
        is_done = event["type"] == "response.output_item.done"
        if is_done and item.get("type") == "function_call" and item["name"] in self._tools:
            asked = item["name"], canonical(item["arguments"])
            output = (self._results.get(asked) or [('{"error": "not in the recording"}', 0.0)])[0]
            self._answer(item["call_id"], output[0])

    def _answer(self, call_id: str, output: str) -> None:
        item = {"type": "function_call_output", "call_id": call_id, "output": output}
        for event in (
            {"type": "conversation.item.create", "item": item},
            {"type": "response.create"},
        ):
            self._answers.put_nowait(json.dumps(event))

    async def close(self, code: int = 1000, reason: str = "") -> None: ...

    async def _played(self) -> AsyncIterator[str]:
        loop = asyncio.get_running_loop()
        began_s, n_frame = loop.time(), round(FRAME_S * RATE_HZ)
        events, n_rest = self._kept.events, round(REST_S * RATE_HZ)
        caller = np.pad(self._kept.caller, (0, n_rest + n_frame))
        for at in range(0, len(caller) - n_frame, n_frame):
            await asyncio.sleep(began_s + (at + n_frame) / RATE_HZ - loop.time())
            while events and events[0][0] * RATE_HZ <= at:
                yield json.dumps(events.pop(0)[1])
            samples = self._resampler.push(caller[at : at + n_frame])
            sound = encode(samples, self._format.encoding)
            if sound:
                audio = base64.b64encode(sound).decode("ascii")
                yield json.dumps({"type": "input_audio_buffer.append", "audio": audio})


class Unhurried(Backends):
    """Models that are never too busy: the clock waits for them."""

    def utilization(self) -> float:
        return 0.0


def may_skip(config: Config) -> bool:
    """Whether it is known when all is computed: not of what services elsewhere do."""
    elsewhere = (config.llm_url, config.stt_url, config.tts_url, config.workers.list)
    workers = config.workers.engine or config.workers.recognizer or config.workers.voice
    return not any(elsewhere) and not workers


def of_replay(config: Config, folder: Path) -> Config:
    """The same for replays alone: kept in this folder, and told to no collector."""
    kept = RecordingSettings(folder=folder, consent="none", keep_days=0)
    traces = replace(config.traces, url=None)
    limits = replace(config.limits, admit_by_load=False, session_minutes=24.0 * 60.0)
    return replace(config, recording=kept, traces=traces, limits=limits, keys=(), reload=False)


@asynccontextmanager
async def opened_player(config: Config, agent: AgentConfig, folder: Path) -> AsyncIterator[Player]:
    """The models, loaded. Raises: ConfigError, BackendError, as `open_backends`."""
    loop = asyncio.get_running_loop()
    async with AsyncExitStack() as stack:
        agent = replace(agent, mcp=())
        settings = of_replay(config, folder)
        gateway = Gateway(settings, agent, clock=loop.time)
        stack.push_async_callback(asyncio.to_thread, gateway.observers.close)
        stack.callback(gateway.doors.close)
        WorkerConnection.settling = settling = Settling()
        stack.callback(setattr, WorkerConnection, "settling", None)
        backends, _ = await stack.enter_async_context(open_backends(settings, agents=(agent,)))
        known = backends.known
        fills = any(slot.name is not None for slot in agent.slots)
        chosen = {one.name: getattr(backends, one.name) for one in fields(Backends)}
        chosen["known"] = lambda: replace(known(), fills_slots=fills)
        gateway.backends = Unhurried(**chosen)
        stack.push_async_callback(gateway.calls.kept_lines.close)
        await gateway.calls.kept_lines.keep_all(gateway.backends.voice, agent)
        if may_skip(config) and isinstance(loop, SkippingLoop):  # what loads, and ends, is real
            loop.skip_while(lambda: settling.is_settled)
            stack.callback(loop.skip_while, lambda: False)
        yield Player(gateway, folder)


class Player:
    """`play` one call after the other: a replay is alone on its clock."""

    def __init__(self, gateway: Gateway, folder: Path) -> None:
        self._gateway, self._folder = gateway, folder

    async def play(self, kept: KeptFiles) -> dict[str, Any]:
        """The notes of the call as it went now. Raises: RuntimeError: there are none."""
        gateway, results = self._gateway, kept.results()
        tools = gateway.calls.toolbox.served
        for name, served in list(tools.items()):
            tools[name] = replace(served, run=RecordedResults(name, results).run)
        said = kept.notes.get("hello")
        hello = said if isinstance(said, dict) else {}
        line = ReplayLine(
            kept,
            Hello(
                model=str(hello.get("model", "voiceloop")),
                intent="transcription" if hello.get("intent") == "transcription" else "realtime",
                greeting=hello.get("greeting") if isinstance(hello.get("greeting"), bool) else None,
                session=_object(hello.get("session")),
                asked=_object(hello.get("asked")),
                tenant=TENANT,
            ),
            frozenset(tool.name for tool in gateway.agent.tools if tool.is_clients),
        )
        await gateway.serve_session(line)
        while not (written := list(self._folder.glob(f"{line.session_id}*.json"))):
            await asyncio.to_thread(_wait)
        notes: dict[str, Any] = json.loads(written[0].read_bytes())
        return notes


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _wait() -> None:
    """Wait in real time: for the writer's thread."""
    time.sleep(0.005)

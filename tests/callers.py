"""A scripted caller on a session without a socket: streams audio in time, keeps what came back.

Every event is kept with the time it arrived; audio is played as a client without a buffer of its
own would play it, so tests can ask what was heard when.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.fakes import EnergyVad, instant_backends, quiet, utterance
from voiceloop.agent import AgentConfig
from voiceloop.backends import Backends, Voice, VoiceOptions
from voiceloop.call.connection import Disconnected, Hello
from voiceloop.call.services import Answering, CallServices
from voiceloop.call.session import Session
from voiceloop.call.turn_taking import TurnTaking
from voiceloop.config import Config
from voiceloop.knowledge.answers import ApprovedAnswers
from voiceloop.realtime.sound_line import Digit, Sound, SoundLine
from voiceloop.reply.phase import Phase
from voiceloop.reply.voice import KeptLines
from voiceloop.telemetry.metrics import Metrics
from voiceloop.telephony import PhoneLine
from voiceloop.tools.toolbox import Toolbox

TurnTaking.is_strict = True  # an illegal pair of states fails a test
Phase.is_strict = True  # so does what may not happen to a reply in its phase

RATE_HZ = 24_000
CHUNK_MS = 20


@dataclass(frozen=True, slots=True)
class Received:
    at_s: float
    event: dict[str, Any]

    @property
    def type(self) -> str:
        return str(self.event["type"])


class MemoryTransport:
    """Both ends of a line in memory. `reading` False: the client reads nothing meanwhile.

    line: as of `Transport`; with one, `put_sound` is the caller's microphone.
    """

    def __init__(
        self,
        hello: Hello,
        clock: Callable[[], float],
        line: SoundLine | None = None,
        phone: PhoneLine | None = None,
    ) -> None:
        self.hello = hello
        self.line = line
        self.phone = phone
        self._clock = clock
        self._to_server: asyncio.Queue[str | Sound | Digit | None] = asyncio.Queue()
        self.received: list[Received] = []
        self.by_type: dict[str, list[Received]] = {}
        self.arrived = asyncio.Condition()
        self._reads = asyncio.Event()
        self._reads.set()
        self.closed: tuple[int, str] | None = None

    @property
    def reading(self) -> bool:
        return self._reads.is_set()

    @reading.setter
    def reading(self, reads: bool) -> None:
        if reads:
            self._reads.set()
        else:
            self._reads.clear()

    async def receive(self) -> str | bytes | Sound | Digit:
        frame = await self._to_server.get()
        if frame is None:
            raise Disconnected
        return frame

    async def send(self, data: str) -> None:
        await self._reads.wait()
        received = Received(self._clock(), json.loads(data))
        self.received.append(received)
        self.by_type.setdefault(received.type, []).append(received)
        async with self.arrived:
            self.arrived.notify_all()

    async def close(self, code: int = 1000, reason: str = "") -> None:
        self.closed = self.closed or (code, reason)
        async with self.arrived:
            self.arrived.notify_all()

    def put(self, event: dict[str, Any] | None) -> None:
        self._to_server.put_nowait(None if event is None else json.dumps(event))

    def press(self, key: str) -> None:
        self._to_server.put_nowait(Digit(key))

    def put_sound(self, samples: NDArray[np.int16]) -> None:
        self._to_server.put_nowait(Sound(samples.astype("<i2").tobytes()))


class NoLinesAhead(KeptLines):
    """Keeps no line for a call before that needs it: nothing but its own replies is spoken."""

    def keep_soon(self, voice: Voice, text: str, options: VoiceOptions) -> None:
        """Nothing."""


class Caller:
    """`async with Caller(...) as caller:` runs a session around the block and hangs up after it."""

    def __init__(
        self,
        clock: Callable[[], float],
        backends: Backends | None = None,
        agent: AgentConfig | None = None,
        config: Config | None = None,
        chunk_ms: int = CHUNK_MS,
        hello: Hello | None = None,
        line: SoundLine | None = None,
        phone: PhoneLine | None = None,
        **services: Any,
    ) -> None:
        """services: those of `CallServices` that are not as in a server with nothing else."""
        self.chunk_ms = chunk_ms
        self.clock = clock
        self.transport = MemoryTransport(hello or Hello(timeline=True), clock, line, phone)
        self.backends = backends or instant_backends()
        agent, config = agent or AgentConfig(), config or Config()
        chosen: dict[str, Any] = {
            "metrics": Metrics(),
            "toolbox": Toolbox({}, clock),
            "answers": ApprovedAnswers(agent.answer),
            "kept_lines": NoLinesAhead(),
            **{name: given for name, given in services.items() if given is not None},
        }
        self.services = CallServices(config=config, clock=clock, new_vad=EnergyVad, **chosen)
        answering = Answering(agent, self.services, self.backends)
        self.session = Session(self.transport, answering)
        self.sent_ms = 0.0

    async def __aenter__(self) -> Caller:
        self._task = asyncio.create_task(self.session.run())
        await self.wait_for("session.created")
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.transport.put(None)
        await self._task

    # --- sending ---

    def send(self, type: str, **fields: Any) -> None:
        self.transport.put({"type": type, **fields})

    async def play(self, samples: NDArray[np.int16]) -> None:
        """Stream int16 at 24 kHz in real time, `chunk_ms` a frame."""
        per_chunk = RATE_HZ * self.chunk_ms // 1000
        for start in range(0, len(samples), per_chunk):
            chunk = samples[start : start + per_chunk]
            if self.transport.line is not None:
                self.transport.put_sound(chunk)
            else:
                self.send(
                    "input_audio_buffer.append",
                    audio=base64.b64encode(chunk.astype("<i2").tobytes()).decode(),
                )
            self.sent_ms += 1000.0 * len(chunk) / RATE_HZ
            await asyncio.sleep(len(chunk) / RATE_HZ)

    async def say(self, ms: float) -> float:
        """Loud audio; returns when its last sample was sent."""
        await self.play(utterance(ms, RATE_HZ))
        return self.clock()

    async def wait_quietly(self, ms: float) -> None:
        await self.play(quiet(ms, RATE_HZ))

    async def listen_until(self, type: str, *, count: int = 1, limit_ms: float = 10_000) -> None:
        """Room noise until `count` events of the type have come in all."""
        waited_ms = 0.0
        while len(self.of(type)) < count:
            assert waited_ms < limit_ms, f"no {type} within {limit_ms} ms: {self.types()}"
            await self.wait_quietly(self.chunk_ms)
            waited_ms += self.chunk_ms

    # --- what came ---

    def of(self, type: str) -> list[Received]:
        return self.transport.by_type.get(type, [])

    def types(self) -> list[str]:
        found = [r.type for r in self.transport.received]
        return [t for i, t in enumerate(found) if i == 0 or t != found[i - 1]]

    async def wait_for(self, type: str, *, count: int = 1) -> Received:
        async with self.transport.arrived:
            await self.transport.arrived.wait_for(
                lambda: len(self.of(type)) >= count or self.transport.closed
            )
        found = self.of(type)
        assert len(found) >= count, f"closed {self.transport.closed} before {type}"
        return found[count - 1]

    def statuses(self) -> list[str]:
        return [r.event["response"]["status"] for r in self.of("response.done")]

    def transcript(self, response_id: str | None = None) -> str:
        return "".join(
            r.event["delta"]
            for r in self.of("response.output_audio_transcript.delta")
            if response_id in (None, r.event["response_id"])
        )

    def audio_ms(self, response_id: str | None = None) -> float:
        return sum(
            1000.0 * len(base64.b64decode(r.event["delta"])) / 2 / RATE_HZ
            for r in self.of("response.output_audio.delta")
            if response_id in (None, r.event["response_id"])
        )

    def first_audio_s(self, response_id: str | None = None) -> float:
        return next(
            r.at_s
            for r in self.of("response.output_audio.delta")
            if response_id in (None, r.event["response_id"])
        )

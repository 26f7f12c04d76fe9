"""Processes of a cluster without models: the ``voiceloop`` command, whose workers are scripted.

    python -m benchmarks.cluster.scripted worker --role engine --listen 127.0.0.1:0 --json

The recognizer hears one question in whatever is said, the engine is sure that it is over and
answers at once, after two seconds where it is asked slowly, and the voice is a tone. Where
``CLUSTER_BENCH_FOLDER`` names a folder, the engine writes a line for each branch there, of which
messages it has read, as a prefix cache would.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
import os
import sys
import time
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path

from voiceloop.backends import (
    ChatMessage,
    Generated,
    Partial,
    Speech,
    SpeechEnd,
    Staged,
    TextDelta,
    Transcript,
    Usage,
    Word,
)
from voiceloop.cli import build_parser
from voiceloop.cli import main as voiceloop
from voiceloop.cluster.address import read_address
from voiceloop.cluster.host import host_worker
from voiceloop.config import load_config
from voiceloop.workers.messages import (
    Commit,
    FeedText,
    Finalize,
    FinishText,
    Flush,
    HeldModel,
    OpenBranch,
    RoleName,
    RoleSpec,
    Stage,
    StreamEvent,
    StreamFailed,
    StreamOutput,
    ToRole,
    WorkerSpec,
)

FOLDER = "CLUSTER_BENCH_FOLDER"
RATE_HZ = 24_000
HEARD = ("what", "do", "you", "have", "to", "eat")
WORDS = tuple(Word(text, 200.0 * index, 200.0 * (index + 1)) for index, text in enumerate(HEARD))
P_END = 0.98
ANSWER = "Certainly, that is noted."
TONE_HZ, TONE_S = 220, 0.3
SLOWLY, SLOWLY_S = "slowly", 2.0  # about as long as a caller keeps a branch open in each turn
HELD: dict[RoleName, HeldModel] = {
    "engine": HeldModel("scripted engine", context_tokens=4096),
    "recognizer": HeldModel("scripted ears", languages=("en",)),
    "voice": HeldModel("scripted voice", voices=("ava",)),
}


def chain_of(history: Sequence[ChatMessage]) -> list[str]:
    """Of each message a digest of it and all before it."""
    running, found = hashlib.blake2b(digest_size=8), []
    for message in history:
        running.update(f"{message.role}\0{message.content}\0".encode())
        found.append(running.hexdigest())
    return found


@cache
def tone() -> bytes:
    """PCM16, some 20 dB below the loudest."""
    turn = 2 * math.pi * TONE_HZ / RATE_HZ
    samples = (round(3000 * math.sin(turn * index)) for index in range(int(TONE_S * RATE_HZ)))
    return array("h", samples).tobytes()


class Scripted:
    """Any role. What it is asked is answered at its next step."""

    rate_hz = RATE_HZ
    detail = "scripted"
    tokenizer = b""
    tokens = ""
    served: Mapping[str, str] = {}

    def __init__(self, n_tones: int = 1) -> None:
        """n_tones: of each text that is spoken."""
        self._n_tones = n_tones
        self._due: list[tuple[float, StreamEvent | StreamFailed]] = []
        self._segments = Counter[str]()
        folder = os.environ.get(FOLDER)
        self._log = Path(folder) / f"engine-{os.getpid()}.jsonl" if folder else None

    def warm_up(self) -> None:
        pass

    def receive(self, message: ToRole) -> None:
        match message:
            case OpenBranch():
                if self._log is not None:
                    line = [time.time(), message.stream_id, chain_of(message.history)]
                    with self._log.open("a", encoding="utf-8") as file:
                        file.write(json.dumps(line) + "\n")
            case Flush():
                segment = self._segments[message.stream_id]
                self._answer(message.stream_id, Partial(segment, HEARD, (), True))
            case Finalize():
                self._answer(
                    message.stream_id, Transcript(self._segments[message.stream_id], WORDS)
                )
                self._segments[message.stream_id] += 1
            case Stage():
                self._answer(message.stream_id, Staged(message.stage_id, 1, 1, P_END))
            case Commit():
                wait_s = SLOWLY_S if SLOWLY in message.tail[-1].content else 0.0
                self._answer(message.stream_id, TextDelta(ANSWER), wait_s)
                self._answer(message.stream_id, Generated("stop", Usage()), wait_s)
            case FeedText():
                for _ in range(self._n_tones):
                    self._answer(message.stream_id, Speech(tone(), RATE_HZ))
            case FinishText():
                self._answer(message.stream_id, SpeechEnd(0))

    def _answer(self, stream_id: str, event: StreamOutput, wait_s: float = 0.0) -> None:
        self._due.append((time.monotonic() + wait_s, StreamEvent(stream_id, event)))

    def close(self, stream_id: str) -> None:
        self._due = [(due_s, one) for due_s, one in self._due if one.stream_id != stream_id]
        self._segments.pop(stream_id, None)

    def has_work(self) -> bool:
        return any(due_s <= time.monotonic() for due_s, _ in self._due)

    def totals(self) -> dict[str, float]:
        return {}

    def step(
        self, interrupted: Callable[[], bool] | None = None
    ) -> Sequence[StreamEvent | StreamFailed]:
        now_s = time.monotonic()
        due = [event for due_s, event in self._due if due_s <= now_s]
        self._due = [(due_s, event) for due_s, event in self._due if due_s > now_s]
        return due


def load(**options: int) -> Scripted:
    return Scripted(**options)


def roles(names: Iterable[RoleName], **options: int) -> tuple[RoleSpec, ...]:
    """What a process is to hold; options: of each `Scripted`."""
    factory = "benchmarks.cluster.scripted:load"
    return tuple(RoleSpec(name, options, factory, HELD[name]) for name in names)


def main(arguments: Sequence[str]) -> int:
    if arguments[0] != "worker":
        return voiceloop(arguments)
    given = build_parser().parse_args(list(arguments))
    asyncio.run(
        host_worker(
            WorkerSpec("scripted", roles(given.role), version=given.version),
            read_address("--listen", given.listen),
            load_config(environ=os.environ).workers,
            drain_s=20.0,
            tells=True,
        )
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

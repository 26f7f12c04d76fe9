"""What the model is told it said against what was heard: ``python -m benchmarks.heard_history``.

A reply is cut at a random moment of its playing; the next request to the language model shows what
the conversation believes was heard. The truth comes from the wire: how much of the reply's audio a
client with a 40 ms buffer had played at that moment, and which words lie in that much audio. The
replies are lists, so that the waveform's own pauses tell the words apart and no word time of the
voice is believed. Real server, embedded voice; the language model is a stub that says given
sentences and keeps what it is shown.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from time import monotonic
from typing import Any

import numpy as np
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from benchmarks.command_line import benchmark_parser, early_end, exit_code, run, without_results
from benchmarks.harness import RESULTS, Bar, bar_table, results, write_results
from benchmarks.synthetic_callers import words_of
from clients.arguments import whole_number
from clients.connection import RATE_HZ, RealtimeConnection, Received
from clients.errors import ClientError
from clients.outputs import prepare_folder
from clients.playout import Playout
from clients.recording import Samples
from clients.server_process import free_port, running_server
from clients.waveform import pauses, speech_end, speech_start

SENTENCES = (
    "Monday, Tuesday, Wednesday, Thursday, Friday, Saturday, Sunday.",
    "Apples, pears, plums, grapes, melons, lemons, oranges, berries.",
    "London, Paris, Berlin, Madrid, Vienna, Dublin, Lisbon, Rome.",
    "Red, yellow, green, blue, orange, purple, brown, black.",
)
AT_ONCE = 4
EARLIEST_MS = 300.0
PAUSE_MS = 40.0  # between two words of a list; a stop consonant within one is shorter
LATEST_SHARE = 0.95  # of the reply: later it may have ended by itself


class Told:
    """The language model: says the sentence that is asked for and keeps what it is shown."""

    def __init__(self) -> None:
        self.shown: dict[str, list[dict[str, Any]]] = {}  # last user text -> messages

    def app(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/v1/models", self._models),
                Route("/v1/chat/completions", self._chat, methods=["POST"]),
            ]
        )

    async def _models(self, request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [{"id": "told"}]})

    async def _chat(self, request: Request) -> Response:
        asked = await request.json()
        messages = asked["messages"]
        key = str(messages[-1]["content"])
        self.shown[key] = messages
        sentence = SENTENCES[int(key.split()[-1])]
        return StreamingResponse(_stream(sentence), media_type="text/event-stream")


async def _stream(text: str) -> AsyncIterator[str]:
    for word in re.findall(r"\S+\s*", text):
        choice = {"index": 0, "delta": {"content": word}, "finish_reason": None}
        yield f"data: {json.dumps({'id': 'told', 'choices': [choice]})}\n\n"
    done = {"index": 0, "delta": {}, "finish_reason": "stop"}
    yield f"data: {json.dumps({'id': 'told', 'choices': [done]})}\n\ndata: [DONE]\n\n"


@dataclass(frozen=True, slots=True)
class Cut:
    """One reply that was cut: how much was played, the words in it, and the words remembered."""

    sentence: int
    played_ms: float
    n_heard: int
    n_remembered: int

    @property
    def off_by(self) -> int:
        return abs(self.n_heard - self.n_remembered)


class Caller:
    """One session that has sentences said to it and cuts them short."""

    def __init__(self, connection: RealtimeConnection, name: str) -> None:
        self._connection = connection
        self._events: asyncio.Queue[Received] = asyncio.Queue()
        self._ear = asyncio.create_task(self._listen())  # a wait that ends must not end the stream
        self._name = name
        self._n_said = 0

    async def _listen(self) -> None:
        async for received in self._connection.events():
            self._events.put_nowait(received)

    async def close(self) -> None:
        await self._connection.close()
        await self._ear

    async def start(self) -> None:
        audio = {"input": {"turn_detection": None}, "output": {}}
        session = {
            "type": "realtime",
            "output_modalities": ["audio"],
            "instructions": "Say what you are asked to say.",  # its own: no greeting
            "audio": audio,
        }
        await self._connection.send({"type": "session.update", "session": session})

    async def _ask(self, sentence: int) -> str:
        key = f"{self._name} {self._n_said} {sentence}"
        self._n_said += 1
        content = [{"type": "input_text", "text": key}]
        item = {"type": "message", "role": "user", "content": content}
        await self._connection.send({"type": "conversation.item.create", "item": item})
        await self._connection.send({"type": "response.create"})
        return key

    async def whole(self, sentence: int) -> Samples:
        """The sentence's audio, uncut."""
        await self._ask(sentence)
        pieces = []
        while (received := await self._events.get()).type != "response.done":
            if received.type == "response.output_audio.delta":
                pieces.append(received.samples)
        return np.concatenate(pieces)

    async def cut(self, sentence: int, after_ms: float) -> float | None:
        """Cut the sentence when so much of it has been played; how much, None: it had ended."""
        await self._ask(sentence)
        playout = Playout(RATE_HZ)
        cut_at = float("inf")
        ended = False
        while True:
            try:
                async with asyncio.timeout(max(0.0, min(cut_at - monotonic(), 20.0))):
                    received = await self._events.get()
            except TimeoutError:
                break
            if received.type == "response.output_audio.delta":
                playout.push(received.event["item_id"], received.samples, received.at)
                if cut_at == float("inf"):
                    cut_at = received.at + playout.buffer_s + after_ms / 1000.0
            ended = ended or received.type == "response.done"
        interrupted = playout.flush(monotonic())
        if interrupted is None:
            return None
        await self._connection.send({"type": "response.cancel"})
        await self._connection.truncate(interrupted)
        while not ended:
            ended = (await self._events.get()).type == "response.done"
        return interrupted.played_ms

    async def remembered(self, told: Told) -> int:
        """Words of the last reply that the model is shown with the next request."""
        key = await self._ask(0)
        while (await self._events.get()).type != "response.output_audio.delta":
            pass
        await self._connection.send({"type": "response.cancel"})
        while (await self._events.get()).type != "response.done":
            pass
        said = [m["content"] for m in told.shown[key] if m["role"] == "assistant"]
        before = [m["role"] for m in told.shown[key]][-2]
        return len(words_of(said[-1] or "")) if before == "assistant" else 0


def middles_of(audio: Samples, text: str) -> tuple[float, ...]:
    """The middle of each word of a list in ms, by the pauses between them.

    Raises:
        ClientError: there are more or fewer stretches of sound than words.
    """
    breaks = pauses(audio, RATE_HZ, PAUSE_MS)
    starts = [speech_start(audio, RATE_HZ) or 0, *(end for _, end in breaks)]
    ends = [*(start for start, _ in breaks), speech_end(audio, RATE_HZ) or len(audio)]
    n_words = len(words_of(text))
    if len(starts) != n_words:
        raise ClientError(f"expected {n_words} words between pauses, found {len(starts)}: {text!r}")
    return tuple(500.0 * (start + end) / RATE_HZ for start, end in zip(starts, ends, strict=True))


async def measure(n_cuts: int, seed: int, cuts: list[Cut]) -> None:
    """Let the callers cut as many replies; ``cuts`` is filled one by one.

    Raises:
        ClientError: the server did not start or a call broke off.
    """
    told, port = Told(), free_port()
    config = uvicorn.Config(told.app(), host="127.0.0.1", port=port, log_level="warning")
    stub = uvicorn.Server(config)
    serving = asyncio.create_task(stub.serve())
    chance = random.Random(seed)
    arguments = ("--preset", "embedded", "--llm-url", f"http://127.0.0.1:{port}/v1")
    try:
        async with running_server(arguments, log=RESULTS / "heard_history.log") as server:
            callers = [await open_caller(server.url, f"caller{i}") for i in range(AT_ONCE)]
            audio = [await callers[0].whole(index) for index in range(len(SENTENCES))]
            middles = [middles_of(a, text) for a, text in zip(audio, SENTENCES, strict=True)]
            shares = [n_cuts // AT_ONCE + (i < n_cuts % AT_ONCE) for i in range(AT_ONCE)]
            plans = [[_place(chance, audio) for _ in range(share)] for share in shares]
            await asyncio.gather(
                *(
                    cut_replies(c, told, p, middles, cuts)
                    for c, p in zip(callers, plans, strict=True)
                )
            )
            for caller in callers:
                await caller.close()
    finally:
        stub.should_exit = True
        await serving


async def open_caller(url: str, name: str) -> Caller:
    caller = Caller(await RealtimeConnection.open(url), name)
    await caller.start()
    return caller


def _place(chance: random.Random, audio: list[Samples]) -> tuple[int, float]:
    sentence = chance.randrange(len(audio))
    length_ms = 1000.0 * len(audio[sentence]) / RATE_HZ
    return sentence, chance.uniform(EARLIEST_MS, LATEST_SHARE * length_ms)


async def cut_replies(
    caller: Caller,
    told: Told,
    plan: list[tuple[int, float]],
    middles: list[tuple[float, ...]],
    cuts: list[Cut],
) -> None:
    for sentence, after_ms in plan:
        played_ms = await caller.cut(sentence, after_ms)
        if played_ms is not None:
            n_remembered = await caller.remembered(told)
            n_heard = sum(middle <= played_ms for middle in middles[sentence])
            cuts.append(Cut(sentence, round(played_ms, 1), n_heard, n_remembered))


def main() -> int:
    parser = benchmark_parser(
        "heard_history",
        "What the model is told it said against what was heard, of replies cut at random moments. "
        "A run that is interrupted writes the cuts made by then.",
    )
    parser.add_argument(
        "--cuts", type=whole_number(1), default=200, metavar="N",
        help="replies that are cut (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--seed", type=whole_number(0), default=0, metavar="N",
        help="seed of the places where they are cut (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument("--check", action="store_true", help="exit 1 where the bar is missed")
    chosen = parser.parse_args()
    prepare_folder(RESULTS)
    cuts: list[Cut] = []
    partial = early_end(measure(chosen.cuts, chosen.seed, cuts))
    if partial and not cuts:
        return without_results(partial)
    counts = {n: sum(cut.off_by == n for cut in cuts) for n in sorted({c.off_by for c in cuts})}
    worst = max((float(cut.off_by) for cut in cuts), default=None)
    bars = [Bar("history against heard, worst of all cuts", worst, 1, "words")]
    bars = [] if partial else bars
    rows = [[c.sentence, c.played_ms, c.n_heard, c.n_remembered] for c in cuts]
    settings = {"cuts": chosen.cuts}
    data = results(
        "heard_history", chosen.seed, settings, bars, partial=partial, off_by=counts, cuts=rows
    )
    path = write_results(data)
    print(f"{len(cuts)} cuts; off by so many words: {counts}")
    print(bar_table(bars))
    print(f"results: {path}")
    return exit_code(bars, partial, is_checked=chosen.check)


if __name__ == "__main__":
    sys.exit(run(main))

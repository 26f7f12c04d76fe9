"""Replies that think in every known way, cut anywhere: how many let a thought out?

A thought counts as leaked where the caller is told a word of it, or where a later prompt holds one.
"""

from __future__ import annotations

import json
import random
from typing import Any

from benchmarks.any_brain.served import Found, served_by
from benchmarks.calls.typed_call import typed_call
from benchmarks.harness.harness import Bar
from clients.progress import progress_bar
from tests.dialect_service import streamed
from tests.remote_service import Answer, Service
from voiceloop.thoughts import BARE_ANALYSIS, BARE_FINAL, CHANNEL, MESSAGE, PAIRS, START

SECRET = "zxq"  # stands in every thought, and in nothing else
ANSWER = "A latte."
N_STREAMS, N_QUICK = 2000, 40
TURNS_OF_A_CALL = 50
FIELDS = ("reasoning_content", "reasoning")
INNER = (SECRET, " ", "<", "[/", "\n", "maybe")
PLAIN = ("Four dollars. ", "a<b ", "I think so. ", "[sic] ", " ")

Deltas = list[dict[str, Any]]


def stream_of(draw: random.Random) -> tuple[Deltas, bool]:
    """The deltas of one reply, and whether it comes to its answer."""
    deltas: Deltas = [{"role": "assistant", "content": None}] if draw.random() < 0.5 else []
    if draw.random() < 0.4:
        field = draw.choice(FIELDS)
        deltas += [{field: piece} for piece in _pieces(f"{SECRET} the caller wants", draw)]
    text, answers = _text(draw)
    for piece in _pieces(text, draw):
        if draw.random() < 0.1:
            deltas.append({"content": draw.choice(("", None))})
        deltas.append({"content": piece})
    return deltas, answers


def _text(draw: random.Random) -> tuple[str, bool]:
    if draw.random() < 0.05:
        return f"{BARE_ANALYSIS}The {SECRET} wants coffee.{BARE_FINAL}{ANSWER}", True
    text = ""
    for _ in range(draw.randrange(4)):
        text += "".join(draw.choices(PLAIN, k=draw.randrange(3)))
        opener, closer = draw.choice((*PAIRS.items(), (None, None)))
        if opener is None or closer is None:
            opener = f"{CHANNEL}analysis{MESSAGE}"
            closer = f"<|end|>{START}assistant{CHANNEL}final{MESSAGE}"
        else:
            opener = draw.choice((opener, opener.upper(), opener.title()))
        # Marks of another kind in it may stay open; of its own, each has its end.
        others = [mark for mark in PAIRS if mark != opener.lower()]
        inner = draw.choices((*INNER, draw.choice(others)), k=draw.randrange(6))
        nested = (
            f"{opener}{SECRET}{closer}" if opener.lower() in PAIRS and draw.random() < 0.2 else ""
        )
        text += f"{opener}{SECRET}{nested}{''.join(inner)}"
        if draw.random() < 0.1:
            return text, False
        text += closer
    return text + ANSWER, True


def _pieces(text: str, draw: random.Random) -> list[str]:
    pieces = []
    while text:
        size = draw.randrange(1, 10)
        pieces.append(text[:size])
        text = text[size:]
    return pieces


class Thinker(Service):
    """Answers each turn by another stream. n_leaks: prompts that held a thought."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.answers_next = True
        self.n_leaks = 0
        self._draw = random.Random(seed)

    def answer_to(self, path: str, body: bytes) -> Answer:
        if not path.endswith("/chat/completions"):
            return super().answer_to(path, body)
        asked = json.loads(body)
        self.n_leaks += SECRET in json.dumps(asked["messages"])
        deltas, self.answers_next = stream_of(self._draw)
        return streamed(*deltas, finish_reason="stop" if self.answers_next else "length")


async def measure(found: Found, *, is_quick: bool, seed: int) -> None:
    n_streams = N_QUICK if is_quick else N_STREAMS
    service = Thinker(seed)
    n_told = n_mute = n_done = 0
    async with served_by(service) as url:
        with progress_bar("streams", n_streams) as progress:
            while n_done < n_streams:
                async with typed_call(url, "Hello.", speaks=False) as call:
                    for _ in range(min(TURNS_OF_A_CALL, n_streams - n_done)):
                        turn = await call.turn("How much is a latte?")
                        n_told += SECRET in turn.said.lower()
                        n_mute += service.answers_next and ANSWER not in turn.said
                        n_done += 1
                        progress(n_done)
    found.figures.update(
        streams=n_done, told=n_told, kept_in_prompts=service.n_leaks, answers_lost=n_mute
    )
    found.bars.append(Bar("streams that let a thought out", n_told + service.n_leaks, 0, ""))
    found.bars.append(Bar("answers lost with a thought", n_mute, 0, ""))

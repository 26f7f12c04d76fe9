"""An hour's call on a service: which facts does its model say when it is asked for them?

The model knows its prompt alone: it says a fact if, and only if, the words of that fact stand in
the prompt that it was given then. What it has said to an earlier question does not count. A prompt
that is longer than its window is refused, as services refuse it.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

from benchmarks.any_brain.served import Found, served_by
from benchmarks.harness.harness import Bar
from benchmarks.long_call.__main__ import Line
from benchmarks.long_call.call import ASKED, PLANTED, Turn, recalled, turns_of
from benchmarks.remote_prefill import CHARACTERS_A_TOKEN
from clients.connection import RealtimeConnection, own_key
from clients.progress import progress_bar
from tests.dialect_service import streamed
from tests.remote_service import Answer, Service

MINUTES, QUICK_MINUTES = 60.0, 6.0
WINDOW_TOKENS, QUICK_WINDOW_TOKENS = 4096, 2048
PAUSE_S = 0.05  # shorter than any caller's, and long enough for a window to move on in it
REMEMBERS, TALKS = "You told me: ", "Certainly, that is noted, and it will be seen to."
# Of `PLANTED`, by whether the service tells its window.
LEAST_SAID = {True: 18, False: 17}


class Forgetful(Service):
    """A chat service whose model says what its prompt holds, and nothing else."""

    def __init__(self, window_tokens: int, *, tells_window: bool) -> None:
        super().__init__()
        self.n_refused = 0
        self.n_most_tokens = 0  # of a prompt that was taken
        self._window_tokens = window_tokens
        listed: dict[str, Any] = {"id": "forgetful", "owned_by": "somebody"}
        if tells_window:
            listed |= {"owned_by": "vllm", "max_model_len": window_tokens}
        self.say("/models", Answer([json.dumps({"data": [listed]}).encode()]))

    def answer_to(self, path: str, body: bytes) -> Answer:
        if not path.endswith("/chat/completions"):
            return super().answer_to(path, body)
        asked = json.loads(body)
        n_tokens = round(len(json.dumps(asked["messages"])) / CHARACTERS_A_TOKEN)
        if n_tokens + asked.get("max_tokens", 0) > self._window_tokens:
            self.n_refused += 1
            return _too_long(self._window_tokens, n_tokens)
        self.n_most_tokens = max(self.n_most_tokens, n_tokens)
        return streamed({"content": self._said(asked["messages"])})

    def _said(self, messages: list[dict[str, Any]]) -> str:
        question = messages[-1].get("content") or ""
        if question not in ASKED:
            return TALKS
        planted = PLANTED[ASKED.index(question)]
        own = [m for m in messages[:-1] if not str(m.get("content")).startswith(REMEMBERS)]
        is_there = recalled([planted], json.dumps(own, ensure_ascii=False).replace('\\"', '"'))[0]
        return REMEMBERS + ", ".join(planted.kept) if is_there else "I do not know that."


def _too_long(window_tokens: int, n_tokens: int) -> Answer:
    message = (
        f"This model's maximum context length is {window_tokens} tokens. However, your messages "
        f"resulted in {n_tokens} tokens. Please reduce the length of the messages."
    )
    error = {"message": message, "type": "invalid_request_error", "code": "context_length_exceeded"}
    return Answer([json.dumps({"error": error}).encode()], 400)


async def measure(found: Found, *, is_quick: bool, seed: int) -> None:
    minutes = QUICK_MINUTES if is_quick else MINUTES
    window = QUICK_WINDOW_TOKENS if is_quick else WINDOW_TOKENS
    turns = (*turns_of(minutes, seed), *map(Turn, ASKED))
    for tells_window, least in LEAST_SAID.items():
        service = Forgetful(window, tells_window=tells_window)
        async with served_by(service) as url:
            line = await _call(url, turns)
        said = line.said[-len(ASKED) :]
        is_said = [recalled([one], text)[0] for one, text in zip(PLANTED, said, strict=True)]
        name = "a service that tells its window" if tells_window else "one that does not"
        found.bars.append(Bar(f"{name}: facts said", sum(is_said), least, "", at_least=True))
        found.figures[name] = {
            "n_turns": len(turns),
            "n_slides": sum(bool(how) for how in line.slid),
            "n_failed": line.n_failed,
            "n_refused": service.n_refused,
            "n_most_tokens": service.n_most_tokens,
            "not_said": [q for q, is_ in zip(ASKED, is_said, strict=True) if not is_],
        }


async def _call(url: str, turns: tuple[Turn, ...]) -> Line:
    extras = {"voiceloop.timeline": "1"}
    connection = await RealtimeConnection.open(url, key=own_key(url), extras=extras)
    line = Line(connection)
    try:
        await line.begin()
        with progress_bar("turns", len(turns)) as progress:
            for at, turn in enumerate(turns):
                await line.say(turn, at)
                await asyncio.sleep(PAUSE_S)
                progress(at + 1)
    finally:
        await connection.close()
    return line

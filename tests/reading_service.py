"""A chat service with a prefix cache that counts what it reads, on a clock of its own.

Its time is a number that goes on by what reading costs: nothing sleeps, and every figure is exact.
"""

from __future__ import annotations

import asyncio
import json
import os
from dataclasses import dataclass

from tests.remote_service import Answer, Service

CHAT = "/v1/chat/completions"


@dataclass(frozen=True)
class Asked:
    """One request: the characters of its prompt that were not cached, the tokens it was to get."""

    n_read: int
    max_tokens: int
    body: dict[str, object]


class ReadingService(Service):
    """Takes ``base_ms`` a request and ``ms_per_character`` for what it has not read before."""

    def __init__(
        self,
        *,
        ms_per_character: float = 0.1,
        base_ms: float = 12.0,
        owner: str = "",
        caches: bool = True,
        refuses_priority: bool = False,
    ) -> None:
        super().__init__()
        self.now_s = 0.0
        self.asked_for: list[Asked] = []
        self.hold_next: asyncio.Event | None = None  # what the next answer waits for
        self._ms_per_character = ms_per_character
        self._base_ms = base_ms
        self._caches = caches
        self._refuses_priority = refuses_priority
        self._read: list[str] = []
        model = {"id": "m", "owned_by": owner}
        self.answers["/v1/models"] = [Answer([json.dumps({"data": [model]}).encode()])]

    def clock(self) -> float:
        return self.now_s

    @property
    def n_ahead(self) -> int:
        return sum(asked.max_tokens == 1 for asked in self.asked_for)

    def answer_to(self, path: str, body: bytes) -> Answer:
        if path != CHAT:
            return super().answer_to(path, body)
        asked = json.loads(body)
        if self._refuses_priority and asked.get("priority"):
            refusal = {"error": {"message": "Got priority 100 but it is not enabled."}}
            return Answer([json.dumps(refusal).encode()], 400)
        prompt = json.dumps([asked.get("tools"), asked.get("cache_salt")])
        prompt += "".join(f"<{m['role']}>{m['content']}" for m in asked["messages"])
        n_cached = max((len(os.path.commonprefix([prompt, one])) for one in self._read), default=0)
        if self._caches:
            self._read.append(prompt)
        self.asked_for.append(Asked(len(prompt) - n_cached, asked["max_tokens"], asked))
        self.now_s += (self._base_ms + self._ms_per_character * (len(prompt) - n_cached)) / 1000
        details = {"prompt_tokens": len(prompt), "completion_tokens": 1}
        usage = {**details, "prompt_tokens_details": {"cached_tokens": n_cached}}
        lines = [
            {"choices": [{"delta": {"content": "Yes."}, "finish_reason": "stop"}]},
            {"choices": [], "usage": usage},
        ]
        pieces = [f"data: {json.dumps(line)}\n\n".encode() for line in lines]
        hold, self.hold_next = self.hold_next, None
        return Answer([*pieces, b"data: [DONE]\n\n"], hold=hold)

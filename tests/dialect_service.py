"""Fourteen chat services, each scripted from its own reference; none of the hosted ones was asked.

Owns what each refuses and in whose words, which model it has, and that its model thinks unless a
request keeps it from that.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from tests.remote_service import Answer, Service
from voiceloop.remote.dialect import KINDS

THOUGHT = "zxq the caller wants a price"
ANSWER = "Four dollars."
REFUSED = {
    "openai": {"max_tokens", "top_k", "temperature"},
    "azure": {"max_tokens", "top_k", "temperature"},
    "groq": {"top_k"},
    "cerebras": {"max_tokens", "top_k", "presence_penalty"},
    "gemini": {"top_k", "seed"},
    "anthropic": {"top_k", "seed"},
    "mistral": {"top_k", "seed", "stream_options"},
    "litellm": {"top_k"},
}
MODELS = {"openai": "gpt-5-mini", "azure": "gpt-5-mini", "groq": "qwen/qwen3-32b",
          "cerebras": "gpt-oss-120b", "mistral": "magistral-small", "gemini": "gemini-2.5-flash",
          "lm-studio": "gpt-oss-20b"}  # fmt: skip
NAMES = [name for name in KINDS if name != "openai-like"]
# As each says that it refuses a field.
REFUSALS: dict[str, Callable[[str], Any]] = {
    "mistral": lambda name: {"detail": [{"type": "extra_forbidden", "loc": ["body", name]}]},
    "gemini": lambda name: [
        {"error": {"code": 400, "message": f'Unknown name "{name}": no field.'}}
    ],
}


def unsupported(name: str) -> Any:
    return {"error": {"message": f"Unsupported parameter: '{name}'", "param": name}}


def streamed(*deltas: dict[str, Any], finish_reason: str = "stop") -> Answer:
    """The answer of a chat service that streams these deltas."""
    lines = [{"choices": [{"delta": delta, "finish_reason": None}]} for delta in deltas]
    lines.append({"choices": [{"delta": {}, "finish_reason": finish_reason}]})
    pieces = [f"data: {json.dumps(line)}\n\n".encode() for line in lines]
    return Answer([*pieces, b"data: [DONE]\n\n"], content_type="text/event-stream")


class DialectService(Service):
    """Refuses what the service of this name refuses; thinks unless it is kept from it."""

    def __init__(self, name: str, *, thinks_anyway: bool = False) -> None:
        super().__init__()
        self.name, self.thinks_anyway = name, thinks_anyway
        model = MODELS.get(name, "qwen3-8b")
        owner = KINDS[name].owners[0] if KINDS[name].owners else "somebody"
        listing = {"data": [{"id": model, "owned_by": owner}]}
        extra = {"x-litellm-version": "1.80"} if name == "litellm" else {}
        self.say("/models", Answer([json.dumps(listing).encode()], headers=extra))
        self.bodies: list[dict[str, Any]] = []

    def answer_to(self, path: str, body: bytes) -> Answer:
        if not path.endswith("/chat/completions"):
            return super().answer_to(path, body) if path in self.answers else Answer([b"{}"], 404)
        asked = json.loads(body)
        self.bodies.append(asked)
        for field in sorted(REFUSED.get(self.name, ()) & asked.keys()):
            refusal = REFUSALS.get(self.name, unsupported)(field)
            return Answer([json.dumps(refusal).encode()], 400)
        quiet = [steps for _, steps in KINDS[self.name].quiet for steps in steps]
        is_quiet = any(all(asked.get(k) == v for k, v in each.items()) for each in quiet)
        deltas: list[dict[str, Any]] = [{"role": "assistant", "content": None}, {"content": ""}]
        if self.thinks_anyway or (quiet and not is_quiet):
            deltas += [{"reasoning_content": THOUGHT}, {"content": f"<think>{THOUGHT}</th"},
                       {"content": "ink>"}]  # fmt: skip
        return streamed(*deltas, {"content": "Four "}, {"content": "dollars."})

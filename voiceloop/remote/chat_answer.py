"""The answer of ``/v1/chat/completions``, from its chunks."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from voiceloop.backends import Generated, ToolCall, Usage
from voiceloop.errors import BackendError
from voiceloop.remote.service import codes_of
from voiceloop.thoughts import Thoughts

FINISH_REASONS = {"stop": "stop", "length": "length", "tool_calls": "tool_calls"}


@dataclass(slots=True)
class _Call:
    index: int
    call_id: str = ""
    name: str = ""
    arguments: str = ""

    def add(self, piece: str) -> None:
        """Take a piece of the arguments; some services send a whole call again."""
        if piece != self.arguments or not is_object(piece):
            self.arguments += piece


class ChatAnswer:
    """The sum of the chunks of one answer, its thoughts left out.

    begins_inside: the service's prompt opens a thought (`Thoughts`).
    """

    def __init__(self, *, begins_inside: bool = False) -> None:
        self.text = ""
        self.thoughts = Thoughts(begins_inside=begins_inside)
        self.has_thought = False
        self.calls: list[_Call] = []
        self.ttft_ms = 0.0
        self.total_ms = 0.0  # 0 until it has come to its end
        self._finish_reason: str | None = None
        self._usage: dict[str, Any] = {}

    def add(self, chunk: dict[str, Any]) -> str:
        """Take one chunk. Returns the text that may be passed on.

        Raises: BackendError when the chunk reports an error or is none.
        """
        try:
            return self._add(chunk)
        except (AttributeError, KeyError, TypeError) as error:
            raise BackendError(f"expected a chunk of a chat reply, found {error}") from error

    def _add(self, chunk: dict[str, Any]) -> str:
        if chunk.get("error"):
            told = codes_of(chunk["error"]) or "no code"  # its words may quote the caller's
            raise BackendError(f"expected the reply to its end, found the service's error: {told}")
        self._usage = chunk.get("usage") or self._usage
        text = ""
        for choice in (chunk.get("choices") or [])[:1]:
            delta = choice.get("delta") or {}
            hidden = delta.get("reasoning_content") or delta.get("reasoning")
            if hidden:
                self.thoughts.begin_answer()
            text = self.thoughts.feed(delta.get("content") or "")
            self.has_thought = self.has_thought or bool(hidden) or self.thoughts.has_thought
            for part in delta.get("tool_calls") or []:
                call = self._call_of(part)
                function = part.get("function") or {}
                call.name = function.get("name") or call.name
                call.add(function.get("arguments") or "")
            if choice.get("finish_reason"):
                self._finish_reason = choice["finish_reason"]
                text += self.thoughts.finish(is_cut=self._finish_reason == "length")
        self.text += text
        return text

    def _call_of(self, part: dict[str, Any]) -> _Call:
        """The call of a part; services that give all calls one index begin one with a new id."""
        call_id, index = part.get("id"), part.get("index") or 0
        found = [call for call in self.calls if call.index == index]
        if not found or (call_id and found[-1].call_id not in ("", call_id)):
            found.append(_Call(index))
            self.calls.append(found[-1])
        found[-1].call_id = call_id or found[-1].call_id
        return found[-1]

    @property
    def has_begun(self) -> bool:
        """Whether the first token has come, be it one without text or of a thought."""
        return bool(self.text or self.calls or self._finish_reason or self.has_thought)

    @property
    def usage(self) -> Usage:
        """As the service reports it with the last chunk; zeros where it does not."""
        details = self._usage.get("prompt_tokens_details") or {}
        n_behind = (self._usage.get("completion_tokens") or 0) - 1  # the first token
        return Usage(
            n_prompt_tokens=self._usage.get("prompt_tokens") or 0,
            n_cached_tokens=details.get("cached_tokens") or 0,
            n_reply_tokens=self._usage.get("completion_tokens") or 0,
            ttft_ms=self.ttft_ms,
            token_ms=max(0.0, self.total_ms - self.ttft_ms) / n_behind if n_behind > 0 else 0.0,
        )

    def finish(self) -> tuple[Generated, tuple[ToolCall, ...]]:
        """Raises: BackendError when the answer stopped before its end.

        A call of a service that gives no ids gets one, which no other call of a conversation has.
        Where one is none ("malformed_call"), none of them is made.
        """
        if self._finish_reason is None:
            raise BackendError("expected the reply to its end, found the connection closed before")
        if not all(call.name and is_object(call.arguments or "{}") for call in self.calls):
            return Generated("malformed_call", self.usage), ()
        calls = tuple(
            ToolCall(call.call_id or f"call_{uuid4().hex}", call.name, call.arguments or "{}")
            for call in sorted(self.calls, key=lambda call: call.index)
        )
        reason: Any = FINISH_REASONS.get(self._finish_reason, "stop")
        if calls and reason == "stop":
            reason = "tool_calls"  # some services say "stop" after a call
        return Generated(reason, self.usage), calls


def is_object(text: str) -> bool:
    """Whether it is a JSON object, whole."""
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


def chunk_of(line: str) -> dict[str, Any]:
    """The data of one server-sent line, {} where it has none. Raises: BackendError."""
    data = line.removeprefix("data:").strip() if line.startswith("data:") else ""
    if not data or data == "[DONE]":
        return {}
    try:
        chunk = json.loads(data)
    except ValueError as error:
        raise BackendError(f"expected a JSON chunk of the reply, found {error}") from error
    if not isinstance(chunk, dict):
        raise BackendError("expected a JSON object as chunk of the reply, found another value")
    return chunk

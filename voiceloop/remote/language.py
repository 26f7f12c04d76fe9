"""A language model behind ``/v1/chat/completions``, streamed (vLLM, SGLang, llama.cpp, OpenAI).

Such a service keeps no branch for us: staging is answered at once and costs nothing, its prefix
cache does what it can, and closing a branch in mid-reply closes the connection, which aborts the
generation there. A prompt that is no chat goes to ``/v1/completions``; not every service has that.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import aclosing
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

from voiceloop.backends import (
    ChatMessage,
    Generated,
    GenerateParams,
    LanguageEvent,
    PreemptiveCall,
    PreemptiveDelta,
    PreemptiveDone,
    Staged,
    TextDelta,
    Tool,
    ToolCall,
    Usage,
)
from voiceloop.errors import BackendError, error_of
from voiceloop.event_stream import TaskStream
from voiceloop.remote.service import RemoteService

FINISH_REASONS = {"stop": "stop", "length": "length", "tool_calls": "tool_calls"}


class RemoteLanguageModel:
    """``LanguageModel`` over a service.

    ``keeps_warm``: a connection is made as the caller begins. ``is_preemptive``: replies that may
    be thrown away (and are paid for) are asked for too.
    """

    def __init__(
        self, service: RemoteService, *, keeps_warm: bool = True, is_preemptive: bool = True
    ) -> None:
        self._service = service
        self._keeps_warm = keeps_warm
        self._is_preemptive = is_preemptive

    async def branch(
        self,
        branch_id: str,
        history: tuple[ChatMessage, ...],
        tools: tuple[Tool, ...] = (),
        tenant: str = "",
    ) -> RemoteBranch:
        if self._keeps_warm:
            self._service.keep_warm()
        return RemoteBranch(
            branch_id, self._service, history, tools, is_preemptive=self._is_preemptive
        )


class RemoteBranch(TaskStream[LanguageEvent]):
    """One conversation's continuation: its messages are sent whole with each commit."""

    def __init__(
        self,
        branch_id: str,
        service: RemoteService,
        history: tuple[ChatMessage, ...],
        tools: tuple[Tool, ...],
        *,
        is_preemptive: bool = True,
    ) -> None:
        super().__init__(branch_id)
        self._service = service
        self._messages = list(history)
        self._tools = [_tool(tool) for tool in tools]
        self._task: asyncio.Task[None] | None = None
        self._attempt: _Attempt | None = None
        self._is_preemptive = is_preemptive

    def stage(self, stage_id: int, user_text: str) -> None:
        self.deliver(Staged(stage_id, 0, 0, None))

    def begin_preemptive(self, attempt: int, user_text: str, params: GenerateParams) -> None:
        """An ordinary request; whether one that may be thrown away is worth it is asked before."""
        self._give_up_attempt()
        if not self._is_preemptive:
            self.deliver(PreemptiveDone(attempt, "lost"))
        elif self.live and self._task is None:
            turn = (ChatMessage("user", user_text),)
            made = self._attempt = _Attempt(attempt, turn, params)
            made.task = self._keep(self._write_ahead(made), "attempt")

    def stop_preemptive(self) -> None:
        """What a service began cannot be taken up later: unless it is whole it is given up."""
        if self._attempt is not None and not self._attempt.is_whole:
            self.deliver(PreemptiveDone(self._attempt.number, "lost"))
            self._give_up_attempt()

    def _give_up_attempt(self) -> None:
        attempt, self._attempt = self._attempt, None
        if attempt is not None and attempt.task is not None:
            attempt.task.cancel()

    async def _write_ahead(self, attempt: _Attempt) -> None:
        try:
            await self._generate(attempt.params, attempt)
        except Exception as error:  # a bug too: somebody waits for this
            failure = error_of(error)
            if attempt.is_committed:
                self.fail(failure)
            elif self._attempt is attempt:
                self._attempt = None
                self.deliver(PreemptiveDone(attempt.number, "lost"))

    def commit(self, tail: tuple[ChatMessage, ...], params: GenerateParams) -> bool:
        if not self.live:
            return False
        if self._task is not None and not self._task.done():
            self.fail(BackendError("expected a commit after the reply, found it still under way"))
            return False
        attempt = self._attempt
        if attempt is not None and (attempt.turn, attempt.params) == (tail, params):
            self._attempt = None
            self._messages += tail
            self._task = attempt.task
            attempt.commit(self)
            return True
        self._give_up_attempt()
        self._messages += tail
        self._task = self._keep(self._reply(params), "reply")
        return False

    async def _reply(self, params: GenerateParams) -> None:
        try:
            await self._generate(params)
        except Exception as error:  # as above
            self.fail(error_of(error))

    async def _generate(self, params: GenerateParams, attempt: _Attempt | None = None) -> None:
        started = monotonic()
        reply = _Reply()
        messages = [*self._messages, *(attempt.turn if attempt is not None else ())]
        body = self._body(messages, params)
        path = "/completions" if params.is_raw else "/chat/completions"
        async with self._service.stream(path, json=body) as response:
            # Read to the very end, past "[DONE]": only then the connection can be used again.
            async with aclosing(self._service.lines(response)) as lines:
                async for line in lines:
                    text = reply.add(_chunk(line))
                    if reply.ttft_ms == 0.0 and (text or reply.calls):
                        reply.ttft_ms = 1000 * (monotonic() - started)
                    if text and attempt is not None:
                        attempt.add(text, self)
                    elif text:
                        self.deliver(TextDelta(text))
        generated, calls = reply.finish()
        if attempt is not None and not attempt.is_committed:
            for call in calls:
                self.deliver(PreemptiveCall(attempt.number, call.name, call.arguments))
            self.deliver(PreemptiveDone(attempt.number, generated.finish_reason))
            attempt.is_whole = True
            await attempt.committed.wait()
        self._messages.append(ChatMessage("assistant", reply.text, calls))
        for call in calls:
            self.deliver(call)
        self.deliver(generated)

    def _body(self, messages: list[ChatMessage], params: GenerateParams) -> dict[str, Any]:
        asked: Any = (
            {"prompt": messages[-1].content}
            if params.is_raw
            else {"messages": [_chat(message) for message in messages]}
        )
        body: dict[str, Any] = {
            **asked,
            "model": self._service.model,
            "stream": True,
            "stream_options": {"include_usage": True},
            "max_tokens": params.max_tokens,
            "temperature": params.temperature,
            "top_p": params.top_p,
            "seed": params.seed,
        }
        if params.top_k:
            body["top_k"] = params.top_k  # no OpenAI field, but vLLM's, SGLang's and llama.cpp's
        for name in ("presence_penalty", "frequency_penalty"):
            if penalty := getattr(params, name):
                body[name] = penalty
        if params.stop:
            body["stop"] = list(params.stop)
        if params.json_schema is not None:
            schema = {"name": "reply", "schema": json.loads(params.json_schema), "strict": True}
            body["response_format"] = {"type": "json_schema", "json_schema": schema}
        if self._tools:
            body["tools"] = self._tools
            body["tool_choice"] = _tool_choice(params.tool_choice)
        return body


@dataclass(slots=True, eq=False)
class _Attempt:
    """A reply that was begun before anybody asked for it; ``commit`` makes it the one asked for."""

    number: int
    turn: tuple[ChatMessage, ...]
    params: GenerateParams
    pieces: list[str] = field(default_factory=list)
    committed: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None
    is_whole: bool = False

    @property
    def is_committed(self) -> bool:
        return self.committed.is_set()

    def add(self, text: str, branch: RemoteBranch) -> None:
        self.pieces.append(text)
        branch.deliver(TextDelta(text) if self.is_committed else PreemptiveDelta(self.number, text))

    def commit(self, branch: RemoteBranch) -> None:
        self.committed.set()
        if self.pieces:
            branch.deliver(TextDelta("".join(self.pieces)))


@dataclass(slots=True)
class _Call:
    index: int
    call_id: str = ""
    name: str = ""
    arguments: str = ""


class _Reply:
    """What the chunks of one answer amount to."""

    def __init__(self) -> None:
        self.text = ""
        self.calls: list[_Call] = []
        self.ttft_ms = 0.0
        self._finish_reason: str | None = None
        self._usage: dict[str, Any] = {}

    def add(self, chunk: dict[str, Any]) -> str:
        """Take one chunk; its text. Raises: BackendError when it reports an error or is none."""
        try:
            return self._add(chunk)
        except (AttributeError, KeyError, TypeError) as error:
            raise BackendError(f"expected a chunk of a chat reply, found {error}") from error

    def _add(self, chunk: dict[str, Any]) -> str:
        if chunk.get("error"):
            error = chunk["error"]
            message = error.get("message") if isinstance(error, dict) else error
            raise BackendError(f"the language model failed in mid-reply: {message}")
        self._usage = chunk.get("usage") or self._usage
        text = ""
        for choice in (chunk.get("choices") or [])[:1]:
            delta = choice.get("delta") or {}
            text = delta.get("content") or choice.get("text") or ""
            for part in delta.get("tool_calls") or []:
                call = self._call_of(part)
                function = part.get("function") or {}
                call.name = function.get("name") or call.name
                call.arguments += function.get("arguments") or ""
            self._finish_reason = choice.get("finish_reason") or self._finish_reason
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

    def finish(self) -> tuple[Generated, tuple[ToolCall, ...]]:
        """Raises: BackendError when the answer stopped before its end."""
        if self._finish_reason is None:
            raise BackendError("expected the reply to its end, found the connection closed before")
        calls = tuple(
            ToolCall(call.call_id or f"call_{index}", call.name, call.arguments or "{}")
            for index, call in enumerate(self.calls)
        )
        reason: Any = FINISH_REASONS.get(self._finish_reason, "stop")
        if calls and reason == "stop":
            reason = "tool_calls"  # some services say "stop" after a call
        details = self._usage.get("prompt_tokens_details") or {}
        usage = Usage(
            n_prompt_tokens=self._usage.get("prompt_tokens") or 0,
            n_cached_tokens=details.get("cached_tokens") or 0,
            n_reply_tokens=self._usage.get("completion_tokens") or 0,
            ttft_ms=self.ttft_ms,
        )
        return Generated(reason, usage), calls


def _chunk(line: str) -> dict[str, Any]:
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


def _chat(message: ChatMessage) -> dict[str, Any]:
    chat: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.tool_calls:
        chat["tool_calls"] = [
            {
                "id": call.call_id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in message.tool_calls
        ]
    if message.tool_call_id is not None:
        chat["tool_call_id"] = message.tool_call_id
    return chat


def _tool_choice(choice: str) -> Any:
    """auto, none, required, or the Realtime API's {"type", "name"} as the chat API spells it."""
    if not choice.startswith("{"):
        return choice
    return {"type": "function", "function": {"name": json.loads(choice)["name"]}}


def _tool(tool: Tool) -> dict[str, Any]:
    function = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
    return {"type": "function", "function": function}

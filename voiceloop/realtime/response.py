"""The life of one response on the wire, from ``response.created`` to ``response.done``.

Owns the invariants of a response by construction: exactly one terminal, nothing after it, every
item and part that was added is done before it. Pure; events go into the protocol's queue.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol, TypeVar

from msgspec import UNSET
from msgspec.structs import replace

from voiceloop.backends import ChatMessage, SpokenWord, Usage
from voiceloop.errors import VoiceLoopError
from voiceloop.realtime import events
from voiceloop.realtime.conversation import Conversation, SpokenReplies
from voiceloop.realtime.items import FunctionCall, Item, ItemStatus, Message, Part
from voiceloop.realtime.mcp.calls import McpCalls
from voiceloop.realtime.response_request import ResponseRequest
from voiceloop.realtime.settings import Json, SessionSettings
from voiceloop.realtime.shown import Shown, chat_messages

ResponseStatus = Literal["completed", "cancelled", "failed", "incomplete"]
CloseReason = Literal["turn_detected", "client_cancelled", "max_output_tokens", "content_filter"]

T = TypeVar("T")

INPUT_TOKEN_MS = 100.0
OUTPUT_TOKEN_MS = 50.0
MAX_FRAME_MS = 200.0  # a bigger frame keeps a caller waiting for its end before it is played


class Wire(Protocol):
    """The destination of a response's events, and what it needs to know of its session."""

    conversation: Conversation
    spoken: SpokenReplies
    shown: Shown
    conversation_id: str
    is_beta: bool

    def send(self, event: events.ServerEvent, delta_of: str | None = None) -> None: ...

    def new_id(self, prefix: str) -> str: ...


@dataclass(slots=True)
class _Output:
    """One output item; ``item`` is its latest version."""

    index: int
    item: Item
    done: bool = False


class ResponseHandle:
    """One open response. Made by the protocol only.

    Every method may be called after the response closed (a turn learns of its cancellation late):
    it then does nothing. Request fields are resolved against the session's settings at creation.
    """

    def __init__(
        self,
        wire: Wire,
        request: ResponseRequest,
        settings: SessionSettings,
        on_close: Callable[[ResponseHandle], None],
    ) -> None:
        """Queue ``response.created``."""
        self.id = wire.new_id("resp")
        self.request = request
        self.instructions = _either(request.instructions, settings.instructions)
        self.output_modalities = _either(request.output_modalities, settings.output_modalities)
        self.output_format = _either(request.output_format, settings.output_format)
        self._voice_name = _either(request.voice, settings.voice)
        self.voice = settings.real_voice(self._voice_name)
        self.speed = settings.speed
        self.tools = _either(request.tools, settings.tools)
        self.tool_choice = _either(request.tool_choice, settings.tool_choice)
        self.calls_at_once = _either(request.parallel_tool_calls, settings.parallel_tool_calls)
        self.max_output_tokens = _either(request.max_output_tokens, settings.max_output_tokens)
        self.temperature = (
            settings.temperature if request.temperature is None else request.temperature
        )
        self.reasoning_effort = _either(request.reasoning_effort, settings.reasoning_effort)
        self._tells_sources = settings.sources
        self._tells_slots = settings.slots
        self._wire = wire
        self._on_close = on_close
        self._outputs: list[_Output] = []
        self._calls: dict[str, _Output] = {}
        self._mcp: McpCalls | None = None
        self._message: _Output | None = None
        self._said: list[str] = []  # in the message so far
        self._closed: ResponseStatus | None = None
        self.input_audio_ms = 0.0  # of the caller's turns that it answers
        self._output_audio_ms = 0.0
        self.usage_so_far: Callable[[], Usage] = Usage  # of what is being said in it
        wire.send(events.ResponseCreated(response=self._body("in_progress")))

    @property
    def mcp(self) -> McpCalls:
        """Return its calls of the session's MCP servers."""
        if self._mcp is None:
            self._mcp = McpCalls(self._add, self._end, self._place, self._wire.send)
        return self._mcp

    @property
    def speaks(self) -> bool:
        """True when the reply is spoken (else it is text)."""
        return "audio" in self.output_modalities

    @property
    def closed(self) -> bool:
        return self._closed is not None

    @property
    def status(self) -> ResponseStatus | None:
        """How it ended; None while it is open."""
        return self._closed

    @property
    def is_out_of_band(self) -> bool:
        return self.request.conversation == "none"

    @property
    def item_id(self) -> str | None:
        """The message item of this response, None before its first delta."""
        return self._message.item.id if self._message else None

    def messages(self) -> tuple[ChatMessage, ...]:
        """The prompt: instructions, then the conversation as it stands or the request's input."""
        if self.request.input is not None:
            return chat_messages(self.instructions, self.request.input)
        return self._wire.shown.messages(self.instructions)

    @property
    def has_words(self) -> bool:
        """Whether a message of it has been begun."""
        return self._message is not None

    def sources(self, item_id: str, found: tuple[events.Source, ...]) -> None:
        """Tell a client that asked for it which documents the model was given."""
        if self._tells_sources and found and not self.closed:
            self._wire.send(events.Sources(response_id=self.id, item_id=item_id, sources=found))

    def slot(self, item_id: str, name: str, kind: str, value: str, state: str) -> None:
        """Tell a client that asked for it what the caller's turn made of a slot."""
        if self._tells_slots and not self.closed:
            filled = events.SlotFilled(
                response_id=self.id, item_id=item_id, name=name, kind=kind, value=value, state=state
            )
            self._wire.send(filled)

    # --- the reply in words ---

    def text_delta(self, text: str) -> None:
        """A piece of a text reply (modality text)."""
        self._say(text)

    def transcript_delta(self, text: str) -> None:
        """A piece of what is being spoken (modality audio); also feeds the conversation."""
        self._say(text)

    def audio_delta(self, data: bytes, duration_ms: float, *, is_fade: bool = False) -> None:
        """Encoded audio in ``output_format``, whole samples; cut into frames of <= 200 ms.

        ``is_fade``: it ends what was sent without a click, also where the response is cut short.
        """
        if self.closed or not data or not self.speaks:
            return
        n_sample = self.output_format.n_sample_bytes
        if len(data) % n_sample:
            raise ValueError(f"expected whole samples of {n_sample} bytes, found {len(data)} bytes")
        message = self._open_message()
        n_frame = int(self.output_format.rate * MAX_FRAME_MS / 1000) * n_sample
        for start in range(0, len(data), n_frame):
            piece = data[start : start + n_frame]
            event = events.AudioDelta(**self._place(message), delta=piece)
            self._wire.send(event, delta_of=None if is_fade else self.id)
        self._output_audio_ms += duration_ms
        if not self.is_out_of_band:
            self._wire.spoken.add_audio(message.item.id, duration_ms)

    def add_words(self, words: tuple[SpokenWord, ...]) -> None:
        """Word times of the spoken reply, for cutting it; times from the item's first sample.

        Taken also after the close: what was cut short is cut at a word.
        """
        if self._message is not None and not self.is_out_of_band:
            self._wire.spoken.add_words(self._message.item.id, words)

    # --- tool calls ---

    def function_call(self, call_id: str, name: str) -> None:
        """The model began a call: its item is added."""
        if self.closed or call_id in self._calls:
            return
        item = FunctionCall(
            id=self._wire.new_id("item"), call_id=call_id, name=name, status="in_progress"
        )
        self._calls[call_id] = self._add(item)

    def arguments_delta(self, call_id: str, delta: str) -> None:
        """A piece of the call's arguments."""
        output = self._calls.get(call_id)
        if self.closed or output is None or output.done or not delta:
            return
        assert isinstance(output.item, FunctionCall)
        output.item = replace(output.item, arguments=output.item.arguments + delta)
        place = self._place(output)
        self._delta(events.ArgumentsDelta(**place, call_id=call_id, delta=delta))

    def arguments_done(self, call_id: str, arguments: str) -> None:
        """The call is complete: its item is done. ``arguments`` is the whole JSON text."""
        output = self._calls.get(call_id)
        if self.closed or output is None or output.done:
            return
        assert isinstance(output.item, FunctionCall)
        if not output.item.arguments:
            self.arguments_delta(call_id, arguments)
        output.item = replace(output.item, arguments=arguments)
        self._end_call(output, "completed")

    # --- the end ---

    def close(
        self,
        status: ResponseStatus,
        reason: CloseReason | None = None,
        error: VoiceLoopError | None = None,
        usage: Usage | None = None,
    ) -> None:
        """End the response: open parts and items are done first, then ``response.done``.

        usage: what it cost; ``usage_so_far`` is asked where that is not known to who closes it.
        """
        if self.closed:
            return
        item_status: ItemStatus = "completed" if status == "completed" else "incomplete"
        if self._mcp is not None:
            self._mcp.break_off()
        for output in self._outputs:
            if output.done:
                continue
            if output is self._message:
                self._end_message(output, item_status)
            else:
                self._end_call(output, "incomplete")
        self._closed = status
        details: Json | None = None
        if status != "completed":
            details = {"type": status}
            if reason is not None:
                details["reason"] = reason
            if error is not None:
                told = {"type": error.type, "code": error.wire_code, "message": error.message}
                details["error"] = told
        used = self.usage_so_far() if usage is None else usage
        wire = usage_to_wire(used, self.input_audio_ms, self._output_audio_ms)
        body = self._body(status, details=details, usage=wire)
        self._wire.send(events.ResponseDone(response=body))
        self._on_close(self)

    # --- inside ---

    def _say(self, text: str) -> None:
        if self.closed or not text:
            return
        message = self._open_message()
        self._said.append(text)
        if not self.is_out_of_band:
            self._wire.spoken.append_text(message.item.id, text)
        kind = events.TranscriptDelta if self.speaks else events.TextDelta
        self._delta(kind(**self._place(message), delta=text))

    def _open_message(self) -> _Output:
        if self._message is None:
            item = Message(id=self._wire.new_id("item"), role="assistant", status="in_progress")
            self._message = self._add(item)
            self._wire.send(
                events.PartAdded(**self._place(self._message), part=self._wire_part(""))
            )
        return self._message

    def _add(self, item: Item) -> _Output:
        output = _Output(len(self._outputs), item)
        self._outputs.append(output)
        self._wire.send(
            events.OutputItemAdded(response_id=self.id, output_index=output.index, item=item)
        )
        if not self.is_out_of_band:
            previous = self._wire.conversation.insert(item)
            self._wire.send(events.ItemAdded(previous_item_id=previous, item=item))
        return output

    def _end_message(self, output: _Output, status: ItemStatus) -> None:
        text = "".join(self._said)
        place = self._place(output)
        if self.speaks:
            self._wire.send(events.AudioDone(**place))
            self._wire.send(events.TranscriptDone(**place, transcript=text))
            part = Part(type="output_audio", transcript=text)
        else:
            self._wire.send(events.TextDone(**place, text=text))
            part = Part(type="output_text", text=text)
        self._wire.send(events.PartDone(**place, part=self._wire_part(text)))
        assert isinstance(output.item, Message)
        self._end(output, replace(output.item, status=status, content=(part,)))

    def _end_call(self, output: _Output, status: ItemStatus) -> None:
        assert isinstance(output.item, FunctionCall)
        self._wire.send(
            events.ArgumentsDone(
                **self._place(output),
                call_id=output.item.call_id,
                name=output.item.name,
                arguments=output.item.arguments,
            )
        )
        self._end(output, replace(output.item, status=status))

    def _end(self, output: _Output, item: Item) -> None:
        output.item = item
        output.done = True
        if not self.is_out_of_band:
            conversation = self._wire.conversation
            conversation.replace(item)
            previous = conversation.previous_id(item.id)
            self._wire.send(events.ItemDone(previous_item_id=previous, item=item))
        self._wire.send(
            events.OutputItemDone(response_id=self.id, output_index=output.index, item=item)
        )

    def _delta(self, event: events.ServerEvent) -> None:
        self._wire.send(event, delta_of=self.id)

    def _place(self, output: _Output) -> Json:
        return {"response_id": self.id, "item_id": output.item.id, "output_index": output.index}

    def _wire_part(self, text: str) -> events.WirePart:
        if self.speaks:
            return events.WirePart(type="audio", transcript=text)
        return events.WirePart(type="text", text=text)

    def _body(
        self,
        status: ResponseStatus | Literal["in_progress"],
        details: Json | None = None,
        usage: Json | None = None,
    ) -> events.ResponseBody:
        output_audio = {"format": self.output_format.to_wire(), "voice": self._voice_name}
        return events.ResponseBody(
            id=self.id,
            status=status,
            status_details=details,
            output=tuple(output.item for output in self._outputs),
            conversation_id=None if self.is_out_of_band else self._wire.conversation_id,
            output_modalities=self.output_modalities,
            max_output_tokens=self.max_output_tokens,
            audio={"output": output_audio},
            usage=usage,
            metadata=self.request.metadata,
            temperature=self.temperature if self._wire.is_beta else UNSET,
        )


def usage_to_wire(usage: Usage, input_audio_ms: float = 0.0, output_audio_ms: float = 0.0) -> Json:
    """Token counts for ``response.done``; every integer is there (agents-js drops nulls' event).

    Text is counted by the language model. It reads and writes no audio: of that the time counts,
    in the measure that clients know from OpenAI.
    """
    n_cached = min(usage.n_cached_tokens, usage.n_prompt_tokens)
    n_heard = math.ceil(input_audio_ms / INPUT_TOKEN_MS)
    n_spoken = math.ceil(output_audio_ms / OUTPUT_TOKEN_MS)
    n_input, n_output = usage.n_prompt_tokens + n_heard, usage.n_reply_tokens + n_spoken
    return {
        "total_tokens": n_input + n_output,
        "input_tokens": n_input,
        "output_tokens": n_output,
        "input_token_details": {
            "text_tokens": usage.n_prompt_tokens,
            "audio_tokens": n_heard,
            "image_tokens": 0,
            "cached_tokens": n_cached,
            "cached_tokens_details": {
                "text_tokens": n_cached,
                "audio_tokens": 0,
                "image_tokens": 0,
            },
        },
        "output_token_details": {"text_tokens": usage.n_reply_tokens, "audio_tokens": n_spoken},
    }


def _either(asked: T | None, default: T) -> T:
    return default if asked is None else asked

"""The life of one response on the wire, from ``response.created`` to ``response.done``.

Owns the invariants of a response by construction: exactly one terminal, nothing after it, every
item and part that was added is done before it. Pure; events go into the protocol's queue.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from voiceloop.backends import ChatMessage, SpokenWord, Tool, Usage
from voiceloop.errors import VoiceLoopError
from voiceloop.items import Item
from voiceloop.settings import AudioFormat, Modality

ResponseStatus = Literal["completed", "cancelled", "failed", "incomplete"]
CloseReason = Literal["turn_detected", "client_cancelled", "max_output_tokens", "content_filter"]


class ResponseRequest(msgspec.Struct, frozen=True):
    """What a response was asked to be; None means the session's setting.

    ``input`` (item references already resolved) replaces the conversation as the context.
    ``conversation`` "none": out of band, runs beside the default one, leaves no trace in it.
    """

    instructions: str | None = None
    output_modalities: tuple[Modality, ...] | None = None
    output_format: AudioFormat | None = None
    voice: str | None = None
    tools: tuple[Tool, ...] | None = None
    tool_choice: str | dict[str, object] | None = None
    max_output_tokens: int | Literal["inf"] | None = None
    temperature: float | None = None
    metadata: dict[str, str] | None = None
    conversation: Literal["auto", "none"] = "auto"
    input: tuple[Item, ...] | None = None


class ResponseHandle:
    """One open response. Made by the protocol only.

    Every method may be called after the response closed (a turn learns of its cancellation late):
    it then does nothing. Request fields are resolved against the session's settings at creation.
    """

    id: str
    request: ResponseRequest
    instructions: str
    speaks: bool
    output_format: AudioFormat
    voice: str
    speed: float
    tools: tuple[Tool, ...]
    tool_choice: str | dict[str, object]
    max_output_tokens: int | Literal["inf"]
    temperature: float | None

    @property
    def closed(self) -> bool:
        raise NotImplementedError

    @property
    def is_out_of_band(self) -> bool:
        raise NotImplementedError

    @property
    def item_id(self) -> str | None:
        """The message item of this response, None before its first delta."""
        raise NotImplementedError

    def messages(self) -> tuple[ChatMessage, ...]:
        """The prompt: instructions, then the conversation as it stands or the request's input."""
        raise NotImplementedError

    def text_delta(self, text: str) -> None:
        """A piece of a text reply (modality text)."""

    def transcript_delta(self, text: str) -> None:
        """A piece of what is being spoken (modality audio); also feeds the conversation."""

    def audio_delta(self, data: bytes, duration_ms: float) -> None:
        """Encoded audio in ``output_format``, whole samples; cut into frames of <= 200 ms."""

    def add_words(self, words: tuple[SpokenWord, ...]) -> None:
        """Word times of the spoken reply, for cutting it; times from the item's first sample."""

    def function_call(self, call_id: str, name: str) -> None:
        """The model began a call: its item is added."""

    def arguments_delta(self, call_id: str, delta: str) -> None: ...

    def arguments_done(self, call_id: str, arguments: str) -> None:
        """The call is complete: its item is done. ``arguments`` is the whole JSON text."""

    def close(
        self,
        status: ResponseStatus,
        reason: CloseReason | None = None,
        error: VoiceLoopError | None = None,
        usage: Usage | None = None,
    ) -> None:
        """End the response: open parts and items are done first, then ``response.done``."""

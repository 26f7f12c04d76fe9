"""The events of the Realtime protocol as typed messages (GA names).

Owns the items of a conversation, the client's events and their strict decoding, and the
shapes of the server's events. Pure.
"""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

ItemStatus = Literal["in_progress", "completed", "incomplete"]


class Part(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A piece of a message. ``transcript`` belongs to audio, ``text`` to text.

    ``transcript`` None is sent as null (a user's audio whose words are not known yet); unset
    fields are left out.
    """

    type: Literal["input_text", "input_audio", "input_image", "output_text", "output_audio"]
    text: str | UnsetType = UNSET
    transcript: str | UnsetType | None = UNSET


class Message(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="message", omit_defaults=True
):
    """Words of the system, the user or the assistant."""

    id: str
    role: Literal["system", "user", "assistant"]
    status: ItemStatus = "completed"
    content: tuple[Part, ...] = ()

    @property
    def text(self) -> str:
        """All words known of it."""
        pieces = (part.text or part.transcript for part in self.content)
        return " ".join(piece for piece in pieces if piece)


class FunctionCall(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="function_call"
):
    """The model calls a tool; ``arguments`` is JSON text."""

    id: str
    call_id: str
    name: str
    arguments: str = ""
    status: ItemStatus = "completed"


class FunctionCallOutput(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="function_call_output"
):
    """The result of a tool."""

    id: str
    call_id: str
    output: str
    status: ItemStatus = "completed"


Item = Message | FunctionCall | FunctionCallOutput

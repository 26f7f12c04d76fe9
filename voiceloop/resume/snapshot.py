"""Takes a bounded snapshot of a call (words, what was heard, settings), and restores one.

Whoever holds a ticket can read it, so a snapshot has only what the client knows already: no
documents that the model was given, no sound, no MCP server that the client named with a token or
headers. What was under way is left out. The agent makes an unfinished reply anew, so that its
caller hears it whole; what the caller was saying is lost. Pure.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from voiceloop.errors import InvalidRequest
from voiceloop.realtime.conversation import Conversation, SpokenReplies, SpokenReply
from voiceloop.realtime.items import (
    FunctionCall,
    FunctionCallOutput,
    Item,
    McpCall,
    Message,
    n_characters_of,
)
from voiceloop.realtime.settings import SessionSettings

# Of settings and items. Packing them is what a ticket costs the event loop: 3 ms. Some two hours
# of talk.
MAX_CHARACTERS = 128 * 1024
MAX_PACKED_BYTES = 48 * 1024
MAX_UNPACKED_BYTES = 4 * 1024 * 1024


class Snapshot(msgspec.Struct, frozen=True):
    """settings: those that are not the agent's own. spoken: of the agent's newest message.
    handed_to: the agent that the call was handed to, whose own they are not. begins_at: the first
    item that this agent's model is shown, where that is not the conversation's.
    """

    settings: dict[str, Any]
    items: tuple[Item, ...]
    spoken: SpokenReply | None = None
    handed_to: str | UnsetType = UNSET
    begins_at: str | UnsetType = UNSET

    def settings_over(self, own: SessionSettings) -> SessionSettings:
        """The session's settings, where the agent's are these (perhaps others than they were).

        Raises: InvalidRequest: another version of this server has written them.
        """
        try:
            return msgspec.convert({**msgspec.to_builtins(own), **self.settings}, SessionSettings)
        except msgspec.ValidationError as error:
            raise unreadable(str(error)) from None


def unreadable(what: str) -> InvalidRequest:
    return InvalidRequest(
        f"This server cannot read the ticket ({what}).",
        param="ticket",
        code="resume_ticket_invalid",
    )


@dataclass(frozen=True, slots=True)
class Changes:
    """A session's settings that are not its agent's own, and how long they are written down."""

    settings: dict[str, Any]
    n_characters: int


def changes_of(settings: SessionSettings, own: SessionSettings) -> Changes:
    """Return what a ticket says of these settings. own: the agent's.

    An MCP server that was named with headers is left out whole: asked without them it would let
    somebody else in, or nobody. So are the tools that servers list: they are asked for them anew.
    """
    told = msgspec.structs.replace(
        settings,
        mcp=tuple(entry for entry in settings.mcp if not entry.headers),
        tools=tuple(tool for tool in settings.tools if not tool.server_label),
    )
    ours = msgspec.to_builtins(own)
    changed = {
        name: value for name, value in msgspec.to_builtins(told).items() if value != ours[name]
    }
    return Changes(changed, len(msgspec.json.encode(changed)))


def snapshot_of(changes: Changes, conversation: Conversation, spoken: SpokenReplies) -> Snapshot:
    """Return what stands fast of a call at this moment. Raises: InvalidRequest: too long
    changes.
    """
    n_left = MAX_CHARACTERS - changes.n_characters
    if n_left < 0:
        raise _too_large(f"{MAX_CHARACTERS} characters", changes.n_characters)
    items = _newest(carried(conversation), n_left)
    newest_id = newest_reply_id(items)
    return Snapshot(changes.settings, items, spoken.get(newest_id) if newest_id else None)


def newest_reply_id(items: Sequence[Item]) -> str | None:
    """The agent's newest message; None where the agent has said nothing."""
    said = (i for i in reversed(items) if isinstance(i, Message) and i.role == "assistant")
    return next((message.id for message in said), None)


def _too_large(most: str, found: int) -> InvalidRequest:
    what = f"expected settings that fit a ticket of {most}, found {found}"
    return InvalidRequest(f"{what}: this call cannot be resumed", code="resume_too_large")


def carried(conversation: Conversation) -> tuple[Item, ...]:
    """Return what of it stands fast."""
    return tuple(item for item in conversation.items() if _is_carried(item))


def _is_carried(item: Item) -> bool:
    match item:
        case Message():
            return item.status != "in_progress" and bool(item.text)
        case FunctionCall():
            return item.status == "completed"
        case FunctionCallOutput():
            return True
        case McpCall():
            return item.result is not None
        case _:
            return False  # of MCP servers: they are listed and asked anew


def _newest(items: Sequence[Item], n_left: int) -> tuple[Item, ...]:
    """As many of the last items as have so many characters."""
    kept: list[Item] = []
    for item in reversed(items):
        n_left -= n_characters_of(item)
        if n_left < 0:
            break
        kept.append(item)
    return tuple(reversed(kept))


def pack(snapshot: Snapshot) -> bytes:
    """The snapshot in at most `MAX_PACKED_BYTES`: the oldest items give way.

    Raises: InvalidRequest: its settings alone are longer than that.
    """
    while True:
        packed = zlib.compress(msgspec.msgpack.encode(snapshot))
        if len(packed) <= MAX_PACKED_BYTES:
            return packed
        if not snapshot.items:
            raise _too_large(f"{MAX_PACKED_BYTES} bytes", len(packed))
        kept = snapshot.items[(len(snapshot.items) + 1) // 2 :]
        snapshot = msgspec.structs.replace(snapshot, items=kept)


def unpack(packed: bytes) -> Snapshot:
    """Raises: InvalidRequest: it is none."""
    try:
        unpacker = zlib.decompressobj()
        body = unpacker.decompress(packed, MAX_UNPACKED_BYTES)
        if unpacker.unconsumed_tail:
            raise unreadable("too large")
        return msgspec.msgpack.decode(body, type=Snapshot)
    except (zlib.error, msgspec.DecodeError, UnicodeError) as error:
        raise unreadable(type(error).__name__) from None

"""What a call is when it is written down: what was said, what of it was heard, what was set.

Owns the snapshot: taken of a session, bounded in size, put into a new one. Only what the client has
been told already is in it, for whoever holds a ticket can read it: no documents that the model was
given, no sound. What was under way when it was taken is left out: a reply that had not ended is
made anew, so that its caller hears it whole, and what was being said to the agent is lost. Pure.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from typing import Any

import msgspec

from voiceloop.errors import InvalidRequest
from voiceloop.realtime.conversation import Conversation
from voiceloop.realtime.items import (
    FunctionCall,
    FunctionCallOutput,
    Item,
    Message,
    SpokenReply,
    n_characters_of,
)
from voiceloop.realtime.settings import SessionSettings

# Packing them is what a ticket costs the event loop: 3 ms. Some two hours of talk.
MAX_CHARACTERS = 128 * 1024
MAX_PACKED_BYTES = 48 * 1024
MAX_UNPACKED_BYTES = 4 * 1024 * 1024


class Snapshot(msgspec.Struct, frozen=True):
    """settings: those that are not the agent's own. spoken: of the agent's newest message."""

    settings: dict[str, Any]
    items: tuple[Item, ...]
    spoken: SpokenReply | None = None

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
        f"expected a ticket that this server can read, found another ({what})",
        param="ticket",
        code="resume_ticket_invalid",
    )


def snapshot_of(
    settings: SessionSettings, own: SessionSettings, conversation: Conversation
) -> Snapshot:
    """What stands fast of a call at this moment. own: the agent's settings."""
    ours = msgspec.to_builtins(own)
    changed = {
        name: value for name, value in msgspec.to_builtins(settings).items() if value != ours[name]
    }
    items = _newest(item for item in conversation.items() if _is_carried(item))
    said = [item for item in items if isinstance(item, Message) and item.role == "assistant"]
    return Snapshot(changed, items, conversation.spoken(said[-1].id) if said else None)


def _is_carried(item: Item) -> bool:
    match item:
        case Message():
            return item.status != "in_progress" and bool(item.text)
        case FunctionCall():
            return item.status == "completed"
        case FunctionCallOutput():
            return True
        case _:
            return False  # of MCP servers: they are listed and asked anew


def _newest(items: Iterable[Item]) -> tuple[Item, ...]:
    """As many of the last items as are carried."""
    kept: list[Item] = []
    n_left = MAX_CHARACTERS
    for item in reversed(list(items)):
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
            raise InvalidRequest(
                f"expected settings that fit a ticket of {MAX_PACKED_BYTES} bytes, found "
                f"{len(packed)}: this call cannot be resumed",
                code="resume_too_large",
            )
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
    except (zlib.error, msgspec.DecodeError) as error:
        raise unreadable(type(error).__name__) from None

"""The conversation at an upstream server, and how it is brought to what ours holds.

Ours is the truth: what was heard of a reply, what was typed, deleted, or slid out of the window.
Owns the upstream's items as far as they are known, and the events that make both the same. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from voiceloop.backends import ChatMessage, SpokenWord

Event = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Entry:
    """A message, a call or its output. text: of a call its arguments."""

    kind: Literal["system", "user", "assistant", "call", "output"]
    text: str
    call_id: str = ""
    name: str = ""

    def is_as(self, other: Entry) -> bool:
        """Whether both say the same; spaces are nobody's words."""
        same = (self.kind, self.call_id) == (other.kind, other.call_id)
        return same and (self.kind == "call" or self.text.split() == other.text.split())


@dataclass(slots=True)
class Known:
    """An entry as the upstream has it. item_ids: its items there. words: of spoken text."""

    entry: Entry
    item_ids: list[str] = field(default_factory=list)
    words: list[SpokenWord] = field(default_factory=list)

    def cut_ms(self, wanted: Entry) -> float | None:
        """Return where its sound ends if no more than these words were heard; None: they are
        others.
        """
        said, heard = self.entry.text.split(), wanted.text.split()
        is_spoken = self.words and self.item_ids and self.entry.kind == wanted.kind
        if not is_spoken or len(heard) >= len(said):
            return None
        is_cut = said[: len(heard)] == heard and len(heard) <= len(self.words)
        return self.words[len(heard) - 1].end_ms if is_cut and heard else None


def entries_of(messages: Sequence[ChatMessage]) -> list[Entry]:
    """The messages behind the instructions."""
    found = []
    for message in messages:
        if message.role == "tool":
            found.append(Entry("output", message.content, message.tool_call_id or ""))
            continue
        if message.content:
            found.append(Entry(message.role, message.content))
        for call in message.tool_calls:
            found.append(Entry("call", call.arguments, call.call_id, call.name))
    return found


class Mirror:
    """The mirrored conversation of one connection."""

    def __init__(self) -> None:
        self.known: list[Known] = []
        self._n_created = 0

    def goes_on(self, turn: str, at: int = -1) -> bool:
        """Whether the last item, or the one there, is the beginning of this turn of the caller."""
        there = (known.entry for known in self.known[at:][:1])
        return any(one.kind == "user" and turn.startswith(f"{one.text} ") for one in there)

    def bring(self, wanted: Sequence[Entry], turn: str = "") -> list[Event]:
        """The events after which it holds these. turn: the caller's, that follows: of one that
        begins with words nobody has answered these stay.
        """
        events: list[Event] = []
        at = 0
        for entry in wanted:
            while (found := self._find(entry, at)) is not None and found > at:
                events += self._delete(at, found)
                found = at
            if found is None:
                events += self._delete(at, len(self.known))
                events.append(self._create(entry))
            elif not self.known[at].entry.is_as(entry):
                events.append(self._truncate(self.known[at], entry))
            at += 1
        return events + self._delete(at + self.goes_on(turn, at), len(self.known))

    def _find(self, entry: Entry, at: int) -> int | None:
        for index in range(at, len(self.known)):
            known = self.known[index]
            if known.entry.is_as(entry) or known.cut_ms(entry) is not None:
                return index
        return None

    def _delete(self, start: int, end: int) -> list[Event]:
        gone, self.known[start:end] = self.known[start:end], []
        return [
            {"type": "conversation.item.delete", "item_id": item_id}
            for known in gone
            for item_id in known.item_ids
        ]

    def _truncate(self, known: Known, heard: Entry) -> Event:
        end_ms = known.cut_ms(heard)
        assert end_ms is not None  # `_find`
        known.entry, known.words = (
            replace(known.entry, text=heard.text),
            known.words[: len(heard.text.split())],
        )
        return {
            "type": "conversation.item.truncate", "item_id": known.item_ids[-1],
            "content_index": 0, "audio_end_ms": int(end_ms),
        }  # fmt: skip

    def _create(self, entry: Entry) -> Event:
        self._n_created += 1
        item_id = f"vl_{self._n_created}"
        self.known.append(Known(entry, [item_id]))
        item = {"id": item_id, **item_of(entry)}
        return {"type": "conversation.item.create", "item": item}


def item_of(entry: Entry) -> dict[str, Any]:
    """As the protocol writes it."""
    match entry.kind:
        case "call":
            return {"type": "function_call", "call_id": entry.call_id, "name": entry.name,
                    "arguments": entry.text}  # fmt: skip
        case "output":
            return {"type": "function_call_output", "call_id": entry.call_id, "output": entry.text}
    kind = "output_text" if entry.kind == "assistant" else "input_text"
    return {"type": "message", "role": entry.kind,
            "content": [{"type": kind, "text": entry.text}]}  # fmt: skip

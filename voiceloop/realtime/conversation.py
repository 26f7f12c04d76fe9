"""The conversation as it stands on the wire: its items, in order, and what was heard of them.

Owns the items (messages, tool calls, tool results) and the order of calls and their outputs; and
the text, the word times and the length of every spoken reply, so that a reply can be cut to what
was heard. What the language model is shown of it stands in `shown.py`. Pure: no clock, no I/O.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from msgspec.structs import replace

from voiceloop.backends import SpokenWord
from voiceloop.errors import InvalidRequest, expected
from voiceloop.realtime.items import FunctionCall, FunctionCallOutput, Item, Message, Part, Role

ROOT = "root"


class Conversation:
    """Ordered items with unique ids. on_change: called when one is new, changed, or gone."""

    def __init__(self, on_change: Callable[[], None] = lambda: None) -> None:
        self._items: list[Item] = []
        self._on_change = on_change

    def __len__(self) -> int:
        return len(self._items)

    def items(self, start: int = 0) -> tuple[Item, ...]:
        """All items from this index on."""
        return tuple(self._items[start:])

    def index(self, item_id: str) -> int | None:
        """Return where the item stands; None: there is no such item."""
        places = range(len(self._items) - 1, -1, -1)  # what is asked for is nearly always recent
        return next((at for at in places if self._items[at].id == item_id), None)

    def get(self, item_id: str) -> Item | None:
        """The item of this id; None: there is no such item."""
        index = self.index(item_id)
        return None if index is None else self._items[index]

    def previous_id(self, item_id: str) -> str | None:
        """The id of the item before this one; None at the front or when it is unknown."""
        index = self.index(item_id)
        return self._items[index - 1].id if index else None

    @property
    def last_id(self) -> str | None:
        return self._items[-1].id if self._items else None

    @property
    def newest_turn_id(self) -> str | None:
        """The user's newest message; None where the user has said nothing yet."""
        turns = (i for i in reversed(self._items) if isinstance(i, Message) and i.role == "user")
        return next((turn.id for turn in turns), None)

    def said_since(self, turn_id: str | None) -> str | None:
        """The words of the user's next turn behind this message, None: behind the beginning.

        None where there is no such turn, or another one behind that.
        """
        before = -1 if turn_id is None else self.index(turn_id)
        if before is None:
            return None
        words: list[str] = []
        is_over = False
        for item in self._items[before + 1 :]:
            if isinstance(item, Message) and item.role == "user":
                if is_over:
                    return None
                words.append(item.text)
            elif isinstance(item, Message) and words:
                is_over = True
        return " ".join(words) if words else None

    # --- changed ---

    def insert(self, item: Item, previous_item_id: str | None = None) -> str | None:
        """Put the item after ``previous_item_id`` (``"root"``: at the front; None: at the end).

        Returns the id of the item now before it, None at the front.

        Raises:
            InvalidRequest: the id is taken (code ``item_create_duplicate_item_id``) or the
                previous item is unknown.
        """
        if self.index(item.id) is not None:
            raise InvalidRequest(
                f"expected an item id that is new, found {item.id!r}, which exists",
                param="item.id",
                code="item_create_duplicate_item_id",
            )
        if previous_item_id is None:
            index = len(self._items)
        elif previous_item_id == ROOT:
            index = 0
        else:
            before = self.index(previous_item_id)
            if before is None:
                raise expected("previous_item_id", "the id of an item", previous_item_id)
            index = before + 1
        self._items.insert(index, item)
        self._on_change()
        return self._items[index - 1].id if index else None

    def replace(self, item: Item) -> None:
        """Put a newer version in the place of the item with the same id; ignored when deleted."""
        index = self.index(item.id)
        if index is not None:
            self._items[index] = item
            self._on_change()

    def delete(self, item_id: str) -> None:
        """Remove the item; ignored when there is none."""
        index = self.index(item_id)
        if index is not None:
            del self._items[index]
            self._on_change()

    def restore(self, items: Iterable[Item]) -> None:
        """Fill this conversation, which is empty, with the items of another."""
        self._items = list(items)

    def set_transcript(self, item_id: str, text: str) -> None:
        """Write the words of a user's audio item, which are known now."""
        item = self.get(item_id)
        if isinstance(item, Message):
            parts = list(item.content)
            heard = Part(type="input_audio", transcript=text)
            audio = [i for i, part in enumerate(parts) if part.type == "input_audio"]
            if audio:
                parts[audio[0]] = heard
            else:
                parts.append(heard)
            self.replace(replace(item, content=tuple(parts)))

    # --- calls and their outputs ---

    def is_open(self, call_id: str) -> bool:
        """Whether there is a call of this id, and the newest has no output behind it."""
        return self.place_of_output(call_id) is not None and not self.is_answered(call_id)

    def is_answered(self, call_id: str) -> bool:
        """Whether the newest call of this id has its output behind it."""
        for item in reversed(self._items):
            if isinstance(item, FunctionCall | FunctionCallOutput) and item.call_id == call_id:
                return isinstance(item, FunctionCallOutput)
        return False

    def place_of_output(self, call_id: str) -> str | None:
        """The id of the item that the output of the newest call of this id goes behind.

        That is the last item of the turn that made the call, or the last output behind that turn.
        None: there is no such call.
        """
        items = self._items
        is_it = [isinstance(item, FunctionCall) and item.call_id == call_id for item in items]
        if True not in is_it:
            return None
        at = len(items) - 1 - is_it[::-1].index(True)
        while at + 1 < len(items) and _is_agents(items[at + 1]):
            at += 1
        while at + 1 < len(items) and isinstance(items[at + 1], FunctionCallOutput):
            at += 1
        return items[at].id


def _is_agents(item: Item) -> bool:
    """Whether the item is a call, or words of the agent."""
    return isinstance(item, FunctionCall) or (
        isinstance(item, Message) and item.role == "assistant"
    )


@dataclass(slots=True)
class SpokenReply:
    """The agent's words in one item: all its text, when each word sounds, what was heard."""

    text: str = ""
    words: list[SpokenWord] = field(default_factory=list)
    audio_ms: float = 0.0
    heard_ms: float | None = None  # None: not cut
    retracted: bool = False  # counts as never said, whatever was heard

    def heard_text(self) -> str:
        """The text up to the last word that was heard."""
        if self.retracted:
            return ""
        if self.heard_ms is None:
            return self.text
        if self.words:
            heard = [w for w in self.words if (w.start_ms + w.end_ms) / 2 <= self.heard_ms]
            return self.text[: heard[-1].text_end].rstrip() if heard else ""
        if self.audio_ms <= 0 or self.heard_ms >= self.audio_ms:
            return self.text if self.heard_ms > 0 else ""
        # A voice without word times: the share of the audio, down to a whole word.
        n_chars = int(len(self.text) * self.heard_ms / self.audio_ms)
        return self.text[:n_chars].rpartition(" ")[0]


class SpokenReplies:
    """The spoken replies of one conversation, by item."""

    def __init__(self, conversation: Conversation) -> None:
        self._conversation = conversation
        self._replies: dict[str, SpokenReply] = {}

    # --- said ---

    def append_text(self, item_id: str, text: str) -> None:
        """Add text that was generated; whether it is heard is not known yet."""
        self._reply(item_id).text += text

    def add_words(self, item_id: str, words: Iterable[SpokenWord]) -> None:
        """Add word times; they count from the first sample of the item."""
        self._reply(item_id).words.extend(words)

    def add_audio(self, item_id: str, duration_ms: float) -> None:
        """Count so much more audio that was sent."""
        self._reply(item_id).audio_ms += duration_ms

    def restore(self, item_id: str, reply: SpokenReply) -> None:
        """Take over what was said in an item of a call that broke off elsewhere."""
        self._replies[item_id] = reply

    def forget(self, item_id: str) -> None:
        """Drop the reply of an item that is deleted."""
        self._replies.pop(item_id, None)

    # --- heard ---

    def cut(self, item_id: str, heard_ms: float) -> str:
        """Cut the item to what was heard; returns the text that is kept.

        A word counts as heard once half of it was played. May be called again with another time:
        it always cuts the full reply (a client's ``truncate`` is more exact than our estimate).
        """
        reply = self._replies.get(item_id)
        item = self._conversation.get(item_id)
        if reply is None or not isinstance(item, Message):
            return ""
        reply.heard_ms = max(0.0, heard_ms)
        text = reply.heard_text()
        if item.content:
            part = replace(item.content[0], transcript=text)
            self._conversation.replace(replace(item, content=(part,)))
        return text

    def retract(self, item_id: str) -> None:
        """Count the reply as never said, for good: a later `cut` leaves it at nothing.

        For an answer that was taken back in its first moment, of which some sound was played.
        """
        self._reply(item_id).retracted = True
        self.cut(item_id, 0.0)

    # --- read ---

    def get(self, item_id: str) -> SpokenReply | None:
        """A copy of what was said in this item; None: the agent has not spoken in it."""
        reply = self._replies.get(item_id)
        return None if reply is None else dataclasses.replace(reply, words=list(reply.words))

    def audio_ms(self, item_id: str) -> float:
        """The audio that was sent of this reply; 0 for an item that has none."""
        reply = self._replies.get(item_id)
        return reply.audio_ms if reply else 0.0

    def text_of(self, item: Item) -> str:
        """The words of a message: of a spoken reply those that were heard. Of a call: nothing."""
        reply = self._replies.get(item.id)
        if reply is not None:
            return reply.heard_text()
        return item.text if isinstance(item, Message) else ""

    def said(self, begins_at: str = "") -> tuple[tuple[Role, str], ...]:
        """Return who said what in the conversation, from this item on: role and words, in order."""
        start = self._conversation.index(begins_at) if begins_at else None
        messages = (i for i in self._conversation.items(start or 0) if isinstance(i, Message))
        said = ((i.role, self.text_of(i)) for i in messages if i.status != "in_progress")
        return tuple((role, text) for role, text in said if text and role != "system")

    def _reply(self, item_id: str) -> SpokenReply:
        return self._replies.setdefault(item_id, SpokenReply())

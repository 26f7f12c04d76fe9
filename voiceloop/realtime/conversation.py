"""The conversation as it stands on the wire: its items, in order.

Owns the items (messages, tool calls, tool results) and the order of calls and their outputs. What
was heard of the agent's replies stands in `spoken_replies.py`, what the language model is shown in
`shown.py`; both read from here, and nothing here knows of them. Pure: no clock, no I/O.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from msgspec.structs import replace

from voiceloop.errors import InvalidRequest, expected
from voiceloop.realtime.items import FunctionCall, FunctionCallOutput, Item, Message, Part

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

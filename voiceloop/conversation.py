"""The conversation: its items in order, and what the language model sees of them.

Owns the items (messages, tool calls, tool results) and, for each reply the agent spoke, the text
with its word times, so that a reply can be cut to what the caller heard. Pure: no clock, no I/O.
"""

from __future__ import annotations

from collections.abc import Iterable

from voiceloop.backends import ChatMessage, SpokenWord
from voiceloop.items import Item

ROOT = "root"


class Conversation:
    """Ordered items. Invariant: item ids are unique."""

    def insert(self, item: Item, previous_item_id: str | None = None) -> str | None:
        """Put the item after ``previous_item_id`` (``"root"``: at the front; None: at the end).

        Returns the id of the item now before it, None at the front.

        Raises:
            InvalidRequest: the id is taken (code ``item_create_duplicate_item_id``) or the
                previous item is unknown.
        """
        raise NotImplementedError

    def get(self, item_id: str) -> Item | None:
        raise NotImplementedError

    def replace(self, item: Item) -> None:
        """Put a newer version in the place of the item with the same id; ignored when deleted."""
        raise NotImplementedError

    def delete(self, item_id: str) -> bool:
        """Remove the item; False when there is none."""
        raise NotImplementedError

    def set_transcript(self, item_id: str, text: str) -> None:
        """The words of a user's audio item are known."""
        raise NotImplementedError

    def append_text(self, item_id: str, text: str) -> None:
        """The agent's reply grew by ``text`` (generated; not yet known to be heard)."""
        raise NotImplementedError

    def add_words(self, item_id: str, words: Iterable[SpokenWord]) -> None:
        """Word times of the agent's reply; times count from the first sample of the item."""
        raise NotImplementedError

    def cut(self, item_id: str, heard_ms: float) -> str:
        """Keep of the reply what was heard; returns the text kept.

        A word counts as heard once half of it was played. May be called again with another time:
        it always cuts the full reply (a client's ``truncate`` is more exact than our estimate).
        """
        raise NotImplementedError

    def messages(
        self, instructions: str = "", *, before: str | None = None
    ) -> tuple[ChatMessage, ...]:
        """The conversation for the language model, instructions first.

        Items in progress, replies of which nothing was heard and user audio without words are
        left out. ``before`` stops in front of that item (the open user turn).
        """
        raise NotImplementedError

    def items(self) -> tuple[Item, ...]:
        raise NotImplementedError

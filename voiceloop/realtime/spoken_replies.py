"""The agent's words in each item of the conversation, and how much of them the caller heard.

Owns the text, the word times and the length of every spoken reply, so that a reply can be cut to
what was heard. Reads and corrects the conversation's items. Pure: no clock, no I/O.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass, field

from msgspec.structs import replace

from voiceloop.backends import SpokenWord
from voiceloop.realtime.conversation import Conversation
from voiceloop.realtime.items import Item, Message, Role


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

"""The conversation: its items in order, and what the language model sees of them.

Owns the items (messages, tool calls, tool results) and, for each reply the agent spoke, the text
with its word times, so that a reply can be cut to what the caller heard. Pure: no clock, no I/O.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace as dataclass_replace

from msgspec.structs import replace

from voiceloop.backends import ChatMessage, SpokenWord
from voiceloop.errors import InvalidRequest, expected
from voiceloop.memory.ledger import Ledger
from voiceloop.realtime.items import (
    FunctionCall,
    FunctionCallOutput,
    Item,
    McpCall,
    Message,
    Part,
    SpokenReply,
    model_text,
)
from voiceloop.realtime.prompt import (
    append_message,
    is_spoken,
    outdated_outputs,
    place_of_output,
    with_recall,
    with_results,
)
from voiceloop.realtime.window import NEARLY_FULL, Slide, TokenCount, Window

ROOT = "root"


class Conversation:
    """Ordered items. Invariant: item ids are unique. ``window`` None shows the model all.

    ledger: what leaves the window is written into it, and the model is told of it; None: nothing.
    on_change: an item is new, another one, or gone.
    """

    def __init__(
        self,
        window: Window | None = None,
        ledger: Ledger | None = None,
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        self.window = window
        self.ledger = ledger
        self._items: list[Item] = []
        self._replies: dict[str, SpokenReply] = {}
        self._notes: dict[str, str] = {}  # behind a user's words, by item: not said by anybody
        self._oldest_shown: str | None = None  # older items are out of the window for good
        self._recall = ""  # what the model is told of these, the same from slide to slide
        self._n_notes = 0  # tokens that it may take
        self._slide: Slide | None = None  # the newest that nobody has asked about
        self._on_change = on_change

    def __len__(self) -> int:
        return len(self._items)

    def insert(self, item: Item, previous_item_id: str | None = None) -> str | None:
        """Put the item after ``previous_item_id`` (``"root"``: at the front; None: at the end).

        Returns the id of the item now before it, None at the front.

        Raises:
            InvalidRequest: the id is taken (code ``item_create_duplicate_item_id``) or the
                previous item is unknown.
        """
        if self._find(item.id) is not None:
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
            before = self._find(previous_item_id)
            if before is None:
                raise expected("previous_item_id", "the id of an item", previous_item_id)
            index = before + 1
        self._items.insert(index, item)
        self._on_change()
        return self._items[index - 1].id if index else None

    def get(self, item_id: str) -> Item | None:
        index = self._find(item_id)
        return None if index is None else self._items[index]

    def previous_id(self, item_id: str) -> str | None:
        """The id of the item before this one; None at the front or when it is unknown."""
        index = self._find(item_id)
        return self._items[index - 1].id if index else None

    @property
    def last_id(self) -> str | None:
        return self._items[-1].id if self._items else None

    def replace(self, item: Item) -> None:
        """Put a newer version in the place of the item with the same id; ignored when deleted."""
        index = self._find(item.id)
        if index is not None:
            self._items[index] = item
            self._on_change()

    def delete(self, item_id: str) -> bool:
        """Remove the item; False when there is none."""
        index = self._find(item_id)
        if index is None:
            return False
        del self._items[index]
        self._replies.pop(item_id, None)
        self._notes.pop(item_id, None)
        if item_id == self._oldest_shown:  # its successor takes over
            self._oldest_shown = self._items[index].id if index < len(self._items) else None
        if self.ledger is not None and self.ledger.forget(item_id) and self._recall:
            self._tell_ledger()
        self._on_change()
        return True

    def restore(self, items: Iterable[Item], spoken: SpokenReply | None) -> None:
        """Fill this one, which is empty, with another; spoken: of the agent's newest message."""
        self._items = list(items)
        said = [i for i in self._items if isinstance(i, Message) and i.role == "assistant"]
        if said and spoken is not None:
            self._replies[said[-1].id] = spoken

    def items(self) -> tuple[Item, ...]:
        return tuple(self._items)

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
        """The item that the output of the newest call of this id goes behind; None: none such."""
        at = place_of_output(self._items, call_id)
        return None if at is None else self._items[at].id

    def set_transcript(self, item_id: str, text: str) -> None:
        """The words of a user's audio item are known."""
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

    @property
    def newest_turn_id(self) -> str | None:
        """The user's newest message; None where the user has said nothing yet."""
        turns = (i for i in reversed(self._items) if isinstance(i, Message) and i.role == "user")
        return next((turn.id for turn in turns), None)

    def add_notes(self, item_id: str, text: str) -> bool:
        """Put this behind a message of the user, for the model alone; False when it was deleted.

        It replaces what stood there, stays for as long as the message is shown, and is never on the
        wire.
        """
        if self._find(item_id) is None:
            return False
        self._notes[item_id] = text
        return True

    # --- what the agent said and what was heard of it ---

    def append_text(self, item_id: str, text: str) -> None:
        """The agent's reply grew by ``text`` (generated; not yet known to be heard)."""
        self._reply(item_id).text += text

    def add_words(self, item_id: str, words: Iterable[SpokenWord]) -> None:
        """Word times of the agent's reply; times count from the first sample of the item."""
        self._reply(item_id).words.extend(words)

    def add_audio(self, item_id: str, duration_ms: float) -> None:
        """So much more audio of the reply was sent."""
        self._reply(item_id).audio_ms += duration_ms

    def spoken(self, item_id: str) -> SpokenReply | None:
        """What was said in this item of the agent's, should more be learnt of what was heard."""
        reply = self._replies.get(item_id)
        return None if reply is None else dataclass_replace(reply, words=list(reply.words))

    def audio_ms(self, item_id: str) -> float:
        """Audio sent of this reply; 0 for an item that is none."""
        reply = self._replies.get(item_id)
        return reply.audio_ms if reply else 0.0

    def cut(self, item_id: str, heard_ms: float) -> str:
        """Keep of the reply what was heard; returns the text kept.

        A word counts as heard once half of it was played. May be called again with another time:
        it always cuts the full reply (a client's ``truncate`` is more exact than our estimate).
        """
        reply = self._replies.get(item_id)
        item = self.get(item_id)
        if reply is None or not isinstance(item, Message):
            return ""
        reply.heard_ms = max(0.0, heard_ms)
        text = reply.heard_text()
        if item.content:
            self.replace(replace(item, content=(replace(item.content[0], transcript=text),)))
        return text

    def retract(self, item_id: str) -> None:
        """Count the reply as never said, for good: a later `cut` leaves it at nothing.

        For an answer that was taken back in its first moment, of which some sound was played.
        """
        self._reply(item_id).retracted = True
        self.cut(item_id, 0.0)

    # --- the language model's view ---

    def messages(self, instructions: str = "") -> tuple[ChatMessage, ...]:
        """The conversation for the language model, instructions first.

        Items in progress, replies of which nothing was heard, broken tool calls and user audio
        without words are left out, and so is what fell out of the window, and the output of a call
        that got another later. Every call has a result behind it, if only that it is not over.
        """
        self._slide_window(instructions, is_ahead=False)
        start = self._find(self._oldest_shown) if self._oldest_shown is not None else None
        messages = [ChatMessage(role="system", content=instructions)] if instructions else []
        outdated = outdated_outputs(self._items)
        goes_on = False  # the last message is the caller's, spoken, and nobody has answered it
        for item in self._items[start:]:
            if item.id in outdated:
                continue
            text, n_before = self._text(item), len(messages)
            if goes_on and is_spoken(item) and text:
                joined, notes = f"{messages[-1].content} {text}", self._notes.get(item.id, "")
                messages[-1] = replace(messages[-1], content=joined, behind=notes)
                continue
            append_message(messages, item, text, self._notes.get(item.id, ""))
            if len(messages) > n_before:
                goes_on = is_spoken(item)
        return with_results(with_recall(messages, self._recall))

    # --- the window ---

    def said(self) -> tuple[tuple[str, str], ...]:
        """Who said what, shown or not: role and words, in order, calls and results left out."""
        messages = (i for i in self._items if isinstance(i, Message))
        said = ((i.role, self._text(i)) for i in messages if i.status != "in_progress")
        return tuple((role, text) for role, text in said if text and role != "system")

    def notes_before(self) -> tuple[str, ...]:
        """What is shown behind the turns of the user that are answered, oldest first."""
        shown = self._items[self._start :]
        while shown and isinstance(last := shown[-1], Message):
            if last.role != "user" and self._text(last):
                break
            shown.pop()
        return tuple(self._notes[item.id] for item in shown if item.id in self._notes)

    def slide_ahead(self, instructions: str) -> bool:
        """Move the window on before it must, where it is nearly full; whether it was."""
        return self._slide_window(instructions, is_ahead=True)

    def take_slide(self) -> Slide | None:
        """The newest slide since this was last called."""
        taken, self._slide = self._slide, None
        return taken

    def _slide_window(self, instructions: str, *, is_ahead: bool) -> bool:
        """Drop the oldest items from view when the rest is too long; a user's turn comes first."""
        then = self._next_start(instructions, is_ahead=is_ahead)
        if (window := self.window) is not None and then > self._start:
            self._n_notes = window.n_notes(window.room(window.count(instructions)))
        return self._show_from(then, is_ahead=is_ahead)

    def show_less(self) -> bool:
        """The prompt was too long for the model: show half as much, a user's turn first.

        Returns False where nothing more can go.
        """
        start, count = self._start, self.window.count if self.window is not None else TokenCount()
        self._n_notes //= 2
        sizes = [self._n_tokens(item, count) for item in self._items[start:]]
        return self._show_from(self._fitting(start, sizes, sum(sizes) / 2), is_ahead=False)

    def _show_from(self, then: int, *, is_ahead: bool) -> bool:
        """Leave out what stands before that; whether anything did that was shown."""
        start = self._start
        if then == start:
            return False
        self._oldest_shown = self._items[then].id
        n_facts = 0
        if self.ledger is not None and self.window is not None:
            self._write_down(self.ledger, self._items[start:then])
            self._tell_ledger()
            n_facts = len(self.ledger)
        self._slide = Slide(is_ahead, then - start, n_facts)
        return True

    @property
    def _start(self) -> int:
        """Where the items begin that are shown."""
        return (self._find(self._oldest_shown) or 0) if self._oldest_shown is not None else 0

    def _next_start(self, instructions: str, *, is_ahead: bool) -> int:
        """Where they would begin after a slide; as now where none is due."""
        start, window = self._start, self.window
        if window is None or not self._items:
            return start
        sizes = [self._n_tokens(item, window.count) for item in self._items[start:]]
        room = window.room(window.count(instructions))
        n_recall = window.count.of_part(self._recall) if self._recall else 0
        n_tokens = sum(sizes)
        if n_tokens + n_recall <= room * (NEARLY_FULL if is_ahead else 1.0):
            return start
        n_notes = window.n_notes(room) if self.ledger is not None else 0
        goal = room * (window.kept_ahead if is_ahead else window.retention_ratio) - n_notes
        return self._fitting(start, sizes, goal)

    def _fitting(self, start: int, sizes: list[int], goal: float) -> int:
        """From where on the items fit into `goal`; sizes: of those from `start` on."""
        n_tokens, last = sum(sizes), len(self._items) - 1
        for size in sizes:
            item = self._items[start]
            is_turn = isinstance(item, Message) and item.role == "user"
            if start == last or (n_tokens <= goal and is_turn):
                break
            n_tokens -= size
            start += 1
        return start

    def _write_down(self, ledger: Ledger, items: Iterable[Item]) -> None:
        """What is no longer shown, item by item."""
        for item in items:
            match item:
                case Message(role="user"):
                    ledger.observe_caller(item.id, self._text(item))
                case Message(role="assistant"):
                    ledger.observe_agent(item.id, self._text(item))
                case FunctionCall():
                    ledger.observe_call(item.id, item.call_id, item.name, item.arguments)
                case FunctionCallOutput():
                    ledger.observe_result(item.id, item.call_id, item.output)
                case McpCall() if (result := item.result) is not None:
                    ledger.observe_call(item.id, item.id, item.name, item.arguments)
                    ledger.observe_result(item.id, item.id, result)

    def _tell_ledger(self) -> None:
        """Have the model read the ledger as it is now."""
        window, ledger = self.window, self.ledger
        if window is not None and ledger is not None:
            self._recall = ledger.text(self._n_notes, window.count.of_part)

    def _n_tokens(self, item: Item, count: TokenCount) -> int:
        if isinstance(item, Message):
            return count(self._text(item) + self._notes.get(item.id, ""))
        return count(model_text(item))

    def _text(self, item: Item) -> str:
        reply = self._replies.get(item.id)
        if reply is not None:
            return reply.heard_text()
        return item.text if isinstance(item, Message) else ""

    def _find(self, item_id: str) -> int | None:
        places = range(len(self._items) - 1, -1, -1)  # what is asked for is nearly always recent
        return next((at for at in places if self._items[at].id == item_id), None)

    def _reply(self, item_id: str) -> SpokenReply:
        return self._replies.setdefault(item_id, SpokenReply())

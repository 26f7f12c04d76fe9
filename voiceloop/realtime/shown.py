"""The part of the conversation that the language model is shown.

Owns which items are messages, which of them are one, and that every call is followed by its result;
the notes behind the user's words, where the window begins, and what the model is told of the items
that have left it. Reads the items and the spoken replies, and changes neither. Pure: no
clock, no I/O.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence

from msgspec.structs import replace

from audio.frames import BYTES_PER_SAMPLE, RECOGNIZER_HZ
from voiceloop.backends import ChatMessage, ToolCall
from voiceloop.memory.ledger import Ledger
from voiceloop.realtime.conversation import Conversation, SpokenReplies
from voiceloop.realtime.items import (
    FunctionCall,
    FunctionCallOutput,
    Item,
    McpCall,
    Message,
    model_text,
)
from voiceloop.realtime.window import NEARLY_FULL, Slide, TokenCount, Window

# Of all turns that nobody has answered, the latest: as much as is kept of one
# (`listening/turn_sound.py`). A client that has nobody answer would fill the memory.
MOST_SOUND_BYTES = 30 * RECOGNIZER_HZ * BYTES_PER_SAMPLE


class Shown:
    """The language model's view of one conversation. window: None shows all of it.

    ledger: facts of the items that have left the window, which the model is told; None: none.
    """

    def __init__(
        self,
        conversation: Conversation,
        spoken: SpokenReplies,
        window: Window | None = None,
        ledger: Ledger | None = None,
    ) -> None:
        self.window = window
        self.begins_at = ""  # the item that another agent's view of the conversation begins at
        self._conversation = conversation
        self._spoken = spoken
        self._ledger = ledger
        self._notes: dict[str, str] = {}  # behind a user's words, by item: not said by anybody
        self._sounds: dict[
            str, tuple[bytes, ...]
        ] = {}  # of the caller's words, until they are answered
        self._oldest_id: str | None = None  # older items are out of the window for good
        self._recall = ""  # what the model is told of these, the same from slide to slide
        self._n_notes = 0  # tokens that it may take
        self._slide: Slide | None = None  # the newest that nobody has asked about

    def messages(self, instructions: str = "") -> tuple[ChatMessage, ...]:
        """The conversation for the language model, instructions first.

        Items in progress, replies of which nothing was heard, broken tool calls and user audio
        without words are left out, and so is what fell out of the window, and the output of a call
        that got another later. Every call has a result behind it, if only that it is not over.
        """
        self._slide_window(instructions, is_ahead=False)
        messages = [ChatMessage(role="system", content=instructions)] if instructions else []
        outdated = outdated_outputs(self._conversation.items())
        goes_on = False  # the last message is the caller's, spoken, and nobody has answered it
        for item in self._items:
            if item.id in outdated:
                continue
            text, n_before = self._spoken.text_of(item), len(messages)
            if goes_on and is_spoken(item) and text:
                joined, notes = f"{messages[-1].content} {text}", self._notes.get(item.id, "")
                messages[-1] = replace(messages[-1], content=joined, behind=notes)
                continue
            append_message(messages, item, text, self._notes.get(item.id, ""))
            if len(messages) > n_before:
                goes_on = is_spoken(item)
        if goes_on and self._sounds:
            messages[-1] = replace(messages[-1], sound=self._unanswered_sound())
        return with_results(with_recall(messages, self._recall))

    # --- sound ---

    def add_sound(self, item_id: str, sound: tuple[bytes, ...]) -> None:
        """Show the caller's words with their sound, until they are answered."""
        known, n_bytes = {**self._sounds, item_id: sound}, 0
        self._sounds = {}
        for item in self._unanswered():
            n_bytes += sum(map(len, known.get(item.id, ())))
            if n_bytes > MOST_SOUND_BYTES:
                return
            if item.id in known:
                self._sounds[item.id] = known[item.id]

    def _unanswered_sound(self) -> tuple[bytes, ...]:
        sounds = [self._sounds.get(item.id, ()) for item in self._unanswered()]
        return tuple(piece for sound in reversed(sounds) for piece in sound)

    def _unanswered(self) -> Iterator[Item]:
        """The caller's last words, which nobody has answered, the newest first."""
        for item in reversed(self._items):
            if is_spoken(item):
                yield item
            elif not isinstance(item, Message) or self._spoken.text_of(item):
                return

    # --- notes ---

    def add_notes(self, item_id: str, text: str) -> bool:
        """Put this behind a message of the user, for the model alone; False when it was deleted.

        It replaces what stood there, stays for as long as the message is shown, and is never on the
        wire.
        """
        if self._conversation.index(item_id) is None:
            return False
        self._notes[item_id] = text
        return True

    def notes_before(self) -> tuple[str, ...]:
        """Return what is shown behind the turns of the user that are answered, oldest first."""
        shown = list(self._items)
        while shown and isinstance(last := shown[-1], Message):
            if last.role != "user" and self._spoken.text_of(last):
                break
            shown.pop()
        return tuple(self._notes[item.id] for item in shown if item.id in self._notes)

    def forget(self, item_id: str) -> None:
        """Drop what is kept of an item, before it is deleted from the conversation."""
        self._notes.pop(item_id, None)
        self._sounds.pop(item_id, None)
        if item_id == self._oldest_id:  # its successor takes over
            after = self._items[1:]
            self._oldest_id = after[0].id if after else None
            if item_id == self.begins_at:
                self.begins_at = self._oldest_id or ""
        if self._ledger is not None and self._ledger.forget(item_id) and self._recall:
            self._read_ledger()

    # --- the window ---

    def slide_ahead(self, instructions: str) -> bool:
        """Move the window on before it must, where it is nearly full; whether it was."""
        return self._slide_window(instructions, is_ahead=True)

    def count(self, instructions: str) -> int:
        """Tokens of what is shown, instructions first."""
        count = self.window.count if self.window is not None else TokenCount()
        return count(instructions) + sum(self._n_tokens(item, count) for item in self._items)

    def show_less(self, instructions: str = "") -> bool:
        """Show half as much, a user's turn first: the prompt was too long for the model.

        Returns False where nothing more can go.
        """
        start, window = self._start, self.window
        count = window.count if window is not None else TokenCount()
        if window is not None and not self._n_notes:
            self._n_notes = window.n_notes(window.room(count(instructions)))
        self._n_notes //= 2
        sizes = [self._n_tokens(item, count) for item in self._items]
        return self._show_from(self._fitting(start, sizes, sum(sizes) / 2), is_ahead=False)

    def begin_at(self, item_id: str) -> None:
        """Show nothing of what is before this item, nor facts of it: the model is another's."""
        self.begins_at = self._oldest_id = item_id
        self._recall = ""
        if self._ledger is not None:
            self._ledger = Ledger()

    def take_slide(self) -> Slide | None:
        """The newest slide since this was last called."""
        taken, self._slide = self._slide, None
        return taken

    @property
    def _start(self) -> int:
        """Return where the items begin that are shown."""
        return (self._conversation.index(self._oldest_id) or 0) if self._oldest_id else 0

    @property
    def _items(self) -> tuple[Item, ...]:
        """The items that are shown."""
        return self._conversation.items(self._start)

    def _slide_window(self, instructions: str, *, is_ahead: bool) -> bool:
        """Drop the oldest items from view when the rest is too long; a user's turn comes first."""
        then = self._next_start(instructions, is_ahead=is_ahead)
        if (window := self.window) is not None and then > self._start:
            self._n_notes = window.n_notes(window.room(window.count(instructions)))
        return self._show_from(then, is_ahead=is_ahead)

    def _show_from(self, then: int, *, is_ahead: bool) -> bool:
        """Leave out the items before that index; whether any of them was shown."""
        left = self._items[: then - self._start]
        if not left:
            return False
        self._oldest_id = self._conversation.items(then)[0].id
        n_facts = 0
        if self._ledger is not None and self.window is not None:
            self._write_down(self._ledger, left)
            self._read_ledger()
            n_facts = len(self._ledger)
        self._slide = Slide(is_ahead, len(left), n_facts)
        return True

    def _next_start(self, instructions: str, *, is_ahead: bool) -> int:
        """Return where they would begin after a slide; as now where none is due."""
        start, window, items = self._start, self.window, self._items
        if window is None or not items:
            return start
        sizes = [self._n_tokens(item, window.count) for item in items]
        room = window.room(window.count(instructions))
        n_recall = window.count.of_part(self._recall) if self._recall else 0
        if sum(sizes) + n_recall <= room * (NEARLY_FULL if is_ahead else 1.0):
            return start
        n_notes = window.n_notes(room) if self._ledger is not None else 0
        goal = room * (window.kept_ahead if is_ahead else window.retention_ratio) - n_notes
        return self._fitting(start, sizes, goal)

    def _fitting(self, start: int, sizes: list[int], goal: float) -> int:
        """Return from where on the items fit into `goal`; sizes: of those from `start` on."""
        n_tokens, items = sum(sizes), self._conversation.items()
        for size in sizes:
            item = items[start]
            is_turn = isinstance(item, Message) and item.role == "user"
            if start == len(items) - 1 or (n_tokens <= goal and is_turn):
                break
            n_tokens -= size
            start += 1
        return start

    def _write_down(self, ledger: Ledger, items: Iterable[Item]) -> None:
        """Have the ledger read items that are no longer shown."""
        for item in items:
            match item:
                case Message(role="user"):
                    ledger.observe_caller(item.id, self._spoken.text_of(item))
                case Message(role="assistant"):
                    ledger.observe_agent(item.id, self._spoken.text_of(item))
                case FunctionCall():
                    ledger.observe_call(item.id, item.call_id, item.name, item.arguments)
                case FunctionCallOutput():
                    ledger.observe_result(item.id, item.call_id, item.output)
                case McpCall() if (result := item.result) is not None:
                    ledger.observe_call(item.id, item.id, item.name, item.arguments)
                    ledger.observe_result(item.id, item.id, result)

    def _read_ledger(self) -> None:
        """Take up the ledger's facts as they are now."""
        if self.window is not None and self._ledger is not None:
            self._recall = self._ledger.text(self._n_notes, self.window.count.of_part)

    def _n_tokens(self, item: Item, count: TokenCount) -> int:
        if isinstance(item, Message):
            return count(self._spoken.text_of(item) + self._notes.get(item.id, ""))
        return count(model_text(item))


# In place of a result that is still to come. Most chat templates, and the services that check them,
# refuse a call with nothing behind it.
NOT_OVER = json.dumps({"status": "not finished yet; its result follows"})


def chat_messages(instructions: str, items: Iterable[Item]) -> tuple[ChatMessage, ...]:
    """Items that are no conversation (a response's own input) for the language model."""
    messages = [ChatMessage(role="system", content=instructions)] if instructions else []
    for item in items:
        append_message(messages, item, item.text if isinstance(item, Message) else "")
    return with_results(messages)


def append_message(messages: list[ChatMessage], item: Item, text: str, notes: str = "") -> None:
    """The item's message; text: of an item that is one, as far as the model is to know it.

    notes: what the model reads behind a text, and nobody said.

    What the agent says and calls in one turn is one message: many templates want roles in turn.
    """
    last = messages[-1] if messages else None
    match item:
        case Message(status="in_progress"):
            return
        case Message():
            if not text:
                return
            if item.role == "assistant" and last is not None and last.role == "assistant":
                # A reply taken up again, or a call made before its words were said.
                messages[-1] = replace(last, content=f"{last.content} {text}".lstrip())
                return
            messages.append(ChatMessage(role=item.role, content=text, behind=notes))
        case FunctionCall(status="completed"):
            call = ToolCall(call_id=item.call_id, name=item.name, arguments=item.arguments)
            if last is not None and last.role == "assistant":
                messages[-1] = replace(last, tool_calls=(*last.tool_calls, call))
            else:
                messages.append(ChatMessage(role="assistant", content="", tool_calls=(call,)))
        case McpCall() if (result := item.result) is not None:
            call = ToolCall(call_id=item.id, name=item.name, arguments=item.arguments)
            messages.append(ChatMessage(role="assistant", content="", tool_calls=(call,)))
            messages.append(ChatMessage(role="tool", content=result, tool_call_id=item.id))
        case FunctionCallOutput():
            messages.append(
                ChatMessage(role="tool", content=item.output, tool_call_id=item.call_id)
            )


def with_results(messages: Sequence[ChatMessage]) -> tuple[ChatMessage, ...]:
    """The messages with every call's result behind it, or `NOT_OVER` where there is none.

    A result without its call, which was deleted or fell out of the window, is left out: services
    refuse it.
    """
    paired: list[ChatMessage] = []
    for index, message in enumerate(messages):
        if message.role == "tool":
            continue
        paired.append(message)
        for call in message.tool_calls:
            at = _result_of(call, messages, index)
            not_over = ChatMessage("tool", NOT_OVER, (), call.call_id)
            paired.append(not_over if at is None else messages[at])
    return tuple(paired)


def _result_of(call: ToolCall, messages: Sequence[ChatMessage], index: int) -> int | None:
    """Return where the result of a call of message `index` stands; a later call may have the same
    id.
    """
    for at in range(index + 1, len(messages)):
        message = messages[at]
        if message.role == "tool" and message.tool_call_id == call.call_id:
            return at
        if any(later.call_id == call.call_id for later in message.tool_calls):
            return None
    return None


def with_recall(messages: list[ChatMessage], recall: str) -> list[ChatMessage]:
    """The notes stand behind the first words of the caller that are shown: callers' words do not
    go into the operator's instructions, and what the cache has of these stays.
    """
    first = next((n for n, message in enumerate(messages) if message.role == "user"), None)
    if recall and first is not None:
        told = replace(messages[first], behind=recall + messages[first].behind)
        return [*messages[:first], told, *messages[first + 1 :]]
    return messages


def outdated_outputs(items: Sequence[Item]) -> set[str]:
    """The items whose call has a newer output; a later call may have the id of an earlier one."""
    answered: set[str] = set()
    outdated = set()
    for item in reversed(items):
        match item:
            case FunctionCall():
                answered.discard(item.call_id)
            case FunctionCallOutput():
                if item.call_id in answered:
                    outdated.add(item.id)
                answered.add(item.call_id)
    return outdated


def is_spoken(item: Item) -> bool:
    """A turn of the caller in words that were heard."""
    return (
        isinstance(item, Message)
        and item.role == "user"
        and bool(item.content)
        and all(part.type == "input_audio" for part in item.content)
    )

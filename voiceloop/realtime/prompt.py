"""Items of a conversation as messages for the language model.

Owns which items are messages, which of them are one, and that every call is followed by its result.
Pure.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from voiceloop.backends import ChatMessage, ToolCall
from voiceloop.realtime.items import FunctionCall, FunctionCallOutput, Item, Message

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
    """Where the result of a call of message `index` stands; a later call may have the same id."""
    for at in range(index + 1, len(messages)):
        message = messages[at]
        if message.role == "tool" and message.tool_call_id == call.call_id:
            return at
        if any(later.call_id == call.call_id for later in message.tool_calls):
            return None
    return None

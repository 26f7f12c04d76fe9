"""Items of a conversation as messages for the language model.

Owns which items are messages, which of them are one, that every call is followed by its result, and
where the notes of what is no longer shown stand. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from voiceloop.backends import ChatMessage, ToolCall
from voiceloop.realtime.items import FunctionCall, FunctionCallOutput, Item, McpCall, Message

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
    """Where the result of a call of message `index` stands; a later call may have the same id."""
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

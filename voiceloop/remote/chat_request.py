"""The request to a chat service, in the words of ``/v1/chat/completions``. Pure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from voiceloop.backends import ChatMessage, GenerateParams, Tool
from voiceloop.remote.heard_turn import SoundForm, heard_message, with_text

BEGUN = (
    '\n\n(You have begun to answer, and the caller has heard: "{}" Go on right behind these words. '
    "Do not say them, or anything like them, again.)"
)
NOT_CALLED = json.dumps({"error": "not called"})


def request_body(
    model: str,
    messages: Sequence[ChatMessage],
    tools: Sequence[dict[str, Any]],
    params: GenerateParams,
    sound: SoundForm = SoundForm.NONE,
) -> dict[str, Any]:
    """The body of one streamed request; ``tools`` as `tool_json` gives them. sound: how much of
    the caller's the service takes.
    """
    body: dict[str, Any] = {
        "messages": [heard_message(message, sound) for message in messages],
        "model": model,
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": params.max_tokens,
        "temperature": params.temperature,
        "top_p": params.top_p,
        "seed": params.seed,
    }
    if params.top_k:
        body["top_k"] = params.top_k  # no OpenAI field, but vLLM's, SGLang's and llama.cpp's
    for name in ("presence_penalty", "frequency_penalty"):
        if penalty := getattr(params, name):
            body[name] = penalty
    if params.stop:
        body["stop"] = list(params.stop)
    if params.json_schema is not None:
        schema = {"name": "reply", "schema": json.loads(params.json_schema), "strict": True}
        body["response_format"] = {"type": "json_schema", "json_schema": schema}
    if tools:
        body["tools"] = list(tools)
        body["tool_choice"] = _tool_choice(params.tool_choice)
    return body


def begun_body(body: dict[str, Any], begins_with: str, *, continues: bool) -> dict[str, Any]:
    """The body of a reply that goes on behind these words.

    continues: whether the service goes on with an unfinished message (vLLM, SGLang); else it is
    told of the words behind the caller's last turn.
    """
    messages = list(body["messages"])
    if continues:
        messages.append({"role": "assistant", "content": begins_with})
        going_on = {"continue_final_message": True, "add_generation_prompt": False}
        return {**body, "messages": messages, **going_on}
    for index in reversed(range(len(messages))):
        if messages[index]["role"] == "user":
            told = with_text(messages[index]["content"], BEGUN.format(begins_with))
            messages[index] = {**messages[index], "content": told}
            break
    return {**body, "messages": messages}


def unanswered(
    messages: Sequence[ChatMessage], tail: Sequence[ChatMessage]
) -> tuple[ChatMessage, ...]:
    """A result for each call of the last message that ``tail`` has none for.

    Such a call was not made: of no tool that was offered, or where none was to be called. Services
    refuse a conversation in which a call has no result.
    """
    called = messages[-1].tool_calls if messages else ()
    answered = {message.tool_call_id for message in tail}
    left = (call.call_id for call in called if call.call_id not in answered)
    return tuple(ChatMessage("tool", NOT_CALLED, (), call_id) for call_id in left)


def _tool_choice(choice: str) -> Any:
    """auto, none, required, or the Realtime API's {"type", "name"} as the chat API spells it."""
    if not choice.startswith("{"):
        return choice
    return {"type": "function", "function": {"name": json.loads(choice)["name"]}}


def tool_json(tool: Tool) -> dict[str, Any]:
    function = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
    return {"type": "function", "function": function}

"""Asks an agent the plain questions and judges what it says by their keyword rules.

Owns the call in which they are asked: the agent's own replies go on into the history, its tools
answer from their tables.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..conversations.plain_questions import Question, Questions
from ..model.chat_format import CALL_OPEN
from .measures import parse_tool_call

_MAX_TOOL_CALLS = 2  # of one turn

Messages = list[dict[str, Any]]
Reply = Callable[[Messages, list[dict[str, Any]]], str]  # messages, tool schemas -> greedy reply


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to one question: the words that were spoken, and the tools called."""

    question: Question
    reply: str
    called: tuple[str, ...]

    @property
    def is_good(self) -> bool:
        """Whether they satisfy the question's rule."""
        question, reply = self.question, self.reply
        return (
            CALL_OPEN not in reply
            and (question.tool is None or question.tool in self.called)
            and all(any(_says(reply, word) for word in words) for words in question.expect)
            and not any(_says(reply, word) for word in question.never)
        )


def ask(questions: Questions, reply_to: Reply) -> list[Answer]:
    """Hold the call, or the calls."""
    agent = questions.agent
    opening: Messages = [
        {"role": "system", "content": agent["instructions"].strip()},
        {"role": "assistant", "content": agent["greeting"]},
    ]
    answers = []
    messages = list(opening)
    for question in questions.turns:
        if not questions.is_one_call:
            messages = list(opening)
        messages.append({"role": "user", "content": question.text})
        answers.append(_answer(question, messages, agent.get("tools", []), reply_to))
    return answers


def _answer(
    question: Question, messages: Messages, tools: list[dict[str, Any]], reply_to: Reply
) -> Answer:
    """Let the agent call its tools, then speak; `messages` grows by both."""
    called: list[str] = []
    schemas = [_schema(tool) for tool in tools]
    while True:
        reply = reply_to(messages, schemas)
        messages.append({"role": "assistant", "content": reply})
        call = parse_tool_call(reply)
        if call is None or len(called) == _MAX_TOOL_CALLS:
            return Answer(question, reply, tuple(called))
        called.append(str(call["name"]))
        messages.append({"role": "tool", "content": _result(tools, call)})


def _schema(tool: dict[str, Any]) -> dict[str, Any]:
    names = ("name", "description", "parameters")
    return {"type": "function", "function": {name: tool[name] for name in names}}


def _result(tools: list[dict[str, Any]], call: dict[str, Any]) -> str:
    """Return what the agent file's tool answers; the runtime refuses a call without its
    arguments.
    """
    arguments = call["arguments"]
    for tool in tools:
        if tool["name"] != call["name"]:
            continue
        if not isinstance(arguments, dict) or set(tool["parameters"]["required"]) - set(arguments):
            return json.dumps({"error": "arguments are missing"})
        if isinstance(tool["result"], str):
            return str(tool["result"])
        asked = next(iter(tool["parameters"]["properties"]))
        found = tool["result"].get(str(arguments[asked]).lower(), tool["result"]["*"])
        return json.dumps(found, separators=(",", ":"))
    return json.dumps({"error": "no such tool"})


def _says(reply: str, words: str) -> bool:
    """Whether `words` stand in a reply, whole or with an s: not $3 in $3.50, not tea in steak."""
    pattern = r"(?<![\w$])" + re.escape(words) + r"s?(?![a-z0-9]|\.\d)"
    return re.search(pattern, reply.lower()) is not None

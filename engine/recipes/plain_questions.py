"""Plain questions to three businesses: the shipped cafe, the shipped pizzeria, and a dentist.

Owns the reading of `questions/*.toml`, the call in which they are asked (the agent's own replies go
on into the history, its tools answer from their tables) and the keyword rules that judge a reply.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from .chat_format import CALL_OPEN
from .measures import parse_tool_call

_ROOT = Path(__file__).resolve().parents[2]
_FOLDER = Path(__file__).with_name("questions")
BUSINESSES = ("cafe", "pizzeria", "dentist")
_MAX_TOOL_CALLS = 2  # of one turn

Messages = list[dict[str, Any]]
Reply = Callable[[Messages, list[dict[str, Any]]], str]  # messages, tool schemas -> greedy reply


@dataclass(frozen=True, slots=True)
class Question:
    """One typed turn and its rule: of each list of `expect` one is said, of `never` nothing.

    tool: the tool that must be called first; without it a call is allowed.
    """

    text: str
    expect: tuple[tuple[str, ...], ...]
    never: tuple[str, ...] = ()
    tool: str | None = None

    def is_met(self, reply: str, called: Sequence[str]) -> bool:
        """Whether the words that were spoken, and the tools called, satisfy the rule."""
        return (
            CALL_OPEN not in reply
            and (self.tool is None or self.tool in called)
            and all(any(_says(reply, word) for word in words) for words in self.expect)
            and not any(_says(reply, word) for word in self.never)
        )


@dataclass(frozen=True, slots=True)
class Questions:
    """The turns for one business, asked in one call or each in a call of its own."""

    agent: dict[str, Any]
    is_one_call: bool
    turns: tuple[Question, ...]


@dataclass(frozen=True, slots=True)
class Answer:
    """What a question got."""

    question: Question
    reply: str
    called: tuple[str, ...]

    @property
    def is_good(self) -> bool:
        return self.question.is_met(self.reply, self.called)


@lru_cache
def read_questions(business: str) -> Questions:
    """The turns of one of `BUSINESSES` and its agent file."""
    given = tomllib.loads((_FOLDER / f"{business}.toml").read_text())
    return Questions(
        tomllib.loads((_ROOT / given["agent"]).read_text()),
        given["is_one_call"],
        tuple(
            Question(
                turn["text"],
                tuple(tuple(words) for words in turn["expect"]),
                tuple(turn.get("never", ())),
                turn.get("tool"),
            )
            for turn in given["turns"]
        ),
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
    """What the agent file's tool answers; the runtime refuses a call without its arguments."""
    arguments = call["arguments"]
    for tool in tools:
        if tool["name"] != call["name"]:
            continue
        if not isinstance(arguments, dict) or set(tool["parameters"]["required"]) - set(arguments):
            return json.dumps({"error": "arguments are missing"})
        if "result" in tool:
            return str(tool["result"])
        found = tool["table"].get(str(arguments[tool["table_key"]]).lower(), tool["table"]["*"])
        return json.dumps(found, separators=(",", ":"))
    return json.dumps({"error": "no such tool"})


def _says(reply: str, words: str) -> bool:
    """Whether `words` stand in a reply, whole or with an s: not $3 in $3.50, not tea in steak."""
    pattern = r"(?<![\w$])" + re.escape(words) + r"s?(?![a-z0-9]|\.\d)"
    return re.search(pattern, reply.lower()) is not None

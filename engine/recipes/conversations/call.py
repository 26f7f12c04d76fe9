"""One call under construction: messages in the chat template's form, and what a reply must say."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field
from typing import Any

from .business import Business
from .recognizer_noise import RecognizerNoise
from .wording import expand


@dataclass(frozen=True, slots=True)
class Check:
    """The words or the one tool call that the assistant message at `index` must show.

    `kind` names the row of the evaluation it belongs to: fact, tool, tool_result, refusal, domain.
    """

    index: int
    kind: str
    words: tuple[str, ...] = ()
    tool: dict[str, Any] | None = None


class Draws(random.Random):
    """The draws of a call: its place and prompt by one seed, what is then said by another.

    Calls of one seed begin with the same prompt and tools, and differ behind them.
    """

    def __init__(self, seed: str, said: str) -> None:
        super().__init__(seed)
        self.said, self._has_left = said, False

    def leave_prompt(self) -> None:
        """Go on with the draws of what is said; a call that is begun anew goes on as it was."""
        if not self._has_left:
            self._has_left = True
            self.seed(self.said)


@dataclass(slots=True)
class Call:
    """Collects a call's messages. `style`: "written", "recognized" or "noisy" user turns."""

    rng: random.Random
    noise: RecognizerNoise
    place: Business | None = None
    style: str = "written"
    held_out: bool = False
    messages: list[dict[str, Any]] = field(default_factory=list)
    tools: list[dict[str, Any]] = field(default_factory=list)
    checks: list[Check] = field(default_factory=list)
    unlearned: set[int] = field(default_factory=set)  # messages without loss (cut replies)
    order: list[tuple[int, str, str]] = field(default_factory=list)  # count, item, extras
    number: str = ""
    caller: str = ""
    pending_prefix: str = ""

    def begin(self, prompt: str) -> None:
        """Add the system message, the call's first."""
        self.messages.append({"role": "system", "content": prompt})
        if isinstance(self.rng, Draws):
            self.rng.leave_prompt()

    def user(self, template: str, exact: bool = False, **slots: str) -> None:
        """Add a caller turn; written or as a recognizer hears it. `exact` keeps every word."""
        text = expand(self.rng, template, **slots)
        if self.pending_prefix:
            text = self.pending_prefix + " " + text[:1].lower() + text[1:]
            self.pending_prefix = ""
        rng = self.rng
        if not exact and rng.random() < 0.12:
            text = (
                expand(rng, "(hi|hey|um|well|okay|oh|so|alright|yeah|and), ")
                + " "
                + text[:1].lower()
                + text[1:]
            )
        if self.style == "written":
            if text[-1] not in ".?!":
                question = template_is_question(text)
                text += "?" if question else "."
        elif self.style == "noisy" and not exact:
            text = self.noise.noisy(text, rng, 0.08)
        else:
            text = self.noise.clean(text, rng)
        self.messages.append({"role": "user", "content": text})

    def agent(self, template: str, *words: str, kind: str = "", **slots: str) -> None:
        """Add a reply; `words` and `kind` become a check of the evaluation."""
        self.reply(expand(self.rng, template, **slots), *words, kind=kind)

    def reply(self, text: str, *words: str, kind: str = "") -> None:
        """Add a reply as it stands."""
        text = text[:1].upper() + text[1:]
        if text[-1] not in ".?!":
            text += "."
        last = self.messages[-1] if self.messages else {}
        if last.get("role") == "assistant" and "tool_calls" not in last:
            # The agent goes on speaking: one turn, and what was checked of it still holds.
            last["content"] = f"{last['content']} {text}"
            return
        if kind:
            self.checks.append(Check(len(self.messages), kind, tuple(words)))
        self.messages.append({"role": "assistant", "content": text})

    def call_tool(
        self, name: str, arguments: dict[str, Any], result: Any, filler: str = ""
    ) -> None:
        """Add an assistant turn that calls a tool, and the tool's answer."""
        self.checks.append(
            Check(len(self.messages), "tool", tool={"name": name, "arguments": arguments})
        )
        self.messages.append(
            {
                "role": "assistant",
                "content": filler,
                "tool_calls": [
                    {"type": "function", "function": {"name": name, "arguments": arguments}}
                ],
            }
        )
        content = result if isinstance(result, str) else json.dumps(result, separators=(",", ":"))
        self.messages.append({"role": "tool", "content": content})

    def last_reply(self) -> str:
        for message in reversed(self.messages):
            if message["role"] == "assistant" and message["content"]:
                return str(message["content"])
        return ""


_QUESTION_STARTS = (
    "what",
    "who",
    "where",
    "when",
    "how",
    "is ",
    "are ",
    "do ",
    "does ",
    "can ",
    "could ",
    "which",
    "will",
    "would",
    "did ",
    "have you",
    "why",
    "may i",
    "am i",
    "sorry",
    "any ",
)


def template_is_question(text: str) -> bool:
    """Whether a caller's sentence ends in a question mark when written."""
    low = text.lower()
    for opener in (
        "hi, ",
        "hey, ",
        "um, ",
        "well, ",
        "okay, ",
        "oh, ",
        "so, ",
        "and, ",
        "alright, ",
        "yeah, ",
    ):
        low = low.removeprefix(opener)
    return low.startswith(_QUESTION_STARTS)

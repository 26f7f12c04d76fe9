"""The chain of what can answer a turn of the caller without the model.

Owns its order. Each file of `reply/answers/` is one answerer; its name is that of its table in the
agent file, and what a client reads in `answered_by`. The first that has an answer gives it.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import NamedTuple, Protocol, cast

from voiceloop.agent import AgentConfig, AgentTool
from voiceloop.backends import Tool, ToolCall
from voiceloop.knowledge.answers import ApprovedAnswers
from voiceloop.reply import answers
from voiceloop.slots.form import Form
from voiceloop.telemetry.tap import NO_CONSENT, Consent

# Words of danger go before everything, then whether the call is recorded; and whoever spells out a
# value is not interrupted. Behind them order matters only where two answer the same words: they are
# asked by name.
FIRST = ("crisis", "recording", "slots")


@dataclass(frozen=True, slots=True)
class Heard:
    """A turn of the caller: all its words, the pieces that it was said in, and what is known.

    form: where the slots stand behind these words. approved: the agent's answers, made ready.
    consent: to the call's recording. quotable: instructions whose sentences may be said word for
    word; "": none. tools: of the agent's, by name, those that the session may call; offered: all of
    both. before: what the caller said last.
    """

    turn: str
    pieces: tuple[str, ...]
    agent: AgentConfig
    form: Form
    approved: ApprovedAnswers
    consent: Consent = NO_CONSENT
    quotable: str = ""
    tools: frozenset[str] = frozenset()
    offered: tuple[AgentTool | Tool, ...] = ()
    before: str = ""


class SaidWithCall(NamedTuple):
    """Words to say, and the tool of the server's that is called with them.

    Without a text what comes of the call is said, as of a call of the model's.
    """

    text: str
    tool: str
    arguments: str


class Answerer(Protocol):
    """A file of `reply/answers/`."""

    def answer(self, heard: Heard) -> str | SaidWithCall | None:
        """Return what to say; None where this is not its business. It is asked in pauses, too:
        pure.
        """


class FixedAnswer(NamedTuple):
    """Words that are said in place of a model's reply. table: of the agent file that has it.

    call: made with it.
    """

    text: str
    table: str
    call: ToolCall | None = None


@cache
def answerers() -> Mapping[str, Answerer]:
    """All of them by name, in the order in which they are asked."""
    names = {module.name for module in pkgutil.iter_modules(answers.__path__)}
    ordered = (*FIRST, *sorted(names - set(FIRST)))
    return {name: cast(Answerer, import_module(f"{answers.__name__}.{name}")) for name in ordered}

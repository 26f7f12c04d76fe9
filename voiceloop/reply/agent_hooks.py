"""The hooks of an agent's class in one call: what it says as the call begins, to each turn, to each
sentence and to each call of a tool.

Owns their deadlines. A hook that is late or fails costs its own turn, and the log says so. What
the class knows of the caller's words is looked up as documents are: while the caller speaks, in a
pause, and within the same bounds (`knowledge/retrieval.py`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from voiceloop.errors import BackendError
from voiceloop.knowledge.fused import FusedRetriever
from voiceloop.knowledge.index import Hit
from voiceloop.knowledge.passages import Passage
from voiceloop.knowledge.retrieval import LOOK_UP_MS
from voiceloop.knowledge.retriever import Hits, Retriever
from voiceloop.telemetry.record import HookUse
from voiceloop.tools.agent_class import AgentClass
from voiceloop.tools.caller import Caller
from voiceloop.tools.executor import ToolFailed
from voiceloop.tools.python_messages import Returned

log = logging.getLogger(__name__)

ON_TURN_MS = 150.0  # to a turn; as of a search for documents while the caller speaks
ON_CALL_S = 0.5  # before the greeting: a look-up of the caller, and no pause that one would notice
# To the end of a turn, to a sentence, to a call of a tool: each is part of the gap, or may be.
IN_TURN_S = 0.15
MOST_USES = 64  # told of one turn


class AgentHooks:
    """The hooks of the agent's class in one call. of: its agent's class."""

    is_local = True  # of the retriever that it is: it answers in a millisecond, or is late

    def __init__(self, of: AgentClass, caller: Caller) -> None:
        self._of = of
        self._caller = caller
        self._uses: list[HookUse] = []  # that no record of a turn tells yet
        of.open(caller)

    def has(self, hook: str) -> bool:
        """Whether the class has it."""
        return hook in self._of.hooks

    @property
    def may_start_early(self) -> bool:
        """Whether an answer may be heard before the turn is over: nothing is asked then."""
        return not self.has("before_reply")

    def take_uses(self) -> tuple[HookUse, ...]:
        """How long the hooks took since this was last called, and how they ended."""
        uses, self._uses = tuple(self._uses), []
        return uses

    async def greeting(self) -> str | None:
        """Return what the class says as the call begins; None: what the agent says."""
        try:  # also where the class has no such hook: its process is there before the first turn
            told = await self._run("on_call", {}, ON_CALL_S)
        except BackendError:
            return None
        return told.text or None if not told.is_none else None

    def end(self) -> None:
        self._of.end(self._caller)

    async def before_reply(self, words: str) -> Returned | None:
        """Return what it says of a turn that is over; None: nothing, or it failed."""
        try:
            told = await self._run("before_reply", {"words": words}, IN_TURN_S)
        except BackendError:
            return None
        return told if not told.is_none and told.text.strip() else None

    async def on_sentence(self, sentence: str) -> str:
        """Return what is said in place of a sentence of the model's.

        Raises: BackendError: nobody knows whether it may be said.
        """
        told = await self._run("on_sentence", {"sentence": sentence}, IN_TURN_S)
        return sentence if told.is_none else told.text

    async def on_tool(self, name: str, arguments: Mapping[str, Any]) -> Returned | None:
        """Return what becomes of a call of a tool: None: it is made; an answer: that is told in its
        place; else the arguments that it is made with, as JSON.

        Raises: BackendError: nobody knows whether it may be made.
        """
        told = await self._run("on_tool", {"name": name, "arguments": dict(arguments)}, IN_TURN_S)
        return None if told.is_none else told

    async def _run(self, hook: str, arguments: Mapping[str, Any], within_s: float) -> Returned:
        """Raises: BackendError, of which the log has been told."""
        began_s, fate = time.monotonic(), "failed"
        try:
            async with asyncio.timeout(within_s):
                told = await self._of.run(hook, arguments, self._caller)
            fate = "answered"
            return told
        except TimeoutError:
            fate, why = "late", f"no answer in {within_s:g} s"
        except ToolFailed as error:
            why = error.message
        finally:
            if hook != "on_call" and len(self._uses) < MOST_USES:
                ms = round(1000 * (time.monotonic() - began_s), 2)
                self._uses.append(HookUse(hook, ms, fate))
        log.warning("%s of %s: %s", hook, self._of.spec, why)
        raise BackendError(f"{hook}: {why}")

    # --- as a retriever ---

    def beside(self, retriever: Retriever | None) -> tuple[Retriever | None, float]:
        """Return what is known of the caller's words, by documents and by the class, and in how
        many ms of what was not spoken.
        """
        if not self.has("on_user_turn"):
            return retriever, LOOK_UP_MS
        both = self if retriever is None else FusedRetriever((self, retriever))
        return both, ON_TURN_MS

    def is_telling(self, word: str) -> bool:
        """As `Retriever`: a class may want to know any word."""
        return True

    async def search(
        self, words: Sequence[str], n_most: int, so_far: Callable[[Hits], None] = lambda _: None
    ) -> Hits:
        """As `Retriever`. Raises: BackendError."""
        told = await self._run("on_user_turn", {"words": " ".join(words)}, ON_TURN_MS / 1000)
        return () if told.is_none or not told.text.strip() else (as_hit(told),)

    async def close(self) -> None:
        """As `Retriever`; it ends with its call."""


def as_hit(told: Returned) -> Hit:
    """Return what the class tells of a turn, as a passage of documents."""
    return Hit(Passage(0, "", "", told.text, is_answer=told.is_answer), 0.0)

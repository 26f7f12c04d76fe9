"""The hooks of an agent's class in one call: what it says as the call begins, and to each turn.

Owns their deadlines. A hook that is late or fails costs its own turn, and the log says so. What
the class knows of the caller's words is looked up as documents are: while the caller speaks, in a
pause, and within the same bounds (`knowledge/retrieval.py`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from voiceloop.errors import BackendError
from voiceloop.knowledge.fused import FusedRetriever
from voiceloop.knowledge.index import Hit
from voiceloop.knowledge.passages import Passage
from voiceloop.knowledge.retrieval import LOOK_UP_MS
from voiceloop.knowledge.retriever import Hits, Retriever
from voiceloop.tools.agent_class import AgentClass
from voiceloop.tools.caller import Caller
from voiceloop.tools.executor import ToolFailed

log = logging.getLogger(__name__)

ON_TURN_MS = 150.0  # to a turn; as of a search for documents while the caller speaks
ON_CALL_S = 0.5  # before the greeting: a look-up of the caller, and no pause that one would notice


class AgentHooks:
    """Of one call. of: its agent's class."""

    is_local = True  # of the retriever that it is: it answers in a millisecond, or is late

    def __init__(self, of: AgentClass, caller: Caller) -> None:
        self._of = of
        self._caller = caller
        of.open(caller)

    async def greeting(self) -> str | None:
        """What the class says as the call begins; None: what the agent says."""
        try:  # also where the class has no such hook: its process is there before the first turn
            async with asyncio.timeout(ON_CALL_S):
                told = await self._of.run("on_call", {}, self._caller)
        except (TimeoutError, ToolFailed) as error:
            log.warning("on_call of %s: %s", self._of.spec, _why(error))
            return None
        return told.text or None if not told.is_none else None

    def end(self) -> None:
        self._of.end(self._caller)

    def beside(self, retriever: Retriever | None) -> tuple[Retriever | None, float]:
        """What is known of the caller's words, by documents and by the class, and in how many ms of
        what was not spoken.
        """
        if "on_user_turn" not in self._of.hooks:
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
        try:
            told = await self._of.run("on_user_turn", {"words": " ".join(words)}, self._caller)
        except ToolFailed as error:
            raise BackendError(f"on_user_turn: {error.message}") from None
        if told.is_none or not told.text.strip():
            return ()
        return (Hit(Passage(0, "", "", told.text, is_answer=told.is_answer), 0.0),)

    async def close(self) -> None:
        """As `Retriever`; it ends with its call."""


def _why(error: Exception) -> str:
    return error.message if isinstance(error, ToolFailed) else f"no answer in {ON_CALL_S:g} s"

"""The open turn of one branch as a service is made to read it: one request at a time.

Owns which words are being read and which come next. A request that reads words which the caller
turned out not to say is aborted; one that reads the beginning of what was said is let be, since the
rest continues it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from voiceloop.backends import Staged, Usage
from voiceloop.errors import VoiceLoopError

log = logging.getLogger(__name__)

# Chosen: a caller whose words change at every syllable must not buy a request at each.
MAX_REQUESTS_PER_TURN = 16


@dataclass(slots=True)
class _Reading:
    """A request under way: the words it was made for."""

    stage_id: int
    text: str
    task: asyncio.Task[None] | None = None


class OpenTurn:
    """The open turn of one branch.

    read: asks the service for one token after the history and these words; returns its usage.
    pays: whether that is worth a request. tell: passes `Staged` on. keep: runs a task that ends
    with the branch.
    """

    def __init__(
        self,
        read: Callable[[str], Coroutine[Any, Any, Usage]],
        pays: Callable[[str], bool],
        tell: Callable[[Staged], None],
        keep: Callable[[Coroutine[Any, Any, None], str], asyncio.Task[None]],
    ) -> None:
        self._read_words, self._pays, self._tell, self._keep = read, pays, tell, keep
        self._wanted: tuple[int, str] | None = None
        self._reading: _Reading | None = None
        self._resident: tuple[str, int] | None = None  # words that were read, tokens with them
        self._n_requests = 0
        self._is_over = False

    def stage(self, stage_id: int, text: str) -> None:
        """Answered at once by what is resident already, and again when more of it is."""
        if self._is_over:
            return
        n_resident = 0
        if self._resident is not None and text.startswith(self._resident[0]):
            n_resident = self._resident[1]
        self._tell(Staged(stage_id, n_resident, 0, None))
        self._wanted = (stage_id, text)
        self.abort_unless_begins(text)
        self._read_next()

    def abort_unless_begins(self, text: str) -> None:
        """Another request with these words goes out, or soon will."""
        reading = self._reading
        if reading is not None and not text.startswith(reading.text):
            self._reading = None
            if reading.task is not None:
                reading.task.cancel()

    def end(self, text: str) -> None:
        """The turn is over, with these words."""
        self._is_over = True
        self.abort_unless_begins(text)

    def _read_next(self) -> None:
        wanted = self._wanted
        if self._is_over or self._reading is not None or wanted is None:
            return
        if self._n_requests >= MAX_REQUESTS_PER_TURN or not self._pays(wanted[1]):
            return
        self._wanted = None
        self._n_requests += 1
        reading = self._reading = _Reading(*wanted)
        reading.task = self._keep(self._run(reading), "read ahead")

    async def _run(self, reading: _Reading) -> None:
        try:
            usage = await self._read_words(reading.text)
        except VoiceLoopError as error:
            # The reply itself will say so; whoever is in trouble is not asked for more than that.
            log.info("nothing more of this turn is read ahead: %s", error)
            self._n_requests = MAX_REQUESTS_PER_TURN
            return
        finally:
            if self._reading is reading:
                self._reading = None
        n_resident = usage.n_prompt_tokens
        self._resident = (reading.text, n_resident)
        self._tell(Staged(reading.stage_id, n_resident, n_resident - usage.n_cached_tokens, None))
        self._read_next()

"""The window of a long call, moved on while nobody speaks.

Owns when that is done: once the window is nearly full and the call is quiet, so that the model
reads the shorter prompt before anybody waits for it. Where a summary is wanted, the model writes it
first, as work that nobody waits for, and the slide follows in the next quiet moment.
"""

from __future__ import annotations

import asyncio
from enum import Enum

from voiceloop.memory.ledger import Ledger
from voiceloop.memory.summary import SUMMARY_PARAMS, borne_out, summary_prompt
from voiceloop.realtime.protocol import Protocol
from voiceloop.reply.anticipation import Anticipation


class Phase(Enum):
    """How far the next slide has come."""

    WATCHING = "watching"  # there is room, or nothing is written before it slides
    SUMMARIZING = "summarizing"
    READY = "ready"  # to slide in the next quiet moment


class WindowSlide:
    """Of one call; told of every change between quiet and not."""

    def __init__(self, protocol: Protocol, anticipation: Anticipation) -> None:
        self._protocol = protocol
        self._anticipation = anticipation
        self._phase = Phase.WATCHING
        self._is_quiet = False

    def observe(self, is_quiet: bool) -> None:
        """Nobody speaks and nothing is owed, or that has ended."""
        self._is_quiet = is_quiet
        if not is_quiet or self._phase is Phase.SUMMARIZING or not self._anticipation.has_time:
            return
        conversation = self._protocol.conversation
        instructions = self._protocol.settings.instructions
        if not conversation.is_nearly_full(instructions):
            self._phase = Phase.WATCHING
            return
        ledger = conversation.ledger
        if ledger is not None and ledger.wants_summary and self._phase is Phase.WATCHING:
            self._summarize(ledger, conversation.leaving(instructions))
        else:
            self._slide()

    def _slide(self) -> None:
        """And have the model read what it is shown from now on."""
        self._phase = Phase.WATCHING
        settings, conversation = self._protocol.settings, self._protocol.conversation
        if conversation.slide_ahead(settings.instructions):
            history = conversation.messages(settings.instructions)
            self._anticipation.open(history, settings.tools)

    def _summarize(self, ledger: Ledger, said: tuple[tuple[str, str], ...]) -> None:
        self._phase = Phase.SUMMARIZING
        before, n_forgotten = ledger.summary, ledger.n_forgotten
        task = self._anticipation.write(summary_prompt(before, said), SUMMARY_PARAMS)

        def take(done: asyncio.Task[str | None]) -> None:
            self._phase = Phase.READY
            written = None if done.cancelled() else done.result()
            if written is not None and ledger.n_forgotten == n_forgotten:
                ledger.summarize(borne_out(written, before, said))
            if self._is_quiet and not done.cancelled():
                self.observe(True)

        task.add_done_callback(take)

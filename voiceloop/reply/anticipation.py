"""What is done for a reply while the caller still speaks.

Owns the branch of the open user turn: opened at speech onset, fed with the words as they firm up
(so their KV is resident before the turn ends), asked for P(end of turn) at the first pause, and
handed to the reply that answers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from voiceloop.admission.overload import Level
from voiceloop.backends import (
    ChatMessage,
    LanguageModel,
    Tool,
)
from voiceloop.config import Ahead, AheadPart
from voiceloop.reply.live_branch import Context, KnownEnd, LiveBranch, PEndCallback


class Anticipation:
    """The open user turn's branch, if there is one."""

    def __init__(
        self,
        language_model: LanguageModel,
        session_id: str,
        tasks: asyncio.TaskGroup,
        on_p_end: PEndCallback,
        ahead: Ahead,
        tenant: str = "",
        level: Callable[[], Level] = lambda: Level.NORMAL,
    ) -> None:
        self._language_model = language_model
        self._session_id = session_id
        self._tasks = tasks
        self._on_p_end = on_p_end
        self._prefills = ahead.does("prefill")
        self.tenant = tenant
        self._level = level
        # P(end) and preemptive replies need staged words: without prefill, those of a pause.
        needed_by: tuple[AheadPart, ...] = ("prefill", "p_end", "speculative_reply")
        self._enabled = any(map(ahead.does, needed_by))
        self._live: LiveBranch | None = None
        self._n_branches = 0

    def new_branch(
        self, context: Context, on_p_end: PEndCallback | None = None, said_before: str = ""
    ) -> LiveBranch:
        self._n_branches += 1
        branch_id = f"{self._session_id}.b{self._n_branches}"
        live = LiveBranch(
            self._language_model, branch_id, context, on_p_end, said_before, self.tenant
        )
        return live.start(self._tasks)

    @property
    def live(self) -> LiveBranch | None:
        """The open turn's branch."""
        return self._live

    @property
    def has_time(self) -> bool:
        """Whether the machine has time for what no caller waits for yet."""
        return self._prefills and self._level() is Level.NORMAL

    @property
    def is_open(self) -> bool:
        return self._live is not None or not self._enabled

    def open(self, messages: tuple[ChatMessage, ...], tools: tuple[Tool, ...]) -> None:
        """The caller began to speak: bring the conversation so far into the cache.

        If the last message is the caller's and unanswered, this turn continues it.
        """
        if not self._enabled:
            return
        context, said_before = _open_turn(messages, tools)
        live = self._live
        if live is not None and not live.has_failed:
            if (live.context, live.said_before) == (context, said_before):
                return
        self.abort()
        self._live = self.new_branch(context, self._on_p_end, said_before)

    def follow(self, messages: tuple[ChatMessage, ...], tools: tuple[Tool, ...]) -> bool:
        """The conversation before the open turn may have changed: where it has, bring it and the
        words staged so far into the cache, for no reply would be asked for on what was staged.

        Returns whether it had.
        """
        context, said_before = _open_turn(messages, tools)
        live = self._live
        if live is None or live.context == context:
            return False
        live.close()
        self._live = self.new_branch(context, self._on_p_end, said_before)
        self._live.stage(live.staged_words)
        return True

    def observe_words(
        self, stable: tuple[str, ...], unstable: tuple[str, ...], *, full: bool
    ) -> KnownEnd | None:
        """Stage the words that are stable; at a pause (`full`) all, since they may be the turn.

        Returns as `LiveBranch.stage`.
        """
        if self._live is None or not (full or self._prefills):
            return None
        return (
            self._live.stage(stable + unstable)
            if full
            else self._live.stage_stable(stable, unstable)
        )

    def adopt(
        self, prompt: tuple[ChatMessage, ...], tools: tuple[Tool, ...]
    ) -> tuple[LiveBranch, tuple[ChatMessage, ...]]:
        """The branch that answers `prompt`, and the messages it still has to be given.

        The open user turn's branch where that continues the same conversation, else a new one.
        """
        live, self._live = self._live, None
        if live is not None:
            known = live.context
            n = len(known.messages)
            if (
                not live.has_failed
                and known.tools == tools
                and len(prompt) > n
                and prompt[:n] == known.messages
            ):
                return live, prompt[n:]
            live.close()
        return self.begin(prompt, tools)

    def begin(
        self, prompt: tuple[ChatMessage, ...], tools: tuple[Tool, ...]
    ) -> tuple[LiveBranch, tuple[ChatMessage, ...]]:
        """As `adopt`, but always on a new branch; the open user turn's stays as it is."""
        return self.new_branch(Context(prompt[:-1], tools)), prompt[-1:]

    def abort(self) -> None:
        """The caller said nothing after all."""
        if self._live is not None:
            self._live.close()
            self._live = None


def _open_turn(messages: tuple[ChatMessage, ...], tools: tuple[Tool, ...]) -> tuple[Context, str]:
    """What an open turn continues, and its words so far: the caller's last, which nobody has
    answered.
    """
    if messages and messages[-1].role == "user":
        return Context(messages[:-1], tools), messages[-1].content
    return Context(messages, tools), ""

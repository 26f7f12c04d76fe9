"""The reply made ahead: generated, synthesized and held while the caller may still go on.

Owns at most one held turn. It is begun when a pause is likely to be the end, released only if what
is asked for at the end is exactly what it was made from (`ReplyPlan`), and dropped otherwise.
"""

from __future__ import annotations

import asyncio

from voiceloop.agent import AgentConfig
from voiceloop.backends import ChatMessage
from voiceloop.config import Ahead
from voiceloop.reply_plan import ReplyPlan, plan_of_settings
from voiceloop.services import Services
from voiceloop.telemetry import Metrics, TurnTimeline
from voiceloop.turn import Turn

# A pause that ends the turn at least this likely is worth a draft. The model's P(end) is low even
# at most true ends (0.1-0.9), and below 0.05 it is nearly always in mid-sentence.
MIN_P_END = 0.08
# Words and P(end) are known some 50 ms into a pause. When that takes so much longer the machine is
# overloaded, and speculation is what steps down first.
MAX_PAUSED_MS = 250.0
MAX_PER_TURN = 4  # one caller who stops at every word must not buy four replies a second


class Drafts:
    def __init__(
        self,
        services: Services,
        metrics: Metrics,
        tasks: asyncio.TaskGroup,
        ahead: Ahead,
    ) -> None:
        self._services = services
        self._agent: AgentConfig = services.agent
        self._metrics = metrics
        self._tasks = tasks
        self._ahead = ahead
        self._turn: Turn | None = None
        self._words: tuple[str, ...] = ()
        self._n_begun = 0

    def reset(self) -> None:
        """Another turn of the caller begins."""
        self.drop()
        self._n_begun = 0

    def consider(self, words: tuple[str, ...], p_end: float | None, paused_ms: float) -> None:
        """The caller paused after these words: begin a draft if this may be the end."""
        if not self._ahead.speculative_reply or paused_ms > MAX_PAUSED_MS:
            return
        if self._turn is not None or self._n_begun >= MAX_PER_TURN:
            return
        text = " ".join(words)
        if p_end is None or p_end < MIN_P_END or self._agent.crisis.answers(text):
            return
        protocol = self._services.protocol
        settings = protocol.settings
        history = protocol.conversation.messages(settings.instructions)
        plan = plan_of_settings(settings, self._agent, (*history, ChatMessage("user", text)))
        self._n_begun += 1
        self._words = words
        self._turn = Turn(
            self._services, plan, TurnTimeline("draft"), speaks_ahead=self._ahead.held_clause
        )
        self._turn.start(self._tasks, self._done)

    def drop_unless(self, words: tuple[str, ...]) -> bool:
        """Drop the draft if it answers other words; True when it did."""
        return words != self._words and self.drop()

    def drop(self) -> bool:
        """Throw the draft away; False when there is none."""
        turn, self._turn = self._turn, None
        if turn is None:
            return False
        turn.cancel()
        return True

    def take(self, plan: ReplyPlan) -> Turn | None:
        """The draft, if it was made from this plan and has not failed. The caller releases it."""
        turn = self._turn
        if turn is None or turn.outcome is not None or turn.plan != plan:
            self.drop()
            return None
        self._turn = None
        self._metrics.drafts.labels(fate="released").inc()
        return turn

    def _done(self, turn: Turn) -> None:
        """A draft that nobody took is over."""
        self._metrics.drafts.labels(fate="dropped").inc()
        self._metrics.observe_work(turn.usage, turn.wasted_audio_ms)

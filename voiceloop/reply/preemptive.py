"""The reply made ahead: drafted, synthesized and held while the caller may still go on.

Owns at most one held turn, for as long as the caller's turn is open. It is begun when a pause is
likely to be the end; while the caller goes on it rests, and other words get another draft on the
same branch, of which what still stands is kept. It is released where the reply that is asked for
differs in nothing but the words it answers, and dropped otherwise. What is thrown away is bounded:
see `voiceloop.config.Ahead`; on a busy machine nothing is begun.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import replace

from voiceloop.agent import AgentConfig
from voiceloop.backends import ChatMessage
from voiceloop.config import Ahead
from voiceloop.listening.endpointing import FITTED
from voiceloop.listening.events import UserTurn
from voiceloop.realtime.response import ResponseHandle
from voiceloop.reply.anticipation import Drafting, LiveBranch
from voiceloop.reply.context import ReplyContext
from voiceloop.reply.plan import ReplyPlan, plan_of_settings
from voiceloop.reply.reply import Reply
from voiceloop.telemetry import Metrics, TurnTimeline

# Words and P(end) are known some 50 ms into a pause. When that takes so much longer the machine is
# overloaded, and speculation is what steps down first.
MAX_PAUSED_MS = 250.0
MAX_UTILIZATION = 0.7  # of the busiest model process: what is left belongs to turns that are due
MAX_PER_TURN = 4  # one caller who stops at every word must not buy four replies a second
BUDGET_S = 60.0  # what was thrown away is forgiven after so long


class PreemptiveReplies:
    def __init__(
        self, context: ReplyContext, metrics: Metrics, tasks: asyncio.TaskGroup, ahead: Ahead
    ) -> None:
        self._context = context
        self._agent: AgentConfig = context.agent
        self._metrics = metrics
        self._tasks = tasks
        self._ahead = ahead
        self._turn: Reply | None = None
        self._live: LiveBranch | None = None
        self._words: tuple[str, ...] = ()
        self._n_begun = 0
        self._wasted: deque[tuple[float, int, float]] = deque()  # at, tokens, ms of speech

    def reset(self) -> None:
        """Another turn of the caller begins."""
        self.drop()
        self._n_begun = 0

    def consider(
        self, words: tuple[str, ...], p_end: float | None, paused_ms: float, needed_ms: float
    ) -> None:
        """The caller paused after these words: begin a draft if this is likely the end.

        paused_ms: how long ago; needed_ms: the silence that would end the turn, on all that is
        known of it. Up to which wait a draft pays is fitted with the waits themselves.
        """
        if not self._ahead.speculative_reply or paused_ms > MAX_PAUSED_MS:
            return
        if needed_ms > FITTED.preemptive_needed_ms or p_end is None:
            return
        if self._n_begun >= MAX_PER_TURN or self._has_draft_of(words):
            return
        live = self._context.anticipation.live
        text = live.turn_text(words) if live is not None else " ".join(words)
        if live is None or self._agent.crisis.answers(text):
            return
        if self._context.load() > MAX_UTILIZATION or self._is_over_budget():
            self._metrics.drafts.labels(fate="forgone").inc()
            return
        self._begin(live, words, text)

    def _has_draft_of(self, words: tuple[str, ...]) -> bool:
        if self._turn is None or self._live is None or self._live.draft_is_lost:
            return False
        return words == self._words

    def _begin(self, live: LiveBranch, words: tuple[str, ...], text: str) -> None:
        if self._turn is not None and (self._turn.outcome is not None or self._live is not live):
            self.drop()
        settings = self._context.protocol.settings
        plan = plan_of_settings(
            settings, self._agent, (*live.context.messages, ChatMessage("user", text))
        )
        number = live.speculate(text, plan.params)
        if number is None:
            return
        self._n_begun += 1
        self._words = words
        if self._turn is not None:
            self._turn.redraft(plan, number)
            return
        self._live = live
        self._turn = Reply(
            self._context,
            plan,
            TurnTimeline("draft"),
            drafting=Drafting(live, number),
            speaks_ahead=self._ahead.held_clause,
        )
        self._turn.start(self._tasks, self._done)

    def rest(self) -> None:
        """The caller goes on: what there is of the draft is kept, and nothing is added."""
        if self._turn is not None and self._live is not None:
            self._live.stop_draft()

    def drop(self) -> None:
        """Throw the draft away."""
        turn, self._turn = self._turn, None
        live, self._live = self._live, None
        if live is not None:
            live.drop_draft()
        if turn is not None:
            turn.cancel()

    def take(self, response: ResponseHandle, plan: ReplyPlan, owed: UserTurn) -> Reply | None:
        """The held turn, released to answer in this response; None where none will do."""
        turn, live = self._turn, self._live
        if turn is None or live is None or turn.outcome is not None or not _fits(turn.plan, plan):
            self.drop()
            return None
        adopted, _ = self._context.anticipation.adopt(plan.prompt, plan.tools)
        if adopted is not live:
            adopted.close()
            self.drop()
            return None
        self._turn = self._live = None
        owed.timeline.facts["draft_buffered_ms"] = round(turn.buffered_ms, 1)
        turn.release(response, owed.timeline, plan)
        fate = "released" if turn.keeps_draft else "salvaged"
        self._metrics.drafts.labels(fate=fate).inc()
        owed.timeline.facts["draft"] = fate
        return turn

    def _done(self, turn: Reply) -> None:
        """A draft that nobody took is over."""
        if self._live is not None and self._turn is turn:
            self._live.drop_draft()
        self._metrics.drafts.labels(fate="dropped").inc()
        self._metrics.observe_work(turn.usage, turn.wasted_audio_ms)
        self.observe_waste(turn)

    def observe_waste(self, turn: Reply) -> None:
        """Book what a turn threw away on the session's budget."""
        n_tokens = turn.usage.n_discarded_tokens
        if n_tokens or turn.wasted_audio_ms:
            self._wasted.append((self._context.clock(), n_tokens, turn.wasted_audio_ms))

    def _is_over_budget(self) -> bool:
        since_s = self._context.clock() - BUDGET_S
        while self._wasted and self._wasted[0][0] < since_s:
            self._wasted.popleft()
        n_tokens = sum(entry[1] for entry in self._wasted)
        speech_ms = sum(entry[2] for entry in self._wasted)
        ahead = self._ahead
        return n_tokens >= ahead.budget_tokens or speech_ms >= ahead.budget_speech_ms


def _fits(drafted: ReplyPlan, asked: ReplyPlan) -> bool:
    """Whether the two differ in nothing but the words of the last turn."""
    if drafted.prompt[:-1] != asked.prompt[:-1] or not asked.prompt:
        return False
    return asked.prompt[-1].role == "user" and replace(drafted, prompt=asked.prompt) == asked

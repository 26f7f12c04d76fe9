"""The preemptive reply: generated, synthesized and held while the caller may still go on.

Owns at most one, for as long as the caller's turn is open, and the bounds on what such replies may
waste. It is begun in a pause that is likely to be the end. If the caller goes on it stays as it is;
other words get another version on the same branch, of which the clauses that stand are kept. It is
released if the reply that is asked for differs in nothing but the words it answers, else dropped.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import Literal

import msgspec

from voiceloop.backends import ChatMessage, Usage
from voiceloop.listening.endpointing import FITTED
from voiceloop.listening.events import PauseWeighed, UserTurn
from voiceloop.realtime.response import ResponseHandle
from voiceloop.reply.anticipation import LiveBranch, Preemptive
from voiceloop.reply.context import ReplyContext
from voiceloop.reply.plan import ReplyPlan, voice_options_of
from voiceloop.reply.reply import Reply
from voiceloop.reply.voice import MOST_CHARACTERS
from voiceloop.telemetry.record import TurnRecord

# The caller's words and P(end of turn) are known some 50 ms into a pause. When that takes five
# times as long the machine is overloaded, and speculation is what steps down first.
MAX_PAUSED_MS = 250.0


class WasteBudget:
    """What one session may throw away on replies that nobody heard. Pure: the clock is passed in.

    The only bound on speculative waste: so many requests in one turn of the caller, and so many
    tokens and so much audio in WINDOW_S. These are chosen: of replies of 30 tokens and 6 s of
    speech they let some 30 be thrown away in a minute before anything of them is spoken, or 10
    that were synthesized whole.
    """

    N_TOKENS = 1000
    SPEECH_MS = 60_000

    MAX_PER_TURN = 4  # chosen: a caller who stops at every word must not buy a reply at each
    # More where the turn is nearly over: whoever dictates has spent the others by the last digit,
    # and waited longest (LOG.md, 2026-11-23, "a reply to whoever waits longest").
    MAX_NEARLY_OVER = 2
    WINDOW_S = 60.0  # older waste is forgiven

    def __init__(self) -> None:
        self._n_begun = 0
        self._wasted: deque[tuple[float, int, float]] = deque()  # at, tokens, ms of speech

    def begin_turn(self) -> None:
        """Another turn of the caller begins."""
        self._n_begun = 0

    def count_request(self) -> None:
        self._n_begun += 1

    def add_waste(self, now_s: float, n_tokens: int, speech_ms: float) -> None:
        if n_tokens or speech_ms:
            self._wasted.append((now_s, n_tokens, speech_ms))

    def is_turn_spent(self, *, is_nearly_over: bool) -> bool:
        return self._n_begun >= self.MAX_PER_TURN + (self.MAX_NEARLY_OVER if is_nearly_over else 0)

    def is_spent(self, now_s: float) -> bool:
        while self._wasted and self._wasted[0][0] < now_s - self.WINDOW_S:
            self._wasted.popleft()
        n_tokens = sum(entry[1] for entry in self._wasted)
        speech_ms = sum(entry[2] for entry in self._wasted)
        return n_tokens >= self.N_TOKENS or speech_ms >= self.SPEECH_MS


class PreemptiveReplies:
    """Those of one session, one after the other."""

    def __init__(self, context: ReplyContext) -> None:
        self._context = context
        self._metrics = context.metrics
        self._ahead = context.ahead
        self._budget = WasteBudget()
        self._reply: Reply | None = None
        self._words: tuple[str, ...] = ()  # that it answers

    def reset(self) -> None:
        """Another turn of the caller begins."""
        self.drop()
        self._drop_line()
        self._context.openers.drop()
        self._budget.begin_turn()

    def consider(self, pause: PauseWeighed) -> None:
        """The caller paused after these words: begin a reply if this is likely the end.

        Pauses that need long, which is fitted with the waits, are so once they are nearly over.
        """
        is_near, words = pause.is_nearly_over, pause.words
        if not self._ahead.does("speculative_reply") or pause.paused_ms > MAX_PAUSED_MS:
            return
        if self._context.prepared.looks_up_late:
            return  # it would be made, and said, without what is found
        is_likely = is_near or pause.needed_ms <= FITTED.preemptive_needed_ms
        if not is_likely:
            return
        if self._budget.is_turn_spent(is_nearly_over=is_near) or self._has_reply_to(words):
            return
        if (live := self._context.anticipation.live) is None:
            return
        fixed = self._context.prepared.answer(text := live.turn_text(words))
        if fixed is not None and not self._may_speak(fixed.text):
            return
        is_spent = self._budget.is_spent(self._context.clock())
        if self._context.is_busy() or is_spent:
            self._metrics.drafts.labels(fate="forgone").inc()
        elif fixed is not None:
            self._speak(fixed.text)
        else:
            self._begin(live, words, text)

    def _may_speak(self, line: str) -> bool:
        """Whether a line that needs no model may be spoken ahead, and is not already."""
        context = self._context
        settings = context.protocol.settings
        speaks = settings.speaks and self._ahead.does("held_clause")
        is_spoken = speaks and len(line) <= MOST_CHARACTERS
        return is_spoken and not context.voice.has(line, voice_options_of(settings))

    def _speak(self, line: str) -> None:
        self._drop_line()
        self._budget.count_request()
        context = self._context
        options = voice_options_of(context.protocol.settings)
        context.voice.speak_ahead(line, options, context.tasks)

    def _drop_line(self) -> None:
        wasted_ms = self._context.voice.drop_ahead()
        self._metrics.wasted_audio_ms.inc(wasted_ms)
        self._budget.add_waste(self._context.clock(), 0, wasted_ms)

    def _has_reply_to(self, words: tuple[str, ...]) -> bool:
        return self._stands and words == self._words

    @property
    def _stands(self) -> bool:
        """Whether there is a reply, and the model still writes or has written all of it."""
        live = self._live
        return live is not None and live.preemptive in (Preemptive.WANTED, Preemptive.MADE)

    @property
    def _live(self) -> LiveBranch | None:
        """The branch that it is made on."""
        return self._reply.live if self._reply is not None else None

    def _begin(self, open_turn: LiveBranch, words: tuple[str, ...], text: str) -> None:
        if self._reply is not None and self._reply.is_failing:
            self.drop()
        behind = self._context.prepared.ahead(text)
        turn = ChatMessage("user", text, behind=behind, sound=open_turn.sound)
        settings, prompt = self._context.protocol.settings, (*open_turn.context.messages, turn)
        plan = self._context.plan_of(settings, prompt)
        if (live := open_turn.on(plan.route.model)) is None:
            return  # who answers reads nothing ahead at the moment
        if plan.route.may_open and plan.speaks and self._choose_opener(open_turn, plan):
            self._budget.count_request()
            self.drop()
            self._words = words
            return  # it is asked to go on behind that, once the turn is over
        if self._reply is not None and self._live is not live:
            self.drop()
        if not live.begin_preemptive((turn,), plan.params):
            return
        self._budget.count_request()
        self._words = words
        if self._reply is not None:
            self._reply.revise(plan)
            return
        self._reply = Reply(
            self._context,
            plan,
            TurnRecord("preemptive"),
            live=live,
            speaks_ahead=self._ahead.does("held_clause"),
        )
        self._reply.start(self._done)

    def _choose_opener(self, open_turn: LiveBranch, plan: ReplyPlan) -> bool:
        """Have the small model choose one, where one may be said; whether it goes first."""
        openers = self._context.openers
        if not openers.may_open:
            return False
        small, turn = open_turn.on(plan.route.other or ""), plan.prompt[-1]
        openers.begin(small, (turn,), self._context.prepared.slot_of(turn.content))
        return openers.goes_first

    def rest(self) -> None:
        """The caller goes on: keep what there is of the reply, and generate no more of it."""
        if self._live is not None:
            self._live.stop_preemptive()

    def drop(self) -> None:
        """Throw the reply away."""
        self.take_back()
        reply, self._reply = self._reply, None
        if reply is not None:
            reply.drop_ahead()
            reply.cancel()

    # --- an early start ---

    @property
    def held_words(self) -> tuple[str, ...] | None:
        """The caller's words to which a reply is held whose first sound is there, or heard."""
        reply = self._reply
        if reply is None or not (reply.has_begun or self._stands and reply.may_start_early):
            return None
        return self._words

    @property
    def early(self) -> Reply | None:
        """The reply that has started early."""
        return self._reply if self._reply is not None and self._reply.has_begun else None

    def start_early(self, unsure_ms: float) -> Reply | None:
        """Let the reply that is held be heard, in a response of its own.

        None where no reply is held, or where another would be asked for now. unsure_ms: until the
        turn will be over for sure.
        """
        reply, live = self._reply, self._live
        if reply is None or live is None or not self._stands or not reply.may_start_early:
            return None
        if not self._is_up_to_date(reply.plan, live.said_before):
            return None
        reply.start_early(self._context.protocol.open_response(), unsure_ms)
        return reply

    def _is_up_to_date(self, made: ReplyPlan, said_before: str) -> bool:
        """Whether the settings, the conversation and what was found are those it was made with."""
        protocol, turn = self._context.protocol, made.prompt[-1]
        history = protocol.shown.messages(protocol.settings.instructions)
        if history and (history[-1].role, history[-1].content) == ("user", said_before):
            history = history[:-1]  # the same turn's first words, which nobody has answered
        turn = msgspec.structs.replace(turn, behind=self._context.prepared.ahead(turn.content))
        return self._context.plan_of(protocol.settings, (*history, turn)) == made

    def plan_to(self, words: tuple[str, ...]) -> ReplyPlan | None:
        """Of the reply that is under way to just these words; None where none is."""
        reply, live = self._reply, self._live
        if reply is None or live is None or not self._has_reply_to(words):
            return None
        is_whole = not reply.is_failing and not live.has_failed
        open_turn = self._context.anticipation.live
        is_open = open_turn is not None and open_turn.on(live.model) is live
        return reply.plan if is_whole and is_open else None

    def take_back(self, sounding_ms: float | None = None) -> None:
        """An early start counts as never said, and is told of; the reply is held again.

        sounding_ms: so long the caller has sounded, who goes on: a cut.
        """
        if (reply := self.early) is None:
            return
        over_ms = None if sounding_ms is None else reply.heard_over_ms(sounding_ms)
        started, item_id = reply.take_back()
        if item_id is not None:
            self._context.protocol.spoken.retract(item_id)
            self._context.protocol.note_cut(item_id, 0.0)
        started.facts.outcome = "cancelled"
        if over_ms is not None:
            started.note_cut("soft", over_ms)
            self._metrics.observe_cut(self._context.protocol.session_id, "soft", over_ms)
        self._context.protocol.timeline(started.payload())

    # --- taken ---

    def take(self, response: ResponseHandle, plan: ReplyPlan, owed: UserTurn) -> Reply | None:
        """The preemptive reply, released to answer in this response; None where none will do."""
        reply, live = self._reply, self._live
        if reply is None or live is None or not _fits(reply, plan):
            self.drop()
            return None
        anticipation, model = self._context.anticipation, plan.route.model
        adopted, _ = anticipation.adopt(plan.prompt, plan.tools, model)
        if adopted is not live:
            adopted.close()
            self.drop()
            return None
        if not reply.has_begun:
            is_promised = reply.release_held(response, owed, plan)
        elif reply.keep_early(owed, plan):
            is_promised = True
        else:
            self.drop()
            return None
        self._reply = None
        fate: Literal["released", "salvaged"] = "released" if is_promised else "salvaged"
        owed.record.note_draft(fate, reply.speech.held_ms)
        self._metrics.drafts.labels(fate=fate).inc()
        return reply

    def _done(self, reply: Reply) -> None:
        """A preemptive reply that was not taken is over."""
        if self._reply is reply:
            reply.drop_ahead()
        self._metrics.drafts.labels(fate="dropped").inc()
        self._metrics.observe_work(reply.usage, reply.speech.wasted_ms, reply.used)
        self._book(reply.usage, reply.speech.wasted_ms)

    def observe_turn(self, record: TurnRecord) -> None:
        self._book(record.end.usage, record.end.wasted_audio_ms)

    def _book(self, usage: Usage, wasted_ms: float) -> None:
        """What a reply threw away, preemptive or interrupted, on the session's budget."""
        self._budget.add_waste(self._context.clock(), usage.n_discarded_tokens, wasted_ms)


def _fits(reply: Reply, asked: ReplyPlan) -> bool:
    """Whether it is under way, and asked for in all but the words of the last turn."""
    made = reply.plan
    if reply.is_failing or made.prompt[:-1] != asked.prompt[:-1] or not asked.prompt:
        return False
    return asked.prompt[-1].role == "user" and replace(made, prompt=asked.prompt) == asked

"""The preemptive reply: generated, synthesized and held while the caller may still go on.

Owns at most one, for as long as the caller's turn is open, and the bounds on what such replies may
waste. It is begun in a pause that is likely to be the end. If the caller goes on it stays as it is;
other words get another version on the same branch, of which the clauses that stand are kept. It is
released if the reply that is asked for differs in nothing but the words it answers, else dropped.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import msgspec

from voiceloop.admission.bucket import Bucket
from voiceloop.backends import ChatMessage, Usage
from voiceloop.listening.endpointing import FITTED
from voiceloop.listening.events import PauseWeighed, UserTurn
from voiceloop.realtime.response import ResponseHandle
from voiceloop.reply.answerers import FixedAnswer
from voiceloop.reply.anticipation import LiveBranch, Preemptive
from voiceloop.reply.context import ReplyContext
from voiceloop.reply.plan import ReplyPlan, voice_options_of
from voiceloop.reply.reply import Reply
from voiceloop.telemetry.record import TurnRecord

# The caller's words and P(end of turn) are known some 50 ms into a pause. When that takes five
# times as long the machine is overloaded, and speculation is what steps down first.
MAX_PAUSED_MS = 250.0


# All that bounds speculative waste: so many replies begun in one turn of the caller, who must not
# buy one at each word, and so much thrown away, forgiven within a minute. Chosen: of replies of 30
# tokens and 6 s of speech some 30 before anything of them is spoken, or 10 that are whole.
MOST_PER_TURN = 4
# More where the turn is nearly over: whoever dictates has spent the others by the last digit, and
# waited longest (LOG.md, 2026-11-23, "a reply to whoever waits longest").
MOST_NEARLY_OVER = 2
MOST_TOKENS, MOST_SPEECH_MS, FORGIVEN_S = 1000, 60_000.0, 60.0
# Of a line, which a voice takes whole. Chosen: some 20 s of speech, more than a number, a name or
# an address takes to be said back.
MOST_CHARACTERS = 320


class PreemptiveReplies:
    """The preemptive replies of one session, one after the other."""

    def __init__(self, context: ReplyContext) -> None:
        self._context = context
        self._metrics = context.metrics
        self._ahead = context.ahead
        self._n_begun = 0  # in the open turn
        self._tokens = Bucket(MOST_TOKENS, MOST_TOKENS / FORGIVEN_S, context.clock)
        self._speech_ms = Bucket(MOST_SPEECH_MS, MOST_SPEECH_MS / FORGIVEN_S, context.clock)
        self._reply: Reply | None = None
        self._words: tuple[str, ...] = ()  # that it answers
        self._line: Reply | None = None  # that needs no model

    def reset(self) -> None:
        self.drop()
        self._drop_line()
        self._context.openers.drop()
        self._n_begun = 0

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
        most = MOST_PER_TURN + (MOST_NEARLY_OVER if is_near else 0)
        if self._n_begun >= most or self._has_reply_to(words):
            return
        live = self._context.anticipation.live
        if live is None or not (text := live.turn_text(words)):
            return  # the sound of a pause comes before its words
        fixed = self._context.prepared.answer(text)
        if fixed is not None and not self._may_speak(fixed):
            return
        if self._context.is_busy() or self._tokens.is_empty or self._speech_ms.is_empty:
            self._metrics.drafts.labels(fate="forgone").inc()
        elif fixed is not None:
            self._speak(live, text, fixed)
        else:
            self._begin(live, words, text)

    # --- a line that needs no model ---

    def _may_speak(self, fixed: FixedAnswer) -> bool:
        """Whether it may be spoken ahead, and is not already."""
        settings, ahead, line = self._context.protocol.settings, self._line, fixed.text
        options = voice_options_of(settings)
        if not (settings.speaks and self._ahead.does("held_clause")) or len(line) > MOST_CHARACTERS:
            return False
        if ahead is not None and not ahead.is_failing:
            if ahead.says(fixed) and ahead.plan.voice_options == options:
                return False
        return self._context.voice.kept_sound(line, options) is None

    def _speak(self, open_turn: LiveBranch, text: str, fixed: FixedAnswer) -> None:
        self._drop_line()
        self._n_begun += 1
        plan = self._plan_to(open_turn, text)
        record, (line, _, call) = TurnRecord("preemptive"), fixed
        self._line = Reply(self._context, plan, record, fixed_text=line, fixed_call=call)
        self._line.start(self._waste)

    def _drop_line(self) -> None:
        line, self._line = self._line, None
        if line is not None:
            line.cancel()

    def take_line(self, fixed: FixedAnswer, asked: ReplyPlan) -> Reply | None:
        """The reply that says so, spoken ahead as it is asked for; None: none was."""
        line = self._line
        if line is None or line.is_failing or not line.says(fixed):
            return None
        if replace(line.plan, prompt=asked.prompt, params=asked.params, route=asked.route) != asked:
            return None
        self._line = None
        return line

    def _waste(self, reply: Reply) -> None:
        self._metrics.wasted_audio_ms.inc(reply.speech.wasted_ms)
        self._speech_ms.take(reply.speech.wasted_ms)

    # --- a reply of the model ---

    def _has_reply_to(self, words: tuple[str, ...]) -> bool:
        return self._stands and words == self._words

    @property
    def _stands(self) -> bool:
        """Whether there is a reply, and the model still writes or has written all of it."""
        live = self._live
        return live is not None and live.preemptive in (Preemptive.WANTED, Preemptive.MADE)

    @property
    def _live(self) -> LiveBranch | None:
        return self._reply.generation.live if self._reply is not None else None

    def _plan_to(self, open_turn: LiveBranch, text: str) -> ReplyPlan:
        """Return the plan of the reply to the open turn, were this all of it."""
        behind = self._context.prepared.ahead(text)
        turn = ChatMessage("user", text, behind=behind, sound=open_turn.sound)
        prompt = (*open_turn.context.messages, turn)
        return self._context.plan_of(self._context.protocol.settings, prompt)

    def _begin(self, open_turn: LiveBranch, words: tuple[str, ...], text: str) -> None:
        if self._reply is not None and self._reply.is_failing:
            self.drop()
        plan = self._plan_to(open_turn, text)
        if (live := open_turn.on(plan.route.model)) is None:
            return  # who answers reads nothing ahead at the moment
        if plan.route.may_open and plan.speaks and self._choose_opener(open_turn, plan):
            self._n_begun += 1
            self.drop()
            self._words = words
            return  # it is asked to go on behind that, once the turn is over
        if self._reply is not None and self._live is not live:
            self.drop()
        if not live.begin_preemptive(plan.prompt[-1:], plan.params):
            return
        if (drafter := self._drafter(open_turn, plan)) is not None:
            drafter.draft_for(live, plan.prompt[-1:], plan.params)
        self._n_begun += 1
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
        drafter, turn = self._drafter(open_turn, plan), plan.prompt[-1]
        # One that drafts does not choose: what it drafts makes the opener the rarer.
        small = open_turn.on(plan.route.other or "") if drafter is None else None
        openers.begin(small, (turn,), self._context.prepared.slot_of(turn.content))
        return openers.goes_first

    def _drafter(self, open_turn: LiveBranch, plan: ReplyPlan) -> LiveBranch | None:
        """The small model's branch, where it drafts what the large one verifies."""
        verifies = self._context.router.verifies(plan.route)
        return open_turn.on(plan.route.other or "") if verifies else None

    def rest(self) -> None:
        """The caller goes on: keep what there is of the reply, and generate no more of it."""
        if self._live is not None:
            self._live.stop_preemptive()

    def drop(self) -> None:
        self.take_back()
        reply, live, self._reply = self._reply, self._live, None
        if live is not None:
            live.drop_preemptive()
        if reply is not None:
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
        """Return the plan of the reply that is under way to just these words; None where none
        is.
        """
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
        if self._reply is reply and self._live is not None:
            self._live.drop_preemptive()
        self._metrics.drafts.labels(fate="dropped").inc()
        self._metrics.observe_work(reply.usage, reply.speech.wasted_ms, reply.used)
        self._context.charge(reply.used)
        self._book(reply.usage, reply.speech.wasted_ms)

    def observe_turn(self, record: TurnRecord) -> None:
        self._book(record.end.usage, record.end.wasted_audio_ms)

    def _book(self, usage: Usage, wasted_ms: float) -> None:
        """Count what a reply threw away, preemptive or interrupted."""
        self._tokens.take(usage.n_discarded_tokens)
        self._speech_ms.take(wasted_ms)


def _fits(reply: Reply, asked: ReplyPlan) -> bool:
    """Whether it is under way, and asked for in all but the words of the last turn."""
    made = reply.plan
    if reply.is_failing or made.prompt[:-1] != asked.prompt[:-1] or not asked.prompt:
        return False
    return asked.prompt[-1].role == "user" and replace(made, prompt=asked.prompt) == asked

"""One reply of the agent, from the prompt to the last sample that the caller hears.

Owns its tasks (one reads the model, one speaks and plays), and the response that it is said in:
nothing of it becomes an event while it has none. A reply ends in exactly one way
(completed, incomplete, failed, cancelled), catches every error itself, and leaves nothing open.
Where the server answers all tool calls of a response, the reply continues in another response;
calls that are left to the client end it, and their results begin the next reply.

A reply made ahead is held until it is known to be wanted: its audio, text and calls. A later
version of it, or the reply itself, replaces only what differs. It may be heard early, and taken
back. A sound can interrupt a reply before it is known whether somebody spoke to the agent. If
nobody did (a false interruption), the reply resumes after what was heard, in another response.
`phase.py` says which of these may follow which.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

import msgspec

from audio.codec import encode
from voiceloop.backends import (
    MAIN_MODEL,
    PreemptiveCall,
    PreemptiveDone,
    ToolCall,
    Usage,
    Voice,
)
from voiceloop.errors import VoiceLoopError, error_of
from voiceloop.listening.events import UserTurn
from voiceloop.realtime.response import CloseReason, ResponseHandle, ResponseStatus
from voiceloop.reply.answerers import FixedAnswer
from voiceloop.reply.anticipation import LiveBranch
from voiceloop.reply.bridge import Bridge, Late, ModelDeadline
from voiceloop.reply.context import ReplyContext
from voiceloop.reply.generation import MAX_ROUNDS, Generation, ReplyRound, added
from voiceloop.reply.phase import Phase, PhaseEvent, ReplyPhase
from voiceloop.reply.plan import ReplyPlan
from voiceloop.reply.playout import Chunk, Playout
from voiceloop.reply.routing import Route
from voiceloop.reply.speech import ReplySpeech
from voiceloop.reply.voice import KeptLine, ModelVoice
from voiceloop.telemetry.record import Mark, Outcome, Speaker, TurnRecord
from voiceloop.telemetry.tap import Sounded
from voiceloop.tools.call_tools import CallAct, act_of
from voiceloop.tools.pending import PendingCall

log = logging.getLogger(__name__)


class Reply:
    """Answers once. `start`, then `cancel` at any time; `on_done` is called when it is over.

    turn: of the caller, that it is due to. fixed_text: said in place of a model's reply, and
    fixed_call made. failure: why there is none; the fallback is said. is_line: it is said until an
    answer is there. was_asked_to_wait: the caller, for the turn's words. not_before_s: until then
    the client plays an earlier reply. live: the branch that makes it ahead. speaks_ahead: it is
    synthesized meanwhile.
    """

    def __init__(
        self,
        context: ReplyContext,
        plan: ReplyPlan,
        record: TurnRecord,
        *,
        turn: UserTurn | None = None,
        fixed_text: str | None = None,
        fixed_call: ToolCall | None = None,
        failure: VoiceLoopError | None = None,
        is_line: bool = False,
        was_asked_to_wait: bool = False,
        not_before_s: float = 0.0,
        live: LiveBranch | None = None,
        speaks_ahead: bool = True,
    ) -> None:
        self.phase = Phase()
        self.record = record
        self.turn = turn
        self.is_line = is_line
        self._is_apology = failure is not None
        self.outcome: Outcome | None = None
        self.failure: VoiceLoopError | None = None
        self.released_s: float | None = None
        self.act: CallAct | None = None  # what it does to the call once it has been heard
        self.on_done: Callable[[Reply], None] | None = None
        self._context = context
        self.fixed_text, self.fixed_call = fixed_text, fixed_call
        self._bridge = Bridge(
            context.agent.waiting, context.waiting_lines, context.clock,
            has_spoken=was_asked_to_wait or not plan.speaks,
        )  # fmt: skip
        deadline = ModelDeadline(
            plan.params.within_ms / 1000, self._waited_s, speaks=context.model_speaks
        )
        self.generation = Generation(context, plan, failure, live, deadline)
        self._response: ResponseHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self._first_route: Route | None = None  # of the model that was asked first
        self._first_word_s: float | None = None  # of that model
        self._opener_said: str | None = None
        whole = (fixed_text or "") + (context.agent.fallback if failure is not None else "")
        self._own_voice: ModelVoice | None = None  # of the model, where it brings one
        if context.model_speaks:
            self._own_voice = ModelVoice(lambda: self.generation.live, context.voice.live)
        voice: Voice | None = self._own_voice
        if whole or voice is None:
            voice = context.voice.kept_sound(whole, plan.voice_options)
        self.speech = self._new_speech(not_before_s, speaks_ahead=speaks_ahead, voice=voice)

    def _new_speech(
        self, not_before_s: float, *, speaks_ahead: bool = True, voice: Voice | None = None
    ) -> ReplySpeech:
        context = self._context
        return ReplySpeech(
            voice or context.voice.live, self.plan.voice_options, context.voice.new_stream_id,
            Playout(
                self._emit, context.clock, self.plan.output_format.rate, context.voice.lead_ms,
                not_before_s, context.play_delay_ms,
            ),
            context.clock, self.phase, on_first_audio=self._mark_audio, speaks_ahead=speaks_ahead,
        )  # fmt: skip

    # --- begun ---

    def start(self, on_done: Callable[[Reply], None]) -> None:
        self.on_done = on_done
        self._task = self._context.tasks.create_task(self._run(), name="reply")
        # A task cancelled before its first step never enters `_run`.
        self._task.add_done_callback(lambda task: self._finish())

    def release(self, response: ResponseHandle) -> Reply:
        """Answer in this response, whose plan it has."""
        self._answer_in(response)
        self.speech.release()
        return self

    def says(self, fixed: FixedAnswer) -> bool:
        """Whether it is made to say this, with the same call."""
        made, asked = ((c.name, c.arguments) if c else None for c in (self.fixed_call, fixed.call))
        return self.fixed_text == fixed.text and made == asked

    def say_line(
        self, response: ResponseHandle, turn: UserTurn, plan: ReplyPlan, call: ToolCall | None
    ) -> None:
        """Say its fixed text, which was spoken ahead, and is what this turn is answered with."""
        self.turn, self.record, self.generation.plan = turn, turn.record, plan
        self.fixed_call = call
        if self.fixed_text:
            self._mark_first_token()
        if self.playout.buffered_ms:
            self._mark_audio(self._context.clock())
        self.release(response)

    def _answer_in(self, response: ResponseHandle) -> None:
        if self.fixed_text is None and self._first_route is None:
            self._first_route = route = self.plan.route
            if route.signs is not None:
                self.record.facts.route = route.signs
            self._note_speaker(0)
        self._response = response
        self.record.note_response(response.id)
        # Whoever closes it asks the round what was used.
        response.usage_so_far = self.generation.round.take_usage
        self.released_s = self.released_s or self._context.clock()

    def _answer_like_before(self) -> None:
        """The response has said all it had to: go on in another, which was asked for like it."""
        self._close("completed")
        self._answer_in(self._context.protocol.open_response(self.response.request))

    def _close(
        self,
        status: ResponseStatus,
        error: VoiceLoopError | None = None,
        *,
        reason: CloseReason | None = None,
    ) -> None:
        """End the response on the wire, if there is one; unless whoever cancelled has done so."""
        if self._response is not None:
            if status == "incomplete":
                reason = "max_output_tokens"
            self._response.close(status, reason, error)

    # --- made ahead ---

    def revise(self, plan: ReplyPlan) -> None:
        """The caller went on: another version is on its way."""
        self.generation.revise(plan)
        self.speech.text.begin_version()

    @property
    def may_start_early(self) -> bool:
        """Whether its first sound is there, and is the first that is due."""
        is_held = self.phase.now is ReplyPhase.HELD and not self.is_failing
        return is_held and self.speech.may_start_early and not self.generation.tools.drafted

    def start_early(self, response: ResponseHandle, unsure_ms: float) -> None:
        """Be heard in this response, until `take_back` or `keep_early`; softly for unsure_ms."""
        self.released_s = self._context.clock()
        self.record.note_response(response.id)
        self._response = response
        self.record.facts.fade_in_ms = self.speech.start_early(unsure_ms)

    @property
    def has_begun(self) -> bool:
        """Whether it has a response: it is the answer, or has started early and stands so far."""
        return self._response is not None

    def keep_early(self, turn: UserTurn, plan: ReplyPlan) -> bool:
        """The turn is over, and what has started early is the answer to it.

        False where the branch does not promise that it goes on as it was heard: it is to go.
        """
        is_promised = self.generation.commit_preemptive(plan)
        if is_promised:
            self._take_turn(turn)
            self._answer_in(self.response)
            self.speech.text.begin_version()
            self.speech.release()
        return is_promised

    def take_back(self) -> tuple[TurnRecord, str | None]:
        """The early start counts as never said: held again, as if not begun.

        Returns what is told of the start, and its item, if it has one.
        """
        self.playout.pause()
        self._close("cancelled", reason="turn_detected")
        item_id, self._response = self.response.item_id, None
        started, self.record = self.record, self.record.before_sound()
        if self.phase.now is ReplyPhase.EARLY:
            self.released_s = None
            self.speech.take_back()
        return started, item_id

    def release_held(self, response: ResponseHandle, turn: UserTurn, plan: ReplyPlan) -> bool:
        """Answer in this response, as `plan` asks; what is ready is sent once it is certain.

        Returns whether that is now, because the branch promises that the reply begins with all
        that is ready. Else each clause of it is sent when the reply has confirmed it.
        """
        self._take_turn(turn)
        self._answer_in(response)
        self._take_opener()
        calls = self.generation.take_draft(plan, calls_at_once=response.calls_at_once)
        if calls:
            self._pass_round(calls)
        is_newest = self.speech.text.is_confirmed  # nothing is left of a version before the newest
        self.speech.text.begin_version()
        is_promised = self.generation.commit_preemptive(plan) and is_newest
        if is_promised:
            self.speech.release()
        else:
            self.speech.release_confirmed()
        return is_promised

    def _take_opener(self) -> None:
        """Have an opener ready, where the large model answers and one may be said."""
        openers, plan, live = self._context.openers, self.plan, self.generation.live
        if self.response.is_out_of_band:
            return  # the open turn keeps its own
        if not (plan.route.may_open and plan.speaks):
            openers.drop()  # who chooses would read on, on the branch that answers
            return
        taken = openers.take()
        if taken is None and openers.may_open and live is not None and plan.prompt:
            openers.begin(None, plan.prompt[-1:])
            taken = openers.take()
        self._bridge.opener = taken
        if taken is not None and openers.goes_first and self.generation.tail is not None:
            self.generation.go_behind(f"{taken.line} ", openers.acts)

    def _take_turn(self, turn: UserTurn) -> None:
        """Take the turn that it is due to; what was done ahead stands in the turn's record too."""
        turn.record.take_over(self.record)
        self.turn, self.record = turn, turn.record

    def _pass_round(self, calls: Sequence[PendingCall]) -> None:
        """Pass its first round, which was nothing but these calls, and what came of them is
        known already.
        """
        for each in calls:
            self._add_call(each.call)
        self._tell_results(calls)
        self._close("completed")
        uses = [each.use(self.released_s) for each in calls]
        self.record.note_calls(uses, self._context.clock())
        self.generation.begin_round(calls, is_out_of_band=False, is_last=False)
        self._answer_like_before()

    # --- who speaks ---

    def interrupt(self, heard_text: str, heard_ms: float) -> None:
        """Interrupt: its response has ended, after these words and this much audio of its item, so
        pause.

        `resume_in` or `cancel` follows, and until then no tool is called. It may come once more,
        when the client says how much it has played.
        """
        self.playout.pause()
        self.speech.interrupt(heard_text, heard_ms)

    def resume_in(self, response: ResponseHandle) -> None:
        """Resume after a false interruption: say in this response what was not heard of the last
        one.
        """
        self._answer_in(response)
        self.speech.resume()

    def cancel(self) -> None:
        """Silence now, for good; idempotent. The response itself is closed by who cancels."""
        self.outcome, self.act = self.outcome or "cancelled", None
        self.generation.leave_calls()  # at once: the next turn's branch begins with what they say
        self.speech.stop()
        if self._task is not None:
            self._task.cancel()

    # --- what is known ---

    @property
    def has_words(self) -> bool:
        """Whether the present round has said, or written, anything."""
        return self.speech.text.has_words if self.plan.speaks else self.response.has_words

    @property
    def answers(self) -> UserTurn | None:
        """The caller's turn that this is the answer to."""
        return None if self._is_apology else self.turn

    @property
    def decided_s(self) -> float | None:
        return self.turn.decided_s if self.turn is not None else None

    @property
    def plan(self) -> ReplyPlan:
        return self.generation.plan

    @property
    def response(self) -> ResponseHandle:
        """The response being answered (of this round); only after the release."""
        if self._response is None:
            raise RuntimeError("expected a released reply, found one that is held")
        return self._response

    @property
    def remaining_ms(self) -> float | None:
        """Audio that the caller has still to hear; None while more may come."""
        now_s = self._context.clock()
        return None if self.is_calling else self.playout.remaining_ms(now_s)

    @property
    def is_failing(self) -> bool:
        """Whether it is over, or about to be: nothing more of it can be released."""
        said = self.generation.round
        return self.outcome is not None or self.speech.has_failed or said.failure is not None

    def heard_over_ms(self, sounding_ms: float) -> float:
        """Return for how long it was heard over a caller who has sounded for so long."""
        silent_s = max(0.0, self._context.clock() - self.playout.play_end_s)
        return max(0.0, sounding_ms - 1000.0 * silent_s)

    @property
    def usage(self) -> Usage:
        """Tokens of all rounds so far; those of text that nobody heard are counted apart."""
        return self.generation.rounds.usage(self.speech.unheard)

    @property
    def used(self) -> Mapping[str, Usage]:
        """The part of each language model; nothing where the server has one alone."""
        route, opener = self.plan.route, self._bridge.opener
        if not route.reason:
            return {}
        used = dict(self.generation.used) or {route.model: self.usage}
        if opener is not None and opener.n_tokens and route.other is not None:
            chosen = Usage(n_discarded_tokens=opener.n_tokens)
            used[route.other] = added(used.get(route.other, Usage()), chosen)
        return used

    @property
    def is_calling(self) -> bool:
        """Whether its round has calls that the server answers, so that another round follows."""
        return self.generation.tools.serves(self.generation.round.calls)

    @property
    def playout(self) -> Playout:
        return self.speech.playout

    # --- the reply's own task ---

    async def _run(self) -> None:
        try:
            if self.fixed_text is None and self.generation.live is None:
                await self.generation.open(self.response, self.record, self.decided_s)
                if (own := self._context.prepared.late_answer(self.response)) is not None:
                    self.fixed_text = own.text
                    self.record.facts.answered_by = own.table
                else:
                    self._take_opener()
            await self._answer()
            await self.playout.played_out()
        except asyncio.CancelledError:
            self._end("cancelled")
            raise
        except (Exception, BaseExceptionGroup) as error:  # a bug costs a turn, not the call
            self.speech.stop()
            self._end("failed", error_of(error))
            await self._say_kept()
        finally:
            if self._bridge.opener is not None:
                self._bridge.opener.close()
            self.generation.close()
            self._finish()

    def _finish(self) -> None:
        """Tell that nothing more comes, once."""
        if self.phase.now is not ReplyPhase.DONE and self.on_done is not None:
            self._note_opener()
            if (live := self.generation.live) is not None and live.draft is not None:
                self.record.facts.draft = live.draft
            self.phase.change(PhaseEvent.END)
            self.record.mark(Mark.TURN_END, self._context.clock())
            self.on_done(self)

    def _end(self, outcome: Outcome, error: VoiceLoopError | None = None) -> None:
        self.outcome, self.failure = self.outcome or outcome, error or self.failure
        self._close(outcome, error)

    async def _say_kept(self) -> None:
        """Say the fallback as it was spoken before, after it broke off, the voice perhaps lost."""
        fallback = self._context.agent.fallback
        kept = self._kept(fallback)
        if kept is None or not self.plan.speaks or not self.phase.is_answering:
            return
        with suppress(Exception):  # what can be told of it has been told
            await self._say_behind(fallback)
            self._close("failed", self.failure)
            await self.playout.played_out()

    async def _answer(self) -> None:
        for n_more in reversed(range(MAX_ROUNDS)):
            said = await self._one_round()
            if said.failure is not None:
                self._end("failed", said.failure)
                return
            outcome: Outcome = "incomplete" if said.finish_reason == "length" else "completed"
            calls = self.generation.make_calls()
            if not calls or not n_more:
                self._end(outcome)
                return
            await self._bridge.over(calls, self.playout.play_end_s, self._say_behind)
            await self.phase.answering.wait()  # it may have been interrupted meanwhile
            self._tell_results(calls)
            self._close(outcome)
            self._take_results(calls)
            if (asked := next((each for each in calls if each.question), None)) is not None:
                await self._ask(asked)
                self._end(outcome)
                return
            if (act := act_of(calls, self._context.agent)) is not None:
                if act.line and not self.has_words:
                    await self._add_line(act.line)
                self.act = act  # nothing follows: it is done when this has been heard
                self._end(outcome)
                return
            if any(call.hand_off is not None for call in calls):  # nobody whom this line reaches
                await self._add_line(self._context.agent.call.not_transferred)
                self._end(outcome)
                return
            by_large = self.fixed_call is None and self.plan.route.part == "large"
            if (told := self._context.prepared.result_line(calls, by_large=by_large)) is not None:
                self.record.facts.answered_by = told.table
                await self._add_line(told.text)
                self._end(outcome)
                return
            self.fixed_text = self.fixed_call = None  # what follows is the model's
            self._go_on(self._own_voice)

    async def _ask(self, pending: PendingCall) -> None:
        """Say what the call will do; the caller's next turn is the answer."""
        await self._add_line(pending.question)
        self._context.tools.note_asked(pending)

    async def _add_line(self, line: str) -> None:
        """Say or write this last, in a response of its own."""
        if self.plan.speaks:
            await self._say_behind(line)
        else:
            self._go_on()
            await self._write(line)

    def _take_results(self, calls: Sequence[PendingCall]) -> None:
        """Take the results of these calls for the question of the next round."""
        uses = [each.use(self.released_s) for each in calls]
        self.record.note_calls(uses, self._context.clock())
        is_beside, is_last = self.response.is_out_of_band, self._bridge.is_spent
        self.generation.begin_round(calls, is_out_of_band=is_beside, is_last=is_last)

    def _go_on(self, voice: Voice | None = None) -> None:
        """Go on in another response, once the last one has been played."""
        self._answer_like_before()
        wasted_ms = self.speech.wasted_ms
        self.speech = self._new_speech(self.playout.play_end_s, voice=voice)
        self.speech.wasted_ms = wasted_ms
        self.speech.release()

    async def _one_round(self) -> ReplyRound:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._generate())
            if self.plan.speaks:
                speech = self.speech
                watching = tasks.create_task(
                    self._bridge.watch(self._late, speech.changed, self._say_before)
                )
                tasks.create_task(speech.run()).add_done_callback(lambda _: watching.cancel())
        await self.phase.answering.wait()
        if self.plan.speaks:
            self._send_rest()
        return self.generation.round

    # --- generated ---

    async def _generate(self) -> None:
        """Say what the model says; where that is nothing, or it fails, say the fallback.

        Raises: what failed a preemptive reply: nobody waits for it.
        """
        try:
            if self.fixed_text is not None:
                if self.fixed_text or self.fixed_call is None:
                    await self._write(self.fixed_text)
                if self.phase.is_ahead:
                    if self.fixed_call is not None:
                        made = PreemptiveCall(0, self.fixed_call.name, self.fixed_call.arguments)
                        self.generation.tools.call_ahead(made)
                    self.speech.end_version()  # the voice says all of it
                    await self.phase.answering.wait()
                if self.fixed_call is not None:
                    await self._announce(self.fixed_call)
            else:
                await self._follow_model()
        except Exception as error:  # a bug costs a turn, not the call
            if self.phase.is_ahead:
                self.generation.round.failure = failure = error_of(error)
                raise failure from error
            self.generation.fail(error_of(error))
        said = self.generation.round
        is_mute = self.fixed_text is None and not said.calls and not self.speech.text.has_words
        fallback = self._context.agent.fallback
        if self.plan.speaks and (is_mute or said.failure is not None or said.needs_fallback):
            self.speech.say_last(fallback)
        elif said.needs_fallback:
            await self._write(f" {fallback}" if self.response.has_words else fallback)
        self.speech.finish()
        self.speech.release()

    async def _follow_model(self) -> None:
        """Have the other model of a cascade go on behind what was said where the model fails."""
        while True:
            try:
                await self._follow_one_model()
                return
            except VoiceLoopError as error:
                if self.phase.is_ahead or not self._switch():
                    raise
                log.warning("another model goes on: %s", error.message)

    def _switch(self) -> bool:
        """Have the other model go on. False where there is none."""
        generation = self.generation
        if generation.who_goes_on is None:
            return False
        said = generation.given
        if self._bridge.opener is not None:
            self._bridge.opener.close()  # the branch that it may read is the reply's now
        if self.plan.speaks:
            said = self.speech.break_off()
        generation.switch(said)
        self._note_speaker(len(said))
        return True

    def _note_speaker(self, from_char: int) -> None:
        """Tell who speaks from here on, where the server has more than one model."""
        route = self.plan.route
        if route.reason:
            model = route.model or MAIN_MODEL
            self.record.note_speaker(Speaker(model, route.part, route.reason, from_char))

    async def _follow_one_model(self) -> None:
        async with self.generation.deadline.round():
            await self.generation.ask()
            self.record.mark(Mark.PROMPT_COMMITTED, self._context.clock())
            async for event in self.generation.events():
                match event:
                    case str():
                        self._open_before(event)
                        await self._write(event)
                    case ToolCall():
                        await self._announce(event)
                    case PreemptiveDone():
                        self.speech.end_version()

    def _open_before(self, text: str) -> None:
        """The large model's first word is there: say the opener that it was asked to go behind."""
        if self._first_word_s is None and text.strip():
            self._first_word_s = self._context.clock()
            if self.generation.begins_with and self._bridge.owes_opener:
                self._say_before(self._bridge.take_opener(), True)

    def _note_opener(self) -> None:
        """A turn of the large model's is over: how late it was, and what was said meanwhile."""
        released_s, first_s, route = self.released_s, self._first_word_s, self._first_route
        if route is None or route.part != "large" or released_s is None or first_s is None:
            return
        usage = self.generation.used.get(route.model)
        self._context.openers.observe(
            self._opener_said,
            1000 * max(0.0, first_s - released_s),
            usage.ttft_ms if usage is not None else 0.0,
        )

    # --- late ---

    @property
    def _turn_ended_s(self) -> float | None:
        """Return when the turn ended whose answer is the present round; None where no turn's is."""
        is_first = self.generation.rounds.is_first
        return self.turn.speech_end_s if self.turn is not None and is_first else None

    def _waited_s(self) -> float:
        """How long the caller has waited already, while it was decided that the turn was over."""
        ended_s = self._turn_ended_s
        return self._context.clock() - ended_s if ended_s is not None else 0.0

    def _late(self) -> Late | None:
        """Return what the caller waits for now: the model, or the voice that has words to say."""
        asked_s, ended_s = self.generation.deadline.asked_s, self._turn_ended_s
        if self.speech.text.whole:
            if (late := self.speech.late()) is None or self.response.is_out_of_band:
                return None
            since_s = (self.released_s or self._context.clock()) if ended_s is None else ended_s
            return replace(late, since_s=max(since_s, late.since_s))
        if asked_s is None or not self.phase.is_answering or self.response.is_out_of_band:
            return None
        since_s = asked_s if ended_s is None else ended_s
        return self._bridge.late_model(since_s, asked_s, self.playout.play_end_s)

    def _kept(self, line: str) -> KeptLine | None:
        """The line as the voice once spoke it; None where it never has."""
        return self._context.voice.kept_sound(line, self.plan.voice_options)

    def _say_before(self, line: str, needs_voice: bool) -> bool:
        """Say a line in the response that is open, as of `Bridge.watch`."""
        if (kept := self._kept(line)) is None and not needs_voice:
            return False
        if not self.speech.text.whole:
            self._mark_first_token()
        if self._bridge.opener is not None and self._bridge.opener.line == line:
            self.record.facts.opener = self._opener_said = line
            self.generation.expect_repeats(line, self._context.openers.acts)
        else:
            self.record.facts.waiting_line = line
        if kept is not None:
            self.speech.say_kept(line, kept)
        else:
            self.speech.say_ahead(f"{line} ")
        return True

    async def _say_behind(self, line: str) -> None:
        """Say a line in a response of its own: the one before has said all it had to."""
        await self.phase.answering.wait()
        self._go_on(self._kept(line))
        self.speech.say(line)
        self.speech.finish()
        await self.speech.run()
        await self.phase.answering.wait()
        self._send_rest()

    async def _write(self, text: str) -> None:
        self._mark_first_token()
        if self.plan.speaks:
            self.speech.say(text)
            return
        await self.phase.answering.wait()
        self.response.text_delta(text)

    def _mark_first_token(self) -> None:
        has_thought = self.generation.has_thought
        self.record.note_first_token(self._context.clock(), has_thought=has_thought)

    async def _announce(self, call: ToolCall) -> None:
        """Tell the client of a call, and make it if it changes nothing."""
        await self.phase.answering.wait()
        said = self.generation.round
        if call.call_id in said.named or (said.calls and not self.response.calls_at_once):
            return  # named twice, or the client asked for one at a time
        said.named.add(call.call_id)
        self.generation.tools.call_early(self._add_call(call))

    def _add_call(self, call: ToolCall) -> ToolCall:
        """The call as it goes on: one of an MCP server has the id of its item."""
        response = self.response
        tool = next((tool for tool in response.tools if tool.name == call.name), None)
        if tool is not None and tool.server_label:
            # Not the model's: a service may give every reply's first call the same.
            prefix = "mcpr" if tool.needs_approval else "mcp"
            call = msgspec.structs.replace(call, call_id=self._context.protocol.new_id(prefix))
        self.generation.round.calls.append(call)
        self._context.tap.call(call)
        called = (call.call_id, call.name, call.arguments)
        if tool is None or not tool.server_label:
            response.function_call(call.call_id, call.name)
            response.arguments_done(call.call_id, call.arguments)
        elif tool.needs_approval:
            response.mcp.ask(*called, tool.server_label)
        else:
            response.mcp.begin(*called, tool.server_label)
        return call

    def _tell_results(self, calls: Sequence[PendingCall]) -> None:
        """Tell the results of calls of the session's MCP servers: each stands in the call's own
        item.
        """
        for pending in calls:
            text, is_error = pending.told
            self.response.mcp.finish(pending.call.call_id, text, is_error=is_error)

    # --- spoken ---

    def _mark_audio(self, written_s: float) -> None:
        self.record.mark(Mark.FIRST_CLAUSE, written_s)
        self.record.mark(Mark.FIRST_AUDIO_FRAME, self._context.clock())

    def _emit(self, chunk: Chunk) -> None:
        """A piece of sound; its words' text goes just before it."""
        response, speech = self.response, self.speech
        if chunk.words:
            response.transcript_delta(speech.text.take(chunk.words[-1].text_end))
            response.add_words(speech.in_item(chunk.words))
        self._context.on_sound(chunk.samples, self.plan.output_format.rate)
        data = encode(chunk.samples, self.plan.output_format.encoding)
        response.audio_delta(data, chunk.duration_ms, is_fade=chunk.is_fade)
        if self._context.tap.keeps and not response.closed and response.item_id is not None:
            words, playout = speech.in_item(chunk.words), self.playout
            self._context.tap.say(
                Sounded(chunk.samples, playout.rate_hz, playout.play_end_s, response.item_id, words)
            )
        self.record.mark(Mark.FIRST_AUDIO_QUEUED, self._context.clock())
        self.record.note_held(self.speech.held_ms)

    def _send_rest(self) -> None:
        """The text that has no sound of its own: the last marks, spaces."""
        self.response.transcript_delta(self.speech.text.take(len(self.speech.text.whole)))

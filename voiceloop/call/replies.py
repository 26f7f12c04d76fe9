"""The replies of one call: begun, paused, interrupted, resumed, done.

Owns the reply in the conversation, those out of band beside it, the preemptive reply, and the one
that was interrupted by a sound of which nobody knows yet whether it was said to the agent. And the
wait for the agent's class, which hears of a turn that is over before it is answered.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import Literal

from voiceloop.backends import ToolCall
from voiceloop.call.actions import Step
from voiceloop.call.events import CallEvent, ReplyEnded, TurnPassed
from voiceloop.call.turn_taking import ReplyStatus
from voiceloop.canary.turns import TurnFigures
from voiceloop.errors import BackendError, InternalError, VoiceLoopError
from voiceloop.listening.events import TurnTranscribed, UserTurn
from voiceloop.listening.evidence import CONTINUES_MS
from voiceloop.realtime.commands import CreateResponse
from voiceloop.realtime.items import McpApprovalRequest, Message
from voiceloop.realtime.protocol import Protocol
from voiceloop.realtime.response import ResponseHandle
from voiceloop.realtime.window import Slide
from voiceloop.reply.answerers import FixedAnswer
from voiceloop.reply.context import ReplyContext
from voiceloop.reply.playout import Playout
from voiceloop.reply.preemptive import PreemptiveReplies
from voiceloop.reply.reply import Reply
from voiceloop.reply.reply_text import ReplyText
from voiceloop.telemetry.canary import figures_of
from voiceloop.telemetry.record import Mark, TurnEnd, TurnRecord, WindowSlide
from voiceloop.telemetry.traces import CallTrace

log = logging.getLogger(__name__)

CONTROLS: Mapping[Step, Callable[[Playout], object]] = {
    Step.REDUCE_LEAD: Playout.reduce_lead,
    Step.DUCK: Playout.duck,
    Step.PAUSE: Playout.pause,
    Step.RESUME: Playout.resume,
}


class Replies:
    """`report` is called when one of them is over, from the reply's own task."""

    def __init__(
        self,
        context: ReplyContext,
        report: Callable[[ReplyEnded], None],
        trace: CallTrace,
        n_turns: int = 0,
    ) -> None:
        self._context = context
        self._metrics = metrics = context.metrics
        self._report_end = report
        self.preemptive = PreemptiveReplies(context)
        self.owed = metrics.owed_answer(context.clock)
        self._current: Reply | None = None
        self._interrupted: Reply | None = None
        self._beside: dict[str, Reply] = {}
        # The segment of the newest turn whose caller was asked to wait for its words.
        self._bridged: int | None = None
        self.n_turns = n_turns  # of the agent in the conversation
        self._text = ReplyText()  # of the latest that took the floor, whether or not it is over
        # Each is given the record of every reply that is over.
        self._observers: tuple[Callable[[TurnRecord], None], ...] = (
            metrics.observe_turn,
            *((partial(metrics.observe_agent_turn, name),) if (name := context.agent_name) else ()),
            self._observe_in_trial,
            trace.turn,
            self.preemptive.observe_turn,
            self._tell_client,
        )

    # --- what is known of them ---

    def of(self, response_id: str) -> Reply | None:
        for reply in (self._current, self.preemptive.early):
            if reply is not None and reply.response.id == response_id:
                return reply
        return self._beside.get(response_id)

    def observe_audio(self, response_id: str) -> None:
        """The first sound of this response has been sent."""
        self.owed.end()
        if (reply := self.of(response_id)) is not None:
            reply.record.mark(Mark.FIRST_BYTE_ON_WIRE, self._context.clock())

    def is_heard_in(self, response_id: str) -> bool:
        """Whether this response is that of the reply in the conversation."""
        return self._current is not None and self._current.response.id == response_id

    @property
    def saying(self) -> str:
        """All that the reply in the conversation is made to say so far, heard or not."""
        return self._current.speech.text.whole if self._current is not None else ""

    @property
    def said(self) -> str:
        """The agent's latest words, of a reply that goes on or of the one before."""
        return self._text.whole

    def status(self) -> ReplyStatus | None:
        reply, now_s = self._current, self._context.clock()
        if reply is None:
            return None
        return ReplyStatus(
            reply.response.id,
            is_open=not reply.response.closed,
            is_audible=reply.playout.is_audible(now_s),
            is_spoken=reply.plan.speaks,
            heard_ms=reply.playout.heard_ms(now_s),
            item_heard_ms=reply.speech.item_heard_ms,
            remaining_ms=reply.remaining_ms,
            is_calling=reply.is_calling,
            said_lately=reply.speech.text.said_lately,
            answers=reply.answers,
            released_s=reply.released_s,
            asks_to_wait=reply.is_line,
        )

    # --- the sound of the reply in the conversation ---

    def control_playout(self, step: Step) -> None:
        if (reply := self._current or self.preemptive.early) is None:
            return
        CONTROLS[step](reply.playout)

    # --- begun ---

    def begin(self, response: ResponseHandle, fixed_text: str | None = None) -> None:
        """A reply that answers no spoken turn by itself: to typed words, or to nothing."""
        record = TurnRecord(response.id)
        is_of_call = not response.is_out_of_band and response.request.input is None
        fixed = self._fixed_answer(response) if fixed_text is None and is_of_call else None
        if fixed_text is None and is_of_call:
            self._context.prepared.note_slots(response)
        if fixed is not None:
            record.facts.answered_by = fixed.table
            self._begin(response, record, fixed.text, call=fixed.call)
        else:
            self._begin(response, record, fixed_text)

    def _fixed_answer(self, response: ResponseHandle) -> FixedAnswer | None:
        """Return the fixed answer to what the caller has said last, where the client asks for no
        answer of its own.
        """
        if response.request.instructions is not None:
            return None
        last = response.messages()[-1:]
        if not last or last[0].role != "user":
            return None
        prepared, effort = self._context.prepared, response.reasoning_effort
        fixed = prepared.answer(last[0].content, effort=effort)
        if fixed is not None and fixed.call is not None and not fixed.text:
            offered = [tool.name for tool in response.tools if response.tool_choice != "none"]
            return fixed if fixed.call.name in offered else None
        return fixed

    def acknowledge(self) -> None:
        """Say softly that a group of what the caller dictates was heard."""
        response = self._context.protocol.open_response()
        line = next(self._context.acknowledgements)
        self._begin(response, TurnRecord(response.id), line, is_line=True)
        if self._current is not None:
            self._current.playout.duck()

    def ask_to_wait(self, turn: UserTurn) -> None:
        """Say a line, for the words of this turn are late."""
        self._bridged = turn.segment
        self.owed.owe(turn.decided_s)
        response = self._context.protocol.open_response()
        turn.record.facts.waiting_line = line = next(self._context.waiting_lines)
        self._begin(response, TurnRecord(response.id), line, is_line=True)

    def _begin(
        self,
        response: ResponseHandle,
        record: TurnRecord,
        fixed_text: str | None = None,
        turn: UserTurn | None = None,
        failure: VoiceLoopError | None = None,
        *,
        call: ToolCall | None = None,
        is_line: bool = False,
    ) -> None:
        """failure: why there will be no reply; the fallback is said, or `fixed_text` before it.

        call: made with `fixed_text`.
        """
        before = self._current if not response.is_out_of_band else None
        reply = Reply(
            self._context,
            self._context.plan_of(response, response.messages()),
            record,
            turn=turn,
            fixed_text=fixed_text,
            fixed_call=call,
            failure=failure,
            is_line=is_line,
            was_asked_to_wait=turn is not None and turn.segment == self._bridged,
            not_before_s=before.playout.play_end_s if before is not None else 0.0,
        )
        if response.is_out_of_band:
            self._beside[response.id] = reply
        else:
            self.preemptive.drop()  # it may answer on the branch that this one reads
            self._take_floor(reply)
        reply.release(response).start(self._done)

    def answer(self, turn: UserTurn) -> None:
        """Release the preemptive reply where it is what is asked for, else begin from here."""
        if self._keep_early(turn):
            return
        response = self._context.protocol.open_response()
        pieces = [m.content for m in response.messages()[-1:] if m.role == "user"]
        whole = pieces[0] if pieces else turn.text  # with what was said before, unanswered
        if (fixed := self._context.prepared.answer(whole, turn.text)) is not None:
            turn.record.facts.answered_by = fixed.table
            self._context.prepared.note_slots(response)
            plan = self._context.plan_of(response, response.messages())
            line = self.preemptive.take_line(fixed, plan)
            self.abandon_preparation()
            if line is None:
                self._begin(response, turn.record, fixed.text, turn, call=fixed.call)
            else:
                line.say_line(response, turn, plan, fixed.call)
                self._adopt(line)
            return
        if self._context.prepared.owes(response, turn.words):
            self._context.prepared.note_slots(response)
            self._begin(response, turn.record, turn=turn)  # which looks them up
            return
        self._context.prepared.add(response, turn)
        plan = self._context.plan_of(response, response.messages())
        reply = self.preemptive.take(response, plan, turn)
        if reply is None:
            self._begin(response, turn.record, turn=turn)
            return
        self._adopt(reply)

    def _adopt(self, reply: Reply) -> None:
        reply.on_done = self._done
        self._take_floor(reply)

    def fail(self, turn: UserTurn, error: BackendError, *, is_told: bool) -> None:
        """Fail the reply to this turn; is_told: the fallback is said."""
        response = self._context.protocol.open_response()
        if is_told:
            self._begin(response, turn.record, "", turn, failure=error)
        else:
            response.close("failed", error=error)
            self._metrics.turns.labels(outcome="failed").inc()
            self._metrics.trial.observe_turn(
                self._context.protocol.session_id, TurnFigures(has_failed=True)
            )

    def _take_floor(self, reply: Reply) -> None:
        self.drop_interrupted()
        self.n_turns += 1
        self._current = reply
        if not reply.is_line:
            self._text = reply.speech.text
        is_owed_already = reply.turn is not None and reply.turn.segment == self._bridged
        if reply.plan.speaks and not is_owed_already:
            self.owed.owe(reply.decided_s)

    # --- started early ---

    def _keep_early(self, turn: UserTurn) -> bool:
        """The reply that has started early stays, where it answers this turn; else it goes."""
        early, plan = self.preemptive.early, self.preemptive.plan_to(turn.words)
        if early is None or plan is None:
            self.preemptive.take_back()
            return False
        self._context.prepared.add(early.response, turn)
        reply = self.preemptive.take(early.response, plan, turn)
        if reply is not None:
            self._adopt(reply)
        return reply is not None

    def abandon_preparation(self) -> None:
        """No answer to the staged words will be asked for."""
        self.preemptive.drop()
        self._context.anticipation.abort()

    # --- interrupted ---

    def interrupt_current(
        self, heard_ms: float | None, onset_ms: float, lasting_ms: float, *, may_resume: bool
    ) -> None:
        """The caller has the floor; the others as of `actions.InterruptReply`.

        lasting_ms: since the onset.
        """
        if self._current is not None:
            self._count_cut(self._current, heard_ms, onset_ms, lasting_ms)
            self._interrupt(self._current, heard_ms, may_resume=may_resume)

    def _count_cut(
        self, reply: Reply, heard_ms: float | None, onset_ms: float, lasting_ms: float
    ) -> None:
        """Whether this caller had not finished: a soft cut where the answer was taken back, a hard
        one where it stays and the caller goes on all the same.
        """
        answered = reply.answers
        if heard_ms is None:
            cut: Literal["soft", "hard"] = "soft"
        elif answered is not None and onset_ms - answered.end_ms < CONTINUES_MS:
            cut = "hard"
        else:
            return
        over_ms = reply.heard_over_ms(lasting_ms)
        reply.record.note_cut(cut, over_ms)
        self._metrics.observe_cut(self._context.protocol.session_id, cut, over_ms)

    def cancel(self, response_id: str) -> None:
        """The client has cancelled this response; one that is over is ignored."""
        if (reply := self.of(response_id)) is not None:
            self._interrupt(reply, reply.speech.item_heard_ms)

    def _interrupt(
        self,
        reply: Reply,
        heard_ms: float | None,
        *,
        may_resume: bool = False,
        is_told: bool = False,
    ) -> None:
        """Silence the reply and let its item hold what was heard; None: as if never said.

        is_told: the client knows how much that is, for it has said so itself.
        """
        heard, item_id = "", reply.response.item_id
        reply.playout.pause()
        if reply.response.speaks and item_id is not None and not reply.response.is_out_of_band:
            spoken = self._context.protocol.spoken
            if heard_ms is not None:
                heard = spoken.cut(item_id, heard_ms)
            if heard_ms is None or reply.is_line:
                spoken.retract(item_id)
            if not is_told:
                self._context.protocol.note_cut(item_id, heard_ms or 0.0)
            sounded_ms = reply.speech.item_heard_ms if heard_ms is None else heard_ms
            self._context.tap.cut(item_id, sounded_ms)
        reply.interrupt(heard, heard_ms or 0.0)
        if may_resume:
            self._current, self._interrupted = None, reply
        else:
            reply.cancel()

    def truncate(self, item_id: str, audio_end_ms: float) -> None:
        """The client knows better than the playout how much of an item it has played.

        Some say 0 who do not know: of an interrupted reply, what is too long ago to be said again
        counts as heard, so that the text goes on where the sound does.
        """
        interrupted, current = self._interrupted, self._current
        if interrupted is not None and interrupted.response.item_id == item_id:
            heard_ms = interrupted.speech.resumable_from_ms(audio_end_ms)
            heard = self._context.protocol.spoken.cut(item_id, heard_ms)
            interrupted.interrupt(heard, heard_ms)
        if current is not None and current.response.item_id == item_id:
            current.playout.pause()
            current.response.close("cancelled", "client_cancelled")
            # The close put the whole text into the item.
            self._interrupt(current, audio_end_ms, is_told=True)

    def drop_interrupted(self) -> None:
        reply, self._interrupted = self._interrupted, None
        if reply is not None:
            reply.cancel()

    def resume_interrupted(self) -> bool:
        """A false interruption: the reply goes on in another response. Whether there is one to.

        One that failed meanwhile says so there: with its own response over, nobody has heard.
        """
        reply, self._interrupted = self._interrupted, None
        if reply is None:
            return False
        response = self._context.protocol.open_response(reply.response.request)
        if reply.failure is not None:
            response.close("failed", error=reply.failure)
            return False
        self._current = reply
        reply.resume_in(response)
        return True

    # --- done ---

    def _done(self, reply: Reply) -> None:
        self._beside = {id_: other for id_, other in self._beside.items() if other is not reply}
        had_floor = self._current is reply
        if had_floor:
            self._current = None
        is_told = reply.failure is None or reply.response.status == "failed"
        if self._interrupted is reply and is_told:
            self._interrupted, had_floor = None, True
        if reply.plan.speaks and not reply.response.is_out_of_band:
            conversation = self._context.protocol.conversation
            open_calls = (
                call
                for call in reply.generation.round.open_calls
                if not conversation.is_answered(call.call_id)  # while it was spoken
                and not isinstance(conversation.get(call.call_id), McpApprovalRequest)
            )
            self._context.tools.expect(open_calls)
        if reply.failure is None and not reply.response.is_out_of_band:
            self.owed.waive()  # it had nothing to say
        self._report(reply)
        line_said = None
        if reply.is_line:  # no model reads that it was said
            line_said = reply.outcome == "completed"
            if (item_id := reply.response.item_id) is not None:
                self._context.protocol.spoken.retract(item_id)
        self._report_end(ReplyEnded(had_floor, line_said, reply.act if had_floor else None))

    def _report(self, reply: Reply) -> None:
        """Log why it failed, and show the finished record to all who observe it."""
        failure, protocol = reply.failure, self._context.protocol
        if failure is not None and not isinstance(failure, InternalError):  # whose traceback is out
            log.warning("a reply failed (%s): %s", failure.wire_code, failure.message)
        item = protocol.conversation.get(reply.response.item_id or "")
        slide, (n_called, n_wrong) = protocol.shown.take_slide(), reply.generation.rounds.called
        end = TurnEnd(
            reply.outcome or "failed",
            reply.usage,
            reply.speech.wasted_ms,
            n_tool_calls=n_called,
            n_wrong_tool_calls=n_wrong,
            window=_slid(slide) if slide is not None else None,
            heard=reply.answers.text if reply.answers is not None else "",
            said=item.text if isinstance(item, Message) else "",
            used=reply.used,
        )
        if (hooks := self._context.hooks) is not None:
            reply.record.facts.hooks = hooks.take_uses() or None
        self._context.charge(reply.used)
        reply.record.finish(end)
        for observe in self._observers:
            observe(reply.record)
        is_private = self._context.prepared.is_private()
        self._context.tap.turn(reply.record, is_private=is_private)

    def _observe_in_trial(self, record: TurnRecord) -> None:
        self._metrics.trial.observe_turn(self._context.protocol.session_id, figures_of(record))

    def _tell_client(self, record: TurnRecord) -> None:
        self._context.protocol.timeline(record.payload())


def _slid(slide: Slide) -> WindowSlide:
    when: Literal["in silence", "in the turn"] = "in silence" if slide.is_ahead else "in the turn"
    return WindowSlide(when, slide.n_items, slide.n_facts)


class BeforeReply:
    """The hook `before_reply` of the agent that `context` is of. advance: of the call's one loop.

    A spoken turn's words come a moment later, as words do that a recognizer is late with: whatever
    happens meanwhile is known to turn-taking, and what is prepared stays.
    """

    def __init__(
        self,
        context: ReplyContext,
        protocol: Protocol,
        clock: Callable[[], float],
        advance: Callable[[CallEvent], None],
    ) -> None:
        hooks = context.hooks
        self._hooks = hooks if hooks is not None and hooks.has("before_reply") else None
        self._context = context
        self._protocol = protocol
        self._clock = clock
        self._advance = advance
        # Of which turn's item it was asked last, for it is asked once, and the asking.
        self._asked: tuple[str | None, asyncio.Task[None] | None] = None, None

    def holds(self, event: CallEvent, item_ids: Mapping[int, str]) -> bool:
        """Whether this is a turn's words, of which the class is to hear first: they come again, as
        `TurnPassed`. item_ids: of turns, by segment.
        """
        hooks = self._hooks
        if hooks is None or not isinstance(event, TurnTranscribed) or not event.turn.words:
            return False
        turn, transcribed = event.turn, event
        item_id = item_ids.get(turn.segment)

        async def ask() -> None:
            await self._context.prepared.ask_before(hooks, turn.text, item_id)
            turn.record.mark(Mark.CLASS_ASKED, self._clock())
            self._advance(TurnPassed(transcribed))

        self._begin(ask(), item_id)
        return True

    def respond(self, command: CreateResponse) -> None:
        """Answer what the client asks for; to typed words once the class has heard them."""
        response, hooks = command.response, self._hooks
        if response.closed:
            return
        last = response.messages()[-1:]
        is_turn = bool(last) and last[0].role == "user" and response.request.input is None
        item_id, (asked_of, asking) = self._protocol.conversation.newest_turn_id, self._asked
        is_asked = item_id is not None and item_id == asked_of
        is_over = is_asked and (asking is None or asking.done())
        if hooks is None or not is_turn or response.is_out_of_band or is_over:
            self._advance(command)
            return
        words = last[0].content

        async def ask() -> None:
            if is_asked and asking is not None:
                await asyncio.wait({asking})
            else:
                await self._context.prepared.ask_before(hooks, words, item_id)
            if not response.closed:
                self._advance(command)

        self._begin(ask(), item_id)

    def _begin(self, asking: Coroutine[None, None, None], item_id: str | None) -> None:
        self._asked = item_id, self._context.tasks.create_task(asking, name="before_reply")

"""The turns of one session: begun, cut short, taken up again, done.

Owns the turn in the conversation, those beside it, the reply drafted ahead, and the turn that a
sound cut short of which nobody knows yet whether it was said to the agent.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from voiceloop.config import Ahead
from voiceloop.errors import InternalError, VoiceLoopError
from voiceloop.listening.events import UserTurn
from voiceloop.realtime.response import ResponseHandle
from voiceloop.reply.context import ReplyContext
from voiceloop.reply.plan import plan_of_response
from voiceloop.reply.preemptive import PreemptiveReplies
from voiceloop.reply.reply import Reply
from voiceloop.telemetry import Metrics, TurnTimeline, anticipation_facts

log = logging.getLogger(__name__)


class Replies:
    """`on_done` is called when one of them is over."""

    def __init__(
        self,
        context: ReplyContext,
        metrics: Metrics,
        tasks: asyncio.TaskGroup,
        ahead: Ahead,
        on_done: Callable[[], None],
    ) -> None:
        self.drafts = PreemptiveReplies(context, metrics, tasks, ahead)
        self.current: Reply | None = None
        self.suspended: Reply | None = None
        self._context = context
        self._metrics = metrics
        self._tasks = tasks
        self._on_done = on_done
        self._beside: dict[str, Reply] = {}

    def of(self, response_id: str) -> Reply | None:
        """The turn that answers in this response."""
        turns = (turn for turn in (self.current, *self._beside.values()) if turn is not None)
        return next((turn for turn in turns if turn.response.id == response_id), None)

    # --- begun ---

    def begin(
        self,
        response: ResponseHandle,
        timeline: TurnTimeline,
        fixed_text: str | None = None,
        answers: UserTurn | None = None,
        failure: VoiceLoopError | None = None,
    ) -> None:
        """failure: why there will be no reply; the fallback is said, or `fixed_text` before it."""
        before = self.current if not response.is_out_of_band else None
        turn = Reply(
            self._context,
            plan_of_response(response, self._context.agent),
            timeline,
            fixed_text=fixed_text,
            failure=failure,
            not_before_s=before.play_end_s if before is not None else 0.0,
        )
        turn.answers = answers
        if response.is_out_of_band:
            self._beside[response.id] = turn
        else:
            self.drafts.drop()  # it may answer on the branch that they read
            self._speaks(turn)
        turn.release(response).start(self._tasks, self._done)

    def answer(self, response: ResponseHandle, owed: UserTurn) -> None:
        """Release the draft where it is what is asked for, else begin from here."""
        crisis = self._context.agent.crisis
        whole = [m.content for m in response.messages()[-1:] if m.role == "user"]  # of all pieces
        if any(crisis.answers(said) for said in (owed.text, *whole)):
            self.forget_ahead()
            self.begin(response, owed.timeline, crisis.answer, answers=owed)
            return
        plan = plan_of_response(response, self._context.agent)
        draft = self.drafts.take(response, plan, owed)
        if draft is None:
            self.begin(response, owed.timeline, answers=owed)
            return
        draft.answers, draft.on_done = owed, self._done
        self._speaks(draft)

    def _speaks(self, turn: Reply) -> None:
        self.drop_suspended()
        self.current = turn

    def forget_ahead(self) -> None:
        """What was done for the answer is for nothing."""
        self.drafts.drop()
        self._context.anticipation.abort()

    # --- cut short ---

    def stop(self, turn: Reply, heard_ms: float | None, *, for_good: bool = True) -> None:
        """Silence the turn, of whose item so much was heard; unless for good it may go on.

        heard_ms None: what was heard of it counts as never said.
        """
        heard, item_id = "", turn.response.item_id
        turn.pause()
        if turn.response.speaks and item_id is not None and not turn.response.is_out_of_band:
            conversation = self._context.protocol.conversation
            if heard_ms is None:
                conversation.retract(item_id)
            else:
                heard = conversation.cut(item_id, heard_ms)
        turn.interrupt(heard, heard_ms or 0.0)
        if for_good:
            turn.cancel()
        else:
            self.current, self.suspended = None, turn

    def heard_only(self, item_id: str, heard_ms: float) -> None:
        """The client says how much it played of the item: of a turn cut short it knows better.

        Some say 0 who do not know: what is too long ago to be said again counts as heard, so that
        the text goes on where the sound does.
        """
        turn = self.suspended
        if turn is not None and turn.response.item_id == item_id:
            heard_ms = turn.resumable_from_ms(heard_ms)
            turn.interrupt(self._context.protocol.conversation.cut(item_id, heard_ms), heard_ms)

    def drop_suspended(self) -> None:
        """It was cut short by somebody who spoke to it."""
        turn, self.suspended = self.suspended, None
        if turn is not None:
            turn.cancel()

    def take_up(self) -> None:
        """What cut the suspended turn short was nobody: it goes on in another response.

        One that failed meanwhile says so there: with its own response over, nobody has heard.
        """
        turn, self.suspended = self.suspended, None
        assert turn is not None
        if turn.failure is not None:
            response = self._context.protocol.open_response(turn.response.request)
            response.close("failed", error=turn.failure)
            return
        self.current = turn
        turn.resume_in(self._context.protocol.open_response(turn.response.request))

    # --- done ---

    def _done(self, turn: Reply) -> None:
        self._beside = {id_: t for id_, t in self._beside.items() if t is not turn}
        if self.current is turn:
            self.current = None
        is_told = turn.failure is None or turn.response.status == "failed"
        if self.suspended is turn and is_told:
            self.suspended = None
        outcome, failure = turn.outcome or "failed", turn.failure
        if failure is not None and not isinstance(failure, InternalError):  # whose traceback is out
            log.warning("a reply failed (%s): %s", failure.wire_code, failure.message)
        turn.timeline.facts["outcome"] = outcome
        self._metrics.observe_turn(turn.timeline, outcome)
        self._metrics.observe_work(turn.usage, turn.wasted_audio_ms)
        self.drafts.observe_waste(turn)
        facts = turn.timeline.facts
        facts["anticipation"] = anticipation_facts(
            turn.usage, turn.wasted_audio_ms, facts.pop("draft", "none")
        )
        self._context.protocol.timeline(turn.timeline.payload())
        self._on_done()

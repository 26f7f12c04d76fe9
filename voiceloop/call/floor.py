"""Who has the floor: the caller, the agent, or for a moment both.

Owns every change of speaker in one session: the caller begins, is judged while the agent speaks,
ends, is answered. One rule keeps the call alive: an answer that is owed is given as
soon as nobody speaks and nothing is being answered (`_settle`, called at every transition).
"""

from __future__ import annotations

import asyncio

from voiceloop.call.idleness import Idleness
from voiceloop.call.interruption import Interruption
from voiceloop.call.replies import Replies
from voiceloop.config import Ahead
from voiceloop.errors import BackendError
from voiceloop.listening.events import Activity, Awaited, UserTurn
from voiceloop.listening.listener import Listener
from voiceloop.realtime.response import ResponseHandle
from voiceloop.realtime.settings import ServerVad, SessionSettings
from voiceloop.reply.context import ReplyContext
from voiceloop.reply.reply import Reply
from voiceloop.telemetry import Metrics, TurnTimeline


class Floor:
    """The listener's `Ear`, and what the client's commands do to the turns."""

    def __init__(
        self,
        context: ReplyContext,
        metrics: Metrics,
        tasks: asyncio.TaskGroup,
        ahead: Ahead,
    ) -> None:
        self._context = context
        self._protocol = context.protocol
        self._agent = context.agent
        self._metrics = metrics
        self._interruption = Interruption(context.agent.barge_in, metrics, context.clock)
        self._turns = Replies(context, metrics, tasks, ahead, self._settle)
        self._reads_p_end = ahead.p_end
        self._activity: Activity | None = None
        self._caller_open = False  # the wire has heard that the caller speaks
        self._item_id = ""  # the open user item's
        self._closed = False
        self._idleness = Idleness(self._prompt_idle_caller)
        self._awaited: dict[int, Awaited] = {}
        self._deferred: list[ResponseHandle] = []  # asked for before the words were known
        self._owed: UserTurn | None = None
        self.listener: Listener  # set by the session right after: they know each other

    # --- state ---

    def turn_of(self, response_id: str) -> Reply | None:
        """The turn that answers in this response."""
        return self._turns.of(response_id)

    @property
    def _turn(self) -> Reply | None:
        """The turn in the conversation."""
        return self._turns.current

    @property
    def _settings(self) -> SessionSettings:
        return self._protocol.settings

    async def until_idle(self) -> None:
        """Wait for a moment in which nobody speaks and nothing is owed."""
        self._observe_idleness()
        await self._idleness.wait()

    def _agent_has_floor(self) -> bool:
        """The agent speaks or is about to, and the caller may take that from it."""
        turn = self._turn
        if turn is None or not self._interrupts(self._settings):
            return False
        return not turn.response.closed or turn.is_audible

    @staticmethod
    def _interrupts(settings: SessionSettings) -> bool:
        detection = settings.turn_detection
        return detection is not None and detection.interrupt_response

    # --- the caller (Ear) ---

    def on_sound(self, lasting_ms: float | None) -> None:
        if self._turn is not None and self._agent_has_floor():
            self._interruption.suspect(self._turn, lasting_ms)

    def on_speech_onset(self, activity: Activity) -> None:
        self._interruption.reset()
        self.on_activity(activity)

    def on_activity(self, activity: Activity) -> None:
        self._activity = activity
        if self._caller_open:
            if activity.silence_ms == 0.0:
                self._turns.drafts.rest()
            return
        if not self._agent_has_floor():
            self._caller_begins(activity)
            return
        assert self._turn is not None
        action = self._interruption.judge(activity, self._turn)
        if self._interruption.takes_back(activity, self._turn):
            self._caller_begins(activity, interrupts=self._turn, retracts=True)
            return
        match action:
            case "hold":
                self.listener.ask_for_words()
            case "stop":
                self._caller_begins(activity, interrupts=self._turn)
            case "resume":
                self.listener.discard()

    def on_words(self, stable: tuple[str, ...], unstable: tuple[str, ...], *, full: bool) -> None:
        if self._caller_open or self._settings.turn_detection is None:
            self._context.anticipation.observe_words(stable, unstable, full=full)
            if self._caller_open:
                if stable:
                    self._turns.drop_suspended()
                self._protocol.partial(self._item_id, " ".join(stable), " ".join(unstable))
        elif self._activity is not None and self.listener.in_speech:
            self._interruption.observe_words(stable + unstable)
            self.on_activity(self._activity)

    def on_p_end(self, words: tuple[str, ...], p_end: float | None) -> None:
        """The language model's P(end of turn) after these words of the open turn."""
        self.listener.observe_p_end(words, p_end if self._reads_p_end else None)
        detection, paused_ms = self._settings.turn_detection, self.listener.paused_ms
        answers = detection is not None and detection.create_response
        if self._caller_open and paused_ms is not None and answers and self._turn is None:
            self._turns.drafts.consider(words, p_end, paused_ms, self.listener.needed_ms)

    def on_turn_ending(self, segment: int, end_ms: float, hypothesis: tuple[str, ...]) -> bool:
        if not self._caller_open:
            if self._agent_has_floor() and not self._takes_floor_late(hypothesis):
                return False  # its words, if any, are nobody's: `on_turn` finds nothing awaited
            assert self._activity is not None
            if not self._caller_open:
                self._caller_begins(self._activity)
        self._caller_open = False
        self._protocol.speech_stopped(end_ms)
        item_id = self._protocol.commit_input() if hypothesis else None
        if item_id is not None:
            self._turns.drop_suspended()
        detection = self._settings.turn_detection
        respond = detection is not None and detection.create_response
        respond = respond and self._settings.type == "realtime"
        self._awaited[segment] = Awaited(item_id, respond)
        return True

    def _takes_floor_late(self, hypothesis: tuple[str, ...]) -> bool:
        """The turn ended before the judge was sure: words decide, else the agent goes on."""
        assert self._turn is not None and self._activity is not None
        if self._interruption.takes_floor(hypothesis, self._activity, self._turn):
            self._caller_begins(self._activity, interrupts=self._turn)
            return True
        self._let_agent_go_on()
        return False

    def on_turn(self, turn: UserTurn) -> None:
        awaited = self._awaited.pop(turn.segment, None)
        if awaited is None:
            return
        item_id = awaited.item_id
        if item_id is None and turn.words:
            item_id = self._commit_late()
        if item_id is not None or not awaited.respond:
            self._turns.drop_suspended()
        if item_id is None:
            self._forget_input()
        else:
            seconds = (turn.end_ms - turn.onset_ms) / 1000.0
            self._protocol.transcription_completed(item_id, turn.text, seconds)
            if awaited.respond:
                self._owed = turn
        self._settle()

    def on_turn_failed(self, turn: UserTurn, error: BackendError) -> None:
        awaited = self._awaited.pop(turn.segment, None)
        if awaited is None:
            return
        # Whether the sound held words nobody can tell now: the client hears of it either way.
        item_id = awaited.item_id or self._commit_late()
        self._turns.drop_suspended()
        if not self._caller_open:
            self._turns.forget_ahead()
        self._protocol.transcription_failed(item_id, error.message)
        if awaited.respond and self._protocol.active_response is None:
            response = self._protocol.open_response()
            if self._caller_open:  # who has begun again is not spoken over
                response.close("failed", error=error)
                self._metrics.turns.labels(outcome="failed").inc()
            else:
                self._turns.begin(response, turn.timeline, "", failure=error)
        self._settle()

    def _commit_late(self) -> str:
        """Words came where none were expected; the caller may be speaking again already."""
        item_id = self._protocol.commit_input()
        if self._caller_open and self._activity is not None:
            self._item_id = self._protocol.speech_started(self._activity.onset_ms)
        return item_id

    def _forget_input(self) -> None:
        """What was heard held no words."""
        if not self._caller_open:
            self._protocol.drop_input()
            self._turns.forget_ahead()

    def _caller_begins(
        self, activity: Activity, interrupts: Reply | None = None, *, retracts: bool = False
    ) -> None:
        """The caller has the floor. The wire hears of it before anything else.

        retracts: the caller had not finished: what was said of the answer counts as never said.
        """
        heard_ms = interrupts.item_heard_ms if interrupts and not retracts else None
        if interrupts is not None:
            interrupts.pause()  # fades out, unless it was silent already
        self._caller_open = True
        self._item_id = self._protocol.speech_started(activity.onset_ms)
        if interrupts is not None:
            if self._owed is None and (retracts or interrupts.heard_ms == 0.0):
                self._owed = interrupts.answers  # nothing of it was heard: it is owed still
            is_speech = self._interruption.is_in_words or not interrupts.plan.speaks
            for_good = is_speech or self._owed is not None
            self._turns.stop(interrupts, heard_ms, for_good=for_good)
        self._interruption.reset()  # where the reply ended under the sound, too
        self._turns.drafts.reset()
        self._idleness.stop()
        self._anticipate()

    def _anticipate(self) -> None:
        history = self._protocol.conversation.messages(self._settings.instructions)
        self.listener.observe_history(history)
        self._context.anticipation.open(history, self._settings.tools)

    # --- the agent ---

    def close(self) -> None:
        """The session is over: no turn begins any more."""
        self._closed = True
        self._idleness.stop()

    def _settle(self) -> None:
        """Give what is due, where nothing stands in the way."""
        if self._closed:
            return
        if not self._awaited and not self._caller_open:
            deferred, self._deferred = self._deferred, []
            for response in deferred:
                if not response.closed:
                    self._begin_turn(response)
        is_taken = self._protocol.active_response or self._caller_open or self._awaited
        if self._owed is not None and not is_taken:
            owed, self._owed = self._owed, None
            self._turns.answer(self._protocol.open_response(), owed)
        elif self._turns.suspended is not None and not is_taken:  # what stopped it was no word
            self._turns.take_up()
        self._observe_idleness()

    def _observe_idleness(self) -> None:
        detection = self._settings.turn_detection
        timeout_ms = detection.idle_timeout_ms if isinstance(detection, ServerVad) else None
        is_quiet = self._turn is None and self._turns.suspended is None
        is_idle = is_quiet and not self._caller_open and self._owed is None
        self._idleness.observe(is_idle, timeout_ms=timeout_ms, now_ms=self.listener.now_ms)

    def _prompt_idle_caller(self, since_ms: float) -> None:
        """The caller has said nothing for so long: the agent speaks."""
        if not (self._closed or self._protocol.active_response or self.listener.in_speech):
            self._protocol.idle_timeout(since_ms, self.listener.now_ms)
            self._speak_first()

    def greet(self) -> None:
        """The agent speaks first, unless somebody has begun."""
        if self._turn is None and not self._caller_open and not self._protocol.active_response:
            self._speak_first(self._agent.greeting)

    def _speak_first(self, fixed_text: str | None = None) -> None:
        """A reply that answers no turn of the caller."""
        self._begin_turn(self._protocol.open_response(), fixed_text)

    def _begin_turn(self, response: ResponseHandle, fixed_text: str | None = None) -> None:
        self._turns.begin(response, TurnTimeline(response.id), fixed_text)
        if not response.is_out_of_band:
            self._owed = None

    # --- the client's commands ---

    def hear(self, samples: bytes) -> None:
        if self._settings.turn_detection is None and not self._context.anticipation.is_open:
            self._anticipate()
        self.listener.feed(samples)

    def commit(self, item_id: str) -> None:
        """The client ended the caller's turn; it will ask for the answer itself."""
        self._caller_open = False
        self._turns.drop_suspended()
        self._let_agent_go_on()
        self._awaited[self.listener.commit()] = Awaited(item_id, respond=False)

    def clear(self) -> None:
        self._caller_open = False
        self._turns.drop_suspended()
        self._let_agent_go_on()
        self.listener.discard()
        self._turns.forget_ahead()
        self._settle()

    def _let_agent_go_on(self) -> None:
        """The sound that ducked or held the agent is nobody's any more: no silence will end it."""
        self._interruption.reset()
        if self._turn is not None:
            self._turn.resume()

    def create_response(self, response: ResponseHandle) -> None:
        is_early = self._awaited or (self._caller_open and not response.is_out_of_band)
        if is_early and response.request.input is None:
            self._deferred.append(response)  # its prompt lacks the caller's words so far
        else:
            self._begin_turn(response)

    def cancel_response(self, response_id: str | None) -> None:
        """None: whichever was cut short and may go on."""
        suspended = self._turns.suspended
        if response_id is not None and (turn := self.turn_of(response_id)) is not None:
            self._turns.stop(turn, turn.item_heard_ms)
            if turn is self._turn:
                self._interruption.reset()
        elif suspended is not None and response_id in (None, suspended.response.id):
            self._turns.drop_suspended()
            self._settle()

    def truncate(self, item_id: str, audio_end_ms: float) -> None:
        """The client has stopped playing this item there."""
        self._turns.heard_only(item_id, audio_end_ms)
        turn = self._turn
        if turn is not None and turn.response.item_id == item_id:
            turn.pause()
            turn.response.close("cancelled", "client_cancelled")
            # The close has put the whole text into the item.
            self._turns.stop(turn, audio_end_ms)

    def settings_changed(self, previous: SessionSettings, current: SessionSettings) -> None:
        self.listener.configure(current)
        if not self._interrupts(current):
            self._let_agent_go_on()
        if current.turn_detection is not None:
            return
        self._turns.drop_suspended()
        if self._caller_open:
            self._caller_open = False
            self._protocol.drop_input()
            self._turns.forget_ahead()
            self._settle()

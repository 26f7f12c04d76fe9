"""One call: what was heard, what turn-taking decides, and the doing of it.

Owns the one loop of a call (`advance`): an event to turn-taking, its actions done here at once,
without waiting, and what they bring about to turn-taking again, until nothing is left to do. Here
alone decisions meet the protocol, the listener and the replies.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections import deque
from collections.abc import Iterable, Sequence
from functools import partial

from voiceloop.backends import ToolCall
from voiceloop.call import actions as do
from voiceloop.call import events as told
from voiceloop.call.actions import Step
from voiceloop.call.acts import CallActs, EndCall, HandOn
from voiceloop.call.connection import Transport
from voiceloop.call.events import CallEvent
from voiceloop.call.keys import KeysTurn
from voiceloop.call.mcp import servers_of
from voiceloop.call.privacy import Privacy
from voiceloop.call.replies import BeforeReply, Replies
from voiceloop.call.services import Answering
from voiceloop.call.turn_taking import Agent, CallStatus, TurnTaking
from voiceloop.listening.item_audio import ItemAudio
from voiceloop.listening.listener import LONGEST_TURN_MS, Listener, ListenerOptions
from voiceloop.realtime import commands as asked
from voiceloop.realtime.items import FunctionCallOutput, McpApprovalResponse
from voiceloop.realtime.protocol import Protocol
from voiceloop.reply.context import ReplyContext
from voiceloop.telemetry.traces import CallTrace
from voiceloop.tools.pending import SessionTools

log = logging.getLogger(__name__)

SLICE_MS = 20  # audio heard at once: less than a window of the voice detector (`Listener.feed`)
N_SLICES = 10  # between two looks at other tasks: a minute in one frame must not stall other calls
UNANSWERED = json.dumps({"error": "no answer in time: tell the caller that it did not work"})


class Call:
    """One call, with who answers it. tasks: of its session; end: ends that; hand_on: has another
    agent go on with the call, where there is one.
    """

    def __init__(
        self,
        protocol: Protocol,
        answering: Answering,
        transport: Transport,
        tasks: asyncio.TaskGroup,
        trace: CallTrace,
        end: EndCall,
        hand_on: HandOn,
    ) -> None:
        agent, services, backends = answering
        settings, ahead = protocol.settings, services.config.anticipation
        self._hello = hello = transport.hello
        self._protocol = protocol
        self._tasks, self._trace = tasks, trace
        self._metrics = services.metrics
        self._clock = services.clock
        self._began_s = services.clock()
        self._reads_p_end = ahead.does("p_end") and backends.capabilities.reads_turn_ends
        self._slides = ahead.does("slide")
        self._tools = SessionTools(
            services.toolbox, tasks, self._record_result, hello.caller(protocol.session_id),
            calls_ahead=ahead.does("tool_calls"),
            client_timeout_ms=agent.tool_timeout_ms,
            on_overdue=self._fail_tool_calls,
            turns=protocol.conversation, language=agent.language, ask=protocol.ask_to_confirm,
        )  # fmt: skip
        self.tap = services.begin_tap(agent, hello, protocol.session_id)
        self._answer_by(answering)
        self._mcp = servers_of(backends.capabilities, protocol, self._tools, tasks, self.advance)
        self._item_audio = ItemAudio(backends.recognizer, protocol, tasks)
        self._listener = Listener(
            recognizer=backends.recognizer,
            options=self._listener_options(),
            settings=settings,
            vad=services.new_vad(),
            clock=services.clock,
            stream_id=protocol.session_id,
            deliver=self.advance_all,
            longest_turn_ms=LONGEST_TURN_MS,
            keeps_sound=backends.hears,
        )
        self._context.on_sound = self._listener.observe_played
        self._acts = CallActs(
            agent, protocol, tasks, services.clock, self.advance_all, end, hand_on,
            lambda text: self._context.spoken(text), transport.phone, self.tap,
        )  # fmt: skip
        self.idleness = self._acts.idleness
        if hello.phone is not None:
            watching = self._acts.watch_silence(
                lambda: self._replies.n_turns, lambda: self._turn_taking.waits
            )
            tasks.create_task(watching, name="silence")
        self._turn_taking = TurnTaking(agent.barge_in, agent.language)
        self._keys = KeysTurn(self.advance, services.clock)
        self._open_item_id = ""  # the user's, while the caller has the floor
        self._item_ids: dict[int, str] = {}  # by segment: whose words are still to come
        self._events: deque[CallEvent] = deque()  # to be acted on, by `advance_all` alone
        self._is_advancing = False
        tasks.create_task(self._listener.run(), name="listener")

    def _answer_by(self, answering: Answering, n_turns: int = 0) -> None:
        """Make what is of an agent. n_turns: of the agent's in the conversation so far."""
        agent, services, backends = answering
        self._agent = agent
        self._context = context = ReplyContext(
            services, backends, agent, self._protocol, self._tasks, self._tools,
            self._hello.allowance, self._hello.tenant,
            lambda words, p_end: self.advance_all(self._weigh(words, p_end)), self.tap,
        )  # fmt: skip
        context.configure(self._protocol.settings)
        self.hooks = context.hooks
        self._anticipation, self._retrieval = context.anticipation, context.retrieval
        self._replies = Replies(context, self.advance, self._trace, n_turns)
        self._privacy = Privacy(agent.slots, context.prepared)
        self._before = BeforeReply(context, self._protocol, self._clock, self.advance)

    def _listener_options(self) -> ListenerOptions:
        agent, ahead = self._agent, self._context.ahead
        return ListenerOptions(
            agent.recognizer_options(self._protocol.settings),
            agent.slots,
            starts_early=ahead.does("early_start") and agent.barge_in.is_allowed,
            words_late_s=agent.waiting.late_s,
            tells_groups=bool(agent.waiting.acknowledge),
        )

    def take_agent(self, answering: Answering) -> None:
        """The agent's file was saved: its answers, lines and rules hold from the next reply on."""
        self._agent = agent = answering.agent
        self._context.take_agent(agent, answering.services.answers)
        self._acts.take(agent.call)

    def hand_to(self, answering: Answering) -> None:
        """Another agent goes on: nobody speaks, and the session has its settings already."""
        agent = answering.agent
        self._replies.abandon_preparation()
        self._replies.drop_interrupted()
        self._context.close()
        self._tools.take(answering.services.toolbox, agent.tool_timeout_ms, agent.language)
        self._answer_by(answering, self._replies.n_turns)
        self._context.on_sound = self._listener.observe_played
        self._listener.take(self._listener_options())
        self._turn_taking.take(agent.barge_in, agent.language)
        self._acts.take(agent.call)

    # --- what the session asks ---

    @property
    def n_turns(self) -> int:
        """The agent's turns in the conversation so far."""
        return self._replies.n_turns

    def kept_slots(self) -> dict[str, str]:
        return self._context.prepared.kept_slots()

    async def until_idle(self) -> None:
        if not self._turn_taking.is_idle:
            await self.idleness.wait()

    def observe_audio(self, response_id: str) -> None:
        """Note that sound of this response has been sent."""
        self._replies.observe_audio(response_id)
        if self._turn_taking.agent is Agent.PREPARING and self._replies.is_heard_in(response_id):
            self.advance(told.ReplyAudible())

    def end(self) -> None:
        """Wait for nothing any more, and answer nothing."""
        self._replies.owed.end()
        self._tools.close()
        self._context.end()
        self._keys.cancel()
        self.advance(told.CallEnding())

    # --- what the client asks ---

    def expect_outputs(self, calls: Iterable[ToolCall]) -> None:
        """Wait for the client's outputs of these calls: they were open as the call was resumed."""
        self._tools.expect(calls)

    def settle(self) -> None:
        """Act on a sound that the client has stopped sending, before what it asks now."""
        if settled := self._listener.settle():
            self.advance_all(settled)

    def obey(self, command: asked.Command) -> None:
        match command:
            case asked.CreateResponse():
                self._item_audio.then(partial(self._before.respond, command))
            case asked.SettingsChanged(previous=previous, current=current):
                self._listener.configure(current)
                if self._mcp is not None:
                    self._mcp.configure()
                if self._context.configure(current):
                    self._follow_model()
                self.advance(command)
                options = self._agent.recognizer_options(current)
                if options != self._agent.recognizer_options(previous):
                    self._listener.set_options(options)
            case asked.ItemCreated(item=item, audio=audio) if audio:
                settings = self._protocol.settings
                options = self._agent.recognizer_options(settings)
                self._item_audio.hear(item.id, audio, settings.input_format, options)
            case asked.ItemCreated(item=item):
                if isinstance(item, FunctionCallOutput):
                    self.tap.result(item.call_id, item.output)
                    self._tools.observe_output(item.call_id)  # the next turn reads it
                elif isinstance(item, McpApprovalResponse) and self._mcp is not None:
                    self._mcp.observe(item)
            case asked.AnswerConfirmation(call_id=call_id, is_allowed=is_allowed):
                if not self._tools.allow(call_id, is_allowed=is_allowed):
                    self._protocol.note_unknown_call(call_id)
            case asked.ItemDeleted(item_id=item_id):
                self._item_audio.forget(item_id)
            case asked.PressKey(key=key):
                self._press(key)
            case asked.CommitAudio(item_id=item_id):
                if self._privacy.has_secrets and self._protocol.settings.turn_detection is None:
                    self._privacy.open_turn(self._replies.saying)
                segment = self._listener.commit()
                self._privacy.commit(segment)
                self._item_ids[segment] = item_id
                self.advance(told.SegmentCommitted(segment))
            case asked.TruncateItem(item_id=item_id, audio_end_ms=audio_end_ms):
                self._replies.truncate(item_id, audio_end_ms)
                self.tap.cut(item_id, audio_end_ms)
                self._follow_history()
                self.advance_all(())
            case _:
                self.advance(command)

    def _press(self, key: str) -> None:
        """A key of the caller's telephone: told, unless it is part of a sensitive answer."""
        if not self._keys.is_open:
            question = self._replies.saying
            self._privacy.open_turn(question)
            self._keys.begin(self._privacy.n_keys, self._privacy.hide)
        if self._privacy.slot is None:
            self._protocol.key_received(key, int(time.time()))
        if self._protocol.settings.turn_detection is not None:
            self._keys.press(key, self._listener.now_ms)

    async def hear(self, samples: bytes) -> None:
        """Listen to audio of the caller, in the session's input format, and act on it."""
        acts = self._acts
        if (acts.is_away or acts.answered) and acts.leaves_out(samples, self._listener.now_ms):
            return
        settings = self._protocol.settings
        rate, n_sample = settings.input_format.rate, settings.input_format.n_sample_bytes
        per_slice = rate * SLICE_MS // 1000 * n_sample
        if self.tap.keeps:
            seconds = len(samples) / (rate * n_sample)
            self.tap.hear(samples, rate, settings.input_format.encoding, seconds)
        is_told = settings.turn_detection is not None  # when the caller begins
        if not is_told and not self._anticipation.is_open:
            self._prefill()
        if not is_told and self._listener.sound is not None and self._privacy.has_secrets:
            self._privacy.open_turn(self._replies.saying)
        for number, start in enumerate(range(0, len(samples), per_slice)):
            if number % N_SLICES == 0:  # also before the first: many frames may wait here
                await asyncio.sleep(0)
            self.advance_all(self._listener.feed(samples[start : start + per_slice]))
            if (sound := self._listener.sound) is not None and self._privacy.slot is None:
                self._anticipation.hear(sound)

    # --- the one loop of the call ---

    def advance(self, event: CallEvent) -> None:
        self.advance_all((event,))

    def advance_all(self, events: Iterable[CallEvent]) -> None:
        """Act on these events, and on all that follows from them, before anything else happens.

        Who calls it from within an action has these events acted on behind that action.
        """
        self._events.extend(events)
        if self._is_advancing:
            return
        self._is_advancing = True
        try:
            while True:
                while self._events:
                    self._answer(self._events.popleft())
                if not self._turn_taking.is_over:
                    self._events.extend(self._listener.decide())
                if not self._events:
                    return
        finally:
            self._is_advancing = False

    def _answer(self, event: CallEvent) -> None:
        acts = self._acts
        if (acts.is_away or acts.answered) and acts.leaves_out(event, self._listener.now_ms):
            return
        if isinstance(event, told.TurnPassed):
            event = event.words
        else:
            if self._privacy.has_secrets:
                event = self._privacy.without_secrets(event)
            if self._before.holds(event, self._item_ids):
                return
        actions = self._turn_taking.on(event, self.status())
        if log.isEnabledFor(logging.DEBUG) and (told_of := self._turn_taking.take_transition()):
            at_s = self._clock() - self._began_s
            log.debug("call %s at %.3f s: %s", self._protocol.session_id, at_s, told_of)
        for action in actions:
            if isinstance(action, Step):
                self._events.extend(self._take_step(action))
            else:
                self._events.extend(self._carry_out(action))
        if self.tap.keeps:
            self.tap.observe(actions)

    def _record_result(self, call: ToolCall, output: str, is_news: bool) -> None:
        self.tap.result(call.call_id, output)
        if self._protocol.add_output(call.call_id, output) and is_news:
            self.advance(told.AnswerOwed())

    def status(self) -> CallStatus:
        """Return what turn-taking must know of the call at this moment."""
        preemptive, active = self._replies.preemptive, self._protocol.active_response
        early = preemptive.early
        return CallStatus(
            self._protocol.settings,
            self._replies.status(),
            active is not None and (early is None or active is not early.response),
            preemptive.held_words if self.hooks is None or self.hooks.may_start_early else None,
            self._replies.said,
        )

    # --- done ---

    # Done now; each returns what it brought about, and raises nothing that a client can cause.
    def _take_step(self, step: Step) -> Sequence[CallEvent]:
        match step:
            case Step.DROP_USER_ITEM:
                self._protocol.drop_input()
            case Step.END_SEGMENT:
                return self._listener.end_turn()
            case Step.DISCARD_SEGMENT:
                self._listener.discard()
            case Step.IGNORE_TONE:
                self._listener.ignore_tone()
            case Step.REQUEST_WORDS:
                self._listener.request_words()
            case Step.PREFILL:
                self._prefill()
            case Step.REST_PREEMPTIVE:
                self._replies.preemptive.rest()
            case Step.DROP_PREEMPTIVE:
                self._replies.preemptive.reset()
            case Step.ABANDON_PREPARATION:
                self._replies.abandon_preparation()
            case Step.LEAVE_UNANSWERED:
                self._replies.abandon_preparation()
                self._metrics.waits.inc()
            case Step.ACKNOWLEDGE:
                self._replies.acknowledge()
            case Step.ASK_BACK:
                text = self._agent.call.still_there
                return (told.GreetingDue(text),) if text else ()
            case Step.ASK_AGAIN:
                self._replies.begin(self._protocol.open_response(), self._agent.fallback)
            case Step.REDUCE_LEAD | Step.DUCK | Step.PAUSE | Step.RESUME:
                self._replies.control_playout(step)
            case Step.DROP_INTERRUPTED:
                self._replies.drop_interrupted()
            case Step.RESUME_INTERRUPTED:
                return () if self._replies.resume_interrupted() else (told.ReplyEnded(),)
        return ()

    def _carry_out(self, order: do.Order) -> Sequence[CallEvent]:
        protocol, replies, is_secret = self._protocol, self._replies, self._privacy.slot is not None
        match order:
            case do.OpenUserTurn(onset_ms=onset_ms):
                replies.owed.end()
                if not self._keys.is_open:
                    self._privacy.open_turn(replies.saying)
                self._open_item_id = protocol.speech_started(onset_ms)
            case do.CloseUserTurn(end_ms=end_ms):
                protocol.speech_stopped(end_ms)
            case do.CommitUserItem(segment=segment, stays_open=stays_open):
                if is_secret:
                    self._privacy.commit(segment)
                if segment in self._item_ids:
                    protocol.keep_input(self._item_ids[segment], stays_open=stays_open)
                else:
                    self._item_ids[segment] = protocol.commit_input(stays_open=stays_open)
            case do.SendPartial() | do.StageWords() | do.ConsiderPreemptiveReply() if is_secret:
                pass  # known when the turn is over, and then by a mark alone
            case do.SendPartial(stable=stable, unstable=unstable):
                protocol.partial(self._open_item_id, " ".join(stable), " ".join(unstable))
            case do.SendTranscript():
                self._send_transcript(order)
            case do.StageWords(stable=stable, unstable=unstable, is_full=is_full):
                if self._retrieval is not None:
                    self._retrieval.observe_words(stable, unstable, full=is_full)
                known = self._anticipation.observe_words(stable, unstable, full=is_full)
                return self._weigh(*known) if known is not None else ()
            case do.ConsiderPreemptiveReply(pause=pause):
                if self._retrieval is None:
                    replies.preemptive.consider(pause)
                else:
                    consider = partial(replies.preemptive.consider, pause)
                    self._retrieval.when_settled(pause.words, consider)
            case do.InterruptReply(heard_ms=heard_ms, may_resume=may_resume, onset_ms=onset_ms):
                lasting_ms = self._listener.now_ms - onset_ms
                replies.interrupt_current(heard_ms, onset_ms, lasting_ms, may_resume=may_resume)
            case do.StartEarly(unsure_ms=unsure_ms):
                if (started := replies.preemptive.start_early(unsure_ms)) is not None:
                    started.record.facts.endpoint = self._listener.observe_early_start()
                    return (told.StartedEarly(),)
            case do.TakeBack(is_cut=is_cut):
                self._listener.observe_taken_back()
                sounding_ms = self._listener.sounding_ms if is_cut else None
                replies.preemptive.take_back(sounding_ms)
            case do.AnswerTurn(turn=turn):
                replies.answer(turn)
                if self.tap.keeps:
                    self.tap.consent.observe(turn.text)
            case do.AskToWait(turn=turn):
                replies.ask_to_wait(turn)
            case do.BeginReply(response=response):
                replies.begin(response)
            case do.SpeakFirst(text=text, idle_since_ms=since_ms):
                if since_ms is not None:
                    protocol.idle_timeout(since_ms, self._listener.now_ms)
                replies.begin(protocol.open_response(), text)
            case do.FailReply(turn=turn, error=error, is_told=is_told):
                replies.fail(turn, error, is_told=is_told)
            case do.CancelReply(response_id=response_id):
                replies.cancel(response_id)
            case do.WatchIdleness(is_idle=is_idle, timeout_ms=timeout_ms):
                now_ms = self._listener.now_ms
                self.idleness.observe(is_idle, timeout_ms=timeout_ms, now_ms=now_ms)
                if is_idle:
                    self._slide_window()
            case do.ActOnCall(act=act):
                self._acts.begin(act)
            case do.CountBargeIn(verdict=verdict, onset_arrival_s=onset_s):
                self._metrics.observe_barge_in(verdict, self._clock() - onset_s)
        return ()

    def _prefill(self) -> None:
        """Bring the conversation so far into the language model's cache."""
        settings = self._protocol.settings
        history = self._protocol.shown.messages(settings.instructions)
        self._listener.observe_history(history)
        self._anticipation.open(history, settings.tools)
        if self._retrieval is not None:
            is_unanswered = bool(history) and history[-1].role == "user"
            self._retrieval.begin_turn(history[-1].content if is_unanswered else "")

    def _slide_window(self) -> None:
        """Move a window that is nearly full on while nobody speaks, and have the model read it."""
        if not self._slides or not self._anticipation.has_time:
            return
        settings, shown = self._protocol.settings, self._protocol.shown
        if shown.slide_ahead(settings.instructions):
            history = shown.messages(settings.instructions)
            self._anticipation.open(history, settings.tools)

    def _follow_history(self) -> None:
        """More or less of a reply was heard than was thought as the caller interrupted it."""
        if self._anticipation.live is None:
            return
        settings = self._protocol.settings
        history = self._protocol.shown.messages(settings.instructions)
        if self._anticipation.follow(history, settings.tools):
            self._replies.preemptive.drop()  # it was made on what is gone
            self._listener.observe_history(history)

    def _follow_model(self) -> None:
        """Other models answer from now on: they read the conversation before it is their turn."""
        self._replies.preemptive.drop()
        settings = self._protocol.settings
        history = self._protocol.shown.messages(settings.instructions)
        if self._anticipation.live is not None:
            self._anticipation.follow(history, settings.tools)
        elif self._anticipation.has_time:
            self._anticipation.open(history, settings.tools)

    def _weigh(self, words: tuple[str, ...], p_end: float | None) -> Sequence[CallEvent]:
        """P(end of turn) after these words of the open turn is known: evidence for the listener."""
        several = self._context.has_several_models
        is_evidence = self._reads_p_end and (not several or self._context.router.reads_ends())
        if not self._anticipation.is_english:
            is_evidence = self._reads_p_end and self._anticipation.reads_by_itself
        return self._listener.observe_p_end(words, p_end, is_evidence=is_evidence)

    def _send_transcript(self, order: do.SendTranscript) -> None:
        turn, error = order.turn, order.error
        item_id = self._item_ids.pop(turn.segment)
        if error is not None:
            self._protocol.transcription_failed(item_id, error.message)
            return
        if turn.sound:
            self._protocol.shown.add_sound(item_id, turn.sound)
        seconds = (turn.end_ms - turn.onset_ms) / 1000.0
        self._protocol.transcription_completed(item_id, turn.text, seconds)

    def _fail_tool_calls(self, calls: Iterable[ToolCall]) -> None:
        """Say in the conversation, for the next prompt and the client, that nobody answered; unless
        the client asks for all answers itself.
        """
        if not self.status().creates_responses:
            return
        for call in calls:
            if self._protocol.add_output(call.call_id, UNANSWERED):
                log.warning("nobody answered a call of the client's tool %s", call.name)
        self.advance(told.AnswerOwed())

"""One call, from the accepted socket to the last task gone.

Owns the session's task group: the reader, the one writer, the listener and the replies. The reader
turns frames into commands, the writer (`writer.py`) alone touches the sending side of the socket.
When the task group ends, nothing is left.

All that turn-taking answers goes through one loop, `_advance`: an event to turn-taking, its actions
to the performer, what they bring about to turn-taking again, until nothing is left to do.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import NoReturn

from audio.vad import Vad
from voiceloop.admission.bucket import Bucket
from voiceloop.admission.overload import Level
from voiceloop.agent import AgentConfig
from voiceloop.backends import Backends, ToolCall
from voiceloop.call import events as told
from voiceloop.call.connection import HUNG_UP, Disconnected, Transport
from voiceloop.call.greeting import GreetingWait
from voiceloop.call.idleness import Idleness
from voiceloop.call.lifetime import Ending, Lifetime, SessionOver
from voiceloop.call.mcp import servers_of
from voiceloop.call.open_tool_calls import OpenToolCalls, record_result
from voiceloop.call.performer import Performer
from voiceloop.call.replies import Replies
from voiceloop.call.turn_taking import TurnTaking
from voiceloop.call.writer import Writer
from voiceloop.config import Config
from voiceloop.errors import SessionExpired
from voiceloop.knowledge.answers import ApprovedAnswers
from voiceloop.knowledge.retrieval import Retrieval
from voiceloop.knowledge.retriever import Retriever
from voiceloop.listening.item_audio import ItemAudio
from voiceloop.listening.listener import LONGEST_TURN_MS, Listener
from voiceloop.listening.segment import VoiceActivity
from voiceloop.memory.ledger import Ledger
from voiceloop.realtime.commands import (
    AppendAudio,
    Command,
    CommitAudio,
    CreateResponse,
    ItemCreated,
    ItemDeleted,
    ResumeCall,
    SettingsChanged,
    TruncateItem,
)
from voiceloop.realtime.protocol import Protocol, ProtocolLimits
from voiceloop.realtime.session_update import within_capabilities
from voiceloop.realtime.window import TokenCount
from voiceloop.reply.anticipation import Anticipation
from voiceloop.reply.context import MAX_UTILIZATION, ReplyContext
from voiceloop.reply.plan import voice_options_of
from voiceloop.reply.voice import KeptLines, SessionLines
from voiceloop.resume.resumption import Resumption
from voiceloop.resume.ticket import Tickets
from voiceloop.telemetry.metrics import Metrics
from voiceloop.telemetry.traces import CallTrace, NoTraces, Traces
from voiceloop.tools.pending import SessionTools
from voiceloop.tools.toolbox import Toolbox

log = logging.getLogger(__name__)

SLICE_MS = 20  # audio heard at once: less than a window of the voice detector (`Listener.feed`)
# Who asks for more is read slower: people take seconds over a turn, files are heard no faster.
TURN_STARTS_PER_S, TURN_STARTS_AT_ONCE = 5.0, 20.0
N_SLICES = 10  # between two looks at other tasks: a minute in one frame must not stall other calls


class Session:
    """One connection's session. `run` returns when it is over."""

    def __init__(
        self,
        transport: Transport,
        backends: Backends,
        agent: AgentConfig,
        config: Config,
        *,
        answers: ApprovedAnswers | None = None,
        retriever: Retriever | None = None,
        metrics: Metrics | None = None,
        clock: Callable[[], float] = time.monotonic,
        vad: VoiceActivity | None = None,
        level: Callable[[], Level] = lambda: Level.NORMAL,
        toolbox: Toolbox | None = None,
        kept_lines: KeptLines | None = None,
        traces: Traces | None = None,
        tickets: Tickets | None = None,
        on_resumed: Callable[[str], None] = lambda call_id: None,
    ) -> None:
        self._transport = transport
        self._backends = backends
        self._agent = agent
        self._config = config
        self._answers = ApprovedAnswers(agent.answer) if answers is None else answers
        self._retriever = retriever
        self._metrics = metrics if metrics is not None else Metrics()
        self._clock = clock
        self._level = level
        self._toolbox = toolbox if toolbox is not None else Toolbox({}, clock)
        self._kept_lines = kept_lines if kept_lines is not None else KeptLines()
        wanted = agent.kept_lines if kept_lines is not None else ()
        self._lines = SessionLines(self._kept_lines, backends.voice, wanted)
        self._vad: VoiceActivity = vad if vad is not None else Vad()
        self._traces = traces if traces is not None else NoTraces()
        limits = config.limits
        output, hello = asyncio.Event(), transport.hello
        own = agent.session_settings(hello.model)
        self.protocol = Protocol(
            within_capabilities(backends.capabilities, hello.settings_over(own)),
            limits=ProtocolLimits(
                uncommitted_audio_ms=limits.uncommitted_audio_minutes * 60_000.0,
                n_context_tokens=config.context_tokens or backends.capabilities.context_tokens,
                count_tokens=TokenCount(backends.count_tokens()),
                capabilities=backends.capabilities,
            ),
            expires_at=int(time.time() + hello.longest_s(60.0 * limits.session_minutes)),
            is_beta=hello.beta,
            on_put=output.set,
            ledger=Ledger() if agent.memory.facts else None,
            on_change=lambda: self._resumption.wake(),
        )
        self._writer = Writer(
            self.protocol, transport, output, limits.slow_client_s, self._end, self._observe_audio
        )
        self._greeting = GreetingWait(hello)
        whole_s = hello.longest_s(60.0 * limits.session_minutes)
        self._lifetime = Lifetime(whole_s, limits.longest_drain_s, self.protocol.expiring)
        self._open_calls = OpenToolCalls(
            agent.tool_timeout_ms,
            lambda calls: self._advance(told.ToolCallsOverdue(calls)),
        )
        self._resumption = Resumption(
            self.protocol, agent, own, tickets, hello.tenant, hello.is_returning, self._lifetime,
            self._open_calls.expect, on_resumed,
        )  # fmt: skip
        self._events: deque[told.CallEvent] = deque()  # to be acted on, by `_advance_all` alone
        self._is_advancing = False
        self._began_s = 0.0
        self._turn_starts = Bucket(TURN_STARTS_AT_ONCE, TURN_STARTS_PER_S, clock)
        self._closing = (1011, "internal error")

    def drain(self) -> None:
        """Finish what is being said, then close; for a server that shuts down."""
        self._lifetime.drain()

    def hand_over(self) -> None:
        """Let go of the call: it was resumed on another line."""
        self._lifetime.drain(Ending.RESUMED)

    @property
    def resumed_id(self) -> str:
        return self._resumption.resumed_id

    @property
    def quiet_s(self) -> float:
        """For how long nobody has spoken and nothing has been owed."""
        return self._idleness.quiet_s

    async def run(self) -> None:
        """Serve the connection to its end. An error that is raised is a bug, and code 1011."""
        self._metrics.sessions.inc()
        trace = self._traces.begin(self.protocol.session_id)
        self._began_s, n_turns = self._clock(), 0
        try:
            async with asyncio.TaskGroup() as tasks:
                self._assemble(tasks, trace)
                try:
                    tasks.create_task(self._listener.run(), name="listener")
                    tasks.create_task(self._writer.run(), name="writer")
                    tasks.create_task(self._watch_the_clock(), name="session clock")
                    tasks.create_task(self._greet(), name="greeting")
                    tasks.create_task(self._resumption.run(), name="resume tickets")
                    self.protocol.connect()
                    await self._read()
                finally:
                    n_turns = self._replies.n_turns
                    self._replies.owed.end()
                    self._open_calls.close()
                    if self._retrieval is not None:
                        self._retrieval.close()
                    self._advance(told.CallEnding())
        except* SessionOver as group:
            over = SessionOver.of(group)
            self._closing = (over.code, over.reason)
        finally:
            self._metrics.sessions.dec()
            self._metrics.closed.labels(code=self._closing[0]).inc()
            trace.end(self._closing[0])
            self._log_end(self._clock() - self._began_s, n_turns)
            await self._transport.close(*self._closing)

    def _log_end(self, seconds: float, n_turns: int) -> None:
        """One line a call, and not a word of it."""
        (code, how), call_id = self._closing, self.protocol.session_id
        # A client's own code is told by `how`; ours says no more of its hanging up.
        told = how if code == HUNG_UP else f"{how} ({code})"
        log.info("call %s: %.1f s, turns: %d; %s", call_id, seconds, n_turns, told)

    def _assemble(self, tasks: asyncio.TaskGroup, trace: CallTrace) -> None:
        session_id, settings = self.protocol.session_id, self.protocol.settings
        ahead, hello = self._config.anticipation, self._transport.hello
        self._anticipation = anticipation = Anticipation(
            self._backends.language_model,
            session_id,
            tasks,
            lambda words, p_end: self._advance_all(self._performer.weigh(words, p_end)),
            ahead,
            hello.tenant,
            self._level,
        )
        self._retrieval = None
        if self._retriever is not None:
            self._retrieval = Retrieval(
                self._retriever, tasks, self._clock, looks_ahead=ahead.does("retrieval")
            )
        tools = SessionTools(
            self._toolbox, tasks, self._record_result, hello.tenant,
            calls_ahead=ahead.does("tool_calls"), allowance=hello.allowance,
        )  # fmt: skip
        context = ReplyContext(
            voice=self._backends.voice,
            anticipation=anticipation,
            protocol=self.protocol,
            agent=self._agent,
            tools=tools,
            clock=self._clock,
            is_busy=self._is_busy,
            new_stream_id=lambda: f"{session_id}.{self.protocol.new_id('voice')}",
            lead_ms=float(self._config.pacing_lead_ms),
            kept_lines=self._kept_lines,
            approved=self._answers,
            retrieval=self._retrieval,
        )
        self._mcp = servers_of(
            self._backends.capabilities, self.protocol, context.tools, tasks, self._advance
        )
        self._lines.want(voice_options_of(settings))
        self._item_audio = ItemAudio(self._backends.recognizer, self.protocol, tasks)
        self._listener = Listener(
            recognizer=self._backends.recognizer,
            options=self._agent.recognizer_options(settings),
            settings=settings,
            vad=self._vad,
            clock=self._clock,
            stream_id=session_id,
            deliver=self._advance_all,
            longest_turn_ms=LONGEST_TURN_MS,
            slots=self._agent.slots,
            starts_early=ahead.does("early_start") and self._agent.barge_in.enabled,
            words_late_s=self._agent.waiting.late_s,
        )
        self._idleness = Idleness(
            lambda since_ms: self._advance(told.CallerIdle(since_ms)), self._clock
        )
        self._replies = Replies(
            context, self._metrics, tasks, ahead, self._advance, self._open_calls, trace
        )
        self._performer = Performer(
            self.protocol,
            self._listener,
            anticipation,
            self._retrieval,
            self._replies,
            self._idleness,
            self._metrics,
            self._clock,
            reads_p_end=ahead.does("p_end") and self._backends.capabilities.reads_turn_ends,
            slides=ahead.does("slide"),
        )
        self._turn_taking = TurnTaking(self._agent.barge_in)

    def _is_busy(self) -> bool:
        is_full = self._backends.utilization() > MAX_UTILIZATION
        return is_full or self._level() is not Level.NORMAL

    def _record_result(self, call: ToolCall, output: str, is_news: bool) -> None:
        if record_result(self.protocol, call, output) and is_news:
            self._advance(told.ResultLate())

    # --- reading ---

    async def _read(self) -> None:
        while True:
            await self._writer.until_the_client_reads()
            try:
                frame = await self._transport.receive()
            except Disconnected as gone:
                self._end(gone.code, gone.how)
            for command in self.protocol.receive(frame):
                await self._obey(command)

    async def _obey(self, command: Command) -> None:
        self._greeting.observe(command)
        if isinstance(command, CreateResponse | CommitAudio | TruncateItem):
            await asyncio.sleep(self._turn_starts.take())
        if not isinstance(command, AppendAudio) and (settled := self._listener.settle()):
            self._advance_all(settled)
        match command:
            case AppendAudio(samples=samples):
                await self._hear(samples)
            case CreateResponse(response=response):
                self._item_audio.then(lambda: None if response.closed else self._advance(command))
            case SettingsChanged(previous=previous, current=current):
                self._listener.configure(current)
                self._mcp.configure()
                self._lines.want(voice_options_of(current))
                self._advance(command)
                options = self._agent.recognizer_options(current)
                if options != self._agent.recognizer_options(previous):
                    self._listener.set_options(options)
                self._resumption.wake()
            case ResumeCall(ticket=ticket):
                if (changed := self._resumption.resume(ticket)) is not None:
                    await self._obey(changed)
                    if self._resumption.owes_answer:
                        self._advance(told.CallResumed())
            case ItemCreated(item=item, audio=audio) if audio:
                options = self._agent.recognizer_options(self.protocol.settings)
                input_format = self.protocol.settings.input_format
                self._item_audio.hear(item.id, audio, input_format, options)
            case ItemDeleted(item_id=item_id):
                self._item_audio.forget(item_id)
            case ItemCreated(item=item):
                self._open_calls.observe(item)  # the next turn reads it
                self._mcp.observe(item)
            case _:
                self._advance(command)

    async def _hear(self, samples: bytes) -> None:
        audio_format = self.protocol.settings.input_format
        per_slice = audio_format.rate * SLICE_MS // 1000 * audio_format.n_sample_bytes
        if self.protocol.settings.turn_detection is None and not self._anticipation.is_open:
            self._performer.prefill()  # nobody tells when the caller begins
        for number, start in enumerate(range(0, len(samples), per_slice)):
            if number % N_SLICES == 0:  # also before the first: many frames may wait here
                await asyncio.sleep(0)
            self._advance_all(self._listener.feed(samples[start : start + per_slice]))

    # --- the one loop of the call ---

    def _advance(self, event: told.CallEvent) -> None:
        self._advance_all((event,))

    def _advance_all(self, events: Iterable[told.CallEvent]) -> None:
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

    def _answer(self, event: told.CallEvent) -> None:
        actions = self._turn_taking.on(event, self._performer.status())
        if log.isEnabledFor(logging.DEBUG) and (told_of := self._turn_taking.take_transition()):
            at_s = self._clock() - self._began_s
            log.debug("call %s at %.3f s: %s", self.protocol.session_id, at_s, told_of)
        for action in actions:
            self._events.extend(self._performer.perform(action))

    def _observe_audio(self, response_id: str) -> None:
        self._replies.observe_audio(response_id)
        if self._turn_taking.is_preparing and self._replies.is_heard_in(response_id):
            self._advance(told.ReplyAudible())

    # --- time ---

    async def _greet(self) -> None:
        if not self._agent.greeting or not await self._greeting.agent_begins():
            return
        if self.protocol.settings.type == "realtime" and not self.protocol.conversation.items():
            self._advance(told.GreetingDue(self._agent.greeting))

    async def _watch_the_clock(self) -> None:
        ending = await self._lifetime.end()
        if ending is Ending.EXPIRED:
            most_min = self._lifetime.whole_s / 60.0
            expired = SessionExpired(f"expected a session of at most {most_min:g} minutes")
            await self._writer.say_last(expired)
        elif ending.lets_turn_end:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._lifetime.drain_s):
                    await self._until_idle()
            if self._resumption.send():
                await self._writer.until_sent()
        self._end(*ending.value)

    async def _until_idle(self) -> None:
        """Wait for a moment in which nobody speaks and nothing is owed."""
        if not self._turn_taking.is_idle:
            await self._idleness.wait()

    def _end(self, code: int, reason: str) -> NoReturn:
        self._advance(told.CallEnding())
        raise SessionOver(code, reason)

"""One connection's session, from the accepted socket to the last task gone.

Owns the session's task group: the reader, the one writer, the call, its tickets and its time. The
reader turns frames into commands; the writer (`writer.py`) alone touches the sending side of the
socket; who speaks when is the call's (`call.py`). When the task group ends, nothing is left.
"""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import suppress
from dataclasses import replace
from typing import NoReturn

import msgspec

from voiceloop.admission.bucket import Bucket
from voiceloop.agent import AgentConfig
from voiceloop.call import events as told
from voiceloop.call.acts import agent_on_line
from voiceloop.call.call import Call
from voiceloop.call.connection import HUNG_UP, Disconnected, Transport
from voiceloop.call.lifetime import (
    RETURN_WAIT_S,
    Ending,
    GreetingWait,
    Lifetime,
    Opening,
    SessionOver,
)
from voiceloop.call.services import Answering
from voiceloop.call.writer import Writer
from voiceloop.call_manners import Transfer
from voiceloop.errors import InvalidRequest, Overloaded, VoiceLoopError
from voiceloop.realtime import commands as asked
from voiceloop.realtime.protocol import Protocol
from voiceloop.resume.resumption import Resumption
from voiceloop.telemetry.tap import CallTap

log = logging.getLogger(__name__)

# Who asks for more is read slower: people take seconds over a turn, files are heard no faster.
TURN_STARTS_PER_S, TURN_STARTS_AT_ONCE = 5.0, 20.0
AT_ONCE_S = 1.0  # two gateways that resume one call have heard of each other by then
# What an agent's model is told that is not shown the call so far.
HANDED = "The caller was handed to you by a colleague."
BEGINS = asked.AppendAudio | asked.CommitAudio | asked.CreateResponse | asked.ItemCreated


class Session:
    """One connection's session. `run` returns when it is over.

    Raises:
        InvalidRequest: the models cannot serve what the client secret asks for.
    """

    def __init__(self, transport: Transport, answering: Answering) -> None:
        self._transport = transport
        self._services = services = answering.services
        config, hello = services.config, transport.hello
        self._handed_to = ""  # the agent that the call was handed to last
        agent = self._on_line(answering.agent, begins=True)
        self._answering, backends = answering._replace(agent=agent), answering.backends
        known = backends.capabilities
        self._own = own = agent.session_settings(hello.model)
        n_most = config.context_tokens or known.context_tokens
        whole_s = hello.longest_s(60.0 * config.limits.session_minutes)
        output, changed = asyncio.Event(), asyncio.Event()
        self.protocol = Protocol(
            hello.settings_over(own),
            capabilities=replace(known, context_tokens=n_most),
            count_tokens=backends.count_tokens(),
            expires_at=int(time.time() + whole_s),
            is_beta=hello.beta,
            on_put=output.set,
            on_change=changed.set,
            keeps_facts=True,
            locks=hello.locks(agent.served_tools),
            line=transport.line,
        )
        slow_s = config.limits.slow_client_s
        self._writer = Writer(
            self.protocol, transport, output, slow_s, self._end, self._observe_audio
        )
        self._greeting = GreetingWait(hello)
        self._lifetime = Lifetime(whole_s, config.limits.longest_drain_s, self.protocol.expiring)
        self._resumption = Resumption(
            self.protocol, agent, own, services.tickets, hello.tenant, hello.is_returning,
            self._lifetime, changed, hello.agent, self._answer_by,
        )  # fmt: skip
        self._handed_in: str | None = ""  # the caller's turn in which the call was handed on last
        self._turn_starts = Bucket(TURN_STARTS_AT_ONCE, TURN_STARTS_PER_S, services.clock)
        self._closing = (1011, "internal error")
        self.resumed_id = ""  # of the call that goes on here, before it did
        self._resumed_s = 0.0

    def _on_line(self, agent: AgentConfig, *, begins: bool) -> AgentConfig:
        services = self._services
        names, allows = services.agent_names(), services.config.phone.allows_of_file

        def may_go(to: Transfer) -> bool:
            return to.agent in names if to.agent else allows(to.to)

        return agent_on_line(agent, self._transport, may_go, begins=begins)

    def end(self, why: Ending = Ending.DRAINED) -> None:
        """Close, for this reason; where it lets a turn end, once what is being said is said."""
        self._lifetime.drain(why)

    def take_agent(self, agent: AgentConfig) -> None:
        """Have this agent's settings from the next turn on, where the client has none of its own.

        Its tools stay. What no model here serves is logged, and nothing changes.
        """
        agent = self._on_line(agent, begins=not self._handed_to)
        model, now = self._transport.hello.model, self.protocol.settings
        before, after = (one.session_settings(model) for one in (self._agent, agent))
        changed = {
            name: getattr(after, name)
            for name in now.__struct_fields__
            if getattr(before, name) != getattr(after, name) and name not in ("tools", "mcp")
            if getattr(now, name) == getattr(before, name)
        }
        self._answering, self._own = self._answering._replace(agent=agent), after
        self._call.take_agent(self._answering)
        if not changed:
            return
        try:
            command = self.protocol.adopt(msgspec.structs.replace(now, **changed))
        except InvalidRequest as error:
            log.error("call %s keeps its agent: %s", self.protocol.session_id, error.message)
            return
        self._call.settle()
        self._call.obey(command)
        self._resumption.observe_settings()

    def gives_up_to(self, by: str) -> bool:
        """Whether the call that was resumed here goes on in the session of this id instead.

        The last to resume it keeps it; of two at the same time the one with the greater id.
        """
        is_settled = self._services.clock() - self._resumed_s > AT_ONCE_S
        return is_settled or self.protocol.session_id < by

    @property
    def _agent(self) -> AgentConfig:
        return self._answering.agent

    @property
    def agent_name(self) -> str:
        """Return the name of the agent that answers now, where there are several."""
        return self._handed_to or self._transport.hello.agent

    @property
    def tenant(self) -> str:
        """Return whose key opened the door."""
        return self._transport.hello.tenant

    @property
    def gives_way(self) -> bool:
        """Whether it may be ended for another call: its client has said nothing yet."""
        return self._call.idleness.is_silent and not self._lifetime.is_ending

    @property
    def place_share(self) -> float:
        """How much of a place it takes, of which `Idleness` knows."""
        return self._call.idleness.place_share

    async def run(self) -> None:
        """Serve the connection to its end. An error that is raised is a bug, and code 1011."""
        services = self._services
        services.metrics.sessions.inc()
        trace = services.traces.begin(self.protocol.session_id)
        tap = CallTap()
        began_s, n_turns = services.clock(), 0
        slots: dict[str, str] = {}
        try:
            async with asyncio.TaskGroup() as tasks:
                self._call = Call(
                    self.protocol, self._answering, self._transport, tasks, trace, self.end,
                    self._hand_on,
                )  # fmt: skip
                self._tasks = tasks
                tap = self._call.tap
                try:
                    tasks.create_task(self._writer.run(), name="writer")
                    tasks.create_task(self._watch_the_clock(), name="session clock")
                    tasks.create_task(self._greet(), name="greeting")
                    tasks.create_task(self._resumption.run(), name="resume tickets")
                    if self._transport.hello.owes_resume:
                        tasks.create_task(self._await_resume(), name="a call to be resumed")
                    self.protocol.connect()
                    await self._read()
                finally:
                    n_turns, slots = self._call.n_turns, self._call.kept_slots()
                    self._call.end()
        except* SessionOver as group:
            over = SessionOver.of(group)
            self._closing = (over.code, over.reason)
        finally:
            services.metrics.sessions.dec()
            services.metrics.closed.labels(code=self._closing[0]).inc()
            trace.end(self._closing[0])
            tap.end(*self._closing, slots)
            self._log_end(services.clock() - began_s, n_turns)
            await self._transport.close(*self._closing)

    def _log_end(self, seconds: float, n_turns: int) -> None:
        """Write one line a call, and not a word of it."""
        (code, how), call_id = self._closing, self.protocol.session_id
        # A client's own code is told by `how`; ours says no more of its hanging up.
        why = how if code == HUNG_UP else f"{how} ({code})"
        log.info("call %s: %.1f s, turns: %d; %s", call_id, seconds, n_turns, why)

    # --- another agent ---

    def _hand_on(self, to: Transfer, summary: str) -> bool:
        """Have another of the server's agents go on with the call, as nobody speaks; whether one
        does. None hands a call on of which its caller has said nothing to it.
        """
        turn_id = self.protocol.conversation.newest_turn_id
        if turn_id == self._handed_in:
            log.warning("the call was handed on in this turn of the caller already")
            return False
        before = None if to.history == "all" else HANDED
        if to.history == "summary" and summary:
            before = f"{HANDED} What they want: {summary}"
        try:
            self._answer_by(to.agent, before)
        except VoiceLoopError as error:
            log.warning("the call was not handed to %s: %s", to.agent, error.message)
            return False
        self._handed_in = turn_id
        self._tasks.create_task(self._greet_handed(), name="greeting")
        return True

    def _answer_by(self, name: str, before: str | None = None) -> None:
        """Be answered by this agent from now on. before: as of `Protocol.hand_over`.

        Raises: InvalidRequest: it is not here, or no model here serves it; nothing has changed.
        """
        answering = self._services.another(name)
        agent = self._on_line(answering.agent, begins=False)
        answering = answering._replace(agent=agent)
        hello, now = self._transport.hello, self.protocol.settings
        own = agent.session_settings(hello.model)
        listed = tuple(tool for tool in now.tools if tool.server_label)
        settings = msgspec.structs.replace(
            now,
            instructions=own.instructions,
            voice=own.voice,
            own_voice=own.voice,
            speed=own.speed,
            temperature=own.temperature,
            tools=(*own.tools, *listed),
            **{
                name: getattr(own, name)
                for name in ("turn_detection", "noise_reduction")
                if getattr(now, name) == getattr(self._own, name)  # else it is the client's
            },
        )
        changed = self.protocol.hand_over(settings, hello.locks(agent.served_tools), before)
        self._answering, self._own, self._handed_to = answering, own, name
        self._call.hand_to(answering)
        self._call.obey(changed)
        self._resumption.take(agent, own, name)
        log.info("call %s is answered by %s now", self.protocol.session_id, name)

    async def _greet_handed(self) -> None:
        """The agent that was handed the call speaks: its greeting, or to what was said last."""
        greeting = self._agent.greeting
        if (hooks := self._call.hooks) is not None:
            greeting = await hooks.greeting() or greeting
        self._call.advance(told.GreetingDue(greeting) if greeting else told.AnswerOwed())

    # --- reading ---

    async def _read(self) -> None:
        while True:
            await self._writer.until_the_client_reads()
            try:
                frame = await self._transport.receive()
            except Disconnected as gone:
                self._end(gone.code, gone.how)
            commands = self.protocol.receive(frame)
            if isinstance(frame, str | bytes):
                if commands and not isinstance(commands[0], asked.AppendAudio):
                    self._call.tap.client(frame)
            else:
                self._call.tap.observe_line(frame)
            for command in commands:
                await self._obey(command)

    async def _obey(self, command: asked.Command) -> None:
        if self._greeting.opening is Opening.OPEN:
            self._greeting.observe(command)
        if isinstance(command, BEGINS) and not self._call.idleness.has_begun:
            if self._call.idleness.is_silent:
                await self._take_place()
            self._call.idleness.begin()
        if isinstance(command, asked.AppendAudio):
            await self._call.hear(command.samples)
            return
        if isinstance(command, asked.CreateResponse | asked.CommitAudio | asked.TruncateItem):
            await asyncio.sleep(self._turn_starts.take())
        self._call.settle()
        if isinstance(command, asked.ResumeCall):
            await self._resume(command.ticket)
            return
        self._call.obey(command)
        if isinstance(command, asked.SettingsChanged):
            self._resumption.observe_settings()

    async def _take_place(self) -> None:
        """A client that said nothing until now begins: it is as if it dialled at this moment."""
        if (lack := self._services.lacks_place()) is not None:
            error = Overloaded(f"No room for a call that begins: {lack}. Try again later.")
            await self._writer.say_last(error)
            self._end(1013, "the server has no place for the call that began")

    async def _resume(self, ticket: str) -> None:
        """Go on with a call that broke off elsewhere, if its ticket is good."""
        if (resumed := self._resumption.resume(ticket)) is None:
            return
        self._call.expect_outputs(resumed.clients_calls)
        self._services.on_resumed(resumed.call_id, self.protocol.session_id)
        self.resumed_id, self._resumed_s = resumed.call_id, self._services.clock()
        await self._obey(resumed.settings)
        phone = self._transport.hello.phone
        if phone is not None and phone.returned:  # nobody took the caller who was handed on
            self._call.advance(told.GreetingDue(self._agent.greeting))
        elif resumed.owes_answer:
            self._call.advance(told.AnswerOwed())

    def _observe_audio(self, response_id: str) -> None:
        self._call.observe_audio(response_id)

    # --- time ---

    async def _greet(self) -> None:
        first = self._call.tap.consent.first_words  # said also where the client wants no greeting
        greeting = self._agent.greeting
        if (hooks := self._call.hooks) is not None:
            greeting = await hooks.greeting() or greeting
        if not first and not greeting:
            return
        if not await self._greeting.agent_begins() and not first:
            return
        if self.protocol.settings.type == "realtime" and not len(self.protocol.conversation):
            self._call.advance(told.GreetingDue(first or greeting))

    async def _await_resume(self) -> None:
        """Let go of a call that was let in for a ticket, and has resumed none."""
        await asyncio.sleep(RETURN_WAIT_S)
        if not self.resumed_id:
            self._lifetime.drain(Ending.LAPSED)

    async def _watch_the_clock(self) -> None:
        ending = await self._lifetime.end()
        if (error := self._lifetime.error_of(ending)) is not None:
            await self._writer.say_last(error)
        elif ending.lets_turn_end:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._lifetime.drain_s):
                    await self._call.until_idle()
            if self._resumption.send():
                await self._writer.until_sent()
        self._end(*ending.value)

    def _end(self, code: int, reason: str) -> NoReturn:
        self._call.advance(told.CallEnding())
        raise SessionOver(code, reason)

"""The parts that the replies of one call share, and those that all calls of a server share."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from itertools import cycle
from typing import Self

from audio.frames import Samples
from voiceloop.admission.allowance import Allowance
from voiceloop.admission.overload import Level
from voiceloop.agent import AgentConfig, Waiting
from voiceloop.backends import (
    Backends,
    ChatMessage,
    GenerateParams,
    Usage,
    VoiceOptions,
    is_english,
    speaks,
)
from voiceloop.config import Config
from voiceloop.knowledge.answers import ApprovedAnswers
from voiceloop.knowledge.retrieval import LOOK_UP_MS, Retrieval
from voiceloop.knowledge.retriever import Retriever
from voiceloop.openers import openers_of
from voiceloop.realtime.protocol import Protocol
from voiceloop.realtime.response import ResponseHandle
from voiceloop.realtime.settings import SessionSettings
from voiceloop.realtime.sound_line import LINE_FORMAT
from voiceloop.reply.agent_hooks import AgentHooks
from voiceloop.reply.anticipation import Anticipation, PEndCallback
from voiceloop.reply.opener import Openers, Waits
from voiceloop.reply.plan import GENERATE_DEADLINE_S, ReplyPlan, voice_options_of
from voiceloop.reply.prepared import Prepared
from voiceloop.reply.routing import OWN_ALONE, Router
from voiceloop.reply.voice import KeptLines, ReplyVoice
from voiceloop.telemetry.metrics import Metrics
from voiceloop.telemetry.tap import CallTap, Recordings
from voiceloop.tools.pending import SessionTools
from voiceloop.tools.toolbox import Toolbox

# Of the busiest model process; chosen. What is left belongs to replies that somebody waits for.
MAX_UTILIZATION = 0.7


@dataclass(slots=True, kw_only=True)
class ReplyServices:
    """The services that a server makes the replies of all its calls with, besides the models.

    clock: in seconds. waits: for the large model. level: of the server's load. toolbox, answers,
    retriever: of its agent, the last None where that has no documents. kept_lines: spoken once for
    all calls. name: of the agent, where the server has several.
    """

    config: Config
    metrics: Metrics
    clock: Callable[[], float]
    toolbox: Toolbox
    answers: ApprovedAnswers = field(default_factory=lambda: ApprovedAnswers(()))
    waits: Waits = field(default_factory=Waits)
    level: Callable[[], Level] = lambda: Level.NORMAL
    retriever: Retriever | None = None
    kept_lines: KeptLines = field(default_factory=KeptLines)
    recordings: Recordings = field(default_factory=Recordings)
    name: str = ""

    def of_another(self, name: str, toolbox: Toolbox) -> Self:
        """The same for another agent of the server."""
        return replace(self, name=name, toolbox=toolbox, retriever=None, kept_lines=KeptLines())


class ReplyContext:
    """The parts of one call that each of its replies is given.

    tasks: of the call. allowance: what its key may use. tenant: whose caches the language model may
    use. on_p_end: told P(end of turn) after the words of the open turn. tap: of what is kept of the
    call.
    """

    def __init__(
        self,
        services: ReplyServices,
        backends: Backends,
        agent: AgentConfig,
        protocol: Protocol,
        tasks: asyncio.TaskGroup,
        tools: SessionTools,
        allowance: Allowance,
        tenant: str,
        on_p_end: PEndCallback,
        tap: CallTap,
    ) -> None:
        self.protocol = protocol
        self.agent = agent
        self.agent_name = services.name
        self.tools = tools
        self._allowance = allowance
        self.tasks = tasks
        self.metrics = services.metrics
        self.clock = services.clock
        self.ahead = services.config.anticipation
        self._level = services.level
        self._backends = backends
        own_class = services.toolbox.own_class
        self.hooks = AgentHooks(own_class, tools.caller) if own_class is not None else None
        retriever, look_up_ms = services.retriever, LOOK_UP_MS
        tools.check = None
        if self.hooks is not None:
            retriever, look_up_ms = self.hooks.beside(retriever)
            tools.check = self.hooks.on_tool if self.hooks.has("on_tool") else None
        self.retrieval: Retrieval | None = None
        if retriever is not None:
            self.retrieval = Retrieval(
                retriever,
                tasks,
                self.clock,
                looks_ahead=self.ahead.does("retrieval"),
                look_up_ms=look_up_ms,
            )
        # Told of every piece of sound as it goes out, and its rate.
        self.on_sound: Callable[[Samples, int], None] = lambda samples, rate_hz: None
        self.tap = tap
        self.prepared = Prepared(
            protocol, agent, services.answers, self.retrieval, tools.secrets, self.tap.consent,
            backends.capabilities.made_for, lambda effort: self.router.asks_for_large(effort),
        )  # fmt: skip
        self.has_several_models = bool(backends.models)
        self.router = Router(
            backends.models, backends.cascade, agent, services.level,
            allowance.may_use_large, lambda words: self.anticipation.signs(words),
        )  # fmt: skip
        self.anticipation = Anticipation(
            backends.language_model, protocol.session_id, tasks, on_p_end, self.ahead, tenant,
            services.level, backends.models, lambda: self.router.staged,
        )  # fmt: skip
        kept, lead_ms = services.kept_lines, float(services.config.pacing_lead_ms)
        self.play_delay_ms: Callable[[], float | None] = lambda: 0.0
        if (line := protocol.line) is not None:
            lead_ms, self.play_delay_ms = line.lead_ms, line.play_delay_ms
        lines = openers_of(agent.waiting.openers, agent.language) if backends.cascade else ()
        waiting = (*agent.waiting.say, *Waiting().say)
        self.openers = Openers(lines, services.waits, tasks, self._sound_ms, waiting)
        self.voice = ReplyVoice(
            backends.voice, self._new_stream_id, lead_ms, kept, (*lines, *agent.kept_lines)
        )
        self.model_speaks = speaks(backends.language_model)
        self.acknowledgements = cycle(agent.waiting.acknowledge)
        self.waiting_lines = cycle(agent.waiting.say)  # said while a tool takes its time, in turn

    def take_agent(self, agent: AgentConfig, approved: ApprovedAnswers) -> None:
        """Take up another version of the agent. What was made of it at the start stays."""
        self.agent = agent
        self.prepared.take_agent(agent, approved)
        self.router.agent = agent
        self.acknowledgements = cycle(agent.waiting.acknowledge)
        self.waiting_lines = cycle(agent.waiting.say)

    def configure(self, settings: SessionSettings) -> bool:
        """Take up the session's settings: its lines are kept in the voice that it speaks with.

        Returns whether other language models read the caller's turns from now on.
        """
        before = self.router.staged
        self.voice.want(voice_options_of(settings))
        asked = settings.transcription
        language = asked.language if asked is not None and asked.language else ""
        self.router.configure(settings.model, language, settings.tools)
        self.anticipation.is_english = is_english(language or self.agent.language)
        return self.router.staged != before

    def plan_of(
        self, asked: ResponseHandle | SessionSettings, prompt: tuple[ChatMessage, ...]
    ) -> ReplyPlan:
        """The plan of a response, or of one that leaves everything to the session's settings."""
        limits, n_asked, choice = self.agent.limits, asked.max_output_tokens, asked.tool_choice
        n_most, route = limits.max_reply_tokens, OWN_ALONE
        if self.has_several_models:
            route = self.router.route(prompt, asked.reasoning_effort)
        late_ms = self.agent.waiting.first_token_ms if asked.speaks else 1000 * GENERATE_DEADLINE_S
        params = GenerateParams(
            max_tokens=n_most if n_asked == "inf" else min(int(n_asked), n_most),
            temperature=limits.temperature if asked.temperature is None else asked.temperature,
            tool_choice=choice if isinstance(choice, str) else json.dumps(choice),
            within_ms=late_ms,
        )
        return ReplyPlan(
            prompt, asked.tools, params, asked.speaks, asked.output_format,
            VoiceOptions(asked.voice, asked.speed), route,
        )  # fmt: skip

    async def spoken(self, text: str) -> bytes:
        """The text as the agent says it, of LINE_FORMAT. Raises: as the voice."""
        options = voice_options_of(self.protocol.settings)
        return (await self.voice.spoken(text, options, LINE_FORMAT.rate)).tobytes()

    def charge(self, used: Mapping[str, Usage]) -> None:
        """Take what the large model wrote from the key's quota. used: as of `Reply`."""
        cascade = self._backends.cascade
        if cascade is not None and (usage := used.get(cascade.large)) is not None:
            self._allowance.take_large_tokens(usage.n_reply_tokens + usage.n_discarded_tokens)

    def end(self) -> None:
        """The call is over: nothing is kept of it."""
        self.close()
        self._backends.end_call(self.protocol.session_id)

    def close(self) -> None:
        """Give up what is still looked up, or chosen, and let the class end."""
        self.openers.drop()
        if self.retrieval is not None:
            self.retrieval.close()
        if self.hooks is not None:
            self.hooks.end()

    @property
    def context_tokens(self) -> int:
        """Return what a prompt may have, as far as is known now: a service may have told it
        since.
        """
        return self._backends.capabilities.context_tokens

    def is_busy(self) -> bool:
        """Whether no reply is made that may be thrown away."""
        is_full = self._backends.utilization() > MAX_UTILIZATION
        return is_full or self._level() is not Level.NORMAL

    def _sound_ms(self, line: str) -> float:
        kept = self.voice.kept_sound(line, voice_options_of(self.protocol.settings))
        return kept.ms if kept is not None else 0.0

    def _new_stream_id(self) -> str:
        return f"{self.protocol.session_id}.{self.protocol.new_id('voice')}"

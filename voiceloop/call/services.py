"""The services that one server makes all its calls with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from audio.vad import Vad
from voiceloop.agent import AgentConfig
from voiceloop.backends import Backends, OnResumed
from voiceloop.call.connection import Hello
from voiceloop.errors import InvalidRequest
from voiceloop.listening.segment import VoiceActivity
from voiceloop.reply.context import ReplyServices
from voiceloop.resume.ticket import Tickets
from voiceloop.telemetry.tap import CallTap, KeptCall
from voiceloop.telemetry.traces import Traces


@dataclass(slots=True, kw_only=True)
class CallServices(ReplyServices):
    """The services of one server for all its calls. tickets: None where no call can be resumed.

    new_vad: makes a voice detector, one for each call. on_resumed: told of a call that was
    resumed here. lacks_place: why a call that said nothing so far may not begin now;
    None where it may. agent_names: of all its agents, where it has several. another: one of them,
    for a call that is handed to it; raises InvalidRequest.
    """

    traces: Traces = field(default_factory=Traces)
    tickets: Tickets | None = None
    new_vad: Callable[[], VoiceActivity] = Vad
    on_resumed: OnResumed = lambda call_id, by: None
    lacks_place: Callable[[], str | None] = lambda: None
    agent_names: Callable[[], tuple[str, ...]] = lambda: ()
    another: Callable[[str], Answering] = lambda name: no_other(name)

    def begin_tap(self, agent: AgentConfig, hello: Hello, call_id: str) -> CallTap:
        """Return what keeps this call, as it begins with this agent."""
        kept = KeptCall(
            call_id, hello.tenant, self.clock(), agent.name, agent.greeting, agent.language,
            hello.told(),
        )  # fmt: skip
        return self.recordings.begin(kept)


class Answering(NamedTuple):
    """The agent that answers a call, and its services."""

    agent: AgentConfig
    services: CallServices
    backends: Backends


def no_other(name: str) -> Answering:
    raise InvalidRequest(f"expected one of the server's agents, found {name[:80]!r}")

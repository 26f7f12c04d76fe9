"""What the replies of one session share: the parts of the session that each of them is given."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from voiceloop.agent import AgentConfig
from voiceloop.backends import Voice
from voiceloop.realtime.protocol import Protocol
from voiceloop.reply.anticipation import Anticipation
from voiceloop.reply.playout import LEAD_MS
from voiceloop.tools.pending import SessionTools


@dataclass(slots=True)
class ReplyContext:
    """The voice, the anticipated branch, the protocol, the agent, the tools and the clock."""

    voice: Voice
    anticipation: Anticipation
    protocol: Protocol
    agent: AgentConfig
    tools: SessionTools
    clock: Callable[[], float]
    new_stream_id: Callable[[], str]  # for the voice
    load: Callable[[], float] = lambda: 0.0  # utilization of the busiest model process, 0 to 1
    lead_ms: float = LEAD_MS

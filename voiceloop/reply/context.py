"""What the turns of one session share.

Owns the bundle of a session's parts that every turn, drafted or not, is given.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from voiceloop.agent import AgentConfig
from voiceloop.backends import Voice
from voiceloop.realtime.protocol import Protocol
from voiceloop.reply.anticipation import Anticipation
from voiceloop.reply.playout import LEAD_MS


@dataclass(slots=True)
class ReplyContext:
    """What all turns of one session share."""

    voice: Voice
    anticipation: Anticipation
    protocol: Protocol
    agent: AgentConfig
    clock: Callable[[], float]
    new_stream_id: Callable[[], str]  # for the voice
    load: Callable[[], float] = lambda: 0.0  # utilization of the busiest model process, 0 to 1
    lead_ms: float = LEAD_MS
    on_output: Callable[[], None] = lambda: None

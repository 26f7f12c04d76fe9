"""What the replies of one session share: the parts of the session that each of them is given."""

from __future__ import annotations

from collections.abc import Callable
from itertools import cycle

from voiceloop.agent import AgentConfig
from voiceloop.backends import Voice
from voiceloop.knowledge.answers import ApprovedAnswers
from voiceloop.knowledge.retrieval import Retrieval
from voiceloop.realtime.protocol import Protocol
from voiceloop.reply.anticipation import Anticipation
from voiceloop.reply.prepared import Prepared
from voiceloop.reply.voice import KeptLines, ReplyVoice
from voiceloop.tools.pending import SessionTools

# Of the busiest model process; chosen. What is left belongs to replies that somebody waits for.
MAX_UTILIZATION = 0.7


class ReplyContext:
    """The voice, the anticipated branch, the protocol, the agent, its answers, tools, the clock.

    is_busy: whether no reply is made that may be thrown away. new_stream_id, lead_ms, kept_lines:
    of the voice. approved, retrieval: of the agent.
    """

    def __init__(
        self,
        *,
        voice: Voice,
        anticipation: Anticipation,
        protocol: Protocol,
        agent: AgentConfig,
        tools: SessionTools,
        clock: Callable[[], float],
        is_busy: Callable[[], bool],
        new_stream_id: Callable[[], str],
        lead_ms: float,
        kept_lines: KeptLines,
        approved: ApprovedAnswers,
        retrieval: Retrieval | None,
    ) -> None:
        self.voice = ReplyVoice(voice, new_stream_id, lead_ms, kept_lines)
        self.anticipation = anticipation
        self.protocol = protocol
        self.agent = agent
        self.prepared = Prepared(protocol, agent, approved, retrieval)
        self.tools = tools
        self.clock = clock
        self.is_busy = is_busy
        self.waiting_lines = cycle(agent.waiting.say)  # said while a tool takes its time, in turn

"""What the replies of one session share: the parts of the session that each of them is given."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import cycle
from typing import Literal, NamedTuple

from voiceloop.admission.ladder import Level
from voiceloop.agent import AgentConfig
from voiceloop.backends import Voice, VoiceOptions
from voiceloop.knowledge.answers import ApprovedAnswers
from voiceloop.realtime.protocol import Protocol
from voiceloop.reply.anticipation import Anticipation
from voiceloop.reply.sound.kept_lines import KeptLine, KeptLines
from voiceloop.reply.sound.playout import LEAD_MS
from voiceloop.telemetry.traces import CallTrace, NoTraces
from voiceloop.tools.pending import SessionTools


class FixedAnswer(NamedTuple):
    """What the agent file has said in place of a model's reply, and which of its tables has it."""

    text: str
    table: Literal["crisis", "answer"]


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
    level: Callable[[], Level] = lambda: Level.NORMAL
    lead_ms: float = LEAD_MS
    trace: CallTrace = field(default_factory=NoTraces)
    answers: ApprovedAnswers = field(default_factory=ApprovedAnswers)
    kept_lines: KeptLines = field(default_factory=KeptLines)
    waiting_lines: Iterator[str] = field(init=False)  # said while a tool takes its time, in turn

    def __post_init__(self) -> None:
        self.waiting_lines = cycle(self.agent.waiting.say)

    def kept_fallback(self, options: VoiceOptions) -> KeptLine | None:
        """The sound of the fallback, from when the voice could speak."""
        return self.kept_lines.line(self.agent.fallback, options)

    def fixed_answer(self, turn: str, *pieces: str) -> FixedAnswer | None:
        """The answer to the caller's whole turn that needs no model; words of danger go first.

        pieces: of the turn, in which such words may stand apart from it.
        """
        crisis = self.agent.crisis
        if any(crisis.answers(said) for said in (turn, *pieces)):
            return FixedAnswer(crisis.answer, "crisis")
        approved = self.answers.find(turn)
        return FixedAnswer(approved.text, "answer") if approved is not None else None

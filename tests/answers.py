"""A turn of a caller, as the answerers of `voiceloop/reply/answers/` are given it."""

from __future__ import annotations

from voiceloop.agent import AgentConfig
from voiceloop.knowledge.answers import ApprovedAnswers
from voiceloop.reply.answerers import Heard
from voiceloop.slots.form import Form


def heard(turn: str, agent: AgentConfig, *pieces: str, form: Form | None = None) -> Heard:
    """pieces: that it was said in. form: where the slots stand behind it."""
    approved = ApprovedAnswers(agent.answer)
    return Heard(turn, pieces or (turn,), agent, form or Form(), approved)

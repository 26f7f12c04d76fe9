"""`quote`: a plain question gets the sentence of the instructions that answers it."""

from __future__ import annotations

from voiceloop.knowledge.told import quoted
from voiceloop.reply.answerers import Heard


def answer(heard: Heard) -> str | None:
    if not heard.quotable:
        return None
    agent = heard.agent
    tools = (f"{one.name.replace('_', ' ')} {one.description}" for one in agent.tools)
    return quoted(heard.turn, heard.quotable, " ".join(tools), knows_all=not agent.knowledge)

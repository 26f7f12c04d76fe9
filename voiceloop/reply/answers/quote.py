"""`quote`: a plain question gets the sentence of the instructions that answers it."""

from __future__ import annotations

from voiceloop.agent import AgentConfig
from voiceloop.knowledge.told import quoted
from voiceloop.reply.answerers import Heard


def answer(heard: Heard) -> str | None:
    if not heard.quotable:
        return None
    tools, knows_all = of_tools(heard.agent), not heard.agent.knowledge
    return quoted(heard.turn, heard.quotable, tools, knows_all=knows_all)


def of_tools(agent: AgentConfig) -> str:
    """What the agent's tools are for, as far as words tell."""
    return " ".join(
        " ".join((one.name.replace("_", " "), one.description, *one.table)) for one in agent.tools
    )

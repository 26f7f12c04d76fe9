"""`quote`: a plain question gets what a tool has on it, or the sentence of the instructions."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator

from voiceloop.agent import AgentConfig, AgentTool
from voiceloop.knowledge.hours import DAYS
from voiceloop.knowledge.lookups import Lookup, asked_of, is_priced
from voiceloop.knowledge.told import quoted
from voiceloop.reply.answerers import Heard, SaidWithCall


def answer(heard: Heard) -> SaidWithCall | str | None:
    """A tool that is called says what there is to say: its result is read out."""
    if not heard.quotable:
        return None
    if (asked := asked_of(heard.turn, _lookups(heard))) is not None:
        lookup, value = asked
        arguments = json.dumps({lookup.parameter: value}, ensure_ascii=False)
        return SaidWithCall("", lookup.tool, arguments)
    agent = heard.agent
    priced = [one for one in agent.tools if is_priced(_about(one))]
    others = [one for one in agent.tools if one not in priced]
    return quoted(
        heard.turn, heard.quotable, _words_of(others), prices=_words_of(priced),
        knows_all=not agent.knowledge, knows_prices=all(_choice(one)[1] for one in priced),
    )  # fmt: skip


def of_tools(agent: AgentConfig) -> str:
    """Return what the agent's tools are for, as far as words tell."""
    return _words_of(agent.tools)


def _words_of(tools: Iterable[AgentTool]) -> str:
    return " ".join(f"{_about(one)} {' '.join(_choice(one)[1])}" for one in tools)


def _lookups(heard: Heard) -> Iterator[Lookup]:
    """Yield the agent's tools that change nothing and take one of some known values."""
    for tool in heard.agent.tools:
        parameter, values = _choice(tool)
        is_free = tool.runs_early and not tool.is_clients and not tool.from_slots
        if values and is_free and tool.name in heard.tools:
            yield Lookup(tool.name, parameter, values, f"{_about(tool)} {parameter}")


def _about(tool: AgentTool) -> str:
    return f"{tool.name.replace('_', ' ')} {tool.description}"


def _choice(tool: AgentTool) -> tuple[str, tuple[str, ...]]:
    """The one parameter that it needs, and what it may be: the entries of the tool's result, or the
    texts that its schema names; of a day, those of the week.
    """
    properties, required = tool.parameters.get("properties", {}), tool.parameters.get("required")
    if not isinstance(properties, dict) or not isinstance(required, list) or len(required) != 1:
        return "", ()
    parameter = str(required[0])
    if tool.known and next(iter(properties), "") == parameter:
        return parameter, tuple(name for name in tool.known if name != "*")
    schema = properties.get(parameter)
    known = DAYS if parameter == "day" else ()
    named = schema.get("enum", known) if isinstance(schema, dict) else ()
    return parameter, tuple(name for name in named if isinstance(name, str))

"""`quote`: a plain question gets what a tool has on it, or the sentence of the instructions."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator

from voiceloop.agent import AgentTool
from voiceloop.backends import Tool
from voiceloop.knowledge.hours import DAYS
from voiceloop.knowledge.lookups import Lookup, asked_of, is_priced
from voiceloop.knowledge.told import DONT_KNOW, quoted, whole_question
from voiceloop.reply.answerers import Heard, SaidWithCall


def answer(heard: Heard) -> SaidWithCall | str | None:
    """A tool that is called says what there is to say: its result is read out."""
    if not heard.quotable:
        return None
    turn = whole_question(heard.turn, heard.before)
    if (asked := asked_of(turn, _lookups(heard))) is not None:
        lookup, value = asked
        arguments = json.dumps({lookup.parameter: value}, ensure_ascii=False)
        return SaidWithCall("", lookup.tool, arguments)
    agent = heard.agent
    priced = [one for one in heard.offered if is_priced(_about(one))]
    others = [one for one in heard.offered if one not in priced]
    said = quoted(
        turn, heard.quotable, words_of_tools(others), prices=words_of_tools(priced),
        knows_all=not agent.knowledge, knows_prices=all(_choice(one)[1] for one in priced),
    )  # fmt: skip
    is_guess = turn != heard.turn and said == DONT_KNOW
    return None if is_guess else said


def words_of_tools(tools: Iterable[AgentTool | Tool]) -> str:
    """Return what the tools are for, as far as words tell."""
    return " ".join(f"{_about(one)} {' '.join(_choice(one)[1])}" for one in tools)


def _lookups(heard: Heard) -> Iterator[Lookup]:
    """Yield the agent's tools that change nothing and take one of some known values."""
    for tool in heard.agent.tools:
        parameter, values = _choice(tool)
        is_free = tool.runs_early and not tool.is_clients and not tool.from_slots
        if values and is_free and tool.name in heard.tools:
            about, takes_any = f"{_about(tool)} {parameter}", "*" in tool.known
            yield Lookup(tool.name, parameter, values, about, takes_any)


def _about(tool: AgentTool | Tool) -> str:
    return f"{tool.name.replace('_', ' ')} {tool.description}"


def _choice(tool: AgentTool | Tool) -> tuple[str, tuple[str, ...]]:
    """The one parameter that it needs, and what it may be: the entries of the tool's result, or the
    texts that its schema names; of a day, those of the week.
    """
    properties, required = tool.parameters.get("properties", {}), tool.parameters.get("required")
    if not isinstance(properties, dict) or not isinstance(required, list) or len(required) != 1:
        return "", ()
    parameter = str(required[0])
    known = tool.known if isinstance(tool, AgentTool) else {}
    if known and next(iter(properties), "") == parameter:
        return parameter, tuple(name for name in known if name != "*")
    schema = properties.get(parameter)
    if not isinstance(schema, dict):
        return parameter, ()
    is_week = parameter == "day" and schema.get("type") == "string" and "format" not in schema
    named = schema.get("enum", DAYS if is_week else ())
    if not isinstance(named, list | tuple):  # a client's schema
        return parameter, ()
    return parameter, tuple(name for name in named if isinstance(name, str))

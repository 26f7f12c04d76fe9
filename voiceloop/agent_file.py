"""Reading an agent file: strictly, and with every rule beyond its keys and their types.

Owns those rules (ranges, names, schemas), and whether this server's models speak the agent's voice
and language, as far as that is known before they are loaded.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import fields, replace
from importlib import resources
from pathlib import Path
from typing import Any

from voiceloop.agent import AgentConfig, AgentTool, McpServer
from voiceloop.backends import MAX_TOOLS
from voiceloop.capabilities import Capabilities
from voiceloop.child import without_settings
from voiceloop.config import Config
from voiceloop.config_reader import nearest, overlay, read_toml, read_toml_text
from voiceloop.errors import ConfigError
from voiceloop.knowledge.answers import ApprovedAnswers
from voiceloop.knowledge.sources import check_sources
from voiceloop.openers import openers_of
from voiceloop.slots.checks import check_slots

SUFFIX = ".toml"
EMBEDDED_AGENT_NAME = "cafe"  # of those that ship, the one that the embedded model was made for
MAX_TRY_SAYING, MAX_TRY_SAYING_CHARS = 6, 100  # what a phone's screen shows at a glance
TYPES = ("object", "array", "string", "number", "integer", "boolean", "null")
DESCRIBED_S = 30.0  # an import of a large library from a cold disk
MAX_TRANSFERS = 32  # the model reads all of their names
MAX_MCP_SERVERS = 16  # each is a connection, or a process, for as long as the server runs

OF_THE_SERVER = {one.name for one in fields(Config)} - {one.name for one in fields(AgentConfig)}

# Keywords of JSON schema whose value is: one schema, a list of them, or a table of them.
ONE_SCHEMA = ("items", "additionalProperties", "not", "if", "then", "else", "contains")
SCHEMA_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
SCHEMA_TABLES = ("properties", "patternProperties", "$defs", "definitions")


def load_agent(path: Path) -> AgentConfig:
    """Read an agent file, or one that ships by its bare name, as ``pizzeria``.

    A file of that name where the user stands goes first.

    Raises:
        ConfigError: the file is missing or not TOML, a key is unknown (the nearest valid name is
            in the message), or a value is of the wrong type or out of its range.
    """
    names = shipped_agents()
    if str(path) in names and not path.is_file():
        return shipped_agent(str(path))
    if path.suffix == ".py" and path.is_file():
        beside = path.absolute().parent
        return _read(_described(path.stem, str(path), beside), str(path), beside)
    wanted = f"agent: expected an agent file, or one that ships ({', '.join(names)})"
    if not path.exists():
        raise ConfigError(f"{wanted}, found none at {path}{nearest(str(path), names)}")
    return _read(read_toml(path, wanted), str(path), path.absolute().parent)


def shipped_agents() -> tuple[str, ...]:
    """The names of the agents that ship, in order."""
    files = resources.files("voiceloop").joinpath("agents").iterdir()
    return tuple(sorted(one.name.removesuffix(SUFFIX) for one in files if SUFFIX in one.name))


def shipped_agent(name: str) -> AgentConfig:
    """One of ``shipped_agents``."""
    file = resources.files("voiceloop").joinpath("agents", name + SUFFIX)
    folder = Path(str(file)).parent
    return _read(read_toml_text(file.read_text(encoding="utf-8"), file.name), file.name, folder)


def embedded_agent() -> AgentConfig:
    """The agent that the embedded preset has where none is named."""
    return shipped_agent(EMBEDDED_AGENT_NAME)


def _read(values: dict[str, Any], source: str, beside: Path) -> AgentConfig:
    """beside: the folder that relative paths in the file begin at, and its class stands in."""
    if isinstance(spec := values.get("python"), str) and source.endswith(SUFFIX):
        own = _described(spec, source, beside)
        values = {**own, **values, "tools": [*own.get("tools", ()), *values.get("tools", ())]}
    if (stray := next((name for name in values if name in OF_THE_SERVER), None)) is not None:
        wanted = f"{source}: expected a key of an agent, found {stray!r}"
        raise ConfigError(f"{wanted}, which the server's file has (voiceloop serve --config FILE)")
    agent = overlay(AgentConfig(), values, source, folder=beside)
    check_agent(agent, source)
    # What is heard comes in small letters, so that is how it is compared.
    barge_in = replace(
        agent.barge_in,
        stop_words=_small(agent.barge_in.stop_words),
        backchannels=_small(agent.barge_in.backchannels),
    )
    crisis = replace(agent.crisis, words=_small(agent.crisis.words))
    return replace(agent, barge_in=barge_in, crisis=crisis)


def _described(spec: str, source: str, beside: Path) -> dict[str, Any]:
    """The tables that an agent's class stands for, which is imported in a process of its own.

    Raises: ConfigError.
    """
    told: dict[str, Any]
    command = [sys.executable, "-m", "voiceloop.tools.agent_host", spec, str(beside), ""]
    try:
        run = subprocess.run(
            command, env=without_settings(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            timeout=DESCRIBED_S, check=False,
        )  # fmt: skip
        told = json.loads(run.stdout) if run.stdout else {"problem": "its process ended"}
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        told = {"problem": f"no answer of its process ({type(error).__name__})"}
    if "table" not in told:
        raise _wrong(source, "python", "a class of voiceloop.python_agent.Agent", told["problem"])
    table: dict[str, Any] = told["table"]
    return table


def _small(phrases: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(" ".join(phrase.lower().split()) for phrase in phrases)


def check_agent(agent: AgentConfig, source: str) -> None:
    """Raises: ConfigError, which names the file, the key, what was expected and what was found."""
    _check_try_saying(agent.try_saying, source)
    if agent.crisis.words and not agent.crisis.answer.strip():
        raise _wrong(source, "crisis.answer", "a text beside crisis.words", "nothing")
    _check_tools(agent.tools, source)
    _check_from_slots(agent, source)
    _check_call(agent, source)
    _check_mcp(agent, source)
    _check_routes(agent, source)
    try:
        openers_of(agent.waiting.openers, agent.language)
        check_slots(agent.slots, agent.language)
        check_sources(agent.knowledge)
        ApprovedAnswers(agent.answer)
    except ConfigError as error:
        raise ConfigError(f"{source}: {error}") from None


def _check_try_saying(phrases: tuple[str, ...], source: str) -> None:
    if len(phrases) > MAX_TRY_SAYING:
        most = f"at most {MAX_TRY_SAYING} sentences"
        raise _wrong(source, "try_saying", most, str(len(phrases)))
    for index, phrase in enumerate(phrases):
        if len(phrase) > MAX_TRY_SAYING_CHARS:
            most = f"at most {MAX_TRY_SAYING_CHARS} characters"
            raise _wrong(source, f"try_saying[{index}]", most, str(len(phrase)))


def _check_routes(agent: AgentConfig, source: str) -> None:
    for index, rule in enumerate(agent.route):
        where = f"route[{index}]"
        if rule.is_empty:
            wanted = "one of words, tools, turns, language, hours"
            raise _wrong(source, where, wanted, "none")
        first, _, last = rule.turns.partition("-")
        if last and int(last) < int(first):
            raise _wrong(source, f"{where}.turns", f"{first} or more behind the -", last)


# --- tools ---------------------------------------------------------------------------------------


def _check_tools(tools: tuple[AgentTool, ...], source: str) -> None:
    if len(tools) > MAX_TOOLS:
        raise _wrong(source, "tools", f"at most {MAX_TOOLS} tools", str(len(tools)))
    names = [tool.name for tool in tools]
    for index, tool in enumerate(tools):
        where = f"tools[{index}]"
        if tool.name in names[:index]:
            raise _wrong(source, f"{where}.name", "each name once", f"{tool.name!r} twice")
        _check_parameters(tool, f"{where}.parameters", source)
        _check_answer(tool, where, source)
        _check_execution(tool, where, source)


def _check_call(agent: AgentConfig, source: str) -> None:
    """Check the places that a call may be handed to, and the words for a machine."""
    if len(agent.transfers) > MAX_TRANSFERS:
        most = f"at most {MAX_TRANSFERS} of them"
        raise _wrong(source, "transfers", most, str(len(agent.transfers)))
    names = [one.name for one in agent.transfers]
    for index, one in enumerate(agent.transfers):
        if one.name in names[:index]:
            where = f"transfers[{index}].name"
            raise _wrong(source, where, "each name once", f"{one.name!r} twice")
    if agent.transfers and agent.tool("transfer") is not None:
        raise _wrong(source, "transfers", "no tool of that name beside it", "a tool `transfer`")
    if agent.call.machine == "message" and not agent.call.message.strip():
        raise _wrong(source, "call.message", 'a text beside call.machine = "message"', "nothing")


def _check_from_slots(agent: AgentConfig, source: str) -> None:
    names = [slot.name for slot in agent.slots if slot.name is not None]
    for index, tool in enumerate(agent.tools):
        where = f"tools[{index}].from_slots"
        for name in tool.from_slots:
            if name not in names:
                raise _wrong(source, where, "names of [[slots]]", repr(name))
            schema = tool.parameters.get("properties", {}).get(name)
            if not isinstance(schema, dict) or schema.get("type", "string") != "string":
                wanted = f"parameters of {tool.name!r} of type string"
                raise _wrong(source, where, wanted, repr(name))


def _check_parameters(tool: AgentTool, where: str, source: str) -> None:
    """A JSON schema of an object; none at all is a function that takes nothing."""
    if not tool.parameters:
        return
    _check_json(tool.parameters, where, source)
    found = tool.parameters.get("type")
    if found != "object":
        raise _wrong(source, f"{where}.type", "'object'", _shown(found))
    _check_schema(tool.parameters, where, source)


def _check_schema(schema: Any, where: str, source: str) -> None:
    if isinstance(schema, bool):
        return
    if not isinstance(schema, Mapping):
        raise _wrong(source, where, "a JSON schema", _shown(schema))
    kinds = schema.get("type", [])
    for kind in kinds if isinstance(kinds, list) else [kinds]:
        if kind not in TYPES:
            raise _wrong(source, f"{where}.type", f"one of {', '.join(TYPES)}", _shown(kind))
    if "enum" in schema and not (isinstance(schema["enum"], list) and schema["enum"]):
        raise _wrong(source, f"{where}.enum", "a list of values", _shown(schema["enum"]))
    for key in ONE_SCHEMA:
        if key in schema:
            _check_schema(schema[key], f"{where}.{key}", source)
    for key in SCHEMA_LISTS:
        if key in schema:
            if not isinstance(schema[key], list) or not schema[key]:
                raise _wrong(source, f"{where}.{key}", "a list of schemas", _shown(schema[key]))
            for index, inner in enumerate(schema[key]):
                _check_schema(inner, f"{where}.{key}[{index}]", source)
    for key in SCHEMA_TABLES:
        if key in schema:
            if not isinstance(schema[key], Mapping):
                raise _wrong(source, f"{where}.{key}", "a table of schemas", _shown(schema[key]))
            for name, inner in schema[key].items():
                _check_schema(inner, f"{where}.{key}.{name}", source)
    _check_required(schema, where, source)


def _check_required(schema: Mapping[str, Any], where: str, source: str) -> None:
    required = schema.get("required", [])
    if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
        raise _wrong(source, f"{where}.required", "a list of names", _shown(required))
    properties = schema.get("properties")
    absent = [name for name in required if properties is not None and name not in properties]
    if absent:
        raise _wrong(source, f"{where}.required", "names of its properties", repr(absent[0]))


def _check_answer(tool: AgentTool, where: str, source: str) -> None:
    """Check the answers that the server gives by itself."""
    if tool.result is None or isinstance(tool.result, str):
        return
    if not tool.result:
        raise _wrong(source, f"{where}.result", "an entry", "none")
    _check_json(tool.result, f"{where}.result", source)
    names = [name.strip().lower() for name in tool.result]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise _wrong(source, f"{where}.result", "each entry once, in any case", f"{twice!r} twice")
    if not tool.parameters.get("properties"):
        wanted = "a parameter whose value names the entry of result"
        raise _wrong(source, f"{where}.parameters", wanted, f"none in {tool.name!r}")


def _check_execution(tool: AgentTool, where: str, source: str) -> None:
    """Check the tools that the server calls for an answer, and their bounds."""
    ways = {
        "result": tool.result is not None,
        "url": tool.url is not None,
        "python": tool.python is not None,
        "mcp": tool.mcp is not None,
    }
    named = [way for way, is_named in ways.items() if is_named]
    if len(named) > 1:
        wanted = "one of result, url, python, mcp"
        raise _wrong(source, where, wanted, f"{' and '.join(named)} in {tool.name!r}")
    for name, value in tool.headers.items():
        if not isinstance(value, str):  # and its value is not shown: it may be a secret
            raise _wrong(source, f"{where}.headers.{name}", "a string", type(value).__name__)
    if tool.say and (not tool.say.strip() or not tool.is_executed):
        wanted = "words, of a tool with url, python or mcp"
        raise _wrong(source, f"{where}.say", wanted, repr(tool.say))
    if tool.confirm and tool.is_clients:
        wanted = "a tool that the server answers; the client asks before its own"
        raise _wrong(source, f"{where}.confirm", wanted, f"the client's {tool.name!r}")
    if tool.trusted and tool.url is None and tool.mcp is None:
        raise _wrong(source, f"{where}.trusted", "url or mcp beside it", f"none in {tool.name!r}")
    if tool.caller_key and tool.url is None:
        raise _wrong(source, f"{where}.caller_key", "url beside it", f"none in {tool.name!r}")
    if tool.python is not None and "caller" in tool.parameters.get("properties", {}):
        wanted = "no parameter `caller`, by which the function is told who calls"
        raise _wrong(source, f"{where}.parameters", wanted, f"one in {tool.name!r}")
    if tool.network and tool.python is None:
        raise _wrong(source, f"{where}.network", "python beside it", f"none in {tool.name!r}")


def _check_mcp(agent: AgentConfig, source: str) -> None:
    """Check that each MCP server has an address, which of its tools are offered, and that tools
    name servers.
    """
    if len(agent.mcp) > MAX_MCP_SERVERS:
        most = f"at most {MAX_MCP_SERVERS} servers"
        raise _wrong(source, "mcp", most, str(len(agent.mcp)))
    names = [server.name for server in agent.mcp]
    for index, tool in enumerate(agent.tools):
        if tool.mcp is not None and tool.mcp not in names:
            wanted = f"the name of one of [[mcp]]: {', '.join(names) or 'there is none'}"
            raise _wrong(source, f"tools[{index}].mcp", wanted, repr(tool.mcp))
    for index, server in enumerate(agent.mcp):
        where, n_named = f"mcp[{index}]", names.count(server.name)
        if n_named > 1:
            raise _wrong(source, f"{where}.name", "each name once", f"{server.name!r} twice")
        _check_mcp_server(server, where, source)
        is_named = any(tool.mcp == server.name for tool in agent.tools)
        if not server.tools and not is_named:
            wanted = 'names of its tools, or "*" for all of them'
            raise _wrong(source, f"{where}.tools", wanted, "nothing")


def _check_mcp_server(server: McpServer, where: str, source: str) -> None:
    if (server.url is None) == (not server.command):
        found = "neither" if server.url is None else "both"
        raise _wrong(source, where, "url or command", f"{found} in {server.name!r}")
    useless = "environment" if server.url is not None else "headers"
    for key in ("headers", "environment"):
        values: Mapping[str, Any] = getattr(server, key)
        if values and key == useless:
            other = "url" if key == "headers" else "command"
            raise _wrong(source, f"{where}.{key}", f"{other} beside it", "the other way")
        for name, value in values.items():
            if not isinstance(value, str):  # and its value is not shown: it may be a secret
                raise _wrong(source, f"{where}.{key}.{name}", "a string", type(value).__name__)


def _check_json(value: Any, where: str, source: str) -> None:
    """TOML has dates, times, infinities; JSON has none."""
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise _wrong(source, where, "values that JSON has", str(error)) from None


# --- what the models can -------------------------------------------------------------------------


def check_models(agent: AgentConfig, known: Capabilities, source: str) -> None:
    """The agent's voice and language, where this server's own models are known to have others.

    Raises:
        ConfigError: as `check_agent`.
    """
    wanted = known.voice_expected(agent.voice)
    if wanted is not None:
        raise _wrong(source, "voice", wanted, repr(agent.voice))
    wanted = known.language_expected(agent.language)
    if wanted is not None:
        raise _wrong(source, "language", wanted, repr(agent.language))


def _shown(value: Any) -> str:
    return "nothing" if value is None else repr(value)[:80]


def _wrong(source: str, where: str, wanted: str, found: str) -> ConfigError:
    return ConfigError(f"{source}: {where}: expected {wanted}, found {found}")

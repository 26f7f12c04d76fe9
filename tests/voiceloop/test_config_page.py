"""The page of all settings says what the dataclasses and the command line say."""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from voiceloop.agent import AgentConfig, AgentSlot, AgentTool, McpServer
from voiceloop.cli import build_parser
from voiceloop.config import FOREIGN, PREFIX, Config
from voiceloop.knowledge.answers import ApprovedAnswer
from voiceloop.knowledge.sources import KnowledgeSource
from voiceloop.listening.release import PATIENCE

PAGE = Path(__file__).resolve().parents[2] / "voiceloop" / "CONFIG.md"
SERVER, AGENT = PAGE.read_text(encoding="utf-8").split("\n## The agent")
NOTHING = "-"
CODE = re.compile(r"`([^`]*)`")


def rows(text: str, n_columns: int) -> Iterator[list[str]]:
    """The tables' rows of settings: their first cell is code, and so is their default."""
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if line.startswith("| `") and len(cells) == n_columns:
            yield [match[1] if (match := CODE.fullmatch(cell)) else cell for cell in cells]


def written(value: Any) -> str:
    """A default as the page shows it: TOML, or a dash where there is none."""
    if value is None or value is dataclasses.MISSING:
        return NOTHING
    return json.dumps(value, default=dict)


def settings(kind: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(name, default) of every field; a table's own fields in its place."""
    for field in dataclasses.fields(kind):
        is_made = field.default_factory is not dataclasses.MISSING
        default = field.default_factory() if is_made else field.default  # type: ignore[misc]
        if dataclasses.is_dataclass(default):
            yield from settings(default, f"{prefix}{field.name}.")
        else:
            yield f"{prefix}{field.name}", default


def flags_of_serve() -> dict[str, str]:
    """The flags of `serve` that set something, by the name of what they set."""
    [commands] = [
        action
        for action in build_parser()._actions
        if isinstance(action, argparse._SubParsersAction)
    ]
    actions = commands.choices["serve"]._actions
    flags = [(one.dest, one.option_strings[0]) for one in actions if one.dest != "help"]
    return {dest: flag for dest, flag in flags if not flag.startswith("--no-")}


def test_every_key_of_the_server_is_on_the_page_with_its_default() -> None:
    shown = [(key, default) for key, _, _, default, _ in rows(SERVER, 5)]
    assert shown == [(key, written(default)) for key, default in settings(Config)]


def test_every_variable_and_flag_of_the_server_is_on_the_page() -> None:
    flags = flags_of_serve()
    assert flags.pop("config") == "--config"
    for key, variable, flag, _, _ in rows(SERVER, 5):
        assert variable == PREFIX + key.replace(".", "_").upper()
        assert flag == flags.pop(key, NOTHING)
    assert not flags


def test_every_key_of_an_agent_file_is_on_the_page_with_its_default() -> None:
    tables = {
        "slots": AgentSlot,
        "knowledge": KnowledgeSource,
        "answer": ApprovedAnswer,
        "tools": AgentTool,
        "mcp": McpServer,
    }
    lists = [
        (f"{table}.{name}", written(default))
        for table, kind in tables.items()
        for name, default in settings(kind)
    ]
    expected = [(key, written(default)) for key, default in settings(AgentConfig)]
    shown = [(key, default) for key, default, _ in rows(AGENT, 3)]
    assert shown == expected + lists


def test_the_waits_on_the_page_are_those_that_ship() -> None:
    shown = {key: waits for key, *waits in rows(AGENT, 4)}
    assert shown == {
        name: [f"{one.cut_cost_s:g} s", f"{one.least_ms:.0f} ms", f"{one.longest_ms / 1000:g} s"]
        for name, one in PATIENCE.items()
    }


def test_variables_that_set_nothing_are_named() -> None:
    for name in FOREIGN:
        assert f"`{name}`" in SERVER

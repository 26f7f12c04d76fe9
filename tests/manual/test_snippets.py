"""What a reader pastes from a page is taken: settings, agents, programs, commands, queries."""

from __future__ import annotations

import json
import os
import re
import shlex
import tomllib
from functools import partial
from pathlib import Path
from typing import get_args

import pytest
import yaml

from tests.tables import each_row
from tests.voiceloop.config_page import keys_with_lists
from tests.voiceloop.telemetry.test_dashboard import SUFFIXES, families
from voiceloop.agent import AgentConfig
from voiceloop.agent_file import load_agent
from voiceloop.cli import build_parser
from voiceloop.config import AheadPart, Config, load_config
from voiceloop.errors import ConfigError

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    *sorted((ROOT / "voiceloop" / "docs").glob("*.md")), ROOT / "README.md", ROOT / "SECURITY.md",
]  # fmt: skip
FENCE = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
# Of a cluster, a package, scenarios and a benchmark: other readers', with tests of their own.
OTHERS = ("# cluster.toml", "# pyproject.toml", "[budgets]", "title =")
NO_KEYS = {  # files and a host, named as keys are
    "tools.py", "call.wav", "mcp.shop.example", "route.safetensors",
}  # fmt: skip
# What stands on a page in place of a value of the reader's.
PLACES = {"URL": "http://127.0.0.1:8000/v1", "FILE": "file.toml", "N": "8", "SECONDS": "2"}


def blocks(asked: str) -> list[str]:
    return [
        text
        for page in PAGES
        for language, text in FENCE.findall(page.read_text(encoding="utf-8"))
        if language == asked
    ]


@each_row("text", blocks("toml"))
def test_a_table_is_one_of_a_server_or_of_an_agent(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in re.findall(r"(?:\$\{?|env:)([A-Z]\w+)", text):
        monkeypatch.setenv(name, "x" * 20)
    (tmp_path / "key").write_text("x" * 20, encoding="utf-8")
    text = re.sub(r"\"file:[^\"]+\"", f'"file:{tmp_path}/key"', text)
    if text.startswith(OTHERS):
        assert tomllib.loads(text)
        return
    path = tmp_path / "file.toml"
    path.write_text(text, encoding="utf-8")
    troubles = []
    for load in (partial(load_config, environ=os.environ), load_agent):
        try:
            load(path)
        except ConfigError as error:
            troubles.append(error.message)
    assert len(troubles) < 2, troubles


@each_row("text", blocks("python"))
def test_a_program_is_one(text: str) -> None:
    """What stands in the middle of a coroutine of the reader's is taken as that."""
    inside = "async def main():\n" + re.sub(r"^", "    ", text, flags=re.MULTILINE)
    compile(inside if text.startswith("async with") or "\nasync with" in text else text, "", "exec")


@each_row("text", blocks("json"))
def test_an_object_is_one(text: str) -> None:
    assert json.loads(text)


@each_row("text", blocks("yaml"))
def test_a_rule_asks_for_metrics_that_there_are(text: str) -> None:
    known = {f.name + suffix for f in families() for suffix in SUFFIXES.get(f.type, ())}
    rules = [rule for group in yaml.safe_load(text)["groups"] for rule in group["rules"]]
    asked = {name for rule in rules for name in re.findall(r"voiceloop_\w+", rule["expr"])}
    assert asked and asked <= known, asked - known


def commands() -> list[str]:
    """The lines of code blocks that begin with `voiceloop`, continued ones joined."""
    found = []
    for page in PAGES:
        text = re.sub(r"\\\n\s*", " ", page.read_text(encoding="utf-8"))
        blocks = re.findall(r"^ *```(\w*)\n(.*?)^ *```$", text, re.MULTILINE | re.DOTALL)
        for block in (block for language, block in blocks if language in ("", "sh")):
            found += re.findall(r"^(?:\w+=\S+ )*voiceloop (.+)$", block, re.MULTILINE)
    return found


@each_row("line", commands())
def test_a_command_is_taken_as_pasted(line: str) -> None:
    words = [PLACES.get(word, word) for word in shlex.split(line.rstrip("& "), comments=True)]
    build_parser().parse_args(words)  # ends the process where it is not


@each_row("page", PAGES)
def test_a_key_in_the_text_is_one(page: Path) -> None:
    """Of a table that there is. One that was renamed or removed is found where it still stands."""
    known = keys_with_lists(Config).keys() | keys_with_lists(AgentConfig).keys()
    tables = {".".join(key.split(".")[:n]) for key in known for n in range(1, key.count(".") + 1)}
    known |= tables | {f"anticipation.{part}" for part in get_args(AheadPart)}
    named = re.findall(r"`([a-z_]+(?:\.[a-z_]+)+)(?: = [^`]*)?`", page.read_text(encoding="utf-8"))
    wrong = {one for one in named if one.split(".")[0] in tables and one not in known}
    assert wrong <= NO_KEYS, wrong - NO_KEYS


def test_the_extras_are_listed_and_no_page_asks_an_index_for_them() -> None:
    """VoiceLoop is on no index: a page says `.[NAME]` in a clone, once what messages mean."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    page = (ROOT / "voiceloop" / "docs" / "QUICKSTART.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`.+`) \|", page.split("| extra |")[1], re.MULTILINE)
    assert set(re.findall(r"`(\w+)`", " ".join(rows))) == {*project["optional-dependencies"]} - {
        "dev"
    }
    asked = {one.stem for one in PAGES if "voiceloop[" in one.read_text(encoding="utf-8")}
    assert asked == {"QUICKSTART"}

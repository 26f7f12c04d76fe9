"""The page of all settings is made of their declarations, and each of these is whole."""

from __future__ import annotations

import re
from typing import get_args

from tests.voiceloop.config_page import PAGE, flags, keys_with_lists, written
from voiceloop.agent import AgentConfig
from voiceloop.config import FOREIGN, AheadPart, Config, all_keys
from voiceloop.listening.release import PATIENCE

TEXT = PAGE.read_text(encoding="utf-8")
SERVER = keys_with_lists(Config)
AGENT = keys_with_lists(AgentConfig)


def test_the_page_is_what_its_command_writes() -> None:
    assert written() == TEXT, "python -m tests.voiceloop.config_page"


def test_every_key_is_on_the_page() -> None:
    rows = re.findall(r"^\| `([\w.]+)` \|", TEXT, re.MULTILINE)
    lists = {name.partition(".")[0] for name in AGENT if name not in all_keys(AgentConfig)}
    assert sorted(rows) == sorted([*SERVER, *AGENT, *lists, *PATIENCE, *get_args(AheadPart)])


def test_every_description_is_told_in_a_sentence_first() -> None:
    for path, key in (SERVER | AGENT).items():
        assert key.description.endswith("."), path
        assert len(key.summary) <= 120 and "](" not in key.summary, path


def test_every_engine_key_has_a_flag() -> None:
    flagged = flags()
    assert {path for path in SERVER if path.startswith("engine.")} <= set(flagged)
    assert {"host", "port", "preset", "agent"} <= set(flagged)


def test_the_waits_on_the_page_are_those_that_ship() -> None:
    page = TEXT.split("### The end of the caller's turn")[1].split("###")[0]
    rows = re.findall(r"^\| `(\w+)` \| (.*?) \| (.*?) \| (.*?) \|$", page, re.MULTILINE)
    assert rows == [
        (name, f"{one.cut_cost_s:g} s", f"{one.least_ms:.0f} ms", f"{one.longest_ms / 1000:g} s")
        for name, one in PATIENCE.items()
    ]


def test_every_part_of_the_work_ahead_is_told() -> None:
    page = TEXT.split("### What is done ahead")[1].split("###")[0]
    assert tuple(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)) == get_args(AheadPart)


def test_variables_that_set_nothing_are_named() -> None:
    for name in FOREIGN:
        assert f"`{name}`" in TEXT

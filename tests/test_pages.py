"""The pages a newcomer reads name only files, modules, commands, flags, variables that exist."""

from __future__ import annotations

import argparse
import re
from dataclasses import fields
from importlib.util import find_spec
from pathlib import Path

import pytest

from voiceloop.cli import build_parser
from voiceloop.config import FOREIGN, PREFIX, Ahead, Config, Limits, load_config

ROOT = Path(__file__).resolve().parents[1]
PAGES = (
    "README.md", "NOTICE.md", "CHANGELOG.md", "voiceloop/PROTOCOL.md", "voiceloop/MODELS.md",
    "voiceloop/CONFIG.md", "engine/embedded/README.md", "audio/embedded/recognizer/CARD.md",
)  # fmt: skip
ROOMS = ("voiceloop", "engine", "audio", "clients", "tests", "benchmarks")
LINK = re.compile(r"\]\(([^)#:]+)\)")
CODE = re.compile(r"`([^`\n]+)`")
# Not `/v1/audio/speech`, nor the media types `audio/pcm` and its like.
ROOM_PATH = re.compile(rf"(?<![\w/])(?!audio/pcm)(?:{'|'.join(ROOMS)})/[\w./*-]+")
MODULE = re.compile(r"python -m ([\w.]+)")
COMMAND = re.compile(r"(?:^|`|\$ )voiceloop ([a-z]+)([^`\n#]*)", re.MULTILINE)
FLAG = re.compile(r"(?<!\S)--[a-z-]+")
VARIABLE = re.compile(rf"{PREFIX}[A-Z_]+[A-Z]")


def text_of(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def flags_by_command() -> dict[str, set[str]]:
    """Of every subcommand, the flags that it and its own subcommands take."""
    found: dict[str, set[str]] = {}

    def visit(parser: argparse.ArgumentParser, flags: set[str]) -> None:
        for action in parser._actions:
            flags.update(action.option_strings)
            if isinstance(action, argparse._SubParsersAction):
                for name, inner in action.choices.items():
                    visit(inner, flags if parser is not top else found.setdefault(name, set()))

    top = build_parser()
    visit(top, set())
    return found


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    for target in LINK.findall(text_of(page)):
        assert (ROOT / page).parent.joinpath(target).exists(), target


@pytest.mark.parametrize("page", PAGES)
def test_files_in_the_text_are_there(page: str) -> None:
    for code in CODE.findall(text_of(page)):
        for path in ROOM_PATH.findall(code):
            assert list(ROOT.glob(path.rstrip("/."))), path


@pytest.mark.parametrize("page", PAGES)
def test_modules_that_are_to_be_run_are_there(page: str) -> None:
    for name in MODULE.findall(text_of(page)):
        if name.split(".")[0] in ROOMS:
            assert find_spec(name) is not None, name


@pytest.mark.parametrize("page", PAGES)
def test_commands_exist_and_take_the_flags_they_are_shown_with(page: str) -> None:
    known = flags_by_command()
    for command, rest in COMMAND.findall(text_of(page)):
        assert command in known, command
        assert set(FLAG.findall(rest)) <= known[command], (command, rest)


@pytest.mark.parametrize("page", PAGES)
def test_variables_are_read(page: str) -> None:
    known = {PREFIX + field.name.upper() for field in fields(Config)} | FOREIGN
    known |= {f"{PREFIX}LIMITS_{field.name.upper()}" for field in fields(Limits)}
    known |= {f"{PREFIX}ANTICIPATION_{field.name.upper()}" for field in fields(Ahead)}
    assert set(VARIABLE.findall(text_of(page))) <= known


def test_the_configuration_in_the_readme_is_taken(tmp_path: Path) -> None:
    [block] = re.findall(r"```toml\n(.*?)```", text_of("README.md"), re.DOTALL)
    path = tmp_path / "voiceloop.toml"
    path.write_text(block, encoding="utf-8")
    assert load_config(path).port == Config().port


def test_the_program_in_the_readme_is_one() -> None:
    [block] = re.findall(r"```python\n(.*?)```", text_of("README.md"), re.DOTALL)
    compile(block, "README.md", "exec")


def test_the_events_of_a_round_trip_are_those_of_the_wire() -> None:
    source = "".join(
        path.read_text(encoding="utf-8") for path in (ROOT / "voiceloop").rglob("*.py")
    )
    events = re.findall(r"^[<>] ([\w.]+)", text_of("voiceloop/PROTOCOL.md"), re.MULTILINE)
    assert {"session.update", "response.function_call_arguments.done"} <= set(events)
    assert not [event for event in events if f'"{event}"' not in source]


def test_the_pages_name_what_these_tests_look_for() -> None:
    whole = "\n".join(text_of(page) for page in PAGES)
    assert all(rule.search(whole) for rule in (LINK, ROOM_PATH, MODULE, COMMAND, FLAG, VARIABLE))
    assert {"serve", "talk", "doctor", "models", "conformance"} <= flags_by_command().keys()
    assert "--wav" in flags_by_command()["talk"]

"""``voiceloop init``: a folder that is an agent as it stands, whatever was answered."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clients.evaluate.scenario import load_scenarios
from voiceloop.agent_file import load_agent
from voiceloop.cli import main
from voiceloop.config import load_config
from voiceloop.errors import InvalidRequest
from voiceloop.new_agent.files import write
from voiceloop.new_agent.options import MAX_CHARS, OPTIONS, wanted_of

TEXT = st.text(
    st.characters(codec="utf-8", exclude_categories=("C", "Z"), include_characters=" "),
    min_size=1, max_size=40,
).filter(str.strip)  # fmt: skip


def prices_of(folder: Path) -> dict[str, str]:
    found: dict[str, dict[str, str]] = {}
    exec((folder / "tools.py").read_text(encoding="utf-8"), found)
    return found["PRICES"]


@settings(max_examples=60)
@given(business=TEXT, kind=TEXT, name=TEXT, hours=TEXT, place=TEXT)
def test_whatever_is_answered_the_files_say_it(
    tmp_path_factory: pytest.TempPathFactory,
    business: str,
    kind: str,
    name: str,
    hours: str,
    place: str,
) -> None:
    folder = tmp_path_factory.mktemp("agent")
    answers = {"business": business, "kind": kind, "agent_name": name, "hours": hours}
    answers["place"] = place
    write(folder, wanted_of(answers))
    agent = load_agent(folder / "agent.toml")
    assert agent.name == " ".join(name.split())
    assert " ".join(business.split()) in agent.greeting
    assert " ".join(kind.split()) in agent.instructions
    told = [" ".join(text.split()) for text in (hours, place)]
    assert [text in one.text for text, one in zip(told, agent.answer, strict=True)] == [True] * 2
    assert [tool.python for tool in agent.tools] == ["tools:get_price"]
    assert len(load_scenarios(folder / "scenarios.toml").scenarios) == 2
    assert prices_of(folder)["scone"] == "$3.00"


def test_a_service_stands_in_the_servers_file(tmp_path: Path) -> None:
    answers = {"llm_url": "http://127.0.0.1:8000/v1", "llm_model": "qwen3:8b"}
    write(tmp_path, wanted_of(answers))
    config = load_config(tmp_path / "server.toml", environ={}, flags={})
    assert (config.llm_url, config.llm_model) == (("http://127.0.0.1:8000/v1",), "qwen3:8b")


@pytest.mark.parametrize(
    ("answers", "found"),
    [
        ({"business": " "}, "expected 1 to"),
        ({"business": "x" * (MAX_CHARS + 1)}, f"found {MAX_CHARS + 1}"),
        ({"hours": "nine\x07"}, "printable"),
        ({"items": "bagel"}, "'bagel = "),
        ({"items": ","}, "expected 1 to"),
        ({"items": "bagel = $1, Bagel = $2"}, "each of --items once"),
    ],
)
def test_an_answer_that_is_none_names_its_flag(answers: dict[str, str], found: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        wanted_of(answers)
    assert found in str(refused.value)
    assert "--" in str(refused.value)


def test_a_folder_with_content_is_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    assert main(["init", str(tmp_path), "--defaults"]) == 2
    assert "found" in capsys.readouterr().err
    assert [file.name for file in tmp_path.iterdir()] == ["mine.txt"]


def test_a_program_is_told_every_question(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init", "--list-options"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert [one["flag"] for one in listed] == [option.flag for option in OPTIONS]


def test_in_a_terminal_what_is_not_named_is_asked(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    command = (sys.executable, "-P", "-m", "voiceloop", "init", str(tmp_path / "a"))
    asked = subprocess.Popen(
        [*command, "--business", "Blooms"], stdin=theirs, stdout=subprocess.PIPE, text=True
    )
    os.close(theirs)
    os.write(ours, b"a flower shop\nRosa\n\n\nlily = 4.50\n\n\n")
    told, _ = asked.communicate(timeout=60)
    os.close(ours)
    assert "What is the business called?" not in told
    agent = tomllib.loads((tmp_path / "a" / "agent.toml").read_text())
    assert agent["name"] == "Rosa"
    assert "Blooms" in agent["greeting"]
    assert prices_of(tmp_path / "a") == {"lily": "4.50"}

"""Every program of a page runs: here as pasted, or where a test of its own follows it."""

from __future__ import annotations

import re
import subprocess
import textwrap
from pathlib import Path

import pytest

from tests.interop.make_envs import interpreter
from tests.interop.test_clients import ENVIRONMENTS, require
from tests.manual.pasted import DOCS, FENCE, PAGES, ROOT, Terminal
from tests.manual.test_pasted import terminal
from voiceloop.agent_file import load_agent

__all__ = ["terminal"]  # the fixture
PROGRAMS = ("python", "js", "jsx", "swift", "kotlin")
# By page, what a program holds: who runs it. What wants a telephone, an app or a Mac nobody ran.
RUN_BY = {
    ("README", "AsyncOpenAI"): "tests.manual.test_programs",
    ("TOOLS", "free_tables"): "tests.manual.test_programs",
    ("EMBED", "async def token"): "tests.voiceloop.http.test_sites",
    ("COMING_FROM", "pipecat"): "tests.manual.test_programs",
    ("COMING_FROM", "livekit"): "tests.manual.test_programs",
    ("PHONE", "livekit"): "tests.manual.test_programs",
    ("PHONE", "webhooks.unwrap"): "tests.interop.test_webhook",
    ("MODELS", "class Parrot"): "tests.voiceloop.models.test_providers",
    ("PROTOCOL", "on_reconnecting"): "tests.interop.test_clients",
    ("YOUR_AGENT", "compare_digest"): "tests.voiceloop.tools.test_caller",
    ("YOUR_AGENT", "timingSafeEqual"): "tests.voiceloop.tools.test_caller",
    ("YOUR_AGENT", "def place_order"): "tests.voiceloop.test_your_agent_page",
    ("YOUR_AGENT", "class Desk"): "tests.voiceloop.server.test_python_agents",
    ("EMBED", "app.post"): "tests.voiceloop.http.test_sites",
    ("REACT", ""): "tests.clients.web.test_embed",
    ("REACT_NATIVE", ""): "",
    ("SWIFT", ""): "",
    ("KOTLIN", ""): "",
}


def programs() -> list[tuple[str, str]]:
    return [
        (page.stem, text)
        for page in PAGES
        for _, language, text in FENCE.findall(page.read_text(encoding="utf-8"))
        if language in PROGRAMS
    ]


def program(page: str, mark: str) -> str:
    [found] = [text for name, text in programs() if name == page and mark in text]
    return found


def test_every_program_is_run_by_somebody() -> None:
    for page, text in programs():
        assert any(page == name and mark in text for name, mark in RUN_BY), (page, text[:200])
    for (page, mark), test in RUN_BY.items():
        assert any(page == name and mark in text for name, text in programs()), (page, mark)
        assert not test or (ROOT / f"{test.replace('.', '/')}.py").exists(), test


def test_the_function_of_a_tool_answers(tmp_path: Path) -> None:
    page = (DOCS / "TOOLS.md").read_text(encoding="utf-8")
    [settings] = re.findall(r"```toml\n([^`]*python = [^`]*)```", page)
    (tmp_path / "agent.toml").write_text(settings, encoding="utf-8")
    [tool] = load_agent(tmp_path / "agent.toml").tools
    names: dict[str, object] = {}
    exec(program("TOOLS", "free_tables"), names)
    function = names[tool.python.partition(":")[2]]
    assert callable(function) and function(day="friday") == {"tables": 3}


@pytest.mark.call
@pytest.mark.timeout(180)
async def test_the_program_of_the_readme_prints_the_answer(terminal: Terminal) -> None:
    require("openai")
    await terminal.run("voiceloop serve")
    text = program("README", "AsyncOpenAI").replace("127.0.0.1:8080", f"127.0.0.1:{terminal.port}")
    (terminal.folder / "program.py").write_text(text, encoding="utf-8")
    command = f"{interpreter(ENVIRONMENTS, 'openai')} program.py"
    assert await terminal.run(command) == 0, terminal.printed
    assert terminal.printed == "We open at seven."


@pytest.mark.call
@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    ("page", "mark", "environment"),
    [
        ("COMING_FROM", "pipecat", "pipecat"),
        ("COMING_FROM", "livekit", "livekit"),
        ("PHONE", "livekit", "livekit"),
    ],
)
def test_the_lines_of_another_framework_are_taken_by_it(
    page: str, mark: str, environment: str
) -> None:
    require(environment)
    body = textwrap.indent(program(page, mark), "    ")
    text = f"import asyncio\n\n\nasync def main():\n{body}\n\n\nasyncio.run(main())\n"
    told = subprocess.run(
        [interpreter(ENVIRONMENTS, environment), "-c", text],
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert told.returncode == 0, told.stderr[-2000:]

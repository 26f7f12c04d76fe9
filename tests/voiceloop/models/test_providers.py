"""Packages add recognizers, language models and voices, and cannot take a server or a call down."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.callers import Caller
from tests.fakes import FakeLanguageModel, instant_backends
from voiceloop.backends import RecognizerOptions
from voiceloop.config import Config, load_config
from voiceloop.errors import BackendError, ConfigError
from voiceloop.models.opening import open_backends
from voiceloop.models.providers import broken, open_provider, provider_of

PAGE = Path(__file__).parents[3] / "voiceloop" / "docs" / "MODELS.md"
FILE = re.compile(r"```\w+\n# (?P<name>[\w.]+)\n(?P<text>.*?)```", re.S)
MOST_LINES = 30


def package(folder: Path, name: str, group: str, code: str) -> None:
    """A package as pip leaves it, of one module that has a class `Made`."""
    (folder / f"{name}.py").write_text(code)
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{group}]\n{name} = {name}:Made\n")


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    return tmp_path


@pytest.fixture
def example(packages: Path) -> Path:
    """The page's own package, built and installed as its reader would."""
    files = {found["name"]: found["text"] for found in FILE.finditer(PAGE.read_text())}
    lines = [line for text in files.values() for line in text.splitlines() if line.strip()]
    assert len(lines) <= MOST_LINES
    source = packages / "source"
    source.mkdir()
    for name, text in files.items():
        (source / name).write_text(text)
    options = "--no-deps --no-build-isolation --no-index --disable-pip-version-check".split()
    command = [sys.executable, "-m", "pip", "install", *options, "--target", packages, source]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    importlib.invalidate_caches()
    return packages


@pytest.mark.virtual_time
async def test_the_page_shows_a_package_whose_recognizer_is_heard_in_a_call(
    example: Path, clock: Any
) -> None:
    model = FakeLanguageModel(["Four dollars."])
    async with AsyncExitStack() as stack:
        parrot = await open_provider("recognizer", ["parrot:"], [], "how much is tea", stack)
        backends = instant_backends(recognizer=parrot, language_model=model)
        async with Caller(clock, backends) as caller:
            await caller.say(800)
            await caller.listen_until("response.done")
    assert caller.transcript() == "Four dollars."
    assert model.prompts[-1][-1].content == "how much is tea"


async def test_a_package_that_fails_on_import_is_named_and_keeps_nobody_from_starting(
    packages: Path, caplog: pytest.LogCaptureFixture
) -> None:
    package(packages, "torn", "voiceloop.voices", "raise RuntimeError('no library libtorn')")
    code = "class Made:\n    def __init__(self, **given): pass\n"
    package(packages, "whole", "voiceloop.recognizers", code)
    [told] = broken()
    assert "torn" in told and "voiceloop.voices" in told and "no library libtorn" in told
    config = Config(
        preset="remote",
        stt_url=("whole:",),
        llm_url=("whole-model:",),
        tts_url=("whole:",),
    )
    with pytest.raises(ConfigError, match=r"llm_url: expected a provider of voiceloop\.language"):
        async with open_backends(config):
            pass
    assert "torn" in caplog.text
    async with AsyncExitStack() as stack:
        assert await open_provider("recognizer", ["whole:"], [], "", stack) is not None
        with pytest.raises(ConfigError, match="the provider torn.*RuntimeError: no library"):
            await open_provider("voice", ["torn:"], [], "", stack)


async def test_a_bug_of_a_provider_is_a_backends_error(packages: Path) -> None:
    code = """
class Made:
    def __init__(self, *, url, key, model):
        self.given = (url, key, model)
        self.is_closed = False
    async def start(self):
        if self.given[2] == "down":
            raise OSError("no route")
    async def open(self, stream_id, options):
        return Stream()
    async def close(self):
        self.is_closed = True

class Stream:
    def flush(self):
        raise KeyError("words")
    async def events(self):
        yield "partial"
        raise ValueError("broken")
    async def close(self):
        pass
"""
    package(packages, "buggy", "voiceloop.recognizers", code)
    async with AsyncExitStack() as stack:
        url = "buggy+wss://host:1/v1"
        made: Any = await open_provider("recognizer", [url], ["secret"], "m", stack)
        assert made.given == ("wss://host:1/v1", "secret", "m")
        stream = await made.open("s", RecognizerOptions())
        with pytest.raises(BackendError, match="buggy, found KeyError"):
            stream.flush()
        with pytest.raises(BackendError, match="buggy, found ValueError"):
            async for event in stream.events():
                assert event == "partial"
        await stream.close()
        with pytest.raises(BackendError, match="found OSError"):
            await open_provider("recognizer", ["buggy:"], [], "down", stack)
    assert made.is_closed


async def test_no_key_stands_in_the_error_of_a_provider(packages: Path) -> None:
    code = "class Made:\n    def __init__(self, *, url, key, model): raise ValueError(key)\n"
    package(packages, "chatty", "voiceloop.voices", code)
    async with AsyncExitStack() as stack:
        with pytest.raises(ConfigError, match=r"ValueError: \.\.\.$"):
            await open_provider("voice", ["chatty:"], ["hunter22"], "", stack)


@pytest.mark.parametrize(
    ("url", "named"),
    [
        ("parrot:", ("parrot", "")),
        ("parrot+ws://127.0.0.1:9/v1", ("parrot", "ws://127.0.0.1:9/v1")),
        ("https://host/v1", None),
    ],
)
def test_an_address_may_name_a_provider(url: str, named: tuple[str, str] | None) -> None:
    assert provider_of(load_config(flags={"stt_url": url}).stt_url[0]) == named

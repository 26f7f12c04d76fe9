"""The operator's instructions and tools in the engine's role: read before anybody calls."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from engine.public_prefix import PublicPrefix
from engine.types import IntegrityError, TemplateError
from tests.stepping import drain
from voiceloop.backends import ChatMessage, Generated, GenerateParams, Tool
from voiceloop.models.presets import embedded_model_dir
from voiceloop.workers.messages import Commit, OpenBranch, ReadAhead, StreamEvent
from voiceloop.workers.roles.language import LanguageRole, load
from voiceloop.workers.roles.role import RoleBroken

HISTORY = (ChatMessage("system", "You take orders at a cafe. " + "Be brief and kind. " * 20),)
TOOLS = (Tool("place_order", "Place the order.", {"type": "object", "properties": {}}),)
GREETING = ChatMessage("assistant", "Hello, what can I get you?")


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def started(n_most_bytes: int = 1 << 24) -> LanguageRole:
    options = {"quant": "int8", "native": False, "kv_tokens": 4096}
    role = load(str(embedded_model_dir()), prefix_file_bytes=n_most_bytes, **options)
    role.receive(ReadAhead("operator", HISTORY, TOOLS))
    return role


def settle(role: LanguageRole, folder: Path) -> None:
    """Step as a worker does, until there is a file and nothing more to do."""
    deadline = time.monotonic() + 60
    while role.has_work() or not list(folder.glob("*.safetensors")):
        assert time.monotonic() < deadline
        if role.has_work():
            assert role.step() == []  # nobody is told of it


def cached_tokens(role: LanguageRole, tenant: str) -> int:
    role.receive(OpenBranch("call", (*HISTORY, GREETING), TOOLS, tenant))
    role.receive(Commit("call", (ChatMessage("user", "A latte."),), GenerateParams(max_tokens=2)))
    while True:
        for event in role.step():
            assert isinstance(event, StreamEvent)
            if isinstance(event.event, Generated):
                role.close("call")
                return event.event.usage.n_cached_tokens


def test_the_first_caller_after_a_restart_finds_the_instructions_read(tmp_path: Path) -> None:
    folder = tmp_path / "voiceloop" / "prefixes"
    role = started()
    settle(role, folder)
    n_shared = cached_tokens(role, "one")
    assert n_shared > 100
    again = started()
    deadline = time.monotonic() + 60
    while again.totals()["kv_blocks_shared"] < n_shared // 16:
        assert time.monotonic() < deadline
        if again.has_work():
            again.step()
    assert "steps" not in again.totals()  # nothing was computed
    assert cached_tokens(again, "two") == n_shared


def test_without_room_on_disk_they_are_read_into_memory_alone(tmp_path: Path) -> None:
    role = started(n_most_bytes=0)
    drain(role)
    assert cached_tokens(role, "one") > 100
    assert not (tmp_path / "voiceloop" / "prefixes").exists()


def test_kv_that_does_not_add_up_there_ends_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    def find_it_unsound(*_: object) -> None:
        raise IntegrityError("expected a leaf, found a block inside")

    monkeypatch.setattr(PublicPrefix, "observe", find_it_unsound)
    role = started()
    deadline = time.monotonic() + 60
    with pytest.raises(RoleBroken, match="a block inside"):
        while time.monotonic() < deadline:
            role.step()


def test_what_fails_there_fails_no_caller(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def find_no_memory(*_: object) -> None:
        raise OSError("cannot allocate memory")

    monkeypatch.setattr(PublicPrefix, "observe", find_no_memory)
    role = started()
    drain(role)
    assert cached_tokens(role, "one") > 100 and "are not kept" in caplog.text


def test_without_a_template_that_takes_them_the_log_says_so(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    role = load(str(embedded_model_dir()), quant="int8", native=False, kv_tokens=4096)

    def refuse(*_: object, **__: object) -> list[int]:
        raise TemplateError("expected no system message, found one")

    monkeypatch.setattr(role._model.text, "encode_chat", refuse)
    role.receive(ReadAhead("operator", HISTORY, TOOLS))
    assert "not read ahead: expected no system message" in caplog.text
    assert not role.has_work()

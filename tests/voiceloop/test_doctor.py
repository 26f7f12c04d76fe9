"""What the doctor finds, and that each problem comes with its remedy."""

from __future__ import annotations

import asyncio
import io
import os
import socket
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from tests.passage_service import PassageService
from tests.remote_service import Answer, scripted_remote
from voiceloop.agent import AgentConfig, AgentTool, McpServer
from voiceloop.config import Config, FurtherModel, LanguageRequests, load_config
from voiceloop.doctor import report as doctor
from voiceloop.doctor.agent_knowledge import check_agent_knowledge
from voiceloop.doctor.agent_tools import check_agent_tools
from voiceloop.doctor.finding import Finding
from voiceloop.doctor.report import (
    check_agent,
    check_formats,
    check_machine,
    check_models,
    check_packages,
    check_preset,
    check_python,
    check_webrtc,
    explain_settings,
    run_doctor,
    self_test,
)
from voiceloop.doctor.services import check_services
from voiceloop.errors import ConfigError
from voiceloop.knowledge.sources import KnowledgeSource
from voiceloop.models import resolve
from voiceloop.models.machine import Machine
from voiceloop.models.preset_check import choose
from voiceloop.models.presets import with_preset
from voiceloop.operation import WebRtcSettings
from voiceloop.workers.messages import RoleSpec, WorkerSpec

FAULTS = Path(__file__).resolve().parents[1] / "faults"


def problems(findings: Iterable[Finding]) -> list[Finding]:
    return [finding for finding in findings if finding.level == "problem"]


def test_a_complete_installation_has_no_problem() -> None:
    assert problems(check_packages(lambda name: "1.0")) == []


def test_a_missing_package_names_the_extra_that_brings_it() -> None:
    def version(name: str) -> str | None:
        return None if name in ("msgspec", "sounddevice") else "1.0"

    (needed,) = problems(check_packages(version))
    assert (needed.subject, needed.remedy) == ("msgspec", "pip install 'voiceloop'")
    notes = [finding for finding in check_packages(version) if finding.level == "note"]
    assert [(note.subject, note.remedy) for note in notes] == [
        ("sounddevice", "pip install 'voiceloop[talk]'"),
    ]


def test_a_model_folder_that_misses_a_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (finding,) = check_models(tmp_path)
    assert finding.level == "problem"
    assert "tokenizer.json, *.safetensors" in finding.found
    (tmp_path / "tokenizer.json").write_text("{}")
    (tmp_path / "model-00001-of-00001.safetensors").write_bytes(bytes(3_000_000))
    (finding,) = check_models(tmp_path)
    assert (finding.level, finding.found[:4]) == ("ok", "3 MB")


WHEELS = {"moonshine-voice": "0.1.0", "hibari-tts": "0.2.1"}


def machine(memory_mb: int = 64_000, without: str = "") -> Machine:
    def version(name: str) -> str | None:
        return None if name == without else WHEELS.get(name, "99.0")

    return Machine(2, memory_mb, (), version)


def test_few_cores_are_noted_and_the_machine_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "can_filter", lambda: True)
    assert [finding.level for finding in check_machine(machine())] == ["ok", "ok", "ok", "ok"]
    one_core = Machine(1, None, (), lambda name: "1.0")
    assert [finding.level for finding in check_machine(one_core)] == ["note", "ok", "ok"]
    monkeypatch.setattr(doctor, "can_filter", lambda: False)
    (missing,) = [one for one in check_machine(machine()) if one.level == "note"]
    assert missing.subject == "kernel" and "seccomp" in missing.remedy


def looked_at(name: str, machine: Machine, hub: Path, **flags: object) -> list[Finding]:
    """hub: with no model in it, which has to be the one that the environment names too."""
    config = load_config(flags={"preset": name, **flags})
    choice = choose(config, machine, hub)
    return list(check_preset(replace(config, preset=choice.preset.name), choice, machine, hub))


def test_what_a_preset_lacks_is_named_with_its_command(tmp_path: Path) -> None:
    findings = looked_at("gpu", machine(without="tokenizers"), tmp_path)
    told = [(one.level, one.found.partition(":")[0], one.remedy) for one in findings]
    assert ("problem", "lacks tokenizers", "pip install 'voiceloop[gpu]'") in told
    assert ("problem", "lacks Qwen/Qwen3-4B-Instruct-2507", "voiceloop models pull gpu") in told
    assert any(one.found.startswith("lacks GPU") for one in findings)
    assert all(one.remedy for one in findings if one.level == "problem")


def test_presets_that_nobody_asked_for_take_one_line(tmp_path: Path) -> None:
    findings = looked_at("auto", machine(), tmp_path)
    assert {one.level for one in findings} == {"ok"}
    assert (findings[0].subject, findings[0].remedy.partition(" ")[0]) == ("preset embedded", "cpu")
    assert [one.subject for one in findings[1:]] == [
        "engine", "recognizer", "voice", "other presets",
    ]  # fmt: skip
    assert findings[-1].found.startswith("cpu, gpu: voiceloop doctor --preset NAME")


def test_an_adapter_that_is_merged_is_told_of_with_its_model(tmp_path: Path) -> None:
    def told(**flags: object) -> list[str]:
        found = looked_at("embedded", machine(), tmp_path, **flags)
        return [one.found for one in found if one.subject == "engine"]

    assert told(llm_adapter=tmp_path) == ["embedded with an adapter"]
    assert told(llm_adapter=Path("none")) == told() == ["embedded"]


def test_models_that_stand_in_for_others_are_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resolve, "installed_version", {"espeakng-loader": "0.2.4"}.get)
    noted = [one for one in looked_at("embedded", machine(), tmp_path) if one.level == "note"]
    assert noted == [
        Finding(
            "note",
            "without hibari",
            "espeak takes its place, for hibari-tts==0.2.1 is not installed",
            "pip install 'hibari-tts==0.2.1'",
        )
    ]


def test_little_memory_is_a_problem_of_the_embedded_preset(tmp_path: Path) -> None:
    [finding] = problems(looked_at("embedded", machine(memory_mb=100), tmp_path))
    assert finding.found == "lacks memory: 100 MB available, expected 1500"


async def test_each_stage_is_tested_in_the_worker_a_server_would_use(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PYTHONPATH", f"{FAULTS}{os.pathsep}{FAULTS.parents[1]}")
    good = RoleSpec("recognizer", {}, "scripted_roles:load")
    bad = RoleSpec("engine", {}, "scripted_roles:unloadable")
    specs = [WorkerSpec("speech", (good,)), WorkerSpec("engine", (bad,))]
    findings = [finding async for finding in self_test(specs)]
    assert [(finding.subject, finding.level) for finding in findings] == [
        ("voice activity", "ok"),
        ("worker speech (recognizer)", "ok"),
        ("recognizer", "ok"),
        ("worker engine (engine)", "problem"),
    ]
    assert "found nothing at /nowhere" in findings[-1].found
    assert "/nowhere" not in capfd.readouterr().err  # it is told once
    assert findings[-1].remedy


@pytest.mark.parametrize(("level", "code"), [("ok", 0), ("note", 0), ("problem", 1)])
def test_only_a_problem_fails_the_command(
    level: doctor.Level, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("packages", "libraries", "machine", "models", "preset"):
        monkeypatch.setattr(doctor, f"check_{name}", lambda *_: iter(()))
    found = iter([Finding(level, "thing", "as [found]", "do this")])
    monkeypatch.setattr(doctor, "check_python", lambda: found)
    monkeypatch.setattr(doctor, "worker_specs", lambda config: ())
    printed = io.StringIO()
    assert run_doctor(Config(), Console(width=200, file=printed)) == code
    text = printed.getvalue()
    assert "thing: as [found]" in text
    assert "-> do this" in text


def test_whether_browsers_can_call_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def found(config: Config) -> list[tuple[str, str]]:
        return [(one.level, one.found) for one in check_webrtc(config, lambda name: "1.16.0")]

    assert found(Config()) == [("ok", "any free UDP port of 127.0.0.1")]
    ((level, told),) = found(Config(host="0.0.0.0"))
    assert level == "note" and "firewall" in told
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        ((level, told),) = found(Config(webrtc=WebRtcSettings(port=port)))
    assert level == "note" and str(port) in told
    assert list(check_webrtc(Config(), lambda name: None)) == []  # the packages say it
    monkeypatch.setattr(doctor, "is_available", lambda: False)
    assert found(Config()) == [("note", "libopus cannot be loaded")]


def test_this_python_will_do() -> None:
    assert problems(check_python()) == []


async def test_the_tools_of_an_agent_are_asked_whether_they_answer(tmp_path: Path) -> None:
    (tmp_path / "own_module.py").write_text("def price(item):\n    return 3\n")
    heads: list[str] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append((await reader.readuntil(b"\r\n\r\n")).decode())
        writer.write(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
        await writer.drain()
        writer.close()

    service = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = service.sockets[0].getsockname()[1]
    agent = AgentConfig(
        tools=(
            AgentTool("here", url=f"http://127.0.0.1:{port}/x", headers={"key": "s3cret"}),
            AgentTool("away", url="http://127.0.0.1:9/x"),
            AgentTool("own", python="own_module:price"),
            AgentTool("gone", python="own_module:cost"),
            AgentTool("table", result="3"),
            AgentTool("theirs"),
        )
    )
    async with service:
        found = [finding async for finding in check_agent_tools(agent, str(tmp_path))]
    levels = {finding.subject.removeprefix("tool "): finding.level for finding in found}
    assert levels == {
        "here": "ok", "away": "problem", "own": "ok", "gone": "problem", "table": "ok",
        "theirs": "ok",
    }  # fmt: skip
    (head,) = heads
    assert head.startswith("OPTIONS / ") and "s3cret" not in head


async def test_an_mcp_server_that_lacks_what_the_agent_wants_is_named() -> None:
    pytest.importorskip("mcp", reason="the package mcp is not installed")
    command = (sys.executable, "-m", "tests.mcp_server")
    shop = McpServer("shop", command=command, tools=("price", "refund"))
    away = McpServer("away", url="http://127.0.0.1:9/mcp", tools=("*",))
    agent = AgentConfig(mcp=(shop, away))
    found = {one.subject: one async for one in check_agent_tools(agent, str(FAULTS.parents[1]))}
    assert found["mcp shop"].found == "lists 6 tools; offered: price"
    assert found["tool refund"].level == "problem" and "price" in found["tool refund"].remedy
    assert found["mcp away"].level == "problem"


async def test_folders_of_documents_are_read_and_one_that_is_missing_or_empty_is_told(
    tmp_path: Path,
) -> None:
    (tmp_path / "handbook").mkdir()
    (tmp_path / "handbook" / "films.md").write_text("# Films\nLent for one week.\n")
    (tmp_path / "bare").mkdir()
    names = ("handbook", "bare", "gone")
    agent = AgentConfig(knowledge=tuple(KnowledgeSource(str(tmp_path / n)) for n in names))
    found = {one.subject: one async for one in check_agent_knowledge(agent, {})}
    assert found["knowledge handbook"].found.startswith("1 passages in ")
    assert "found none in" in found["knowledge bare"].found
    assert "expected a folder, found none at" in found["knowledge gone"].found
    levels = [found[f"knowledge {name}"].level for name in names]
    assert levels == ["ok", "problem", "problem"]
    assert all(one.remedy for one in found.values() if one.level == "problem")


async def test_a_variable_that_a_source_names_and_nobody_has_set_is_told_and_no_value_is_shown(
    tmp_path: Path,
) -> None:
    (tmp_path / "a.txt").write_text("Lent for one week.")
    service = KnowledgeSource("http://127.0.0.1:9/", headers={"key": "${NOT_SET}"})
    secret = KnowledgeSource("${AT}/search")
    agent = AgentConfig(knowledge=(service, KnowledgeSource(str(tmp_path)), secret))
    at = {"AT": "http://user:s3cret@127.0.0.1:9"}
    found = [one async for one in check_agent_knowledge(agent, at)]
    assert [one.level for one in found] == ["problem", "ok", "problem"]
    assert "expected $NOT_SET in the environment, found it not set" in found[0].found
    assert found[2].subject == "knowledge ${AT}/search"
    assert not any("s3cret" in f"{one.subject} {one.found}" for one in found)


@pytest.mark.parametrize(("service_ms", "level"), [(30_000.0, "ok"), (0.0, "note")])
async def test_services_that_search_are_asked_and_those_that_are_away_told(
    monkeypatch: pytest.MonkeyPatch, service_ms: float, level: str
) -> None:
    monkeypatch.setattr("voiceloop.doctor.agent_knowledge.SERVICE_MS", service_ms)
    service = PassageService({"/search": {"passages": []}})
    async with service.running():
        searched = KnowledgeSource(f"{service.url}/search")
        away = KnowledgeSource("http://127.0.0.1:9/")
        agent = AgentConfig(knowledge=(searched, away))
        found = [one async for one in check_agent_knowledge(agent, {})]
    assert [one.level for one in found] == [level, "problem"]
    assert ("later than the 0 ms" in found[0].found) == (level == "note")
    assert "127.0.0.1:9: expected passages" in found[1].found


async def test_services_in_the_place_of_models_are_asked_as_a_server_would() -> None:
    config = load_config(flags={"llm_url": "http://127.0.0.1:9/v1", "stt_url": "ws://127.0.0.1:9"})
    found = [one async for one in check_services(config)]
    assert [(one.subject, one.level) for one in found] == [
        ("engine at http://127.0.0.1:9/v1", "problem"),
        ("recognizer at ws://127.0.0.1:9", "problem"),
    ]
    assert [one.remedy for one in found] == [
        "start it, or mend llm_url, llm_key or llm_model",
        "start it, or mend stt_url, stt_key or stt_model",
    ]


async def test_a_service_is_asked_with_the_operators_headers_and_no_key_is_shown() -> None:
    async with scripted_remote() as remote:
        remote.service.answers["/v1/models?api-key=s3cret"] = [Answer([b"{}"])]
        url = f"http://127.0.0.1:{remote.service.port}/v1"
        config = load_config(flags={"llm_url": f"{url}?api-key=s3cret"})
        config = replace(config, llm=LanguageRequests(headers={"x-tenant": "shop"}))
        [found] = [one async for one in check_services(config)]
        told = [one.found for one in explain_settings(config)]
    assert (found.subject, found.level) == (f"engine at {url}", "ok")
    assert remote.service.heads[-1]["x-tenant"] == "shop"
    assert not [one for one in told if "s3cret" in one]
    with pytest.raises(ConfigError, match="found 'ftp://here/v1'"):
        load_config(flags={"llm_url": "ftp://here/v1?api-key=s3cret"})


async def test_a_server_that_speaks_is_told_by_the_keys_that_the_user_wrote() -> None:
    flags = {"realtime_url": "ws://127.0.0.1:9/v1", "llm_key": "s3cret", "llm_model": "m"}
    config = load_config(flags=flags)
    told = {one.subject for one in explain_settings(config)}
    assert told == {f"setting {name}" for name in flags}
    [found] = [one async for one in check_services(config)]
    assert found.level == "problem"
    assert found.remedy == "start it, or mend realtime_url, llm_key or llm_model"


async def test_the_service_of_each_further_model_is_asked_and_named() -> None:
    dead, busy = "http://127.0.0.1:9/v1", "http://127.0.0.1:9/v2"
    models = (
        FurtherModel("big", url=(dead, busy)),
        FurtherModel("odd", url=("nowhere:",)),
        FurtherModel("far", url=("worker://127.0.0.1:9",)),
        FurtherModel("own", model="owner/name"),
    )
    found = [one async for one in check_services(Config(models=models))]
    assert [(one.subject, one.level) for one in found] == [
        (f"model big at {dead}", "problem"),
        (f"model big at {busy}", "problem"),
        ("model odd by nowhere:", "problem"),
    ]
    assert all("[[models]]" in one.remedy for one in found)


def test_a_servers_own_settings_are_what_is_looked_at(tmp_path: Path) -> None:
    found = looked_at("embedded", machine(), tmp_path, llm_url="http://127.0.0.1:9/v1")
    assert "engine" not in [one.subject for one in found]
    assert found[0].found.startswith("its recognizer and voice alone; the rest is elsewhere;")
    config = load_config(flags={"preset": "embedded", "engine.weights": "int4"})
    [finding] = check_formats(config)
    assert finding.level == "note" and "--weights int4" in finding.remedy
    [note] = [one for one in with_preset(config)[1] if one.startswith("quality gate: ")]
    assert note == f"quality gate: {finding.found}"


def test_what_the_start_says_of_an_agent_of_ones_own_the_doctor_says_too(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text("name = 'Mine'")
    config = load_config(flags={"preset": "embedded", "agent": path})
    [finding] = check_agent(config)
    assert finding.level == "note" and finding.found in with_preset(config)[1]
    assert list(check_agent(load_config(flags={"preset": "embedded", "agent": Path("cafe")}))) == []


def test_each_setting_that_is_not_the_default_is_explained_and_no_secret_is_shown() -> None:
    flags = {"pacing_lead_ms": 150, "keys": ["secret-key-1"], "engine.kv": "int8"}
    found = {one.subject: one.found for one in explain_settings(load_config(flags=flags))}
    assert found.keys() == {"setting keys", "setting pacing_lead_ms", "setting engine.kv"}
    lead = "150 (default 60). How far ahead of its playing the server sends sound"
    assert found["setting pacing_lead_ms"] == lead
    assert found["setting keys"].startswith("set, not shown. API keys")
    assert list(explain_settings(Config())) == []


def test_a_further_models_keys_are_told_plainly_and_its_secret_is_not() -> None:
    url = "http://127.0.0.1:9/v1"
    big = FurtherModel("big", url=(url,), takes=(), key=("secret-key-1",))
    found = [
        (one.subject, one.found)
        for one in explain_settings(Config(models=(big, FurtherModel("own", model="owner/name"))))
    ]
    assert found == [
        ("setting models[0]", f"name = big, url = {url}, takes = , key = set, not shown"),
        ("setting models[1]", "name = own, model = owner/name"),
    ]

"""A format of weights or KV is told of where no gate that passes stands for it."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from engine.quality import BOUND
from engine.runner import Runner
from tests.voiceloop.models.test_preset_choice import put_preset
from voiceloop.cli import main
from voiceloop.config import Config, EngineSettings, load_config
from voiceloop.doctor.report import check_formats
from voiceloop.models import gates
from voiceloop.models.catalog import MODELS, PRESETS, Preset
from voiceloop.models.gates import RUN_BY, Bar, Formats, Gate, bar, doubt_of, gate_of, verdicts
from voiceloop.models.presets import formats_of, with_preset, worker_specs
from voiceloop.workers.gate import Measured
from voiceloop.workers.messages import Ready, RoleSpec, served_of
from voiceloop.workers.roles.role import Role, ready_of

CONFIG_PAGE = Path(gates.__file__).parents[1] / "docs" / "CONFIG.md"
GRAPH_RUNNER = Path(gates.__file__).parents[2] / "engine/graphs/graph_runner.py"


def test_the_bar_is_one_in_the_table_the_command_and_the_page() -> None:
    assert bar() == Bar(agreement=BOUND.top1_agreement, kl_nats=BOUND.kl_nats)
    page = CONFIG_PAGE.read_text(encoding="utf-8")
    assert f"{BOUND.top1_agreement:.1%}".replace("%", " %") in page
    assert re.search(rf"KL divergence\D+{BOUND.kl_nats}", page)


def test_every_gate_is_of_a_model_and_of_formats_that_there_are() -> None:
    models = [model for model in MODELS if model.role == "engine"]
    names = {model.name for model in models}
    names |= {f"{model.name} with its adapter" for model in models if model.adapter}
    known = {*EngineSettings.__dataclass_fields__}
    assert {"weights", "kv"} <= known
    for gate in gates.gates():
        assert gate.model in names
        load_config(flags={"engine.weights": gate.weights, "engine.kv": gate.kv})
        assert (
            0 < gate.agreement <= 1
            and gate.kl_nats >= 0
            and gate.n_places >= 300
            and (gate.of_fp32 is None or 0 < gate.of_fp32 <= 1)
            and 0 <= gate.n_same <= gate.n_calls
        )


def test_what_the_embedded_preset_serves_has_passed() -> None:
    formats = formats_of(Config(preset="embedded"))
    assert formats is not None and formats.weights == "int8"
    assert doubt_of(formats) is None
    [finding] = check_formats(Config(preset="embedded"))
    assert finding.level == "ok" and "99.4% agreement" in finding.found


@pytest.mark.parametrize("preset", PRESETS, ids=lambda one: one.name)
def test_formats_are_those_that_the_worker_is_told(
    preset: Preset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    put_preset(tmp_path, preset)
    asked = {"preset": preset.name, "engine.weights": "int4", "engine.kv": "int8"}
    formats = formats_of(load_config(flags=asked))
    assert formats is not None and (formats.weights, formats.kv) == ("int4", "int8")
    plain = {"preset": preset.name, "engine.weights": "bf16", "engine.kv": "bf16"}
    dense = formats_of(load_config(flags=plain))
    assert dense is not None and dense.is_dense and doubt_of(dense) is None


def test_a_format_that_fails_and_one_that_was_never_run_are_told_with_the_bar() -> None:
    failed = next(one for one in gates.gates() if not one.passes(bar()))
    said = doubt_of(Formats(failed.model, failed.weights, failed.kv, failed.layers))
    assert said is not None
    assert f"expected {bar().told}, found {failed.agreement:.2%}" in said
    never = Formats("somebody/model", "int8", "bf16", "native")
    assert gate_of(never) is None
    assert str(doubt_of(never)).endswith("found none was run")


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        ({"engine.device": "cuda"}, "embedded in int8 weights and bf16 keys and values by cuda"),
        ({"engine.weights": "bf16", "engine.kv": "int8"}, "int8 keys and values by torch layers"),
        ({"llm_adapter": "somewhere"}, "embedded with an adapter in int8 weights"),
    ],
)
def test_a_gate_stands_for_the_weights_and_the_layers_it_was_run_with(
    flags: dict[str, object], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = load_config(flags={"preset": "embedded"})
    passed = formats_of(config)
    assert passed is not None and doubt_of(passed) is None
    settings = {key.partition(".")[2]: value for key, value in flags.items() if "." in key}
    adapter = flags.get("llm_adapter")
    config = replace(
        config,
        engine=replace(config.engine, **settings),  # type: ignore[arg-type]
        llm_adapter=Path(str(adapter)) if adapter else None,
    )
    formats = formats_of(config)
    assert formats is not None
    said = str(doubt_of(formats))
    assert told in said and said.endswith("found none was run")


def test_both_bounds_count() -> None:
    gate = Gate(
        "m", "int8", "bf16", "native", agreement=0.995, kl_nats=0.02, n_places=5000, of_fp32=1.0
    )
    assert not gate.passes(bar())
    assert gate.passes(Bar(0.995, 0.02)) and not gate.passes(Bar(0.996, 0.02))


def test_models_that_are_not_on_disk_have_no_format_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    assert formats_of(Config(preset="cpu")) is None
    assert list(check_formats(Config(preset="cpu"))) == []


def test_a_server_whose_language_model_is_behind_a_url_has_no_format() -> None:
    assert formats_of(load_config(flags={"preset": "embedded", "llm_url": "http://x/v1"})) is None


def test_the_start_tells_of_a_format_without_a_passing_gate() -> None:
    def notes(**flags: object) -> list[str]:
        config = load_config(flags={"preset": "embedded", **flags})
        return [note for note in with_preset(config)[1] if note.startswith("quality gate")]

    assert notes() == []
    [note] = notes(**{"engine.weights": "int4"})
    assert "expected 99.4% agreement" in note and "found" in note


def test_the_gate_that_is_told_of_a_server_is_that_of_what_runs_the_layers_in_the_end() -> None:
    [engine, *_] = [role for spec in worker_specs(Config(preset="embedded")) for role in spec.roles]
    assert engine.gates == {"native": "passed", "torch": "none", "triton": "none"}
    assert {Runner.layers, "native", "triton"} == RUN_BY.keys()
    # Read, not imported: what first imports triton decides for all of a process how it runs.
    assert 'self.layers = "Triton"' in GRAPH_RUNNER.read_text(encoding="utf-8")
    dense = verdicts(Formats("embedded", "bf16", "bf16", "torch"))
    assert set(dense.values()) == {"dense"}
    assert verdicts(Formats("embedded", "int4", "bf16", "native"))["native"] == "missed"

    def told(layers: str) -> dict[str, str]:
        role = SimpleNamespace(
            totals=dict, rate_hz=0, detail="", tokenizer=b"", tokens="", served={"layers": layers}
        )
        return served_of(Ready((ready_of(engine, cast(Role, role), 1.0),)))

    assert told("native") == {
        "model": "embedded", "layers": "native", "gate": "passed", "fault": "none",
    }  # fmt: skip
    assert told("torch")["gate"] == "none"  # where no compiler is
    assert served_of(None) == {}
    silent = SimpleNamespace(totals=dict, rate_hz=0, detail="", tokenizer=b"", tokens="", served={})
    assert served_of(Ready((ready_of(RoleSpec("voice"), cast(Role, silent), 1.0),))) == {}


def test_a_gate_that_was_run_here_is_told_at_the_start_until_the_model_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gates, "own_file", lambda: tmp_path / "cache" / "gates.toml")
    model = tmp_path / "model.gguf"
    model.write_bytes(b"GGUF")
    formats = Formats(str(model), "int8", "bf16", "native")
    missed = Gate(str(model), "int8", "bf16", "native", 0.98, 0.02, 700, None, 50, 44)
    gates._table.cache_clear()
    assert str(doubt_of(formats)).endswith("found none was run")
    gates.keep(missed)
    assert "98.00%" in str(doubt_of(formats))
    gates.keep(replace(missed, agreement=0.996, kl_nats=0.001))
    assert doubt_of(formats) is None and len(gates.own_gates()) == 1
    os.utime(model, (2e9, 2e9))
    gates._table.cache_clear()
    assert str(doubt_of(formats)).endswith("found none was run")
    gates.own_file().write_text("no gates [")
    gates._table.cache_clear()
    assert str(doubt_of(formats)).endswith("found none was run")
    gates._table.cache_clear()


@pytest.mark.parametrize(("agreement", "code"), [(0.997, 0), (0.98, 1)])
def test_the_command_says_passed_or_missed_and_keeps_what_it_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    agreement: float, code: int,
) -> None:  # fmt: skip
    monkeypatch.setattr(gates, "own_file", lambda: tmp_path / "gates.toml")
    model = tmp_path / "model.gguf"
    model.write_bytes(b"GGUF")
    asked = list[Mapping[str, object]]()

    def measure(options: Mapping[str, object], *, exact: bool, tell: object) -> Measured:
        asked.append(options)
        return Measured("native", agreement, 0.001, 700, 50, 48, None)

    monkeypatch.setattr("voiceloop.workers.gate.run_gate", measure)
    assert main(["models", "gate", str(model), "--weights", "int4"]) == code
    assert (asked[0]["quant"], asked[0]["model_dir"]) == ("int4", str(model))
    said = capsys.readouterr().out
    assert ("passed" if code == 0 else "missed") in said and "48 of 50 calls" in said
    assert [one.weights for one in gates.own_gates()] == ["int4"]
    gates._table.cache_clear()

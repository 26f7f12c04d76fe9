"""Every key of `[engine]` reaches the worker that runs the language model."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from engine.types import EngineConfig, pool_tokens_for
from tests.tables import each_row
from tests.voiceloop.models.test_preset_choice import put_preset
from voiceloop.agent import AgentConfig
from voiceloop.cli import build_parser
from voiceloop.config import EngineSettings, load_config
from voiceloop.errors import ConfigError
from voiceloop.models.catalog import PRESETS
from voiceloop.models.engine_options import engine_options, room_for, with_adapters
from voiceloop.models.presets import (
    context_tokens,
    embedded_model_dir,
    worker_specs,
)
from voiceloop.workers.messages import WorkerSpec

DRAFT = embedded_model_dir().parent / "draft"


@pytest.fixture(autouse=True)
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the models of every preset on disk, and what a configuration names beside them."""
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.chdir(tmp_path)
    for name in ("small", "head"):
        (tmp_path / name).mkdir()
        kind = "LlamaForCausalLMEagle3" if name == "head" else "LlamaForCausalLM"
        (tmp_path / name / "config.json").write_text(json.dumps({"architectures": [kind]}))
    for preset in PRESETS:
        put_preset(tmp_path / "hub", preset)


def options_of(table: dict[str, Any], preset: str = "embedded", **flags: Any) -> dict[str, Any]:
    """What the engine of a preset is told."""
    config = load_config(flags={"preset": preset, "engine": table, **flags})
    [role] = worker_specs(config)[0].roles
    return dict(role.options)


EXPECTED: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"weights": "int4"}, {"quant": "int4"}),
    ({"weights": "bf16"}, {"quant": None}),
    ({"kv": "int8"}, {"kv_format": "int8"}),
    ({"kv": "bf16"}, {"kv_format": "plain"}),
    ({"kv_tokens": 4096}, {"kv_tokens": 4096}),
    ({"drafter": "ngram"}, {"ngram_draft": True, "draft_dir": None}),
    ({"drafter": "small"}, {"ngram_draft": True, "draft_dir": "small"}),
    ({"drafter": "none"}, {"ngram_draft": None, "draft_dir": None, "max_draft_tokens": 0}),
    ({"drafter": "head"}, {"ngram_draft": None, "draft_dir": None, "eagle_dir": "head"}),
    ({"device": "cuda:1"}, {"device": "cuda:1"}),
    ({"threads": 3}, {"threads": 3}),
]  # fmt: skip


@each_row("preset", [preset.name for preset in PRESETS])
@each_row(("table", "expected"), EXPECTED)
def test_a_key_changes_what_the_engine_is_told(
    table: dict[str, Any], expected: dict[str, Any], preset: str
) -> None:
    if table.get("drafter") == "head" and preset != "gpu":
        with pytest.raises(
            ConfigError, match=r"engine.drafter: .* on a GPU for head, found device"
        ):
            options_of(table, preset)
        return
    options = options_of(table, preset)
    assert {name: options.get(name) for name in expected} == expected
    plain = options_of({}, preset)
    is_as_ever = {name: plain.get(name) for name in expected} == expected
    assert is_as_ever == (next(iter(table.items())) in AS_EVER.get(preset, ()))


# What a preset has by itself.
AS_EVER: dict[str, tuple[tuple[str, Any], ...]] = {
    "cpu": (("drafter", "ngram"), ("weights", "int4")),
    "gpu": (("drafter", "ngram"), ("kv", "int8")),
}


def test_a_gpu_takes_a_draft_model_only_where_one_is_asked_for() -> None:
    options = options_of({"device": "cuda"})  # the embedded agent brings one
    assert options["ngram_draft"] is True and "draft_dir" not in options
    assert options_of({"device": "cuda:1", "drafter": "small"})["draft_dir"] == "small"


def with_agents(*adapters: str | None, **flags: Any) -> tuple[WorkerSpec, ...]:
    config = load_config(flags={"preset": "embedded", **flags})
    agents = [AgentConfig(llm_adapter=Path(one) if one else None) for one in adapters]
    return with_adapters(worker_specs(config), agents)


def test_the_adapters_of_all_agents_lie_beside_the_one_language_model() -> None:
    plain, adapted = with_agents(None), with_agents("a", None, "b", "a")
    assert plain == with_adapters(plain, ())
    assert adapted[0].roles[0].options == {**plain[0].roles[0].options, "adapters": ["a", "b"]}
    assert adapted[1:] == plain[1:]


def test_what_stands_in_on_the_same_model_has_them_too_and_another_model_has_none() -> None:
    config = load_config(flags={"preset": "gpu"})
    [spec] = [
        spec
        for spec in with_adapters(worker_specs(config), [AgentConfig(llm_adapter=Path("a"))])
        if spec.roles[0].role == "engine"
    ]
    by_torch, other = spec.roles[0].lower
    assert by_torch.options["adapters"] == ["a"] and by_torch.options["kernels"] is False
    assert "adapters" not in other.options


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ({"llm_url": "http://a"}, "the language model here, found it elsewhere"),
        ({"llm_adapter": "merged"}, 'llm_adapter = "none" of the server beside it, found merged'),
    ],
)
def test_an_adapter_that_could_not_answer_is_refused_at_the_start(
    flags: dict[str, Any], says: str
) -> None:
    with pytest.raises(ConfigError, match=f"llm_adapter of an agent: expected {says}"):
        with_agents("a", **flags)


def test_each_model_in_a_folder_runs_on_the_device_it_is_given() -> None:
    flags = {"preset": "gpu", "engine.device": "cuda:1"}
    roles = [role for spec in worker_specs(load_config(flags=flags)) for role in spec.roles]
    found = {role.role: role.options.get("device") for role in roles}
    assert found == {"engine": "cuda:1", "recognizer": "cuda", "voice": None}  # in a package


def test_every_key_is_tried_above() -> None:
    tried = {key for table, _ in EXPECTED for key in table}
    assert tried == {field.name for field in fields(EngineSettings)}


@pytest.mark.parametrize("preset", [preset.name for preset in PRESETS])
@pytest.mark.parametrize("table", [{}, {"kv_tokens": 32768, "kv": "int8", "drafter": "none"}])
def test_the_engine_takes_every_option_it_is_told(table: dict[str, Any], preset: str) -> None:
    options = options_of(table, preset)
    for key in ("model_dir", "prefix_file_bytes", "keys"):
        del options[key]
    EngineConfig(**options)  # unknown names and values out of range are refused


def test_the_embedded_agent_is_drafted_for_by_n_grams_and_its_own_draft_model() -> None:
    options = options_of({})
    assert options["ngram_draft"] is True and options["draft_dir"] == str(DRAFT)
    assert (DRAFT / "config.json").is_file()


def test_another_model_and_an_adapted_one_have_n_grams_alone(tmp_path: Path) -> None:
    adapted = options_of({}, llm_adapter=str(tmp_path))
    assert adapted["ngram_draft"] is True and "draft_dir" not in adapted


def test_a_number_of_tokens_takes_the_place_of_a_presets_share_of_memory() -> None:
    assert options_of({}, "gpu")["kv_memory_share"] == 0.6
    options = options_of({"kv_tokens": 32768}, "gpu")
    assert (options["kv_tokens"], options["kv_memory_share"]) == (32768, 0.0)


@pytest.mark.parametrize("n_tokens", [256, 1000, 4095, 4096, 4097])
def test_room_for_a_context_is_what_the_engine_asks_for(n_tokens: int) -> None:
    assert room_for(n_tokens) == pool_tokens_for(n_tokens)


@pytest.mark.parametrize(("kv_tokens", "expected"), [(2048, 2016), (4127, 4080), (4128, 4096)])
def test_the_context_of_a_preset_gives_way_to_less_room(kv_tokens: int, expected: int) -> None:
    config = load_config(flags={"engine.kv_tokens": kv_tokens})
    base = {"kv_tokens": 8192, "context_length": 4096}
    options = engine_options(config, base, Path("model"), n_threads=1, draft=None)
    assert (options["kv_tokens"], options["context_length"]) == (kv_tokens, expected)
    assert pool_tokens_for(expected) <= kv_tokens


def test_less_context_than_a_presets_bounds_calls_and_leaves_the_engine_as_it_is() -> None:
    config = load_config(flags={"context_tokens": 1024})
    base = {"kv_tokens": 8192, "context_length": 4096}
    options = engine_options(config, base, Path("model"), n_threads=1, draft=None)
    assert (options["kv_tokens"], options["context_length"]) == (8192, 4096)


def test_room_that_holds_less_than_the_context_asked_for_is_refused() -> None:
    config = load_config(flags={"engine.kv_tokens": 1040, "context_tokens": 1024})
    with pytest.raises(ConfigError, match="expected 1056 at least, for a context of 1024 tokens"):
        engine_options(config, {}, Path("model"), n_threads=1, draft=None)


def test_a_context_that_the_model_does_not_take_is_refused() -> None:
    asked = {"preset": "embedded", "context_tokens": 2048}
    assert context_tokens(load_config(flags=asked)) == 2048 - 256
    config = load_config(flags=asked | {"context_tokens": 100_000})
    with pytest.raises(ConfigError, match="^context_tokens: expected 2048 at most, .* 100000$"):
        context_tokens(config)


@pytest.mark.parametrize("folder", ["nowhere", "empty"])
def test_what_is_not_there_beside_the_model_is_named_before_anything_is_loaded(
    folder: str, tmp_path: Path
) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match=f"^engine.drafter: expected .* found none at {folder}"):
        options_of({"drafter": folder})


def test_flags_of_serve_set_the_table() -> None:
    flags = ["serve", "--engine-kv", "int8", "--engine-threads", "2"]
    arguments = vars(build_parser().parse_args(flags))
    del arguments["run"], arguments["config"]
    engine = load_config(flags=arguments).engine
    assert (engine.kv, engine.threads) == ("int8", 2)

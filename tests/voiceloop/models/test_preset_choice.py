"""Which preset starts: what is on disk, which device is here, and what a better one would take."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.remote_service import Service
from tests.tables import each_row
from voiceloop.backends import RecognizerOptions
from voiceloop.cluster.remote_workers import RemoteWorkers
from voiceloop.config import Ahead, Config, EngineSettings, FurtherModel, load_config
from voiceloop.errors import ConfigError
from voiceloop.models import end_judges as end_judges_module
from voiceloop.models import opening, presets, resolve
from voiceloop.models.cache import find_repo, hub_folder
from voiceloop.models.catalog import CPU, EMBEDDED, EMBEDDED_AGENT, GPU, MODELS, PRESETS, Preset
from voiceloop.models.end_judges import end_reader_spec, voice_reader_spec
from voiceloop.models.listing import before_pull
from voiceloop.models.machine import Gpu, Machine
from voiceloop.models.model import Model, Repo
from voiceloop.models.preset_check import (
    Missing,
    choose,
    find_preset,
    missing_pieces,
    replaced_models,
)
from voiceloop.models.presets import (
    context_tokens,
    resolve_agent,
    with_preset,
    worker_specs,
)
from voiceloop.models.resolve import resolve_models, resolve_named
from voiceloop.remote.dialect import KINDS, Urgency
from voiceloop.remote.language import RemoteLanguageModel
from voiceloop.remote.readers.end_of_voice import VoiceReadingRecognizer
from voiceloop.remote.readers.end_of_words import EndReadingModel
from voiceloop.remote.service import RemoteService
from voiceloop.workers.messages import RoleSpec, WorkerSpec
from voiceloop.workers.roles.role import model_name
from voiceloop.workers.roles.speech import RECOGNIZERS, VOICES

ROOT = Path(__file__).resolve().parents[3]
H200 = Gpu("NVIDIA H200", 150_000)
WHEELS = {
    "moonshine-voice": "0.1.0",
    "hibari-tts": "0.2.1",
    "espeakng-loader": "0.2.4",
}


def machine(*gpus: Gpu, memory_mb: int = 64_000, **lacks: str | None) -> Machine:
    return Machine(
        8, memory_mb, gpus, lambda n: lacks.get(n.replace("-", "_"), WHEELS.get(n, "99.0"))
    )


def put(hub: Path, *repos: Repo, commit: str = "a" * 40, branch: str = "main") -> None:
    """A whole snapshot of each, in the layout of the Hugging Face cache."""
    for repo in repos:
        place = hub / f"models--{repo.id.replace('/', '--')}"
        folder = place / "snapshots" / commit
        folder.mkdir(parents=True, exist_ok=True)
        for pattern in repo.needed:
            (folder / pattern.replace("*", "model")).write_text("{}")
        (place / "refs").mkdir(exist_ok=True)
        (place / "refs" / branch).write_text(commit)


def put_pinned(hub: Path, *repos: Repo) -> None:
    for repo in repos:
        put(hub, repo, commit=repo.revision)


def put_preset(hub: Path, preset: Preset) -> None:
    put_pinned(hub, *preset.repos)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "hub"


# --- the choice ---


def test_models_on_disk_make_the_preset(hub: Path) -> None:
    put_preset(hub, CPU)
    choice = choose(Config(), machine(), hub)
    assert (choice.preset, choice.reason) == (CPU, "its models are on disk and it needs no GPU")
    assert choice.better == ""  # no command brings a GPU


def test_a_gpu_without_its_models_is_told_how_to_get_them(hub: Path) -> None:
    put_preset(hub, CPU)
    choice = choose(Config(), machine(H200), hub)
    assert choice.preset == CPU
    assert choice.better.endswith("voiceloop models pull gpu")


def test_a_gpu_with_its_models_wins(hub: Path) -> None:
    put_preset(hub, CPU)
    put_preset(hub, GPU)
    assert choose(Config(), machine(H200), hub).preset == GPU
    assert choose(Config(), machine(), hub).preset == CPU
    assert choose(Config(), machine(Gpu("NVIDIA T4", 16_000)), hub).preset == CPU


def test_a_preset_without_its_packages_or_memory_does_not_start(hub: Path) -> None:
    put_preset(hub, CPU)
    choice = choose(Config(), machine(gguf=None), hub)
    assert choice.preset == EMBEDDED
    assert choice.better.endswith(": pip install 'voiceloop[cpu]'")
    old = choose(Config(), machine(torch="2.9.1"), hub)
    assert old.preset == EMBEDDED
    assert choose(Config(), machine(memory_mb=3000), hub).preset == EMBEDDED


def test_where_nothing_can_start_the_start_says_what_would_mend_it(hub: Path) -> None:
    choice = choose(Config(), machine(torch=None, jinja2=None), hub)
    assert choice.preset == EMBEDDED
    told = (
        "nothing else can start here, and it lacks torch, jinja2: pip install 'voiceloop[embedded]'"
    )
    assert choice.reason == told


def test_beside_a_language_service_no_package_of_an_engine_is_missed(hub: Path) -> None:
    url = ("http://127.0.0.1:9/v1",)
    choice = choose(Config(llm_url=url, tts_url=url), machine(torch=None, gguf=None), hub)
    assert (choice.preset, choice.better) == (EMBEDDED, "")
    assert choice.reason == "no better one has all it needs here"


def test_a_cpu_build_of_torch_does_not_start_a_preset_of_the_gpu(hub: Path) -> None:
    put_preset(hub, CPU)
    put_preset(hub, GPU)
    built_for_cpu = machine(H200, torch="2.13.0+cpu")
    choice = choose(Config(), built_for_cpu, hub)
    assert choice.preset == CPU
    assert "pip uninstall -y torch && pip install torch" in choice.better
    [lack] = missing_pieces(GPU, resolve_models(Config(), GPU, hub), built_for_cpu, hub)
    assert (lack.kind, lack.subject) == ("package", "torch")
    assert lack.found == "version 2.13.0+cpu, a CPU build"
    assert choose(Config(), machine(H200, torch="2.13.0+cu130"), hub).preset == GPU


def test_a_half_fetched_model_does_not_count(hub: Path) -> None:
    put_preset(hub, CPU)
    assert CPU.models["engine"].repo is not None
    folder = find_repo(CPU.models["engine"].repo, hub).folder
    assert folder is not None
    weights = folder / CPU.models["engine"].file
    weights.unlink()
    weights.symlink_to(folder / "a blob that never came")
    assert choose(Config(), machine(), hub).preset == EMBEDDED


def test_a_named_preset_is_taken_as_it_is(hub: Path) -> None:
    assert choose(Config(preset="gpu"), machine(), hub).preset == GPU
    with pytest.raises(ConfigError, match="expected one of auto, embedded, cpu, gpu, remote"):
        find_preset("huge")


def test_three_urls_need_no_model(hub: Path) -> None:
    url = "http://127.0.0.1:9/v1"
    config = Config(stt_url=(url,), llm_url=(url,), tts_url=(url,))
    assert choose(config, machine(), hub).preset.name == "remote"


def test_a_url_spares_the_preset_that_part(hub: Path) -> None:
    assert choose(Config(), machine(), hub).preset == EMBEDDED
    assert choose(Config(llm_url=("http://127.0.0.1:9/v1",)), machine(), hub).preset == CPU


def test_every_missing_piece_is_named_with_its_command(hub: Path) -> None:
    bare = machine(memory_mb=1000, torch=None, transformers="4.0")
    lacks = missing_pieces(GPU, resolve_models(Config(), GPU, hub), bare, hub)
    assert [(one.kind, one.subject) for one in lacks][:3] == [
        ("device", "GPU"), ("package", "torch"), ("package", "transformers"),
    ]  # fmt: skip
    models = [one for one in lacks if one.kind == "model"]
    assert [one.subject for one in models] == [repo.id for repo in GPU.repos]
    assert lacks[-1].kind == "memory"
    assert all(one.remedy for one in lacks)


def test_a_model_whose_package_is_absent_is_replaced_and_told(
    hub: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def voice_with(version: str | None, config: Config) -> tuple[str, list[Missing]]:
        monkeypatch.setattr(resolve, "installed_version", {**WHEELS, "hibari-tts": version}.get)
        taken = resolve_models(config, EMBEDDED, hub)
        assert worker_specs(config)[1].roles[1].options["model"] == taken["voice"].model.loader
        return taken["voice"].model.name, replaced_models(taken)

    config = Config(preset="embedded")
    assert voice_with("0.2.1", config) == ("hibari", [])
    for version in (None, "0.3.0"):
        name, [lack] = voice_with(version, config)
        assert name == "espeak"
        assert (lack.subject, lack.remedy) == ("hibari", "pip install 'hibari-tts==0.2.1'")
        assert lack.found == "espeak takes its place, for hibari-tts==0.2.1 is not installed"
    # What is named is taken, and says itself what it lacks.
    assert voice_with(None, replace(config, tts_model="hibari")) == ("hibari", [])
    assert voice_with("0.2.1", replace(config, tts_model="espeak")) == ("espeak", [])


def test_the_start_tells_what_was_replaced(hub: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resolve, "installed_version", {"espeakng-loader": "0.2.4"}.get)
    _, notes = with_preset(Config(preset="embedded"))
    assert notes == [
        "without hibari: espeak takes its place, for hibari-tts==0.2.1 is not installed; "
        "pip install 'hibari-tts==0.2.1'",
    ]
    monkeypatch.setattr(resolve, "installed_version", WHEELS.get)
    assert with_preset(Config(preset="embedded")) == (Config(preset="embedded"), [])


# --- the cache and the overrides ---


@pytest.mark.parametrize(("environ", "folder"), [
    ({"HF_HUB_CACHE": "/a", "HF_HOME": "/b"}, "/a"),
    ({"HF_HOME": "/b"}, "/b/hub"),
    ({"XDG_CACHE_HOME": "/c"}, "/c/huggingface/hub"),
])  # fmt: skip
def test_the_cache_is_where_other_programs_have_it(environ: dict[str, str], folder: str) -> None:
    assert hub_folder(environ) == Path(folder)


def test_a_snapshot_of_another_commit_is_not_the_pinned_model(hub: Path) -> None:
    repo = GPU.models["recognizer"].repo
    assert repo is not None
    put(hub, repo, commit="b" * 40)
    assert not find_repo(repo, hub).is_whole
    put(hub, repo, commit=repo.revision, branch="pinned")
    assert find_repo(repo, hub).commit == repo.revision


def test_a_checkpoint_whose_shard_is_missing_is_not_whole(hub: Path) -> None:
    repo = Repo("owner/name")
    put(hub, repo)
    folder = find_repo(repo, hub).folder
    assert folder is not None
    index = '{"weight_map": {"a": "model.safetensors", "b": "model-2.safetensors"}}'
    (folder / "model.safetensors.index.json").write_text(index)
    assert find_repo(repo, hub).missing == ("model-2.safetensors",)


def folder_of(tmp_path: Path, config: str, *files: str) -> Path:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "config.json").write_text(config)
    for name in files:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("x")
    return folder


@pytest.mark.parametrize(("role", "config", "files", "loader"), [
    ("recognizer", '{"model_type": "whisper"}', (), "whisper"),
    ("recognizer", "{}", ("model.bin", "vocabulary.txt"), "whisper"),
    ("recognizer", '{"model_type": "nemotron_asr_streaming"}', (), "transducer"),
    ("voice", "{}", ("model.onnx", "voices/bf_emma.bin"), "kokoro"),
    ("engine", '{"model_type": "qwen3"}', (), ""),
])  # fmt: skip
def test_a_folder_is_loaded_by_what_is_in_it(
    role: Any, config: str, files: tuple[str, ...], loader: str, tmp_path: Path, hub: Path
) -> None:
    folder = folder_of(tmp_path, config, *files)
    resolved = resolve_named(role, str(folder), hub)
    assert (resolved.model.loader, resolved.folder) == (loader, folder)


def test_a_folder_that_no_loader_knows_is_refused(tmp_path: Path, hub: Path) -> None:
    folder = folder_of(tmp_path, '{"model_type": "mamba"}')
    with pytest.raises(ConfigError, match="llm_model: expected config.json .* found 'mamba'"):
        resolve_named("engine", str(folder), hub)


def test_an_id_on_disk_is_found_and_one_that_is_not_names_the_command(hub: Path) -> None:
    with pytest.raises(ConfigError, match="voiceloop models pull owner/name@main"):
        resolve_named("engine", "owner/name@main", hub)
    repo = Repo("owner/name")
    put(hub, repo)
    folder = find_repo(repo, hub).folder
    assert folder is not None
    (folder / "config.json").write_text('{"model_type": "llama"}')
    assert resolve_named("engine", "owner/name", hub).folder == folder


# --- the processes ---


@pytest.mark.parametrize("is_on", [True, False])
def test_the_voice_is_judged_where_the_embedded_recognizer_hears_and_can_be_switched_off(
    is_on: bool, hub: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ahead = Ahead(() if is_on else ("p_voice",))
    roles = {
        role.role: role.options
        for spec in worker_specs(Config(preset="embedded", anticipation=ahead))
        for role in spec.roles
    }
    assert roles["recognizer"]["end_of_voice"] is is_on
    put_preset(hub, GPU)
    for spec in worker_specs(Config(preset="gpu", anticipation=ahead)):
        assert all("end_of_voice" not in role.options for role in spec.roles)


def test_the_cpu_preset_reads_one_file_of_a_general_model_beside_the_embedded_speech(
    hub: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_preset(hub, CPU)
    monkeypatch.setattr(resolve, "installed_version", WHEELS.get)
    monkeypatch.setattr(presets, "n_cores", lambda: 8)
    specs = worker_specs(Config(preset="cpu"))
    assert [(spec.name, spec.n_threads) for spec in specs] == [("engine", 4), ("speech", 1)]
    # Both of two cores, and no more than there are.
    assert [CPU.processes[0].threads(n_cores) for n_cores in (1, 2, 3, 8)] == [1, 2, 2, 4]
    [engine], [recognizer, voice] = (spec.roles for spec in specs)
    assert engine.options["quant"] == "int4"
    file = Path(engine.options["model_dir"])
    repo = CPU.models["engine"].repo
    assert repo is not None and (file.name, file.parent.name) == (repo.files[0], repo.revision)
    assert recognizer.options["model"] == "moonshine-onnx" and "device" not in recognizer.options
    assert voice.options == {"model": "hibari", "kept_mb": 32}
    assert context_tokens(Config(preset="cpu")) == 4096 - presets.REPLY_TOKENS


def test_the_gpu_preset_gives_each_model_a_process_and_its_folder(
    hub: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_preset(hub, GPU)
    monkeypatch.setattr(presets, "n_cores", lambda: 8)
    specs = worker_specs(Config(preset="gpu"))
    assert [(spec.name, spec.n_threads) for spec in specs] == [
        ("engine", 4), ("recognizer", 2), ("voice", 2),
    ]  # fmt: skip
    [engine], [recognizer], _ = (spec.roles for spec in specs)
    engine_repo = GPU.models["engine"].repo
    assert engine_repo is not None
    assert Path(engine.options["model_dir"]).name == engine_repo.revision
    assert (recognizer.options["model"], recognizer.options["device"]) == ("transducer", "cuda")
    assert model_name(recognizer.options["source"]) == "nvidia/nemotron-3.5-asr-streaming-0.6b"


def test_where_a_gpu_fails_plain_torch_is_planned_and_then_the_cpu_s_model_for_as_long_a_call(
    hub: Path,
) -> None:
    put_preset(hub, GPU)
    config = Config(preset="gpu", engine=EngineSettings(kv="bf16"))

    def lower(config: Config) -> list[tuple[str, dict[str, Any]]]:
        [[engine], *others] = (spec.roles for spec in worker_specs(config))
        assert not any(role.lower for roles in others for role in roles)
        return [(one.model.name, one.options) for one in engine.lower]

    [(name, plain)] = lower(config)
    assert name == "Qwen/Qwen3-4B-Instruct-2507"
    assert plain["device"] == "cuda" and plain["kernels"] is False
    put_preset(hub, CPU)
    _, (name, other) = lower(config)
    assert name == "Qwen/Qwen2.5-1.5B-Instruct-GGUF" and other["quant"] == "int4"
    assert "device" not in other
    assert other["context_length"] == plain["context_length"] == 16384
    assert other["kv_tokens"] > 16384 and "kv_format" not in other
    assert not lower(Config(preset="cpu"))


@pytest.mark.parametrize(("name", "is_told"), [("mine", True), ("hibari", True), ("espeak", False)])
def test_a_voice_whose_clauses_sound_alike_every_time_is_told_how_many_to_keep(
    name: str, is_told: bool, tmp_path: Path, hub: Path
) -> None:
    put_preset(hub, CPU)
    folder = folder_of(tmp_path, "{}", "model.onnx", "voices/bf_emma.bin")
    voice_model = str(folder) if name == folder.name else name
    specs = worker_specs(Config(preset="cpu", tts_model=voice_model))
    (voice,) = (role for spec in specs for role in spec.roles if role.role == "voice")
    assert voice.options.get("kept_mb") == (32 if is_told else None)


def test_a_preset_of_the_gpu_tells_of_the_missing_gpu_before_anything_is_fetched(
    hub: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(presets, "this_machine", lambda: machine(torch="2.12.0+cpu"))
    with pytest.raises(ConfigError) as caught:
        worker_specs(Config(preset="gpu"))
    told = caught.value.message
    assert "GPU: no NVIDIA GPU" in told and "torch: version 2.12.0+cpu, a CPU build" in told
    assert told.endswith("voiceloop models pull gpu")


@pytest.mark.parametrize(
    ("flags", "is_told"),
    [
        ({"agent": "my-agent.toml"}, True),
        ({"agent": "clinic"}, True),
        ({"agent": "cafe"}, False),
        ({}, False),
        ({"agent": "my-agent.toml", "llm_url": "http://127.0.0.1:8000/v1"}, False),
    ],
)
def test_who_names_another_agent_than_the_cafe_is_told_what_the_embedded_model_can_do(
    flags: dict[str, str], is_told: bool
) -> None:
    note = presets.note_on_agent(load_config(flags={"preset": "embedded", **flags}))
    assert (note is not None) is is_told
    assert note is None or (note.startswith(flags["agent"]) and "--llm-url" in note)


def without_wheels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resolve, "installed_version", lambda name: None)


def test_a_folder_takes_the_place_of_one_model_of_a_preset(
    tmp_path: Path, hub: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_wheels(monkeypatch)
    folder = folder_of(tmp_path, '{"model_type": "llama", "max_position_embeddings": 2048}')
    config = Config(preset="embedded", llm_model=str(folder))
    engine, speech = worker_specs(config)
    assert engine.roles[0].options["model_dir"] == str(folder)
    assert [role.role for role in speech.roles] == ["recognizer", "voice"]
    assert context_tokens(config) == 2048 - 256
    assert resolve_agent(config).name == "Agent"  # the cafe's agent goes with its own model
    assert resolve_agent(Config(preset="embedded")).name == "Ava"


def test_a_named_language_model_is_bounded_where_its_preset_does_not_bound_it(
    tmp_path: Path, hub: Path
) -> None:
    folder = folder_of(tmp_path, '{"model_type": "llama", "max_position_embeddings": 32768}')

    def bounds(config: Config) -> tuple[object, object]:
        options = worker_specs(config)[0].roles[0].options
        return options.get("context_length"), options.get("kv_tokens")

    named = Config(preset="embedded", llm_model=str(folder))
    assert bounds(named) == (4096, 8192)
    assert context_tokens(named) == 4096 - 256
    longer = replace(named, context_tokens=16384)
    served = replace(longer, context_tokens=context_tokens(longer))  # as `serve` hands it on
    assert bounds(served) == (16384, 32768)
    assert bounds(Config(preset="embedded")) == (None, None)


def test_the_package_of_the_model_that_is_taken_is_needed_and_no_other(
    hub: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lacking(config: Config, **lacks: str | None) -> list[tuple[str, str]]:
        taken = resolve_models(config, EMBEDDED, hub)
        return [
            (m.subject, m.remedy) for m in missing_pieces(EMBEDDED, taken, machine(**lacks), hub)
        ]

    monkeypatch.setattr(resolve, "installed_version", WHEELS.get)
    assert lacking(Config(), espeakng_loader=None) == []
    named = Config(tts_model="espeak")
    assert lacking(named, espeakng_loader=None) == [
        ("espeakng-loader", "pip install 'espeakng-loader==0.2.4'"),
    ]
    without_wheels(monkeypatch)
    # Beside a service the voice's package is enough, and no voice of another language is asked for.
    beside = Config(llm_url="http://127.0.0.1:1/v1")
    found = lacking(beside, hibari_tts=None, espeakng_loader=None, torch=None)
    assert ("hibari-tts", "pip install 'hibari-tts==0.2.1'") in found
    assert not any("embedded" in remedy for _, remedy in found)
    named = Config(stt_model="moonshine-tiny")
    [(subject, remedy)] = lacking(named, moonshine_voice="0.1.1")
    assert (subject, remedy) == ("moonshine-voice", "pip install 'voiceloop[embedded]'")


@pytest.mark.parametrize("kind", ["ort", "onnx"])
def test_a_folder_of_moonshine_is_read_by_its_own_loader(
    tmp_path: Path, hub: Path, kind: str
) -> None:
    (tmp_path / f"encoder_model.{kind}").touch()
    (tmp_path / f"decoder_model_merged.{kind}").touch()
    speech = worker_specs(Config(preset="embedded", stt_model=str(tmp_path)))[1]
    assert speech.roles[0].options == {"model": "moonshine-onnx", "source": str(tmp_path)}


def test_the_switches_of_anticipation_reach_the_engine() -> None:
    flags = {"preset": "embedded", "anticipation.off": ["prefix_cache"]}
    [engine] = worker_specs(load_config(flags=flags))[0].roles
    assert engine.options["prefix_cache"] is False


def test_a_remote_language_model_has_its_turns_read_by_the_embedded_one() -> None:
    config = Config(preset="embedded", llm_url=("http://127.0.0.1:9/v1",))
    spec = end_reader_spec(config)
    assert spec is not None
    assert spec.roles[0].options["model_dir"] == str(presets.embedded_model_dir())
    assert end_reader_spec(Config(preset="embedded")) is None
    off = {"anticipation.off": ["p_end"]}
    silent = load_config(flags={"llm_url": "http://127.0.0.1:9/v1", **off})
    assert end_reader_spec(silent) is None


@pytest.mark.parametrize("preset", [CPU, GPU])
def test_a_language_model_here_that_learned_no_ends_has_its_turns_read_too(
    preset: Preset, hub: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_preset(hub, preset)
    monkeypatch.setattr(resolve, "installed_version", WHEELS.get)
    assert end_reader_spec(Config(preset=preset.name)) is not None
    assert end_reader_spec(Config(preset=preset.name, anticipation=Ahead(("p_end",)))) is None
    elsewhere = load_config(flags={"preset": preset.name, "llm_url": "worker://a:1"})
    assert end_reader_spec(elsewhere) is None  # its workers say what it reads


def test_what_judges_the_end_is_told_with_what_is_lost_where_a_judge_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    urls = {f"{part}_url": "http://127.0.0.1:9/v1" for part in ("stt", "llm", "tts")}
    config = load_config(flags={"preset": "remote", **urls})
    monkeypatch.setattr(resolve, "installed_version", lambda name: None)
    judges = end_judges_module.end_judges(config)
    assert judges.told == "words"
    assert ["moonshine" in lack for lack in judges.lacking] == [True]
    quiet = replace(config, anticipation=Ahead(("p_end",)))
    judges = end_judges_module.end_judges(quiet)
    assert judges.told == "silence alone"
    assert ["p_end" in lack for lack in judges.lacking] == [True, False]
    monkeypatch.setattr(resolve, "installed_version", WHEELS.get)
    assert end_judges_module.end_judges(config).told == "words and voice"
    whole = end_judges_module.end_judges(Config(preset="embedded"))
    assert (whole.told, whole.lacking) == ("words and voice", ())
    assert whole.at(words_ready=False, voice_ready=True).told == "voice"


@pytest.mark.parametrize("table", [{"anticipation.off": ["p_voice"]}, {"stt_url": None}])
def test_a_remote_recognizer_has_the_voice_read_by_the_embedded_one(
    monkeypatch: pytest.MonkeyPatch, table: dict[str, object]
) -> None:
    flags = {"preset": "embedded", "stt_url": "http://127.0.0.1:9/v1"}
    monkeypatch.setattr(resolve, "installed_version", lambda name: "0.1.0")
    spec = voice_reader_spec(load_config(flags=flags))
    assert spec is not None
    [role] = spec.roles
    assert role.options["end_of_voice"] and not role.options["hears_words"]
    assert voice_reader_spec(load_config(flags={**flags, **table})) is None
    monkeypatch.setattr(resolve, "installed_version", lambda name: None)  # its wheel is not here
    assert voice_reader_spec(load_config(flags=flags)) is None


def test_a_recognizer_here_that_tells_nothing_of_the_voice_has_it_read_by_the_embedded_one(
    hub: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    preset = GPU
    put_preset(hub, preset)
    monkeypatch.setattr(resolve, "installed_version", WHEELS.get)
    spec = voice_reader_spec(Config(preset=preset.name))
    assert spec is not None
    [role] = spec.roles
    assert role.options["end_of_voice"] and not role.options["hears_words"]
    assert voice_reader_spec(Config(preset=preset.name, anticipation=Ahead(("p_voice",)))) is None
    elsewhere = load_config(flags={"preset": preset.name, "stt_url": "worker://a:1"})
    assert voice_reader_spec(elsewhere) is None  # it tells by itself what it hears
    assert voice_reader_spec(Config(preset="embedded")) is None


async def test_a_server_starts_without_the_readers_where_they_cannot_load_and_names_none(
    service: Service, connect: Callable[..., RemoteService], monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    caplog.set_level(logging.INFO)
    for name, role in (("end_reader", "engine"), ("voice_reader", "recognizer")):
        roles = (RoleSpec(role, {}, "scripted_roles:unloadable"),)  # type: ignore[arg-type]
        unloadable = WorkerSpec(name, roles)
        monkeypatch.setattr(opening, f"{name}_spec", lambda config, spec=unloadable: spec)
    monkeypatch.setenv("PYTHONPATH", f"{ROOT / 'tests' / 'faults'}{os.pathsep}{ROOT}")
    url = connect().url
    config = Config(preset="remote", stt_url=(url,), llm_url=(url,), tts_url=(url,))
    async with opening.open_backends(config) as (backends, is_ready):
        assert is_ready()
        assert "the end of a turn is judged by silence alone" in caplog.messages
        assert isinstance(backends.language_model, EndReadingModel)
        branch = await backends.language_model.branch("sess_1/turn_1", ())
        await branch.close()
        assert isinstance(backends.recognizer, VoiceReadingRecognizer)
        stream = await backends.recognizer.open("sess_1", RecognizerOptions())
        await stream.close()


async def test_the_workers_of_every_model_are_told_which_call_goes_on_where(
    service: Service, connect: Callable[..., RemoteService], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, set[int]] = {"tell_resumed": set(), "hear_resumed": set()}
    for name, workers in asked.items():
        monkeypatch.setattr(
            RemoteWorkers, name, lambda self, *told, workers=workers: workers.add(id(self))
        )
    for name in ("end_reader_spec", "voice_reader_spec"):
        monkeypatch.setattr(opening, name, lambda config: None)
    url = connect().url
    cloud = FurtherModel("cloud", url=("worker://127.0.0.1:9",), key=("a key of many bytes" * 2,))
    config = Config(
        preset="remote", stt_url=(url,), llm_url=(url,), tts_url=(url,), models=(cloud,)
    )
    async with opening.open_backends(config) as (backends, _):
        backends.tell_resumed("sess_1", "sess_2")
        backends.hear_resumed(lambda call_id, by: None)
    assert [len(workers) for workers in asked.values()] == [2, 2]


@pytest.mark.parametrize(
    ("off", "reads_ahead"), [((), True), (("prefill",), False), (("speculative_reply",), True)]
)
async def test_a_remote_language_model_reads_ahead_unless_that_is_off(
    connect: Callable[..., RemoteService], off: tuple[str, ...], reads_ahead: bool
) -> None:
    async def vllm(
        urls: Sequence[str], keys: Sequence[str], model: str, **options: Any
    ) -> list[RemoteService]:
        service = connect()
        service.kind = KINDS["vllm"]
        return [service]

    config = load_config(flags={"llm_url": "http://127.0.0.1:9/v1", "anticipation.off": off})
    model = await opening._remote_language_model(config, vllm)
    assert isinstance(model, RemoteLanguageModel)
    assert model.reads_ahead is reads_ahead
    [place] = model.places.values()
    assert place.dialect.body({}, Urgency.STAGED, "").get("priority") == 100


# --- the table ---


def test_no_model_of_a_preset_forbids_commercial_use() -> None:
    for preset in PRESETS:
        for model in preset.models.values():
            assert "-NC" not in model.licence.upper()
            assert model.languages and model.licence


def test_no_model_is_without_a_pin() -> None:
    for model in MODELS:
        assert "==" in model.requires or model.repo or model == EMBEDDED_AGENT
        assert all(repo.is_pinned for repo in model.repos), model.name


def test_a_folder_of_no_voice_is_refused_saying_what_another_voice_is(
    tmp_path: Path, hub: Path
) -> None:
    folder = folder_of(tmp_path, '{"model_type": "vits"}')
    with pytest.raises(ConfigError, match="tts_model: expected Kokoro's .*tts_url"):
        resolve_named("voice", str(folder), hub)


@each_row("model", MODELS)
def test_every_model_has_a_loader_and_patterns_that_fetch_what_it_needs(model: Model) -> None:
    loaders = {"recognizer": RECOGNIZERS, "voice": VOICES, "engine": {"": ""}}
    assert model.loader in loaders[model.role]
    for repo in model.repos:
        assert set(repo.needed) <= set(repo.files) | {"config.json", "tokenizer.json"}
        assert repo.size_mb > 0


def test_a_pull_says_how_much_it_is_and_what_it_does_not_bring(hub: Path) -> None:
    first, size, *notes = before_pull(GPU, machine(), hub)
    assert first == f"gpu: {GPU.summary}"
    assert size == f"10.6 GB to fetch in 2 parts, some 30 min at 50 Mbit/s, into {hub}"
    assert any("gpu also lacks GPU: no NVIDIA GPU" in note for note in notes)

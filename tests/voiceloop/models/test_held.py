"""What a worker says of its models, and what a server makes of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from voiceloop.capabilities import Capabilities
from voiceloop.config import Config, load_config
from voiceloop.models import held
from voiceloop.models.catalog import EMBEDDED_AGENT
from voiceloop.models.held import digest_of, with_held
from voiceloop.models.model import Model
from voiceloop.models.preset_check import choose
from voiceloop.models.presets import prompt_tokens
from voiceloop.models.resolve import ResolvedModel, capabilities_of, roles_here
from voiceloop.server.worker_command import spec_of_roles
from voiceloop.workers.messages import HeldModel

EMBEDDED = Config(preset="embedded")
MODEL = Model(name="m", role="engine", licence="", languages="")


def test_a_worker_of_the_embedded_preset_says_what_a_server_of_it_would_tell_callers() -> None:
    specs = [spec_of_roles(EMBEDDED, [role]) for role in ("engine", "recognizer", "voice")]
    told = {spec.roles[0].role: spec.roles[0].model for spec in specs}
    assert told["engine"].name == EMBEDDED_AGENT.name
    assert told["engine"].context_tokens > 0 and told["engine"].n_streams > 0
    assert "keys and values" in told["engine"].formats
    assert told["engine"].reads_turn_ends
    assert told["recognizer"].languages == ("en",)
    assert told["voice"].voices
    assert len({model.digest for model in told.values()}) == 3
    known = with_held(Capabilities(), told)
    assert known.voices == frozenset(told["voice"].voices)
    assert known.context_tokens == prompt_tokens(told["engine"].context_tokens)


def test_what_workers_say_replaces_what_the_own_preset_does_and_no_more() -> None:
    own = Capabilities(voices=frozenset({"ava"}), voice_model="hibari", languages=("en",))
    known = with_held(own, {"voice": HeldModel("kokoro", voices=("tom",))})
    assert (known.voices, known.voice_model) == (frozenset({"tom"}), "kokoro")
    assert known.languages == ("en",)
    assert with_held(own, {}) == own


def folder_of(path: Path, weights: bytes) -> Path:
    path.mkdir()
    (path / "config.json").write_text("{}")
    (path / "model.safetensors").write_bytes(weights)
    return path


def test_models_of_one_name_are_told_apart_by_their_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(held, "SAMPLE_BYTES", 4)
    one = folder_of(tmp_path / "one", b"head of weights tail")
    same = folder_of(tmp_path / "same", b"head of weights tail")
    trained = folder_of(tmp_path / "trained", b"head of weights last")
    longer = folder_of(tmp_path / "longer", b"head of the weights tail")
    digests = [digest_of(ResolvedModel(MODEL, folder)) for folder in (one, same, trained, longer)]
    assert digests[0] == digests[1]
    assert len(set(digests)) == 3
    assert digest_of(ResolvedModel(MODEL, one, adapter=trained)) != digests[0]
    gguf = tmp_path / "model.gguf"
    gguf.write_bytes(b"GGUF")
    assert digest_of(ResolvedModel(MODEL, gguf)) not in digests


def test_a_server_whose_every_part_is_elsewhere_takes_no_preset_of_its_own(tmp_path: Path) -> None:
    workers = {"llm_url": "worker://h:1", "tts_url": "worker://h:2"}
    config = load_config(flags={**workers, "stt_url": "http://h:3/v1"})
    assert roles_here(config) == frozenset()
    choice = choose(config, None, tmp_path)  # type: ignore[arg-type]  # which nobody looks at
    assert choice.preset.name == "remote"
    assert capabilities_of({}).reads_turn_ends
    listed = load_config(flags={"workers": {"list": "workers.json"}, "llm_url": "http://h:1/v1"})
    assert roles_here(listed) == frozenset()
    assert roles_here(load_config(flags={"tts_url": "worker://h:2"})) == {
        "engine",
        "recognizer",
    }

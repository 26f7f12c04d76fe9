"""Checkpoints and devices: what is missing is one sentence with its remedy."""

import sys
from types import ModuleType

import pytest

from audio.checkpoint import load_checkpoint, torch_device
from audio.errors import AudioError


class NeedsAPackage:
    @classmethod
    def from_pretrained(cls, folder, **options):
        raise ImportError("\n NeedsAPackage requires the librosa library\n")


@pytest.fixture
def transformers(monkeypatch):
    module = ModuleType("transformers")
    module.__version__ = "5.17.0"
    module.NeedsAPackage = NeedsAPackage
    monkeypatch.setitem(sys.modules, "transformers", module)
    return module


def test_transformers_without_the_class_names_the_version_wanted(transformers, tmp_path):
    with pytest.raises(AudioError, match="has NemotronAsr.*found 5.17.0; remedy: pip install -U"):
        load_checkpoint("NemotronAsr", tmp_path)


def test_a_checkpoint_of_pickles_is_refused(tmp_path):
    """Which would run what they hold."""
    pytest.importorskip("torch")
    real = pytest.importorskip("transformers")
    config = real.WhisperConfig(
        d_model=16, encoder_layers=1, decoder_layers=1, encoder_attention_heads=1,
        decoder_attention_heads=1, encoder_ffn_dim=16, decoder_ffn_dim=16, vocab_size=64,
        num_mel_bins=8, max_source_positions=8, max_target_positions=8, pad_token_id=0,
        bos_token_id=0, eos_token_id=1, decoder_start_token_id=0,
    )  # fmt: skip
    config.save_pretrained(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"a pickle")
    with pytest.raises(AudioError, match="safetensors"):
        load_checkpoint("WhisperForConditionalGeneration", tmp_path)


def test_a_class_that_needs_a_package_is_one_sentence(transformers, tmp_path):
    with pytest.raises(AudioError, match="found: NeedsAPackage requires the librosa library;"):
        load_checkpoint("NeedsAPackage", tmp_path)


def test_a_missing_package_names_the_extra(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "transformers", None)
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(AudioError, match=r"expected transformers.*pip install 'voiceloop\[gpu\]'"):
        load_checkpoint("Anything", tmp_path)
    with pytest.raises(AudioError, match=r"expected torch for a voice.*voiceloop\[cpu\]"):
        torch_device("cpu", "a voice")
    with pytest.raises(AudioError, match=r"expected torch for a voice.*voiceloop\[gpu\]"):
        torch_device("cuda", "a voice")


def test_an_unknown_device_is_refused():
    with pytest.raises(AudioError, match="the device auto, cpu, cuda or cuda:N, found 'tpu'"):
        torch_device("tpu", "a voice")


def test_a_device_is_named_by_its_index_and_refused_where_it_is_not_there(monkeypatch):
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert torch_device("cuda:1", "a voice")[1] == torch.device("cuda:1")
    assert torch_device("auto", "a voice")[1] == torch.device("cuda")
    assert torch_device("cpu", "a voice")[1] == torch.device("cpu")
    with pytest.raises(AudioError, match="expected a device of cuda:0 to cuda:1, found cuda:2"):
        torch_device("cuda:2", "a voice")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(AudioError, match="expected a CUDA device, found none"):
        torch_device("cuda:1", "a voice")

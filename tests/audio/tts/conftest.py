"""Tiny random checkpoints of the real voice architectures, made once a session."""

import json
import os

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.fixture(scope="session", autouse=True)
def one_thread():
    """torch on one thread: the models are tiny, and the machine's other cores are in use."""
    torch = pytest.importorskip("torch")
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def tiny_vits_dir(tmp_path_factory):
    """A random two-speaker VITS with the decoder geometry of the MMS voices."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")

    folder = tmp_path_factory.mktemp("tiny_vits")
    torch.manual_seed(3)
    config = transformers.VitsConfig(
        hidden_size=16,
        num_hidden_layers=1,
        ffn_dim=16,
        flow_size=8,
        upsample_initial_channel=16,  # rates, kernels and dilations stay those of MMS
        duration_predictor_num_flows=2,
        duration_predictor_filter_channels=8,
        prior_encoder_num_flows=2,
        prior_encoder_num_wavenet_layers=1,
        posterior_encoder_num_wavenet_layers=1,
        num_speakers=2,
        speaker_embedding_size=4,
        speaking_rate=0.6,  # a random duration predictor says about one frame a token
    )
    transformers.VitsModel(config).save_pretrained(folder)
    alphabet = ["<pad>", *"abcdefghijklmnopqrstuvwxyz' -", "<unk>"]
    (folder / "vocab.json").write_text(json.dumps({c: i for i, c in enumerate(alphabet)}))
    (folder / "tokenizer_config.json").write_text(
        json.dumps(
            {
                "tokenizer_class": "VitsTokenizer",
                "phonemize": False,
                "add_blank": True,
                "normalize": True,
                "is_uroman": False,
            }
        )
    )
    return folder

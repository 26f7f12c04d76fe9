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


ALPHABET = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ .,?!'"


@pytest.fixture(scope="session")
def tiny_latent_dir(tmp_path_factory):
    """tiny_latent_dir("pocket" | "phonon") -> a folder of model, codec, tokenizer and voices."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    if not hasattr(transformers, "PocketTTSForConditionalGeneration"):
        pytest.skip(f"transformers {transformers.__version__} has no pocket_tts")
    made = {}

    def make(kind):
        if kind not in made:
            made[kind] = _latent_checkpoint(
                torch, transformers, kind, tmp_path_factory.mktemp(kind)
            )
        return made[kind]

    return make


def _latent_checkpoint(torch, transformers, kind, folder):
    from safetensors.torch import save_file
    from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

    torch.manual_seed(4)
    specials = ["<pad>", "<bos>", "<prompt>", "<latent>", "<prompt_bos>"]
    vocab = {name: i for i, name in enumerate([*specials, *ALPHABET])}
    sizes = {
        "vocab_size": len(vocab),
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 32,
        "latent_dim": 8,
        "pad_token_id": 0,
        "audio_bos_token_id": 1,
        "audio_prompt_token_id": 2,
        "audio_latent_token_id": 3,
    }
    flow = {
        "hidden_size": 16,
        "num_hidden_layers": 1,
        "latent_dim": 8,
        "condition_dim": 32,
        "frequency_embedding_size": 8,
    }
    if kind == "pocket":
        head = transformers.PocketTTSFlowHeadConfig(**flow)
        config = transformers.PocketTTSConfig(
            flow_head_config=head, audio_prompt_bos_token_id=4, **sizes
        )
        model = transformers.PocketTTSForConditionalGeneration(config)
        prompt_dim = 8
    else:
        head = transformers.GradiumPhononTTSFlowHeadConfig(**flow)
        config = transformers.GradiumPhononTTSConfig(
            flow_head_config=head, audio_prompt_dim=12, **sizes
        )
        model = transformers.GradiumPhononTTSForConditionalGeneration(config)
        prompt_dim = 12
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(0.0, 0.25)
        model.eos_head.bias.fill_(-5.0)  # against a threshold of -4: the end comes, but not at once
    model.generation_config.temperature = 0.7
    model.generation_config.do_sample = True
    model.save_pretrained(folder)

    codec = transformers.PocketTTSAudioTokenizerModel(
        transformers.PocketTTSAudioTokenizerConfig(
            hidden_size=16,
            num_filters=2,
            num_hidden_layers=1,
            intermediate_size=16,
            num_attention_heads=2,
            num_key_value_heads=2,
            upsample_groups=16,
            sliding_window=40,  # 2.5 frames: the window must slide within a fragment
            latent_dim=8,
            layer_scale_initial_scale=0.5,
        )
    )
    with torch.no_grad():
        for parameter in codec.parameters():
            if parameter.ndim > 1:
                parameter.normal_(0.0, 0.12)
    codec.save_pretrained(folder / "audio_tokenizer")

    inner = Tokenizer(models.WordLevel(vocab, unk_token="<pad>"))
    inner.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    inner.add_special_tokens([AddedToken(name, special=True) for name in specials])
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="<pad>")
    tokenizer.chat_template = (
        "<prompt>{% for item in messages[0].content %}{% if item.type == 'text' %}"
        "{{ item.text }}{% endif %}{% endfor %}<bos>"
    )
    tokenizer.save_pretrained(folder)
    (folder / "processor_config.json").write_text(json.dumps({"frames_after_eos": 2}))
    (folder / "voices").mkdir()
    for name in ("alba", "marius"):
        voice = torch.randn(5 if name == "alba" else 9, prompt_dim)
        save_file({"latents": voice}, folder / "voices" / f"{name}.safetensors")
    return folder

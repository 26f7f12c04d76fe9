"""Tiny random checkpoints of the real architectures, made once a session."""

import json
import os

import numpy as np
import pytest

# The models must not take a shared test machine's cores from one another.
os.environ.setdefault("OMP_NUM_THREADS", "1")


def _byte_symbols():
    """The 256 printable characters that byte-level BPE uses for bytes, in byte order."""
    from tokenizers.pre_tokenizers import ByteLevel

    return sorted(ByteLevel.alphabet())


@pytest.fixture(scope="session")
def tiny_whisper_dir(tmp_path_factory):
    """A Hugging Face folder of a random multilingual Whisper with the real token ids."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    from faster_whisper.tokenizer import _LANGUAGE_CODES
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    folder = tmp_path_factory.mktemp("tiny_whisper")
    torch.manual_seed(7)
    config = transformers.WhisperConfig(
        vocab_size=51865,
        d_model=16,
        encoder_layers=1,
        decoder_layers=2,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=16,
        decoder_ffn_dim=16,
        init_std=0.5,  # wide enough that the next token depends on audio and text
    )
    model = transformers.WhisperForConditionalGeneration(config).eval()
    # 50259 is the first language's token; CTranslate2 knows a multilingual model by this table.
    model.generation_config.lang_to_id = {
        f"<|{code}|>": 50259 + i for i, code in enumerate(_LANGUAGE_CODES[:99])
    }
    model.save_pretrained(folder)

    symbols = _byte_symbols()
    vocab = {symbol: i for i, symbol in enumerate(symbols)}
    # What the random model says is a row of words "w300 w41177".
    vocab |= {f"\u0120w{i}": i for i in range(len(symbols), 50257)}
    tokenizer = Tokenizer(models.BPE(vocab, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    specials = ["<|endoftext|>", "<|startoftranscript|>"]
    specials += [f"<|{code}|>" for code in _LANGUAGE_CODES[:99]]
    specials += ["<|translate|>", "<|transcribe|>", "<|startoflm|>", "<|startofprev|>"]
    specials += ["<|nospeech|>", "<|notimestamps|>"]
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in specials])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"})
    )
    (folder / "preprocessor_config.json").write_text(
        json.dumps({"feature_size": 80, "sampling_rate": 16_000, "chunk_length": 30})
    )
    return folder


@pytest.fixture(scope="session")
def tiny_ct2_dir(tiny_whisper_dir, tmp_path_factory):
    """The same checkpoint, converted by CTranslate2's own converter."""
    converters = pytest.importorskip("ctranslate2.converters")
    folder = tmp_path_factory.mktemp("converted") / "tiny"
    converters.TransformersConverter(
        str(tiny_whisper_dir), copy_files=["tokenizer.json", "preprocessor_config.json"]
    ).convert(str(folder))
    return folder


@pytest.fixture(scope="session")
def noisy_speech():
    """noisy_speech(seconds, seed) -> int16 [n] at 16 kHz: bursts of noise with short gaps."""

    def make(seconds, seed=0):
        rng = np.random.default_rng(seed)
        n = round(16_000 * seconds)
        loud = np.sin(np.arange(n) * (2 * np.pi * 3 / 16_000)) > -0.8
        return (rng.normal(0.0, 3_000.0, n) * loud).clip(-32_000, 32_000).astype(np.int16)

    return make


def _piece_tokenizer(n_pieces):
    """A SentencePiece-like tokenizer: pieces "_a0" open a word, "b1" go on with it."""
    from tokenizers import AddedToken, Tokenizer, decoders, models
    from transformers import PreTrainedTokenizerFast

    vocab = {"<pad>": 0}
    for i in range(1, n_pieces):
        vocab[f"\u2581a{i}" if i % 3 else f"b{i}"] = i
    inner = Tokenizer(models.WordLevel(vocab, unk_token="<pad>"))
    inner.decoder = decoders.Metaspace()
    inner.add_special_tokens([AddedToken("<blank>", special=True)])
    return PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="<pad>")


@pytest.fixture(scope="session")
def tiny_transducer_dir(tmp_path_factory):
    """tiny_transducer_dir(kind) -> a folder of a random transducer of that architecture."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    if not hasattr(transformers, "NemotronAsrStreamingForRNNT"):
        pytest.skip(f"transformers {transformers.__version__} has no nemotron_asr_streaming")
    try:
        transformers.NemotronAsrStreamingFeatureExtractor()
    except ImportError:
        pytest.skip(f"transformers {transformers.__version__} wants librosa for this model")
    torch.set_num_threads(1)
    made = {}

    def make(kind):
        if kind in made:
            return made[kind]
        folder = tmp_path_factory.mktemp(kind)
        torch.manual_seed(5)
        encoder = transformers.NemotronAsrStreamingEncoderConfig(
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=4,
            intermediate_size=32,
            subsampling_conv_channels=8,
            sliding_window=15,  # 14 frames of left context
            default_num_lookahead_tokens=1,
            initializer_range=0.15,
        )
        names = {
            "nemotron_asr_streaming": ("NemotronAsrStreaming", {}),
            "nemotron3_5_asr": (
                "Nemotron3_5Asr",
                {"num_prompts": 8, "prompt_intermediate_size": 16, "default_prompt_id": 2},
            ),
        }
        name, extra = names[kind]
        config = getattr(transformers, f"{name}Config")(
            encoder_config=encoder,
            vocab_size=40,
            blank_token_id=39,
            decoder_hidden_size=16,
            max_symbols_per_step=3,
            **extra,
        )
        model = getattr(transformers, f"{name}ForRNNT")(config).eval()
        model.generation_config.decoder_start_token_id = 39
        with torch.no_grad():
            for parameter in model.decoder.parameters():
                parameter.mul_(6.0)  # so that a token depends on the tokens before it
            for parameter in (*model.encoder_projector.parameters(), *model.joint.parameters()):
                parameter.mul_(4.0)  # and on the sound
            # Blank wins in 2 of 10 frames, whatever was said before.
            extractor = transformers.NemotronAsrStreamingFeatureExtractor()
            sound = extractor(0.1 * torch.randn(48_000).numpy(), sampling_rate=16_000)
            prompt = {"prompt_ids": torch.tensor([0])} if extra else {}
            heard = model.get_audio_features(
                sound["input_features"], num_lookahead_tokens=1, **prompt
            ).pooler_output
            said = model.decoder(torch.arange(39)[:, None])
            logits = model.joint(said[:, None], heard[:, :, None]).flatten(0, -2)
            lead = logits[:, :39].amax(-1) - logits[:, 39]
            model.joint.head.bias[39] += lead.quantile(0.2)
        model.save_pretrained(folder)
        processor = getattr(transformers, f"{name}Processor")
        options = {"prompt_dictionary": {"en": 0, "de": 1, "auto": 2}} if extra else {}
        processor(
            extractor,
            _piece_tokenizer(39),
            supported_num_lookahead_tokens=[6, 1, 0],
            default_num_lookahead_tokens=1,
            **options,
        ).save_pretrained(folder)
        made[kind] = folder
        return folder

    return make

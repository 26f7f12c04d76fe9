"""Checkpoints of the true architectures and sizes with random weights, for timing.

Weights cannot be downloaded where this runs. A forward pass costs what it costs whatever the
weights are; how many tokens a model says does depend on them, and `speech_bench` says where.
"""

import json
from collections.abc import Callable
from pathlib import Path
from string import ascii_lowercase
from typing import Any

SPECIALS = ("<pad>", "<bos>", "<prompt>", "<latent>", "<prompt_bos>")
VOICE_FRAMES = 125  # ten seconds of prompt, what the released voices have


def whisper(folder: Path) -> None:
    """A multilingual Whisper tiny: the decoder runs to its limit, as no random one ends by itself.

    Sizes: OpenAI's model card.
    """
    import transformers
    from faster_whisper.tokenizer import _LANGUAGE_CODES
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    hidden, n_layers, n_heads, n_mels = 384, 4, 6, 80
    languages = _LANGUAGE_CODES[:99]
    config = transformers.WhisperConfig(
        vocab_size=51766 + len(languages),
        d_model=hidden,
        encoder_layers=n_layers,
        decoder_layers=n_layers,
        encoder_attention_heads=n_heads,
        decoder_attention_heads=n_heads,
        encoder_ffn_dim=4 * hidden,
        decoder_ffn_dim=4 * hidden,
        num_mel_bins=n_mels,
    )
    model = transformers.WhisperForConditionalGeneration(config)
    model.generation_config.lang_to_id = {
        f"<|{code}|>": 50259 + i for i, code in enumerate(languages)
    }
    model.half().save_pretrained(folder)
    symbols = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {symbol: i for i, symbol in enumerate(symbols)}
    vocab |= {f"\u0120w{i}": i for i in range(len(symbols), 50257)}
    tokenizer = Tokenizer(models.BPE(vocab, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    names = ["<|endoftext|>", "<|startoftranscript|>", *(f"<|{code}|>" for code in languages)]
    names += ["<|translate|>", "<|transcribe|>", "<|startoflm|>", "<|startofprev|>"]
    names += ["<|nospeech|>", "<|notimestamps|>"]
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in names])
    tokenizer.save(str(folder / "tokenizer.json"))
    _write(folder / "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast"})
    _write(folder / "preprocessor_config.json", {"feature_size": n_mels})


def moonshine(folder: Path) -> None:
    """Moonshine streaming tiny; the decoder runs to its limit."""
    import transformers

    config = transformers.MoonshineStreamingConfig(decoder_start_token_id=1, num_key_value_heads=8)
    transformers.MoonshineStreamingForConditionalGeneration(config).save_pretrained(folder)
    transformers.MoonshineStreamingProcessor(
        transformers.Wav2Vec2FeatureExtractor(return_attention_mask=True),
        _pieces(config.vocab_size - 1),
    ).save_pretrained(folder)


def vits(folder: Path) -> None:
    """An MMS voice: VITS at 16 kHz. Random durations: about one frame (16 ms) a token."""
    import transformers

    transformers.VitsModel(transformers.VitsConfig(vocab_size=64)).save_pretrained(folder)
    vocab = {symbol: i for i, symbol in enumerate(["<pad>", *ascii_lowercase, " ", "'"])}
    _write(folder / "vocab.json", vocab | {"<unk>": len(vocab)})
    settings = {"phonemize": False, "add_blank": True, "normalize": True, "is_uroman": False}
    _write(folder / "tokenizer_config.json", {"tokenizer_class": "VitsTokenizer", **settings})


def phonon(folder: Path) -> None:
    """Gradium's phonon, 31M; as `pocket`."""
    import transformers

    config = transformers.GradiumPhononTTSConfig(
        audio_bos_token_id=1, audio_prompt_token_id=2, audio_latent_token_id=3, pad_token_id=0
    )
    model = transformers.GradiumPhononTTSForConditionalGeneration(config)
    _latent_voice(folder, model, config.audio_prompt_dim)


BUILDERS: dict[str, Callable[[Path], None]] = {
    "moonshine": moonshine,
    "vits": vits,
    "phonon": phonon,
    "whisper-tiny": whisper,
}


def _latent_voice(folder: Path, model: Any, prompt_dim: int) -> None:
    import torch
    import transformers
    from safetensors.torch import save_file
    from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

    with torch.no_grad():
        model.eos_head.bias.fill_(-1e4)  # never ends: every fragment has its limit's frames
    model.save_pretrained(folder)
    codec = transformers.PocketTTSAudioTokenizerModel(transformers.PocketTTSAudioTokenizerConfig())
    codec.save_pretrained(folder / "audio_tokenizer")
    # One token a word: the frame limit, (tokens / 3 + 2) * 12.5, then is about a fragment's length.
    vocab = {name: i for i, name in enumerate([*SPECIALS, "<word>"])}
    inner = Tokenizer(models.WordLevel(vocab, unk_token="<word>"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    inner.add_special_tokens([AddedToken(name, special=True) for name in SPECIALS])
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="<pad>")
    tokenizer.chat_template = "{{ messages[0].content[0].text }}<bos>"
    tokenizer.save_pretrained(folder)
    (folder / "voices").mkdir()
    save_file(
        {"latents": torch.randn(VOICE_FRAMES, prompt_dim)}, folder / "voices" / "random.safetensors"
    )


def _pieces(n_pieces: int) -> Any:
    """A tokenizer whose pieces are words and their endings, two to one."""
    from tokenizers import AddedToken, Tokenizer, decoders, models
    from transformers import PreTrainedTokenizerFast

    vocab = {"<pad>": 0}
    vocab |= {(f"\u2581w{i}" if i % 3 else f"x{i}"): i for i in range(1, n_pieces)}
    inner = Tokenizer(models.WordLevel(vocab, unk_token="<pad>"))
    inner.decoder = decoders.Metaspace()
    inner.add_special_tokens([AddedToken("<blank>", special=True)])
    return PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="<pad>")


def _write(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content), encoding="utf-8")

"""Checkpoints of the true architectures and sizes with random weights, for timing.

Weights cannot be downloaded where this runs. A forward pass costs what it costs whatever the
weights are; how many tokens a model says does depend on them, and `speech_bench` says where.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any


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


BUILDERS: dict[str, Callable[[Path], None]] = {
    "whisper-tiny": whisper,
}


def _write(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content), encoding="utf-8")

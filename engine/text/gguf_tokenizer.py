"""Owns the tokenizer and the chat template that a GGUF file brings.

Byte-level BPE alone, the kind of every family the engine reads in this format. A file names how
text is split before merging by a word of llama.cpp's; one that stands in no table is refused, for
a wrong guess would read like a bad model.
Source: llama.cpp's convert_hf_to_gguf_update.py for the names, the published tokenizers for rules.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from ..load.gguf_file import GgufFile
from ..types import CheckpointError
from .text import TextSource

# tokenizer.ggml.token_type
CONTROL, USER_DEFINED = 3, 4

# Words with the letter before them, figures, marks with their line breaks, space.
_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|FIGURES| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def _split_by(figures: str) -> Any:
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_SPLIT.replace("FIGURES", figures)), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


def _bytes_as_gpt2() -> Any:
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)


# tokenizer.ggml.pre -> how text is split before the merges
SPLITS: dict[str, Any] = {
    "gpt-2": _bytes_as_gpt2,
    "smollm": lambda: pre_tokenizers.Sequence([pre_tokenizers.Digits(True), _bytes_as_gpt2()]),
    "qwen2": lambda: _split_by(r"\p{N}"),
    "llama-bpe": lambda: _split_by(r"\p{N}{1,3}"),
}
COMPOSED = ("qwen2",)  # whose text is brought into Unicode's composed form first
WHOLE_WORDS = ("llama-bpe",)  # that take a word of the vocabulary without merging


def read_gguf_text(file: GgufFile) -> TextSource:
    """Raises: CheckpointError."""
    kind, split = file.text("tokenizer.ggml.model"), file.text("tokenizer.ggml.pre")
    if kind != "gpt2" or split not in SPLITS:
        raise CheckpointError(
            f"{file.path}: expected a tokenizer of kind gpt2 that splits as one of "
            f"{', '.join(SPLITS)}, found {kind!r} and {split!r}"
        )
    tokens, kinds = _tokens(file)
    ids = {token: number for number, token in enumerate(tokens)}
    if len(ids) != len(tokens):
        raise CheckpointError(f"{file.path}: expected tokens that differ, found one twice")
    tokenizer = Tokenizer(models.BPE(ids, _merges(file, ids), ignore_merges=split in WHOLE_WORDS))
    tokenizer.pre_tokenizer = SPLITS[split]()
    tokenizer.decoder = decoders.ByteLevel()
    if split in COMPOSED:
        tokenizer.normalizer = normalizers.NFC()
    for number in np.flatnonzero((kinds == CONTROL) | (kinds == USER_DEFINED)).tolist():
        is_control = bool(kinds[number] == CONTROL)
        added = AddedToken(tokens[number], special=is_control, normalized=False)
        tokenizer.add_special_tokens([added]) if is_control else tokenizer.add_tokens([added])
    if tokenizer.get_vocab_size() != len(tokens):
        raise CheckpointError(
            f"{file.path}: expected {len(tokens)} tokens, found {tokenizer.get_vocab_size()}"
        )
    return TextSource(
        tokenizer,
        file.text("tokenizer.chat_template") or "",
        _token(file, "bos_token_id", tokens),
        _token(file, "eos_token_id", tokens),
    )


def _tokens(file: GgufFile) -> tuple[list[str], np.ndarray]:
    """The vocabulary in the order of ids, and the kind of each: int [tokens]."""
    tokens = file.metadata.get("tokenizer.ggml.tokens")
    kinds = file.metadata.get("tokenizer.ggml.token_type")
    if not isinstance(tokens, list) or not tokens:
        raise CheckpointError(f"{file.path}: expected a list of tokens, found none")
    if not isinstance(kinds, np.ndarray) or len(kinds) != len(tokens):
        raise CheckpointError(f"{file.path}: expected a type for each of {len(tokens)} tokens")
    return tokens, kinds


def _merges(file: GgufFile, ids: dict[str, int]) -> list[tuple[str, str]]:
    merges = file.metadata.get("tokenizer.ggml.merges")
    if not isinstance(merges, list):
        raise CheckpointError(f"{file.path}: expected a list of merges, found none")
    pairs = []
    for merge in merges:
        first, space, second = merge.partition(" ")
        if not space or not {first, second, first + second} <= ids.keys():
            raise CheckpointError(
                f"{file.path}: expected merges of tokens into tokens, found {merge[:80]!r}"
            )
        pairs.append((first, second))
    return pairs


def _token(file: GgufFile, key: str, tokens: list[str]) -> str:
    number = file.integer(f"tokenizer.ggml.{key}")
    return tokens[number] if number is not None and 0 <= number < len(tokens) else ""

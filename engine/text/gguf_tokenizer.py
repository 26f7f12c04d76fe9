"""Owns the tokenizer and the chat template that a GGUF file brings.

Byte-level BPE, and SentencePiece's. A file names how text is split before merging by a word of
llama.cpp's; one that stands in no table is refused, for a wrong guess would read like a bad model.
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
NORMAL, UNKNOWN, CONTROL, USER_DEFINED = 1, 2, 3, 4
SPACE = "\u2581"  # SentencePiece's
MAX_PIECE = 64  # characters of a token that merges are made of; longer ones are runs of one mark

# Words with the letter before them, figures, marks with their line breaks, space.
_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|FIGURES| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


# The same where capitals begin a word of their own; ENDS: what may be shortened behind one.
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+ENDS|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*ENDS"
    r"|FIGURES| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_ENDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"


def _split_by(figures: str, rule: str = _SPLIT, ends: str = "") -> Any:
    rule = rule.replace("FIGURES", figures).replace("ENDS", ends)
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(rule), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


def _bytes_as_gpt2() -> Any:
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)


# tokenizer.ggml.pre -> how text is split before the merges
SPLITS: dict[str, Any] = {
    "gpt-2": _bytes_as_gpt2,
    "smollm": lambda: pre_tokenizers.Sequence([pre_tokenizers.Digits(True), _bytes_as_gpt2()]),
    "refact": lambda: pre_tokenizers.Sequence([pre_tokenizers.Digits(True), _bytes_as_gpt2()]),
    "qwen2": lambda: _split_by(r"\p{N}"),
    "llama-bpe": lambda: _split_by(r"\p{N}{1,3}"),
    "smaug-bpe": lambda: _split_by(r"\p{N}{1,3}"),  # SmolLM3
    "dbrx": lambda: _split_by(r"\p{N}{1,3}"),  # Phi-4
    "gpt-4o": lambda: _split_by(r"\p{N}{1,3}", _CASED, _ENDS),  # Phi-4-mini
    "tekken": lambda: _split_by(r"\p{N}", _CASED),  # Mistral from Nemo on
}
COMPOSED = ("qwen2",)  # whose text is brought into Unicode's composed form first
# That take a word of the vocabulary without merging.
WHOLE_WORDS = ("llama-bpe", "smaug-bpe", "tekken")


def read_gguf_text(file: GgufFile) -> TextSource:
    """Raises: CheckpointError."""
    kind, split = file.text("tokenizer.ggml.model"), file.text("tokenizer.ggml.pre")
    if kind != "llama" and (kind != "gpt2" or split not in SPLITS):
        raise CheckpointError(
            f"{file.path}: expected a tokenizer of kind llama, or of kind gpt2 that splits as one "
            f"of {', '.join(SPLITS)}, found {kind!r} and {split!r}"
        )
    tokens, kinds = _tokens(file)
    ids = {token: number for number, token in enumerate(tokens)}
    if len(ids) != len(tokens):
        raise CheckpointError(f"{file.path}: expected tokens that differ, found one twice")
    if kind == "llama":
        tokenizer = _sentencepiece(file, ids, kinds)
    else:
        merges = _merges(file, ids)
        tokenizer = Tokenizer(models.BPE(ids, merges, ignore_merges=split in WHOLE_WORDS))
        tokenizer.pre_tokenizer = SPLITS[str(split)]()
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


def _sentencepiece(file: GgufFile, ids: dict[str, int], kinds: np.ndarray) -> Tokenizer:
    """SentencePiece's BPE: two neighbours merge where both together are a token, best score first.

    Raises: CheckpointError.
    """
    scores = file.metadata.get("tokenizer.ggml.scores")
    if not isinstance(scores, np.ndarray) or len(scores) != len(ids):
        raise CheckpointError(f"{file.path}: expected a score for each of {len(ids)} tokens")
    merged = list[tuple[float, int, int, str, str]]()
    for token, number in ids.items():
        if kinds[number] not in (NORMAL, USER_DEFINED) or len(token) > MAX_PIECE:
            continue
        pairs = ((token[:at], token[at:]) for at in range(1, len(token)))
        known = [(ids[a], ids[b], a, b) for a, b in pairs if a in ids and b in ids]
        merged += [(-float(scores[number]), number, i, a, b) for i, _, a, b in sorted(known)]
    unknown = next(iter(np.flatnonzero(kinds == UNKNOWN).tolist()), None)
    tokens = list(ids)
    tokenizer = Tokenizer(models.BPE(
        ids, [(a, b) for *_, a, b in sorted(merged)], byte_fallback=True, fuse_unk=True,
        unk_token=None if unknown is None else tokens[unknown],
    ))  # fmt: skip
    is_prefixed = file.metadata.get("tokenizer.ggml.add_space_prefix", True) is not False
    scheme = "first" if is_prefixed else "never"
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(SPACE, scheme, split=False)
    plain = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    strip = [decoders.Strip(" ", 1, 0)] if is_prefixed else []
    tokenizer.decoder = decoders.Sequence([*plain, *strip])
    return tokenizer


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

"""Owns the words in which a loaded engine says what runs: for the start's lines and the doctor."""

from collections import Counter

from ..device import open_device
from ..drafting.drafters import NgramDrafter
from ..engine import Engine
from ..types import BLOCK_TOKENS

KV = {"plain": "bf16"}


def describe(engine: Engine) -> str:
    """Formats, what runs the layers, drafters, and the room for keys and values in callers.

    A caller is counted with a whole context: most take less, and share what is alike.
    """
    config = engine.config
    dense = config.dtype if config.dtype != "bf16" else None
    kv = dense if dense and config.kv_format == "plain" else KV.get(config.kv_format)
    n_tokens = engine.pool.n_blocks * BLOCK_TOKENS
    n_callers = n_tokens / engine.context_length
    parts = [
        f"{_weights(engine)} weights",
        f"layers by {engine.runner.layers}" + (f" ({engine.lacks})" if engine.lacks else ""),
        f"drafts by {' and '.join(_drafters(engine)) or 'nobody'}",
        f"{kv or config.kv_format} KV for {n_tokens} tokens: "
        f"{n_callers:.1f} callers of {engine.context_length}",
    ]
    if engine.tree.tier is not None:
        n_parked = engine.tree.tier.n_slots * BLOCK_TOKENS
        parts.append(f"{n_parked} more of earlier turns in the machine's memory")
    return ", ".join(parts)


def _weights(engine: Engine) -> str:
    """What the layers' weights are kept in, the most first, with their shares where they differ."""
    model = engine.runner.decoder.config
    hidden, heads = model.hidden_size, model.n_heads * model.head_dim
    n_in = (hidden, heads, hidden, model.intermediate_size)
    kept = Counter[str]()
    for layer in engine.runner.decoder.layers:
        for product, n_inputs in zip(layer.products(), n_in, strict=True):
            name = engine.config.dtype if product.kept == "dense" else product.kept
            kept[name] += product.out_features * n_inputs
    if len(kept) == 1:
        return next(iter(kept))
    return " and ".join(f"{n / kept.total():.0%} {name}" for name, n in kept.most_common())


def _drafters(engine: Engine) -> list[str]:
    """Who guesses tokens, in words; a runner that finds n-grams itself included."""
    config = engine.config
    is_inside = config.ngram_draft and open_device(config).drafts_ngrams
    inside = [NgramDrafter.name] if is_inside and config.max_draft_tokens else []
    return inside + engine.speculation.names

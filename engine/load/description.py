"""Owns the words in which a loaded engine says what runs: for the start's lines and the doctor."""

from collections import Counter

from ..device import open_device
from ..drafting.drafters import NgramDrafter
from ..engine import Engine
from ..linear import CODE_BYTES
from ..types import BLOCK_TOKENS

KV = {"plain": "bf16"}
CALLER_TOKENS = 4096  # of a long call: instructions, tools and half an hour of talk


def describe(engine: Engine) -> str:
    """Formats, what runs the layers, drafters, and what memory goes to: weights, and callers.

    A caller is counted with `CALLER_TOKENS`, or a context of less: most take less, and share what
    is alike.
    """
    config = engine.config
    dense = config.dtype if config.dtype != "bf16" else None
    kv = dense if dense and config.kv_format == "plain" else KV.get(config.kv_format)
    n_tokens = engine.pool.n_blocks * BLOCK_TOKENS
    n_each = min(CALLER_TOKENS, engine.context_length)
    n_kv_bytes = engine.pool.block_bytes * engine.pool.n_blocks
    adapter = "" if config.adapter_dir is None else f", the adapter {config.adapter_dir} merged"
    if (beside := engine.adapters) is not None:
        adapter = (
            f", {len(config.adapters)} adapters beside them (room for {beside.n_slots} of rank "
            f"{beside.rank}, {_size(beside.n_bytes)})"
        )
    # A CPU's pages are taken as they are used.
    most = ("at most " if config.device == "cpu" else "") + _size(n_kv_bytes)
    parts = [
        f"{_weights(engine)} weights{adapter}",
        f"layers by {engine.runner.layers}" + (f" ({engine.lacks})" if engine.lacks else ""),
        f"drafts by {' and '.join(_drafters(engine)) or 'nobody'}",
        f"{kv or config.kv_format} KV for {n_tokens} tokens: "
        f"{n_tokens / n_each:.1f} callers of {n_each}",
        f"{_size(_weight_bytes(engine))} of weights and {most} of keys and values",
    ]
    if engine.context_length < (config.context_length or 0):
        parts.append(
            f"contexts of {engine.context_length} tokens ({config.context_length} asked for), "
            "all that the model was trained for"
        )
    return ", ".join(parts)


def served_by(engine: Engine) -> dict[str, str]:
    """The same in a word each, for labels of metrics: weights, kv, layers, drafter."""
    config = engine.config
    plain = KV["plain"] if config.dtype == "bf16" else config.dtype
    return {
        "weights": max(_kept(engine).items(), key=lambda one: one[1])[0],
        "kv": plain if config.kv_format == "plain" else config.kv_format,
        "layers": engine.runner.layers.replace(",", " ").split()[0].lower(),
        "drafter": " and ".join(_drafters(engine)) or "none",
    }


def _size(n_bytes: float) -> str:
    return f"{n_bytes / 1e9:.1f} GB" if n_bytes >= 1e9 else f"{n_bytes / 1e6:.1f} MB"


def _weight_bytes(engine: Engine) -> float:
    """Count the bytes of layers, embedding and head; a head that is the embedding counts once."""
    decoder = engine.runner.decoder
    n_itself, model = decoder.embedding.itemsize, decoder.config
    n_bytes = sum(n * CODE_BYTES.get(name, n_itself) for name, n in _kept(engine).items())
    n_head = 0.0 if model.tied_head and decoder.head.kept == "dense" else 1.0
    n_head *= CODE_BYTES.get(decoder.head.kept, n_itself)
    return n_bytes + model.vocab_size * model.hidden_size * (n_itself + n_head)


def _weights(engine: Engine) -> str:
    """Name the formats of the layers' weights, the most common first, with shares if several."""
    kept = _kept(engine)
    if len(kept) == 1:
        return next(iter(kept))
    return " and ".join(f"{n / kept.total():.0%} {name}" for name, n in kept.most_common())


def _kept(engine: Engine) -> Counter[str]:
    """Count the layers' weights by format."""
    model = engine.runner.decoder.config
    hidden, heads = model.hidden_size, model.n_heads * model.head_dim
    n_in = (hidden, heads, hidden, model.intermediate_size)
    kept = Counter[str]()
    for layer in engine.runner.decoder.layers:
        for product, n_inputs in zip(layer.products(), n_in, strict=True):
            name = engine.config.dtype if product.kept == "dense" else product.kept
            kept[name] += product.out_features * n_inputs
    return kept


def _drafters(engine: Engine) -> list[str]:
    """Name the drafters, a runner that drafts itself included."""
    config, head = engine.config, engine.runner.decoder.eagle
    is_inside = config.ngram_draft and open_device(config).drafts_inside
    is_inside = is_inside and config.draft_dir is None
    names = [NgramDrafter.name] if is_inside and config.max_draft_tokens else []
    names += engine.speculation.names
    return names + ([f"{head.name} of {_size(head.n_bytes)}"] if head is not None else [])

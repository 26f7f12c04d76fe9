"""Several formats of one checkpoint beside its bf16, one engine at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from engine.engine import Engine
from engine.load.description import describe
from engine.quality import BF16, Format, Passage, Quality, Reference

Load = Callable[[Format], Engine]
Passages = Callable[[Engine], Iterable[Passage]]


def measure(
    load: Load, formats: Sequence[Format], passages: Passages
) -> Iterator[tuple[Format, str, Quality]]:
    """Each format, what runs it in words, and its quality; one engine at a time is loaded.

    passages: to read, by the engine in bf16.
    """
    with TemporaryDirectory() as folder:
        engine = load(BF16)
        reference = Reference(engine, passages(engine), Path(folder))
        for one in formats:
            del engine
            engine = load(one)
            yield one, describe(engine), reference.compare(engine)


def row(name: str, quality: Quality) -> str:
    return (
        f"{name:<16} {quality.n_tokens} places: perplexity {quality.perplexity:.3f} "
        f"({quality.perplexity_change:+.2%}), KL {quality.kl_nats:.5f} nats, likeliest token as "
        f"bf16's {quality.top1_agreement:.2%}"
    )

"""Owns the question whether quantized weights still are the model: a command and its bounds.

    python -m engine.quality MODEL_DIR --quant int8 --text FILE

compares with bf16 on real text: perplexity, KL divergence, agreement of the likeliest token. It
refuses (exit code 1) what is over its bound. Random weights cannot tell: use a trained model.
"""

import argparse
import sys
from collections.abc import Sequence as Tokens
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from .engine import Engine
from .runner import Extension
from .sequence import Sequence
from .types import EngineConfig, EngineError

WINDOW_TOKENS = 256  # the text is read in pieces of this many, each from an empty context


@dataclass(frozen=True, slots=True)
class Quality:
    """Of a quantized model against bf16 on one text."""

    n_tokens: int
    perplexity: float
    perplexity_change: float  # relative to bf16's
    kl_nats: float  # mean over positions, bf16 to quantized
    top1_agreement: float


@dataclass(frozen=True, slots=True)
class Bound:
    perplexity_change: float
    kl_nats: float
    top1_agreement: float


# What a listener would not notice; from the published losses of each format.
BOUNDS = {
    "int8": Bound(0.001, 0.002, 0.995),
    "int4": Bound(0.03, 0.05, 0.95),
}


def log_probabilities(engine: Engine, tokens: Tokens[int]) -> Tensor:
    """Of every next token after every prefix of `tokens`: fp32 [n, vocab]."""
    sequence = Sequence(engine.pool, engine.tree)
    sequence.tokens = list(tokens)
    sequence.reserve(len(tokens))
    logits = engine.runner.run([Extension(sequence, len(tokens), n_logits=len(tokens))])
    sequence.release()
    assert logits is not None
    return logits.float().log_softmax(-1)


def measure(reference: Engine, quantized: Engine, tokens: Tokens[int]) -> Quality:
    """Compare two engines of the same tokenizer on a text."""
    n, reference_nats, quantized_nats, kl, agreed = 0, 0.0, 0.0, 0.0, 0
    for start in range(0, len(tokens) - 1, WINDOW_TOKENS):
        window = tokens[start : start + WINDOW_TOKENS + 1]
        targets = torch.tensor(window[1:])[:, None]
        wanted = log_probabilities(reference, window[:-1])
        found = log_probabilities(quantized, window[:-1])
        reference_nats -= float(wanted.gather(1, targets).sum())
        quantized_nats -= float(found.gather(1, targets).sum())
        kl += float((wanted.exp() * (wanted - found)).sum())
        agreed += int((wanted.argmax(-1) == found.argmax(-1)).sum())
        n += len(targets)
    mean_nats = torch.tensor([reference_nats / n, quantized_nats / n])
    perplexities = mean_nats.exp()
    change = float(perplexities[1] / perplexities[0] - 1)
    return Quality(n, float(perplexities[1]), change, kl / n, agreed / n)


def violations(quality: Quality, bound: Bound) -> list[str]:
    """What is over its bound, a sentence each."""
    found = []
    if quality.perplexity_change > bound.perplexity_change:
        found.append(
            f"expected perplexity up by at most {bound.perplexity_change:.1%}, "
            f"found {quality.perplexity_change:.2%}"
        )
    if quality.kl_nats > bound.kl_nats:
        found.append(f"expected KL of at most {bound.kl_nats} nats, found {quality.kl_nats:.4f}")
    if quality.top1_agreement < bound.top1_agreement:
        found.append(
            f"expected the likeliest token to agree in {bound.top1_agreement:.1%} of places, "
            f"found {quality.top1_agreement:.1%}"
        )
    return found


def main(arguments: Tokens[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="engine.quality", description="Compare quantized weights with bf16 on real text."
    )
    parser.add_argument("model_dir", type=Path)
    parser.add_argument("--quant", choices=list(BOUNDS), default="int8")
    parser.add_argument(
        "--text", type=Path, required=True, help="UTF-8, special tokens spelled out"
    )
    parser.add_argument("--calibrate", type=Path, help="text on which int4 scales are searched")
    parser.add_argument("--tokens", type=int, default=4096, help="read at most this many")
    options = parser.parse_args(arguments)
    try:
        reference = Engine.load(options.model_dir, EngineConfig(kv_tokens=1024))
        config = EngineConfig(
            kv_tokens=1024, quant=options.quant, calibration_text=options.calibrate
        )
        quantized = Engine.load(options.model_dir, config)
        tokens = reference.text.encode(options.text.read_text(encoding="utf-8"))
    except (EngineError, OSError, UnicodeDecodeError) as error:
        print(error, file=sys.stderr)
        return 2
    if len(tokens) < 2:
        print(f"expected a text of at least 2 tokens, found {len(tokens)}", file=sys.stderr)
        return 2
    quality = measure(reference, quantized, tokens[: options.tokens])
    print(
        f"{options.quant} on {quality.n_tokens} tokens: perplexity {quality.perplexity:.3f} "
        f"({quality.perplexity_change:+.2%}), KL {quality.kl_nats:.5f} nats, "
        f"top-1 agreement {quality.top1_agreement:.2%}"
    )
    found = violations(quality, BOUNDS[options.quant])
    for sentence in found:
        print(f"refused: {sentence}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())

"""Owns the question whether quantized weights still are the model: a command and its bounds.

    python -m engine.recipes.quality MODEL_DIR --quant int8 --text FILE

compares with bf16 on real text: perplexity, KL divergence, agreement of the likeliest token. In a
text in the checkpoint's chat format only the places count where the assistant speaks. It refuses
(exit code 1) what is over its bound. Random weights cannot tell: use a trained model.

bf16 itself rounds: where two tokens are nearly equally likely it does not agree with fp32 either,
and no quantization can agree with both. Agreement is therefore bounded where the choice is decided:
where fp32 prefers its token by more than bf16 moves such a margin in 99 of 100 places.
"""

import argparse
import sys
from collections.abc import Sequence as Tokens
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from ..engine import Engine
from ..runner import Extension
from ..sequence import borrowed
from ..text.text import Text
from ..types import EngineConfig, EngineError

WINDOW_TOKENS = 1024  # the text is read in pieces of this many, each from an empty context


@dataclass(frozen=True, slots=True)
class Quality:
    """Of a quantized model against bf16 on one text."""

    n_tokens: int
    perplexity: float
    perplexity_change: float  # relative to bf16's
    kl_nats: float  # mean over positions, bf16 to quantized
    top1_agreement: float  # with bf16, everywhere
    bf16_agreement: float  # of bf16 with fp32: the most anybody can agree with both
    decided_agreement: float  # with fp32, where its choice is beyond bf16's own error
    decided_share: float  # of all places; 0: the text decides nothing, agreement then says nothing


@dataclass(frozen=True, slots=True)
class Bound:
    """Upper bounds of change and divergence, lower bound of the agreement where decided."""

    perplexity_change: float
    kl_nats: float
    decided_agreement: float


# What a listener would not notice; from the published losses of each format.
BOUNDS = {
    "int8": Bound(0.001, 0.002, 0.995),
    "fp8": Bound(0.005, 0.005, 0.99),
    "int4": Bound(0.03, 0.05, 0.95),
}


def log_probabilities(engine: Engine, tokens: Tokens[int]) -> Tensor:
    """Of every next token after every prefix of `tokens`: fp32 [n, vocab]."""
    with borrowed(engine.pool, engine.tree, list(tokens)) as sequence:
        logits = engine.runner.run([Extension(sequence, len(tokens), n_logits=len(tokens))])
    assert logits is not None
    return logits.float().log_softmax(-1)


def reply_places(text: Text, tokens: Tokens[int]) -> Tensor:
    """Which of `tokens` the assistant says, its end of turn included: bool [n].

    All of them in a text without the checkpoint's assistant header.
    """
    turn = [{"role": "user", "content": "a"}]
    header = list[int]()
    if text.template_source:
        n_shared = len(text.encode_chat(turn))
        header = text.encode_chat(turn, add_generation_prompt=True)[n_shared:]
    places, speaks = [], False
    for i, token in enumerate(tokens):
        places.append(speaks)
        if speaks and token in text.stop_ids:
            speaks = False
        elif header and list(tokens[i + 1 - len(header) : i + 1]) == header:
            speaks = True
    return torch.tensor(places) if any(places) else torch.ones(len(places), dtype=torch.bool)


def measure(
    exact: Engine, reference: Engine, quantized: Engine, texts: Tokens[Tokens[int]]
) -> Quality:
    """Compare engines of the same checkpoint, in fp32, in bf16 and quantized, on some texts."""
    nats = torch.zeros(2, dtype=torch.float64)
    kl, margins, errors, agreed = 0.0, [], [], []
    for tokens in texts:
        spoken = reply_places(reference.text, tokens)
        for start in range(0, len(tokens) - 1, WINDOW_TOKENS):
            window = tokens[start : start + WINDOW_TOKENS + 1]
            kept = spoken[start + 1 : start + len(window)]
            if not kept.any():
                continue
            targets = torch.tensor(window[1:])[kept][:, None]
            truth, wanted, found = (
                log_probabilities(engine, window[:-1])[kept]
                for engine in (exact, reference, quantized)
            )
            nats -= torch.stack([p.gather(1, targets).sum() for p in (wanted, found)])
            kl += float((wanted.exp() * (wanted - found)).sum())
            best = truth.topk(2).indices
            margin, moved = (p.gather(1, best) @ torch.tensor([1.0, -1.0]) for p in (truth, wanted))
            margins.append(margin)
            errors.append((moved - margin).abs())
            choices = [p.argmax(-1) for p in (truth, wanted, found)]
            agreed.append(
                torch.stack([choices[a] == choices[b] for a, b in ((1, 2), (0, 1), (0, 2))])
            )
    same = torch.cat(agreed, 1).double()
    decided = torch.cat(margins) > torch.cat(errors).quantile(0.99)
    n, perplexities = same.shape[1], (nats / same.shape[1]).exp()
    return Quality(
        n_tokens=n,
        perplexity=float(perplexities[1]),
        perplexity_change=float(perplexities[1] / perplexities[0] - 1),
        kl_nats=kl / n,
        top1_agreement=float(same[0].mean()),
        bf16_agreement=float(same[1].mean()),
        decided_agreement=float(same[2][decided].mean()) if decided.any() else 1.0,
        decided_share=float(decided.double().mean()),
    )


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
    if not quality.decided_share:
        found.append("expected places where bf16 decides, found none: read a longer text")
    elif quality.decided_agreement < bound.decided_agreement:
        found.append(
            f"expected the likeliest token to agree in {bound.decided_agreement:.1%} of decided "
            f"places, found {quality.decided_agreement:.1%}"
        )
    return found


def main(arguments: Tokens[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="engine.recipes.quality",
        description="Compare quantized weights with bf16 on real text.",
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
        exact, reference, quantized = (
            Engine.load(options.model_dir, EngineConfig(kv_tokens=2 * WINDOW_TOKENS, **changes))
            for changes in (
                {"dtype": "fp32"},
                {},
                {"quant": options.quant, "calibration_text": options.calibrate},
            )
        )
        tokens = reference.text.encode(options.text.read_text(encoding="utf-8"))
    except (EngineError, OSError, UnicodeDecodeError) as error:
        print(error, file=sys.stderr)
        return 2
    if len(tokens) < 2:
        print(f"expected a text of at least 2 tokens, found {len(tokens)}", file=sys.stderr)
        return 2
    quality = measure(exact, reference, quantized, [tokens[: options.tokens]])
    print(
        f"{options.quant} on {quality.n_tokens} tokens: perplexity {quality.perplexity:.3f} "
        f"({quality.perplexity_change:+.2%}), KL {quality.kl_nats:.5f} nats, top-1 agreement "
        f"{quality.top1_agreement:.2%} with bf16 (bf16 with fp32: {quality.bf16_agreement:.2%}), "
        f"{quality.decided_agreement:.2%} where decided ({quality.decided_share:.1%} of places)"
    )
    found = violations(quality, BOUNDS[options.quant])
    for sentence in found:
        print(f"refused: {sentence}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())

"""Owns the question whether a format of weights or KV still is the model: a command and its bar.

    python -m engine.recipes.quality MODEL --weights int8 --kv int8 [--people | --text FILE]

Each format is compared with bf16 as it is served: loaded by the same code, run by the layers of
this device (the native ones on a CPU), on what bf16 itself answers to turns of people, greedily, as
callers hear it. It refuses (exit code 1) what misses the bar. Random weights cannot tell.

`--people` takes what people answered in those dialogues, and `--text` any text: a model is less
sure of these, and its perplexity is of them. In the checkpoint's chat format only the places count
where the assistant speaks; what stands before them is read as prompts are. What bf16 itself differs
from fp32 by, computed from the same weights, stands beside (`--exact`): where two tokens are nearly
equally likely, nothing agrees with both.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence as Tokens
from pathlib import Path

from ..engine import Engine
from ..quality import FP32, KV_TOKENS, Format, Passage, measure, row, violations
from ..types import KV_FORMAT_NAMES, QUANTS, EngineConfig, EngineError
from .passages import own_replies, passage, peoples_replies


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="engine.recipes.quality",
        description="Compare formats of weights and KV with bf16 on real text.",
    )
    parser.add_argument("model", type=Path, help="a model's folder, or a GGUF file")
    quants = [quant for quant in QUANTS if quant]
    parser.add_argument("--adapter", type=Path, help="merged into the model, in every format")
    parser.add_argument("--weights", action="append", choices=quants, help="repeatable")
    parser.add_argument(
        "--kv", action="append", choices=KV_FORMAT_NAMES[1:],
        help="repeatable; each under the first --weights, or bf16",
    )  # fmt: skip
    parser.add_argument("--text", type=Path, help="UTF-8, special tokens spelled out")
    parser.add_argument("--people", action="store_true", help="what people answered, instead")
    parser.add_argument(
        "--dialogues", type=int, default=40,
        help="without --text: so many held-out dialogues of the shared data (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument("--exact", action="store_true", help="fp32 beside them: bf16's own error")
    parser.add_argument("--instructions", type=Path, help="said before each dialogue, as by agents")
    parser.add_argument("--tokens", type=int, default=16384, help="read at most this many")
    parser.add_argument("--device", default="cpu", help="whose layers run (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=1)
    return parser


def _formats(options: argparse.Namespace) -> list[Format]:
    weights = options.weights or ([] if options.kv else ["int8"])
    found = [Format(one) for one in weights]
    found += [Format(weights[0] if weights else None, kv) for kv in options.kv or ()]
    return [FP32, *found] if options.exact else found


def main(arguments: Tokens[str] | None = None) -> int:
    options = _parser().parse_args(arguments)

    def load(one: Format) -> Engine:
        base = EngineConfig(
            kv_tokens=KV_TOKENS, threads=options.threads, device=options.device, max_draft_tokens=0,
            adapter_dir=options.adapter,
        )  # fmt: skip
        return Engine.load(options.model, one.config(base))

    def passages(engine: Engine) -> list[Passage]:
        if options.people:
            return peoples_replies(engine.text, options.dialogues, options.tokens)
        if options.text is None:
            told = options.instructions
            instructions = told.read_text(encoding="utf-8") if told is not None else ""
            return own_replies(engine, options.dialogues, options.tokens, instructions)
        tokens = engine.text.encode(options.text.read_text(encoding="utf-8"))[: options.tokens]
        if len(tokens) < 2:
            raise ValueError(f"expected a text of at least 2 tokens, found {len(tokens)}")
        return [passage(engine.text, tokens)]

    found = list[str]()
    try:
        for one, runs, quality in measure(load, _formats(options), passages):
            print(row(one.name, quality), flush=True)
            print(f"  {runs}")
            if one != FP32:
                found += [f"{one.name}: {sentence}" for sentence in violations(quality)]
    except (EngineError, OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 2
    for sentence in found:
        print(f"refused: {sentence}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())

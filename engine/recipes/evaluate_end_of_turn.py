"""Measures how a turn's end is read: `python -m engine.recipes.evaluate_end_of_turn --model DIR`.

At every word end of caller turns of the test split, by style: the area under the curve of the head
in the folder, or in its adapter's, and of the tokens that end a turn or a sentence, which are asked
where there is none.
"""

from __future__ import annotations

import argparse
import random
import sys
from pathlib import Path

import torch
from torch import Tensor

from ..end_of_turn import end_ids, probability
from ..engine import Engine
from ..types import EngineConfig, EngineError
from .conversations.dialogues import data_directory
from .train_end_of_turn import BATCH_TOKENS, MAX_TOKENS, Places, Reader, figures, show
from .training.corpus import Corpus
from .training.word_ends import conversations

BATCH_ROWS = 512  # of logits, fp32


@torch.inference_mode()
def readings(engine: Engine, places: Places) -> dict[str, Tensor]:
    """P(end of turn) [places] as the tokens give it, and as the head does where there is one."""
    decoder, ids = engine.runner.decoder, end_ids(engine.text)
    rows = [states.float() for states in places.states.split(BATCH_ROWS)]
    found = {"tokens": torch.cat([probability(decoder.logits(r), ids) for r in rows])}
    if decoder.end_head is not None:
        found["head"] = torch.cat([decoder.end_head(states)[:, 0] for states in rows])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure how the end of a turn is read.")
    parser.add_argument("--model", type=Path, required=True, help="the checkpoint's folder")
    parser.add_argument("--adapter", type=Path, help="merged into the model, with its own head")
    parser.add_argument("--data", type=Path, help="folder with dialogues/ (else $VOICELOOP_DATA)")
    parser.add_argument("--quant", default="int8", help="of the weights, as served; or none")
    parser.add_argument("--places", type=int, default=20_000, help="word ends to measure on")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    quant = None if given.quant == "none" else given.quant
    config = EngineConfig(
        quant=quant,
        threads=given.threads,
        kv_tokens=BATCH_TOKENS + 2 * MAX_TOKENS,
        adapter_dir=given.adapter,
    )
    try:
        corpus = Corpus(data_directory(given.data), "test")
        engine = Engine.load(given.model, config)
    except (EngineError, OSError) as error:
        sys.exit(f"evaluate_end_of_turn: {error}")
    rng = random.Random(f"test/{given.seed}")
    drawn = conversations(corpus, engine.text, rng, MAX_TOKENS, held_out=True)
    places = Reader(engine).places(drawn, given.places)
    show("")
    for name, scores in readings(engine, places).items():
        for style, area, n_places in figures(scores, places):
            print(f"{name:<8}{style:<12} AUC {area:.3f}  ({n_places} word ends of the test split)")


if __name__ == "__main__":
    main()

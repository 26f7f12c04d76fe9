"""Trains an end-of-turn head: `python -m engine.recipes.train_end_of_turn --model DIR`.

Reads the hidden state at every word end of caller turns with the engine itself, so that it works
for every checkpoint the engine reads, quantized as it will be served; a small network learns from
it whether the word was the last of its turn. Writes DIR/end_of_turn.safetensors. Only the train
split is learned from. The valid split (its generated calls with names that training never has)
chooses the epoch that is kept and gives the figures printed, which are a little kind for that;
`evaluate_end_of_turn` measures a head on the test split.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from ..end_of_turn import HEAD_FILE
from ..engine import Engine
from ..runner import Extension, Runner
from ..sequence import Sequence
from ..types import EngineConfig, EngineError
from .conversations.dialogues import data_directory
from .measuring.measures import area_under_curve
from .training.corpus import Corpus
from .training.state_head import HeadTraining, StateHead, show, trained
from .training.word_ends import STYLES, WordEnds, conversations

MAX_TOKENS = 512  # of a conversation; later turns of a long one are like those before
BATCH_TOKENS = 2048
BATCH_PLACES = 512
N_EPOCHS = 5
LEARNING_RATE = 1e-3
WEIGHT_DECAY = 1e-2
DROPOUT = 0.5  # of the states and of the neurons between the layers
VALID_SHARE = 0.08


@dataclass(frozen=True, slots=True)
class Places:
    """Word ends: states fp16 [n, hidden], is_last fp32 [n], styles [n]: index into STYLES."""

    states: Tensor
    is_last: Tensor
    styles: Tensor


class Reader:
    """Reads states from the engine, several conversations a pass."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        assert isinstance(engine.runner, Runner)  # the CPU's
        self._runner = engine.runner

    def places(self, drawn: Iterator[WordEnds], n_places: int) -> Places:
        """About `n_places` word ends of the conversations drawn."""
        states, is_last, styles = list[Tensor](), list[bool](), list[int]()
        names = list(STYLES)
        while len(is_last) < n_places:
            batch, n_tokens = list[WordEnds](), 0
            while n_tokens < BATCH_TOKENS:
                batch.append(next(drawn))
                n_tokens += len(batch[-1].tokens)
            states.append(self._states(batch))
            for found in batch:
                is_last += found.is_last
                styles += [names.index(found.style)] * len(found.places)
            show(f"{len(is_last)} of {n_places} word ends read")
        return Places(torch.cat(states), torch.tensor(is_last).float(), torch.tensor(styles))

    def _states(self, batch: list[WordEnds]) -> Tensor:
        extensions = []
        for found in batch:
            sequence = Sequence(self._engine.pool, self._engine.tree)
            sequence.tokens = list(found.tokens)
            sequence.reserve(len(found.tokens))
            extensions.append(Extension(sequence, len(found.tokens), n_logits=len(found.tokens)))
        rows = self._runner.states(extensions)
        assert rows is not None
        wanted, first = list[int](), 0
        for found, extension in zip(batch, extensions, strict=True):
            wanted += [first + place for place in found.places]
            first += len(found.tokens)
            extension.sequence.release()
        return rows[wanted].half()


def train(learned: Places, held_out: Places, n_inner: int, seed: int) -> StateHead:
    how = HeadTraining(n_inner, N_EPOCHS, BATCH_PLACES, LEARNING_RATE, WEIGHT_DECAY, DROPOUT)
    return trained(
        (learned.states, learned.is_last[:, None]),
        (held_out.states, held_out.is_last[:, None]),
        how,
        seed,
        lambda epoch, loss: show(
            f"epoch {epoch} of {N_EPOCHS}: loss {loss:.4f} on the valid split"
        ),
    )


def figures(scores: Tensor, places: Places) -> Iterator[tuple[str, float, int]]:
    """Yield the figures of each style, and of all: its name, the area under the curve, the number
    of word ends.

    scores: [places], the higher the likelier the end. Styles of which all or none end are left out.
    """
    everywhere = torch.ones(len(scores), dtype=torch.bool)
    kinds = [(name, places.styles == i) for i, name in enumerate(STYLES)]
    for name, members in [*kinds, ("all", everywhere)]:
        is_last, found = places.is_last[members].bool(), scores[members]
        if is_last.any() and not is_last.all():
            area = area_under_curve(found[is_last].tolist(), found[~is_last].tolist())
            yield name, area, len(found)


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a checkpoint's end-of-turn head.")
    parser.add_argument("--model", type=Path, required=True, help="the checkpoint's folder")
    parser.add_argument("--adapter", type=Path, help="merged into the model; gets the head")
    parser.add_argument("--data", type=Path, help="folder with dialogues/ (else $VOICELOOP_DATA)")
    parser.add_argument("--quant", default="int8", help="of the weights, as served; or none")
    parser.add_argument("--places", type=int, default=250_000, help="word ends to learn from")
    parser.add_argument("--inner", type=int, default=512, help="neurons between the two layers")
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
        folder = data_directory(given.data)
        engine = Engine.load(given.model, config)
    except (EngineError, OSError) as error:
        sys.exit(f"train_end_of_turn: {error}")
    reader, read = Reader(engine), list[Places]()
    for split, share in (("train", 1.0), ("valid", VALID_SHARE)):
        corpus, rng = Corpus(folder, split), random.Random(f"{split}/{given.seed}")
        is_held_out = split != "train"
        drawn = conversations(corpus, engine.text, rng, MAX_TOKENS, held_out=is_held_out)
        read.append(reader.places(drawn, int(share * given.places)))
    learned, held_out = read
    head = train(learned, held_out, given.inner, given.seed)
    path = (given.adapter or given.model) / HEAD_FILE
    save_file(head.tensors(), path)
    path.chmod(0o644)  # safetensors writes files only their owner can read
    show("")
    with torch.no_grad():
        scores = head(held_out.states)[:, 0]
    for style, area, n_places in figures(scores, held_out):
        print(f"{style:<12} AUC {area:.3f}  ({n_places} word ends of the valid split)")


if __name__ == "__main__":
    main()

"""Writes caller turns for a recognizer to hear: `python -m engine.recipes.caller_turns --out FILE`.

The turns are drawn from the training mixture and spelled as they are spoken, one a line.
`audio.recipes.hear_turns` speaks and recognizes them; `--heard` of `train_agent` takes the pairs.
"""

from __future__ import annotations

import argparse
import random
from pathlib import Path

from .conversations.dialogues import data_directory
from .training.corpus import MIXTURE, Corpus

_SOURCES = ("calls", "sgd", "star", "tm4", "tm3", "mschat", "ohf")


def draw_turns(corpus: Corpus, n_turns: int, max_words: int, seed: int) -> list[str]:
    """Different turns of two to `max_words` words; one or two of a conversation."""
    rng = random.Random(f"caller turns/{seed}")
    mixture = {source: MIXTURE[source] for source in _SOURCES}
    turns: dict[str, None] = {}
    while len(turns) < n_turns:
        for messages, _, _ in corpus.conversations(rng, 100, mixture):
            said = [str(m["content"]) for m in messages if m["role"] == "user"]
            for text in rng.sample(said, min(2, len(said))):
                spelled = corpus.noise.clean(text, rng)
                if 2 <= len(spelled.split()) <= max_words:
                    turns[spelled] = None
    return list(turns)[:n_turns]


def main() -> None:
    parser = argparse.ArgumentParser(description="Write caller turns as they are spoken.")
    parser.add_argument("--data", type=Path, help="folder with dialogues/ (else $VOICELOOP_DATA)")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--turns", type=int, default=3000)
    parser.add_argument("--max-words", type=int, default=14)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    corpus = Corpus(data_directory(given.data))
    turns = draw_turns(corpus, given.turns, given.max_words, given.seed)
    given.out.write_text("".join(f"{turn}\n" for turn in turns))


if __name__ == "__main__":
    main()

"""What an adapter learns from: the agent's data in ChatML, one conversation after the other."""

from __future__ import annotations

import random
from pathlib import Path

from tokenizers import Tokenizer

from ..conversations.dialogues import data_directory
from ..model.chat_format import ChatEncoder
from ..model.chatml import CHATML_FORMAT
from .corpus import Corpus

Encoded = tuple[list[int], list[float]]  # tokens, and the weight of predicting each

# Conversations per thousand. What a general model cannot know comes first: facts of the prompt,
# calls in our notation and the use of their results, orders, bookings, refusals. It need not learn
# to copy, so there are no drills.
ADAPTER_MIXTURE = {
    "calls": 330,
    "facts": 100,
    "counter": 150,
    "front_desk": 120,
    "desk": 110,
    "tally": 10,
    "sgd": 50,
    "star": 50,
    "tm4": 40,
    "webq": 20,
    "open": 20,
}
MAX_TOKENS = 768  # of a conversation; one in fifty is longer
# The caller's words are read for the end of the turn, and learned a little for that.
USER_WEIGHT = 0.1


class AdapterData:
    """Encodes shards of conversations."""

    def __init__(self, data: Path | None, tokenizer: Tokenizer) -> None:
        self.corpus = Corpus(data_directory(data))
        self.encoder = ChatEncoder(tokenizer, CHATML_FORMAT, USER_WEIGHT)

    def shard(self, seed: str, n_conversations: int, mixture: dict[str, int]) -> list[Encoded]:
        """Conversations of a mixture: a function of the seed."""
        rng = random.Random(seed)
        drawn = list(self.corpus.conversations(rng, n_conversations, mixture))
        encoded = self.encoder.encode_batch(drawn)
        return [(tokens[:MAX_TOKENS], weights[:MAX_TOKENS]) for tokens, weights in encoded]


_worker: AdapterData | None = None  # of this process, when it is one that builds shards ahead


def start_data(data: Path | None, tokenizer: str) -> None:
    """tokenizer: as JSON."""
    global _worker
    _worker = AdapterData(data, Tokenizer.from_str(tokenizer))


def shard_of(seed: str, n_conversations: int, mixture: dict[str, int]) -> list[Encoded]:
    assert _worker is not None
    return _worker.shard(seed, n_conversations, mixture)

"""The text an adapter learns from: the agent's data in ChatML, one conversation after the other."""

from __future__ import annotations

import random
from pathlib import Path

from tokenizers import Tokenizer

from ..conversations.dialogues import data_directory
from ..model.chat_format import ChatEncoder
from ..model.chatml import CHATML_FORMAT
from .corpus import Conversation, Corpus
from .family import Family

# Families of conversations per thousand. What a general model cannot know comes first: facts of the
# prompt, calls in our notation and the use of their results, orders, bookings, refusals. It need
# not learn to copy, so there are no drills.
ADAPTER_MIXTURE = {
    "trades": 340,
    "calls": 190,
    "facts": 50,
    "counter": 70,
    "front_desk": 70,
    "desk": 80,
    "tally": 40,
    "sgd": 40,
    "star": 40,
    "tm4": 20,
    "webq": 35,
    "open": 25,
}
N_SIBLINGS = 3  # conversations about one business, whose prompt is computed once for all of them
MAX_TOKENS = 768  # of a conversation; one in fifty is longer
# The caller's words are read for the end of the turn, and learned a little for that.
USER_WEIGHT = 0.1


class AdapterData:
    """Encodes shards of conversations."""

    def __init__(self, data: Path | None, tokenizer: Tokenizer) -> None:
        self.corpus = Corpus(data_directory(data))
        self.encoder = ChatEncoder(tokenizer, CHATML_FORMAT, USER_WEIGHT)

    def shard(self, seed: str, n_families: int, mixture: dict[str, int]) -> list[Family]:
        """Conversations of a mixture, those about one business together, by the seed alone."""
        rng = random.Random(seed)
        return [
            self._family(drawn)
            for drawn in self.corpus.families(rng, n_families, mixture, N_SIBLINGS)
        ]

    def _family(self, drawn: list[Conversation]) -> Family:
        """Return the conversations with their common beginning, prompt and tools, once."""
        encoded = [
            (tokens[:MAX_TOKENS], weights[:MAX_TOKENS])
            for tokens, weights in self.encoder.encode_batch(drawn)
        ]
        n_alike = 0
        if len(encoded) > 1:
            n_alike = self._n_alike([tokens for tokens, _ in encoded])
        return Family(
            encoded[0][0][:n_alike],
            tuple((tokens[n_alike:], weights[n_alike:]) for tokens, weights in encoded),
        )

    def _n_alike(self, conversations: list[list[int]]) -> int:
        """Tokens of the system message, where it is one and the same and something follows it."""
        first = conversations[0]
        spans = self.encoder.spans(first)
        if not spans or spans[0].role != "system" or len(spans) < 2:
            return 0
        stop = spans[0].stop
        is_one = all(one[:stop] == first[:stop] and len(one) > stop for one in conversations)
        return stop if is_one else 0

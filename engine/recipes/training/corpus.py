"""The training stream: seeded shards of generated calls and shared dialogues, packed into rows.

A shard is a function of (seed, tokenizer, data), so a resumed run sees the stream it would have
seen. Rows hold whole conversations; a document id keeps attention inside each of them.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from ..conversations.call import Draws
from ..conversations.calls import Chatter, generate_call
from ..conversations.dialogues import SOURCES, Dialogue, as_messages, open_talk, read_dialogues
from ..conversations.drills import echo, fill, lookup, unlearned
from ..conversations.practice import counter_call, desk_call, facts_call, front_desk_call, tally
from ..conversations.recognizer_noise import RecognizerNoise
from ..conversations.trades import trade_call
from ..model.chat_format import ChatEncoder, render_chat, train_tokenizer

ROW_TOKENS = 512
MAX_POSITION = 2048
# Conversations per thousand of a shard. The task sources are small beside the calls: this decides
# how often they repeat.
MIXTURE = {
    "calls": 210,
    "facts": 90,
    "counter": 270,
    "front_desk": 160,
    "desk": 45,
    "tally": 12,
    "sgd": 65,
    "star": 60,
    "tm4": 40,
    "tm3": 6,
    "mschat": 6,
    "ohf": 6,
    "selfdlg": 3,
    "webq": 30,
    "echo": 3,
    "lookup": 6,
    "fill": 3,
}
# The first stage: nothing but copying.
DRILLS = {"echo": 50, "lookup": 35, "fill": 15}
# Sources whose calls begin with a business and its tools: a third to a half of their tokens.
_SHARED = frozenset(("calls", "facts", "counter", "front_desk", "desk", "trades"))
_SGD_PARTS = frozenset("restaurants hotels movies ridesharing events services rentalcars".split())

Conversation = tuple[list[dict[str, Any]], list[dict[str, Any]], set[int]]


@dataclass(frozen=True, slots=True)
class Rows:
    """A packed shard. All arrays are [rows, ROW_TOKENS]; weights are of predicting tokens[i]."""

    tokens: np.ndarray
    positions: np.ndarray
    documents: np.ndarray
    weights: np.ndarray

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def target_weights(self) -> np.ndarray:
        """Weights of predicting tokens[:, 1:]; zero where another conversation begins."""
        same = self.documents[:, 1:] == self.documents[:, :-1]
        return self.weights[:, 1:] * same


class Corpus:
    """The shared dialogues of one split and the generator that goes with them."""

    def __init__(self, folder: Path, split: str = "train") -> None:
        self.dialogues: dict[str, list[Dialogue]] = {
            source: read_dialogues(folder, source, split) for source in SOURCES
        }
        self.dialogues["sgd"] = [
            d for d in self.dialogues["sgd"] if _SGD_PARTS.issuperset(d.domain.split("/"))
        ]
        words = {
            word.strip(".,?!'").lower()
            for source in ("tm4", "star", "tm3", "mschat")
            for d in self.dialogues[source]
            for _, text in d.turns
            for word in text.split()
        }
        self.vocabulary = sorted(word for word in words if word.isalpha())
        self.noise = RecognizerNoise(self.vocabulary)
        self.chatter = Chatter(
            tuple(
                (d.turns[0][1], d.turns[1][1])
                for d in self.dialogues["mschat"]
                if not _is_about_identity(d)
            ),
            tuple(d.turns[0][1] for d in self.dialogues["webq"]),
        )

    def conversations(
        self, rng: random.Random, count: int, mixture: dict[str, int] = MIXTURE
    ) -> Iterator[Conversation]:
        """Draw from the mixture."""
        for source in rng.choices(list(mixture), weights=list(mixture.values()), k=count):
            yield self._conversation(source, rng)

    def families(
        self, rng: random.Random, count: int, mixture: dict[str, int], n_siblings: int
    ) -> Iterator[list[Conversation]]:
        """Draw from the mixture; where there are tools and a menu, several calls about them."""
        for source in rng.choices(list(mixture), weights=list(mixture.values()), k=count):
            seed = rng.randrange(1 << 60)
            n_drawn = n_siblings if source in _SHARED else 1
            yield [
                self._conversation(source, Draws(str(seed), f"{seed}/{sibling}"))
                for sibling in range(n_drawn)
            ]

    def _conversation(self, source: str, rng: random.Random) -> Conversation:
        if source == "calls":
            said = rng.said if isinstance(rng, Draws) else None
            call = generate_call(rng.randrange(1 << 60), self.noise, self.chatter, said=said)
            return call.messages, call.tools, call.unlearned
        if source in ("facts", "desk"):
            practice = facts_call if source == "facts" else desk_call
            call = practice(rng, self.noise)
            return call.messages, call.tools, call.unlearned
        if source in ("counter", "front_desk", "trades"):
            asked = {"counter": counter_call, "front_desk": front_desk_call, "trades": trade_call}
            call = asked[source](rng, self.noise, self.chatter.questions)
            return call.messages, call.tools, call.unlearned
        if source == "tally":
            messages, tools = tally(rng, self.noise)
            return messages, tools, unlearned(messages)
        if source in ("echo", "lookup"):
            drill = echo if source == "echo" else lookup
            messages = drill(rng, self.vocabulary)
            return messages, [], unlearned(messages)
        if source == "fill":
            messages, tools = fill(rng, self.vocabulary)
            # The schema is message zero of a conversation without a prompt.
            return messages, tools, unlearned(messages)
        if source == "open":
            return open_talk(rng, self.dialogues), [], set()
        if source == "webq":
            # A lone question with a place's prompt: refused, whatever it is.
            return refusal_call(rng, self), [], set()
        dialogue = rng.choice(self.dialogues[source])
        return as_messages(dialogue, rng, self.noise), [], set()


def refusal_call(rng: random.Random, corpus: Corpus) -> list[dict[str, Any]]:
    """A short call that holds an out-of-scope question."""
    from ..conversations.business import random_business
    from ..conversations.call import Call
    from ..conversations.skills.talk import refuse

    call = Call(
        rng, corpus.noise, random_business(rng), rng.choice(("written", "recognized", "noisy"))
    )
    assert call.place is not None
    call.begin(call.place.prompt)
    for _ in range(rng.choice((1, 1, 2))):
        refuse(call, corpus.chatter.questions)
    return call.messages


def _is_about_identity(dialogue: Dialogue) -> bool:
    """Small talk that would contradict the prompt (names, abilities) is left out of calls."""
    text = " ".join(text for _, text in dialogue.turns).lower()
    return any(word in text for word in ("name", "call you", "can you do", "help me", "repeat"))


def tokenizer_from(
    corpus: Corpus, vocab_size: int, seed: int, n_conversations: int = 8000
) -> Tokenizer:
    """Train the tokenizer. Real dialogues weigh more than in the mixture: their words are rarer."""
    rng = random.Random(f"tokenizer/{seed}")
    sample = list(corpus.conversations(rng, n_conversations))
    for source, share in (
        ("sgd", 0.3),
        ("star", 0.3),
        ("selfdlg", 0.4),
        ("tm3", 0.1),
        ("tm4", 0.2),
    ):
        sample += [
            (as_messages(rng.choice(corpus.dialogues[source]), rng, corpus.noise), [], set())
            for _ in range(int(n_conversations * share))
        ]
    return train_tokenizer(
        (render_chat(messages, tools) for messages, tools, _ in sample), vocab_size
    )


def build_rows(
    corpus: Corpus,
    encoder: ChatEncoder,
    seed: str,
    n_conversations: int,
    mixture: dict[str, int] = MIXTURE,
) -> Rows:
    """Generate, encode and pack one shard."""
    rng = random.Random(seed)
    encoded = encoder.encode_batch(list(corpus.conversations(rng, n_conversations, mixture)))
    return pack_rows(encoded, encoder.pad, rng)


def pack_rows(
    encoded: Sequence[tuple[list[int], list[float]]],
    pad: int,
    rng: random.Random,
    row_tokens: int = ROW_TOKENS,
) -> Rows:
    """First-fit packing; over-long conversations lose their end.

    In a quarter of the conversations positions jump ahead at some turn, so that distances up to
    MAX_POSITION are met in rows of ROW_TOKENS (the idea of PoSE, arXiv:2309.10400).
    """
    bins: list[list[int]] = []
    room: list[int] = []
    open_from = 0
    for index, (tokens, _) in enumerate(encoded):
        size = min(len(tokens), row_tokens)
        for at in range(open_from, len(bins)):
            if room[at] >= size:
                break
        else:
            bins.append([])
            room.append(row_tokens)
            at = len(bins) - 1
        bins[at].append(index)
        room[at] -= size
        open_from = max(0, len(bins) - 64)
    shape = (len(bins), row_tokens)
    rows = Rows(
        np.full(shape, pad, np.int64),
        np.zeros(shape, np.int64),
        np.full(shape, -1, np.int64),
        np.zeros(shape, np.float32),
    )
    for row, members in enumerate(bins):
        start = 0
        for document, index in enumerate(members):
            tokens, weights = encoded[index]
            size = min(len(tokens), row_tokens)
            span = slice(start, start + size)
            rows.tokens[row, span] = tokens[:size]
            rows.weights[row, span] = weights[:size]
            rows.documents[row, span] = document
            rows.positions[row, span] = np.arange(size)
            if size > 40 and rng.random() < 0.25:
                jump = start + rng.randrange(20, size)
                rows.positions[row, jump : start + size] += rng.randrange(MAX_POSITION - row_tokens)
            start += size
    order = list(range(len(bins)))
    rng.shuffle(order)
    return Rows(
        rows.tokens[order], rows.positions[order], rows.documents[order], rows.weights[order]
    )

"""The measures of the embedded agent that are read from its probabilities, without any reply."""

from __future__ import annotations

import math
import random
import re
from typing import Any

from ..conversations.dialogues import SOURCES, Dialogue, as_messages
from ..model.agent_model import AgentModel
from ..model.decoding import log_probabilities, states_and_logits
from ..training.corpus import Corpus
from . import measures
from .evaluation import Evaluation, Figure
from .trigram import Trigram


def end_of_turn(evaluation: Evaluation, n_dialogues: int) -> list[Figure]:
    """P(end of turn) after whole caller turns against truncated ones, recognizer style."""
    rng = random.Random(f"end/{evaluation.seed}")
    conversations = [
        (call.messages, call.tools) for call in evaluation.calls("place")[:n_dialogues]
    ]
    for source in ("tm4", "sgd", "star"):
        sample = rng.sample(
            evaluation.test.dialogues[source],
            min(n_dialogues, len(evaluation.test.dialogues[source])),
        )
        conversations += [(_framed(dialogue, rng, evaluation.corpus), []) for dialogue in sample]
    whole: list[float] = []
    cut: list[float] = []
    clause: list[float] = []
    for messages, tools in conversations:
        _end_probabilities(evaluation, messages, tools, rng, whole, cut, clause)
    return [
        Figure(
            "P(end of turn): AUC, whole against truncated",
            measures.area_under_curve(whole, cut),
            0.88,
            cases=len(cut),
        ),
        Figure(
            "the same, truncated at clause boundaries",
            measures.area_under_curve(whole, clause),
            cases=len(clause),
        ),
    ]


def _end_probabilities(
    evaluation: Evaluation,
    messages: list[dict[str, Any]],
    tools: list[dict[str, Any]],
    rng: random.Random,
    whole: list[float],
    cut: list[float],
    clause: list[float],
) -> None:
    """One forward pass gives the probability after every prefix of every caller turn."""
    rendered = evaluation.encoder.format.render(messages, tools)
    encoding = evaluation.encoder.tokenizer.encode(rendered, add_special_tokens=False)
    tokens = encoding.ids[: evaluation.model.config.max_positions]
    end = evaluation.p_end(*states_and_logits(evaluation.model, tokens)).tolist()
    for role, start, behind in evaluation.encoder.spans(tokens):
        if role != "user":
            continue
        stop = behind - 1 if tokens[behind - 1] == evaluation.encoder.end else behind
        words = [at for at in range(start + 1, stop) if rendered[encoding.offsets[at][0]] == " "]
        if stop >= len(tokens) or not words:
            continue
        text = rendered[encoding.offsets[start][0] : encoding.offsets[stop - 1][1]]
        if re.search(r"[.?!,A-Z]", text):
            continue  # written style
        whole.append(end[stop - 1])
        cut.append(end[rng.choice(words) - 1])
        joints = [
            at
            for at in words
            if re.match(
                r" (and|but|or|because|if|for|with|at|on|in|from|to|please|so)\b",
                rendered[encoding.offsets[at][0] :],
            )
        ]
        if joints:
            clause.append(end[rng.choice(joints) - 1])


def draft_acceptance(evaluation: Evaluation, draft: AgentModel, k: int = 4) -> list[Figure]:
    """How often the draft says the target's next greedy token, on the replies to test dialogues."""
    figures = []
    for sources, bar in ((("tm4", "sgd", "star"), 0.70), (("fact", "tool", "tool_result"), None)):
        matched = drafted = 0
        for case in evaluation.replies:
            prompt, reply = case.tokens
            if case.kind not in sources or not reply:
                continue
            tokens = prompt + reply + [evaluation.encoder.end]
            said = log_probabilities(draft, tokens).argmax(-1).tolist()
            first = len(tokens) - len(reply) - 1
            matches = [said[at - 1] == tokens[at] for at in range(first, len(tokens))]
            found = measures.accepted_drafts(matches, k)
            matched, drafted = matched + found[0], drafted + found[1]
        where = "test dialogues" if bar else "generated calls"
        figures.append(
            Figure(
                f"draft: next token matches, k={k}, {where}",
                matched / max(1, drafted),
                bar,
                cases=drafted,
            )
        )
    return figures


def compression(evaluation: Evaluation, n_dialogues: int, n_training: int) -> list[Figure]:
    """Bits per byte of each test source against the trigram of the same data."""
    rng = random.Random(f"bits/{evaluation.seed}")
    train = [
        ids
        for ids, _ in evaluation.encoder.encode_batch(
            list(evaluation.corpus.conversations(rng, n_training))
        )
    ]
    trigram = Trigram(evaluation.model.config.vocab_size)
    trigram.count(train[:-100])
    trigram.fit_weights(train[-100:])
    figures = []
    for source in SOURCES:
        dialogues = evaluation.test.dialogues[source]
        sample = rng.sample(dialogues, min(n_dialogues, len(dialogues)))
        ours = theirs = n_bytes = 0.0
        for dialogue in sample:
            parts = _bits(evaluation, dialogue, rng, trigram)
            ours, theirs, n_bytes = ours + parts[0], theirs + parts[1], n_bytes + parts[2]
        bits = ours / math.log(2) / n_bytes
        gain = 1 - ours / theirs
        task = source in ("tm4", "tm3", "star", "sgd")
        figures += [
            Figure(f"bits per byte, {source}", bits, cases=int(n_bytes)),
            Figure(f"below the trigram, {source}", gain, 0.25 if task else None),
        ]
    return figures


def _bits(
    evaluation: Evaluation, dialogue: Dialogue, rng: random.Random, trigram: Trigram
) -> tuple[float, float, float]:
    """Nats of ours and of the trigram over the words of both sides, and their bytes."""
    messages = as_messages(dialogue, rng, evaluation.corpus.noise)
    encoder = evaluation.encoder
    text = encoder.format.render(messages)
    tokens = encoder.tokenizer.encode(text, add_special_tokens=False).ids[:1024]
    spoken = [False] * len(tokens)
    for role, first, stop in encoder.spans(tokens):
        for at in range(first, stop):
            spoken[at] = role in ("user", "assistant") and tokens[at] != encoder.end
    scores = log_probabilities(evaluation.model, tokens)
    ours = -sum(float(scores[at - 1, token]) for at, token in enumerate(tokens) if spoken[at])
    n_bytes = sum(len(str(m["content"]).encode()) for m in messages if m["role"] != "system")
    return ours, trigram.nats(tokens, spoken), n_bytes


def _framed(dialogue: Dialogue, rng: random.Random, corpus: Corpus) -> list[dict[str, Any]]:
    """A dialogue whose caller turns all look recognized."""
    messages = as_messages(dialogue, rng, corpus.noise)
    return [
        {**m, "content": corpus.noise.clean(str(m["content"]), rng)} if m["role"] == "user" else m
        for m in messages
    ]

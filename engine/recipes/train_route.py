"""Trains a route head: `python -m engine.recipes.train_route --model DIR`.

The labels are what the model itself does, as it is served. A turn of a generated call is staged,
which gives the state that the head reads, and answered. Its answer is held against the call's own
by rule: the same tool with the same arguments, the figures of the prompt or else half its words, a
denial for a denial, a refusal where nothing in the prompt answers. Where it fails, a large model is
needed. Writes DIR/route.safetensors, with the ranks of P(large) on calls not learned from.

Callers, names and prices of the calls that give the figures printed are never those learned from.
`python -m benchmarks.two_models --part head` asks businesses that no recipe knows.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from ..branch import Branch
from ..engine import Engine
from ..route import N_SIGNS, ROUTE_FILE, base_of
from ..types import Done, EngineConfig, EngineError, SamplingParams, Staged, TextDelta, ToolCall
from .conversations.dialogues import data_directory
from .conversations.wording import STOP_WORDS
from .measuring.measures import (
    area_under_curve,
    is_degenerate,
    is_refusal,
    same_call,
    words_of,
)
from .training.corpus import Corpus
from .training.state_head import HeadTraining, StateHead, show, trained

# Conversations per hundred: each kind of business, and lone questions that are to be refused.
SOURCES = {
    "calls": 30, "trades": 20, "counter": 14, "front_desk": 12, "facts": 8, "desk": 6, "webq": 10,
}  # fmt: skip
N_AT_ONCE = 16  # replies
MAX_TOKENS = 72  # of a reply
MAX_PROMPT = 900  # tokens
LEAST_SHARED = 0.5  # of the prompt's words that a right answer says: others say the same otherwise
N_EPOCHS = 40
LEARNING_RATE = 1e-3
WEIGHT_DECAY = 3e-2
DROPOUT = 0.4
BATCH = 128
HELD_SHARE = 0.25  # of the turns
N_RANKS = 200

Message = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Turn:
    """A caller's turn of a call, what was said before it, and the answer that the call has."""

    before: list[Message]
    words: str
    tools: list[Message]
    gold: Message

    @property
    def calls_tool(self) -> bool:
        return bool(self.gold.get("tool_calls"))

    @property
    def wants_retrieval(self) -> bool:
        """Whether nothing in the prompt answers."""
        return not self.calls_tool and is_refusal(self.gold["content"])

    def is_answered(self, reply: str, calls: Sequence[dict[str, Any]]) -> bool:
        """Whether this reply is as good as the call's own, by rule."""
        if self.calls_tool:
            wanted = self.gold["tool_calls"][0]["function"]
            return bool(calls) and same_call(calls[0], wanted)
        gold = _POLITE.sub("sure", self.gold["content"])
        if calls or is_degenerate(reply) or self.wants_retrieval != is_refusal(reply):
            return False
        if self.wants_retrieval:
            return True
        sentences = re.split(r"(?<=[.!?])\s+", gold.strip())
        told = [one for one in sentences if not one.endswith("?")] or sentences
        denies, text = [_denies(one) for one in told], " ".join(told)
        if denies[0] or (_denies(reply) and not any(denies)):
            return denies[0] and _denies(reply)
        known = " ".join(str(message["content"]) for message in self.before)
        if figures := set(_FIGURE.findall(text)) & set(_FIGURE.findall(known)):
            return figures <= set(_FIGURE.findall(reply))
        facts = set(words_of(text)) & set(words_of(known)) - STOP_WORDS
        return len(facts & set(words_of(reply))) >= LEAST_SHARED * len(facts)


_FIGURE = re.compile(r"\d+(?:[.:,]\d+)*")  # whole: 11 is no part of $11.20
_DENIAL = re.compile(r"\b(no|not|none|sorry|never|closed|cannot|\w+n't)\b", re.IGNORECASE)
_POLITE = re.compile(r"no (problem|worries)", re.IGNORECASE)


def _denies(text: str) -> bool:
    return _DENIAL.search(text) is not None


@dataclass(frozen=True, slots=True)
class Turns:
    """states fp32 [n, hidden]; labels fp32 [n, 3], as `RouteSigns`."""

    states: Tensor
    labels: Tensor


def turns(corpus: Corpus, rng: random.Random) -> Iterator[Turn]:
    """Without end: one turn each of the calls that are drawn."""
    while True:
        for messages, tools, _ in corpus.conversations(rng, 64, SOURCES):
            places = [
                i for i, (message, answer) in enumerate(zip(messages, messages[1:], strict=False))
                if message["role"] == "user" and answer["role"] == "assistant"
            ]  # fmt: skip
            if places:
                at = rng.choice(places)
                yield Turn(messages[:at], messages[at]["content"], tools, messages[at + 1])


class Recorder:
    """In the place of a route head: keeps the state that one would read last."""

    def __init__(self) -> None:
        self.state = torch.empty(0)

    def __call__(self, states: Tensor) -> Tensor:
        self.state = states[-1].float().clone()
        return torch.zeros(len(states), N_SIGNS)


class Answerer:
    """Stages turns and answers them, several at once, by an engine as it is served."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._recorder = Recorder()
        engine.runner.decoder.route_head = self._recorder  # type: ignore[assignment]
        self._n = 0

    def read(self, drawn: Sequence[Turn]) -> Turns:
        """Their states, and what their answers need."""
        states, labels = list[Tensor](), list[list[float]]()
        under_way: dict[str, tuple[Turn, Branch]] = {}
        for turn in drawn:
            if (branch := self._staged(turn)) is not None:
                under_way[branch.branch_id] = turn, branch
                states.append(self._recorder.state)
        for turn, branch in under_way.values():
            branch.commit(self._prompt(turn), SamplingParams(MAX_TOKENS))
        said = dict.fromkeys(under_way, "")
        calls: dict[str, list[dict[str, Any]]] = {name: [] for name in under_way}
        n_open = len(under_way)
        while n_open:
            for event in self._engine.step():
                match event:
                    case TextDelta(branch_id=name, text=text):
                        said[name] += text
                    case ToolCall(branch_id=name):
                        arguments = _object(event.arguments_json)
                        calls[name].append({"name": event.name, "arguments": arguments})
                    case Done():
                        n_open -= 1
        for name, (turn, branch) in under_way.items():
            needs_large = not turn.is_answered(said[name].strip(), calls[name])
            labels.append([float(needs_large), float(turn.calls_tool), float(turn.wants_retrieval)])
            branch.close()
        return Turns(torch.stack(states), torch.tensor(labels))

    def _prompt(self, turn: Turn) -> list[int]:
        asked = [*turn.before, {"role": "user", "content": turn.words}]
        return self._engine.text.encode_chat(asked, turn.tools, add_generation_prompt=True)

    def _staged(self, turn: Turn) -> Branch | None:
        """A branch with its words; None where the prompt is too long."""
        if len(self._prompt(turn)) > MAX_PROMPT:
            return None
        self._n += 1
        branch = self._engine.branch(f"turn{self._n}")
        encode = self._engine.text.encode_chat
        branch.stage(encode(turn.before, turn.tools, open_user=turn.words))
        while not any(isinstance(event, Staged) for event in self._engine.step()):
            pass
        return branch


def _object(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None


def train(learned: Turns, held_out: Turns, n_inner: int, seed: int) -> StateHead:
    how = HeadTraining(n_inner, N_EPOCHS, BATCH, LEARNING_RATE, WEIGHT_DECAY, DROPOUT)
    return trained((learned.states, learned.labels), (held_out.states, held_out.labels), how, seed)


def ranks_of(head: StateHead, held_out: Turns) -> Tensor:
    """P(large) of turns held out, sorted: `N_RANKS` of them."""
    with torch.no_grad():
        found = head(held_out.states)[:, 0].sigmoid()
    return torch.quantile(found, torch.linspace(0, 1, N_RANKS))


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a checkpoint's route head.")
    parser.add_argument("--model", type=Path, required=True, help="the checkpoint's folder or GGUF")
    parser.add_argument("--adapter", type=Path, help="merged into the model")
    parser.add_argument("--out", type=Path, help="the head's file (else in the model's folder)")
    parser.add_argument("--data", type=Path, help="folder with dialogues/ (else $VOICELOOP_DATA)")
    parser.add_argument("--quant", default="int8", help="of the weights, as served; or none")
    parser.add_argument("--turns", type=int, default=6000, help="to learn from")
    parser.add_argument("--inner", type=int, default=96, help="neurons between the two layers")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    folder = given.adapter or given.model
    if given.out is None and not folder.is_dir():
        parser.error("--out: expected a file for the head of a model in one file, found none")
    config = EngineConfig(
        quant=None if given.quant == "none" else given.quant, threads=given.threads,
        adapter_dir=given.adapter, ngram_draft=True,
    )  # fmt: skip
    try:
        data = data_directory(given.data)
        engine = Engine.load(given.model, config)
    except (EngineError, OSError) as error:
        sys.exit(f"train_route: {error}")
    answerer, read = Answerer(engine), list[Turns]()
    sizes = {"train": given.turns, "valid": int(HELD_SHARE * given.turns)}
    for split, n_turns in {**sizes, "test": sizes["valid"]}.items():
        drawn = turns(Corpus(data, split), random.Random(f"{split}/{given.seed}"))
        parts, n_read = list[Turns](), 0
        while n_read < n_turns:
            parts.append(answerer.read([next(drawn) for _ in range(N_AT_ONCE)]))
            n_read += len(parts[-1].states)
            show(f"{n_read} of {n_turns} turns of {split} read")
        states, labels = (torch.cat([getattr(p, n) for p in parts]) for n in ("states", "labels"))
        read.append(Turns(states, labels))
    learned, held_out, tested = read
    head = train(learned, held_out, given.inner, given.seed)
    path = given.out or folder / ROUTE_FILE
    base = base_of(engine.runner.decoder.norm.weight)
    save_file({**head.tensors(), "ranks": ranks_of(head, held_out), "base": base}, path)
    path.chmod(0o644)  # safetensors writes files only their owner can read
    show("")
    with torch.no_grad():
        scores = head(tested.states)
    for at, name in enumerate(("large", "tool", "retrieval")):
        needed, found = tested.labels[:, at].bool(), scores[:, at]
        area = area_under_curve(found[needed].tolist(), found[~needed].tolist())
        share = 100 * needed.float().mean()
        print(f"{name:<10} AUC {area:.3f}  ({len(found)} turns of the test split, {share:.0f} %)")


if __name__ == "__main__":
    main()

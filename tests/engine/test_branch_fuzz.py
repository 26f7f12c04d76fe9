"""Random lives of branches against a dense oracle that knows nothing of blocks.

Few examples by default; VOICELOOP_FUZZ_EXAMPLES=500 gives the long run (some 10,000 operations).
"""

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from engine.branch import Branch, Phase
from engine.end_of_turn import end_ids
from engine.engine import Engine
from engine.sampler import choose, penalize
from engine.scheduler import Scheduler, worst_blocks
from engine.types import Done, EngineConfig, Event, SamplingParams, Staged, TextDelta

N_EXAMPLES = int(os.environ.get("VOICELOOP_FUZZ_EXAMPLES", "12"))

PARAMS = (
    SamplingParams(max_tokens=6),
    SamplingParams(max_tokens=5, temperature=0.8, seed=3, ignore_eos=True),
    SamplingParams(max_tokens=7, temperature=1.2, top_k=20, top_p=0.9),
    SamplingParams(max_tokens=6, temperature=0.5, presence_penalty=0.3, frequency_penalty=0.4),
    SamplingParams(max_tokens=9, ignore_eos=True, stop=("a", "th")),
)
# What callers say: prefixes of two speeches that part after 21 tokens, so that words are shared.
SPEECH = [7 + (i * i * 31) % 90 for i in range(60)]
OTHER = SPEECH[:21] + [101 + (i * 17) % 90 for i in range(39)]
HISTORIES = ([], SPEECH[:16], SPEECH[:35], OTHER[:33])


@pytest.fixture(autouse=True)
def recounted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is counted while a step is composed is compared with a count from nothing."""
    promised = Scheduler._promised

    def compared(self: Scheduler, branches: list[Branch]) -> int:
        found = promised(self, branches)
        assert found == sum(worst_blocks(b) for b in branches if b.phase is Phase.REPLYING)
        self.tree.check_integrity()  # of what can be evicted
        return found

    monkeypatch.setattr(Scheduler, "_promised", compared)


class DenseOracle:
    """A Llama in a page of torch: no cache, one prompt at a time, float64."""

    def __init__(self, folder: Path, n_heads: int = 4, n_kv_heads: int = 2) -> None:
        tensors = load_file(folder / "model.safetensors")
        self.weights = {name: tensor.double() for name, tensor in tensors.items()}
        self.n_heads, self.n_kv_heads = n_heads, n_kv_heads
        self.logits = lru_cache(maxsize=100_000)(self._logits)

    def _norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        scale = (x.pow(2).mean(-1, keepdim=True) + 1e-5).rsqrt()
        return x * scale * self.weights[f"{name}.weight"]

    def _heads(self, x: torch.Tensor, n_heads: int, rotated: bool) -> torch.Tensor:
        x = x.view(len(x), n_heads, -1).transpose(0, 1)
        if rotated:
            half = x.shape[-1] // 2
            frequency = 10000.0 ** -(torch.arange(half, dtype=torch.float64) / half)
            angle = torch.arange(x.shape[1], dtype=torch.float64)[:, None] * frequency
            a, b = x[..., :half], x[..., half:]
            x = torch.cat(
                (a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()), -1
            )
        return x.repeat_interleave(self.n_heads // n_heads, 0)

    def _logits(self, tokens: tuple[int, ...]) -> torch.Tensor:
        w = self.weights
        x = w["model.embed_tokens.weight"][list(tokens)]
        future = torch.ones(len(x), len(x)).triu(1).bool()
        for layer in range(2):
            p = f"model.layers.{layer}."
            h = self._norm(x, f"{p}input_layernorm")
            q, k, v = (
                self._heads(h @ w[f"{p}self_attn.{name}_proj.weight"].T, n, name != "v")
                for name, n in (("q", self.n_heads), ("k", self.n_kv_heads), ("v", self.n_kv_heads))
            )
            scores = (q @ k.transpose(1, 2) / q.shape[-1] ** 0.5).masked_fill(future, -torch.inf)
            mixed = (scores.softmax(-1) @ v).transpose(0, 1).reshape(len(x), -1)
            x = x + mixed @ w[f"{p}self_attn.o_proj.weight"].T
            h = self._norm(x, f"{p}post_attention_layernorm")
            gate = torch.nn.functional.silu(h @ w[f"{p}mlp.gate_proj.weight"].T)
            up = h @ w[f"{p}mlp.up_proj.weight"].T
            x = x + (gate * up) @ w[f"{p}mlp.down_proj.weight"].T
        return self._norm(x[-1:], "model.norm")[0] @ w["lm_head.weight"].T

    def reply(self, engine: Engine, prompt: list[int], params: SamplingParams) -> str:
        """The text a reply must have."""
        reply = engine.new_reply(len(prompt), params)
        text = ""
        while reply.finish_reason is None:
            logits = self.logits((*prompt, *reply.tokens))
            logits = penalize(logits, params, reply.tokens)
            token = choose(logits, params, reply.seed, len(reply.tokens))
            text += "".join(piece for piece in reply.accept([token]) if isinstance(piece, str))
        return text


@dataclass
class Life:
    """What the test knows of one branch."""

    branch: Branch
    turn: list[int] = field(default_factory=list)
    attempt: int | None = None
    expected: str | None = None  # of the reply under way
    heard: str = ""


class World:
    """Drives one engine by random operations and compares everything it says."""

    def __init__(self, folder: Path, oracle: DenseOracle, **changes: Any) -> None:
        config = EngineConfig(dtype="fp64", kv_tokens=192, poison=True, **changes)
        self.engine, self.oracle = Engine.load(folder, config), oracle
        self.engine.notation = None  # random tokens would spell malformed calls
        self.end_ids = end_ids(self.engine.text)
        self.lives: dict[int, Life] = {}
        self.n_branches = 0
        self.patience = 0  # until the engine is told that a commit waits, 0: never

    def interrupted(self) -> bool:
        self.patience -= 1
        return self.patience == 0

    def operate(self, kind: str, slot: int, a: int, b: int) -> None:
        life = self.lives.get(slot)
        if kind == "step":
            for _ in range(1 + a % 4):
                self.patience = b % 6  # a step of two layers asks five times
                self.observe(self.engine.step(self.interrupted))
        elif kind == "evict":
            self.engine.tree.evict(1 + a % 4)
        elif life is None:
            self.n_branches += 1
            salt = "tenant" if b % 5 == 0 else ""
            branch_id = f"{slot}:{self.n_branches}"
            self.lives[slot] = Life(
                self.engine.branch(
                    branch_id, HISTORIES[a % len(HISTORIES)], salt, reads_end=b % 2 == 0
                )
            )
        elif kind == "close" or len(life.branch.sequence.tokens) > 110:
            life.branch.close()
            del self.lives[slot]
        elif kind == "cancel":
            life.branch.cancel()
            life.attempt = None
        elif life.expected is None:
            self.ask(kind, life, a, b)

    def ask(self, kind: str, life: Life, a: int, b: int) -> None:
        words = (SPEECH, OTHER)[b % 2][: 1 + a % 50]
        if kind == "stage":
            life.branch.stage(words)
            life.turn = words
        elif kind == "attempt":
            life.attempt = life.branch.begin_preemptive([5, 6], PARAMS[a % len(PARAMS)])
        elif kind == "commit":
            turn = ([*life.turn] if b % 3 else words) + [5, 6]
            params = PARAMS[a % len(PARAMS)]
            branch = life.branch
            prompt = branch.sequence.tokens[: branch.n_history] + turn
            life.expected, life.heard = self.oracle.reply(self.engine, prompt, params), ""
            branch.commit(turn, params, life.attempt)
            life.attempt, life.turn = None, []

    def observe(self, events: list[Event]) -> None:
        lives = {life.branch.branch_id: life for life in self.lives.values()}
        for event in events:
            life = lives[event.branch_id]
            match event:
                case Staged(p_end_of_turn=None):
                    assert not life.branch.reads_end
                case Staged():
                    logits = self.oracle.logits(tuple(life.branch.sequence.tokens))
                    expected = float(logits.softmax(-1)[list(self.end_ids)].sum())
                    assert event.p_end_of_turn == pytest.approx(expected, rel=1e-6)
                case TextDelta(text=text):
                    life.heard += text
                case Done(finish_reason=reason):
                    assert life.expected is not None
                    if reason == "cancelled":
                        assert life.expected.startswith(life.heard)
                    else:
                        assert reason in ("stop", "length")
                        assert life.heard == life.expected
                    life.expected = None

    def finish(self) -> None:
        n_steps = 0
        while self.engine.has_work():
            self.observe(self.engine.step())
            n_steps += 1
            assert n_steps < 3000, "expected the engine to come to rest"
        self.engine.check_integrity()
        assert all(life.expected is None for life in self.lives.values())
        for life in self.lives.values():
            life.branch.close()
        self.engine.check_integrity()
        self.engine.tree.evict(len(self.engine.tree))
        assert self.engine.pool.n_free == self.engine.pool.n_blocks


KINDS = ["step"] * 3 + ["stage"] * 2 + ["attempt", "commit", "commit", "cancel", "close", "evict"]
OPERATIONS = st.lists(
    st.tuples(st.sampled_from(KINDS), st.integers(0, 4), st.integers(0, 199), st.integers(0, 29)),
    min_size=5,
    max_size=60,
)
WorldOf = Callable[..., World]


@pytest.fixture(scope="module")
def oracle(tiny_model: Path) -> DenseOracle:
    return DenseOracle(tiny_model)


@settings(max_examples=N_EXAMPLES, derandomize=N_EXAMPLES <= 50)
@given(
    OPERATIONS,
    st.sampled_from([{}, {"share_steps": True, "step_tokens": 24}]),
    st.sampled_from(["none", "ngram", "model"]),
)
def test_any_life_of_branches_equals_the_dense_oracle(
    tiny_model: Path,
    shallow_model: Path,
    oracle: DenseOracle,
    operations: list[tuple[str, int, int, int]],
    changes: dict[str, Any],
    drafter: str,
) -> None:
    draft_dir = shallow_model if drafter == "model" else None
    is_ngram = drafter == "ngram"
    world = World(tiny_model, oracle, ngram_draft=is_ngram, draft_dir=draft_dir, **changes)
    for operation in operations:
        world.operate(*operation)
    world.finish()

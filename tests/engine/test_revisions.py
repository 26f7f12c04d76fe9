"""A transcript staged, revised and committed gives the tokens of the same words asked cold.

Few revisions by default; VOICELOOP_FUZZ_EXAMPLES=10000 gives the long run.
"""

import os
import random
from dataclasses import replace
from pathlib import Path

import pytest

from engine.engine import Engine
from engine.types import EngineConfig, Event, SamplingParams, Verified
from tests.stepping import drain

N_REVISIONS = int(os.environ.get("VOICELOOP_FUZZ_EXAMPLES", "120"))
WORDS = "i would like to book a table for four five eleven on friday evening please no wait".split()
SYSTEM = [{"role": "system", "content": "You are the front desk of a small hotel by the sea."}]
PARAMS = (
    SamplingParams(max_tokens=5),
    SamplingParams(max_tokens=4, temperature=0.9, top_p=0.9, seed=11, ignore_eos=True),
    SamplingParams(max_tokens=5, temperature=0.6, frequency_penalty=0.4, ignore_eos=True),
)


class Caller:
    """Hears one caller as a recognizer does: words appear, change, and vanish."""

    def __init__(self, chance: random.Random) -> None:
        self.chance, self.words = chance, list[str]()

    def revise(self) -> str:
        kind = self.chance.random()
        if kind < 0.6 or not self.words:
            self.words += self.chance.choices(WORDS, k=self.chance.randrange(1, 4))
        elif kind < 0.85:  # the last words were misheard
            n_wrong = self.chance.randrange(1, min(4, len(self.words) + 1))
            self.words[-n_wrong:] = self.chance.choices(WORDS, k=n_wrong)
        else:
            del self.words[self.chance.randrange(len(self.words)) :]
        return " ".join(self.words)


def run(engine: Engine) -> None:
    drain(engine)


@pytest.mark.parametrize("kv_format", ["plain", "int8"])
def test_revised_transcripts_answer_as_if_asked_at_once(tiny_model: Path, kv_format: str) -> None:
    config = EngineConfig(dtype="fp64", kv_tokens=1024, poison=True, kv_format=kv_format)
    warm, cold = (Engine.load(tiny_model, config) for _ in range(2))
    text, chance = warm.text, random.Random(kv_format)
    history = text.encode_chat(SYSTEM)
    n_revisions = n_turns = 0
    while n_revisions < N_REVISIONS // 2:
        n_turns += 1
        caller, params = Caller(chance), PARAMS[n_turns % len(PARAMS)]
        branch = warm.branch(f"b{n_turns}", history)
        attempt, said, whole = None, "", list[int]()
        for _ in range(chance.randrange(1, 9)):
            said = caller.revise()
            open_turn = text.encode_chat(SYSTEM, open_user=said)[len(history) :]
            messages = [*SYSTEM, {"role": "user", "content": said}]
            whole = text.encode_chat(messages, add_generation_prompt=True)[len(history) :]
            branch.stage(open_turn)
            n_revisions += 1
            for _ in range(chance.randrange(3)):
                warm.step()
            if chance.random() < 0.3 and whole[: len(open_turn)] == open_turn:
                attempt = branch.begin_preemptive(whole[len(open_turn) :], params)
                for _ in range(chance.randrange(5)):
                    warm.step()
        branch.commit(whole, params, attempt)
        run(warm)
        fresh = cold.branch(f"b{n_turns}")
        fresh.commit(history + whole, params)
        run(cold)
        assert branch.sequence.tokens == fresh.sequence.tokens, f"turn {n_turns}: {said}"
        branch.close()
        fresh.close()
        cold.tree.evict(len(cold.tree))


@pytest.mark.parametrize("params", PARAMS[:2], ids=["greedy", "seeded"])
@pytest.mark.parametrize("n_steps", [0, 3, 40])
def test_what_another_engine_drafts_is_verified_and_changes_no_token(
    tiny_model: Path, params: SamplingParams, n_steps: int
) -> None:
    params = replace(params, max_tokens=12, ignore_eos=True)
    engine = Engine.load(tiny_model, EngineConfig(dtype="fp64", kv_tokens=1024, poison=True))
    said = [*SYSTEM, {"role": "user", "content": "a table for four please"}]
    history = engine.text.encode_chat(SYSTEM)
    turn = engine.text.encode_chat(SYSTEM, open_user=said[1]["content"])[len(history) :]
    whole = engine.text.encode_chat(said, add_generation_prompt=True)[len(history) :]
    alone = engine.branch("alone", history)
    alone.commit(whole, params)
    run(engine)
    reply = alone.sequence.tokens[len(history) + len(whole) :]
    alone.close()
    wrong = (reply[5] + 1) % engine.vocab_size
    for name, draft, n_kept in (
        ("right", reply[:8], 8),
        ("right to its fifth", [*reply[:5], wrong, *reply[6:8]], 5),
        ("wrong", [(reply[0] + 1) % engine.vocab_size, 3], 0),
    ):
        branch = engine.branch(name, history)
        branch.stage(turn)
        run(engine)
        attempt = branch.begin_preemptive(whole[len(turn) :], params)
        for _ in range(n_steps):
            engine.step()
        branch.verify(attempt + 1, draft)  # of one that has not begun
        branch.verify(attempt, draft)
        n_before, events = engine.metrics().get("steps", 0), list[Event]()
        events += drain(engine)
        if n_steps < 40:  # whole by then
            n_passes = engine.metrics()["steps"] - n_before
            assert n_passes == 12 - min(n_steps, 12) - max(0, n_kept - n_steps)
        branch.commit(whole, params, attempt)
        run(engine)
        assert branch.sequence.tokens[len(history) + len(whole) :] == reply, name
        assert [e.n_kept for e in events if isinstance(e, Verified)] == [n_kept], name
        branch.close()
    engine.check_integrity()
    assert engine.metrics().get("discarded_tokens", 0) == 0

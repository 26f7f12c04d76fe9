"""Replies under grammars go on by themselves: their masks come while their step runs."""

import json
from pathlib import Path
from typing import Any

import pytest

from engine.branch import Branch
from engine.engine import Engine
from engine.types import Done, EngineConfig, SamplingParams, TextDelta
from tests.stepping import drain

pytest.importorskip("triton", reason="the GPU path needs triton")
pytest.importorskip("llguidance", reason="the optional package llguidance is not installed")

from engine.graphs.part import MAX_LATE  # noqa: E402

LONG_TEXT = json.dumps({"type": "string", "minLength": 900})
BOOKING = json.dumps(
    {
        "type": "object",
        "properties": {
            "day": {"enum": ["Friday", "Sunday"]},
            "people": {"type": "integer", "minimum": 1, "maximum": 12},
            "name": {"type": "string", "maxLength": 8},
        },
        "required": ["day", "people", "name"],
        "additionalProperties": False,
    }
)


def make_engine(tiny_model: Path, device: str = "reference", **changes: Any) -> Engine:
    settings = {
        "dtype": "fp32", "device": device, "kv_tokens": 8192, "max_branches": 40,
        "step_tokens": 128, "background_tokens": 64, "share_steps": True, "poison": True, **changes,
    }  # fmt: skip
    return Engine.load(tiny_model, EngineConfig(**settings))


def run(engine: Engine) -> tuple[dict[str, Done], list[float]]:
    done, logprobs = {}, list[float]()
    for event in drain(engine):
        if isinstance(event, Done):
            done[event.branch_id] = event
        elif isinstance(event, TextDelta):
            logprobs += [round(one.logprob, 3) for one in event.logprobs]
    return done, logprobs


def commit(engine: Engine, name: str, n_prompt: int, **params: Any) -> Branch:
    branch = engine.branch(name)
    branch.commit([5 + n_prompt % 40] * n_prompt, SamplingParams(**params))
    return branch


def test_a_reply_under_a_grammar_has_a_token_each_step_of_the_others(tiny_model: Path) -> None:
    """One pass a step, launched ahead, whatever stands in it."""
    engine = make_engine(tiny_model)
    runner: Any = engine.runner
    for i in range(16):
        commit(engine, f"reply{i}", 3 + i, max_tokens=40, ignore_eos=True, temperature=0.5)
    bound = commit(engine, "bound", 9, max_tokens=40, temperature=0.8, json_schema=LONG_TEXT)
    speaker, n_said = engine.branch("speaker"), 0
    while bound.reply is not None:
        speaker.stage([7, *range(20, 23 + n_said)])
        n_said += 1
        engine.step()
    n_steps = engine.metrics()["steps"]
    assert n_steps <= 44, "expected the prompt's step and one for each of 40 tokens"
    assert runner.n_launches <= n_steps + 1
    assert runner.n_ahead_used >= 0.9 * n_steps


@pytest.mark.parametrize("n_bound", [1, 3, MAX_LATE + 4])
def test_replies_under_grammars_are_those_of_the_cpu_path(tiny_model: Path, n_bound: int) -> None:
    """Forced tokens that the host feeds between them, penalties, log probabilities, free replies.

    More of them than a step can draw late take turns.
    """
    kinds: list[dict[str, Any]] = [
        {"temperature": 1.0},
        {"temperature": 0.7, "presence_penalty": 0.6, "frequency_penalty": 0.3},
        {"temperature": 1.2, "top_k": 20, "top_p": 0.9, "logprobs": 2},
        {},
    ]
    found = []
    for device in ("cpu", "reference"):
        engine = make_engine(tiny_model, device)
        branches = [
            commit(
                engine, f"b{i}", 1 + i, max_tokens=40 if n_bound < 4 else 12, seed=i,
                json_schema=BOOKING,
                **kinds[i % len(kinds)],
            )
            for i in range(n_bound)
        ]  # fmt: skip
        branches += [
            commit(engine, f"f{i}", 2 + i, max_tokens=25, ignore_eos=True, logprobs=1)
            for i in range(2)
        ]
        done, logprobs = run(engine)
        reasons = {name: one.finish_reason for name, one in done.items()}
        found.append(([b.sequence.tokens for b in branches], reasons, sorted(logprobs)))
        for branch in branches:
            branch.close()
        engine.check_integrity()
    assert found[1] == found[0]
    assert len(found[0][0]) == n_bound + 2


def test_one_that_is_taken_back_before_its_draw_leaves_others_alone(tiny_model: Path) -> None:
    said = []
    for cancelled_at in (None, 7):
        engine = make_engine(tiny_model)
        branches = [
            commit(
                engine, f"b{i}", 4 + i, max_tokens=30, seed=i, temperature=1.0,
                json_schema=LONG_TEXT,
            )
            for i in range(3)
        ]  # fmt: skip
        for n_steps in range(40):
            if n_steps == cancelled_at:
                branches[0].cancel()
                branches[0].commit([9, 8], SamplingParams(5, ignore_eos=True))
            engine.step()
        run(engine)
        said.append([branch.sequence.tokens for branch in branches[1:]])
        engine.check_integrity()
    assert said[0] == said[1] and len(said[0][0]) == 5 + 30


def test_a_grammar_that_gives_up_while_its_step_runs_ends_its_reply_alone(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine(tiny_model)
    bound = commit(engine, "bound", 4, max_tokens=30, temperature=1.0, json_schema=LONG_TEXT)
    other = commit(engine, "other", 3, max_tokens=20, ignore_eos=True)
    for _ in range(8):
        engine.step()
    assert bound.reply is not None and bound.reply.grammar is not None
    # No mask, and no token that may come: as a matcher answers that ran out of its bounds.
    monkeypatch.setattr(type(bound.reply.grammar), "masks", lambda self: [bytes(48)])
    matcher = bound.reply.grammar._matcher.deep_copy()
    matcher.consume_tokens([3, 3, 3, 3])
    bound.reply.grammar._matcher = matcher
    done, _ = run(engine)
    assert done["bound"].finish_reason == "error" and done["other"].finish_reason == "length"
    assert len(other.sequence.tokens) == 23

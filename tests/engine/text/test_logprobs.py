"""Log probabilities of a reply's tokens: true, complete, and silent unless asked for."""

import math
from collections.abc import Callable
from dataclasses import replace

import pytest

from engine.engine import Engine
from engine.types import InvalidRequest, SamplingParams, TextDelta, TokenLogprob

MakeEngine = Callable[..., Engine]

GREEDY = SamplingParams(max_tokens=12, ignore_eos=True, logprobs=3)
SEEDED = replace(GREEDY, temperature=1.5, seed=4, logprobs=2)


def reply(engine: Engine, params: SamplingParams, name: str = "b") -> list[TextDelta]:
    prompt = engine.text.encode_chat(
        [{"role": "user", "content": "Good morning"}], add_generation_prompt=True
    )
    engine.branch(name).commit(prompt, params)
    deltas: list[TextDelta] = []
    while engine.has_work():
        deltas += [event for event in engine.step() if isinstance(event, TextDelta)]
    return deltas


def logprobs_of(deltas: list[TextDelta]) -> list[TokenLogprob]:
    return [one for delta in deltas for one in delta.logprobs]


def test_each_token_has_one_and_a_greedy_choice_is_the_likeliest(make_engine: MakeEngine) -> None:
    found = logprobs_of(reply(make_engine(), GREEDY))
    assert len(found) == 12
    for one in found:
        assert len(one.top) == 3 and one.top[0] == (one.token, one.logprob)
        values = [value for _, value in one.top]
        assert values == sorted(values, reverse=True)
        assert sum(math.exp(value) for value in values) <= 1.0 + 1e-6


def test_they_are_the_models_own_whatever_is_sampled_or_drafted(make_engine: MakeEngine) -> None:
    plain = reply(make_engine(max_draft_tokens=0), SEEDED)
    drafted = reply(make_engine(ngram_draft=True, max_draft_tokens=4), SEEDED)
    assert "".join(d.text for d in plain) == "".join(d.text for d in drafted)
    pairs = zip(logprobs_of(plain), logprobs_of(drafted), strict=True)
    for one, other in pairs:
        assert one.token == other.token
        assert one.logprob == pytest.approx(other.logprob, abs=1e-3)


def test_nothing_is_told_unless_asked_for(make_engine: MakeEngine) -> None:
    assert not logprobs_of(reply(make_engine(), replace(GREEDY, logprobs=None)))
    with pytest.raises(InvalidRequest, match="0 to 20"):
        replace(GREEDY, logprobs=21)

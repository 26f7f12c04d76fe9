"""Replies under a JSON schema, drafted or not."""

import json
from collections.abc import Callable

import pytest

from engine.engine import Engine
from engine.types import Done, GrammarError, SamplingParams, TextDelta

pytest.importorskip("llguidance", reason="the optional package llguidance is not installed")

MakeEngine = Callable[..., Engine]

SCHEMA = json.dumps(
    {
        "type": "object",
        "properties": {
            "day": {"enum": ["Friday", "Sunday"]},
            "people": {"type": "integer", "minimum": 1, "maximum": 12},
        },
        "required": ["day", "people"],
        "additionalProperties": False,
    }
)


def answer(engine: Engine, params: SamplingParams) -> tuple[str, str]:
    branch = engine.branch("b")
    branch.commit([5, 6, 7], params)
    text, reason = "", ""
    while engine.has_work():
        for event in engine.step():
            if isinstance(event, TextDelta):
                text += event.text
            elif isinstance(event, Done):
                reason = event.finish_reason
    branch.close()
    return text, reason


@pytest.mark.parametrize("seed", range(4))
def test_a_reply_under_a_schema_is_valid_whoever_drafts(make_engine: MakeEngine, seed: int) -> None:
    params = SamplingParams(max_tokens=120, temperature=1.0, seed=seed, json_schema=SCHEMA)
    text, reason = answer(make_engine(), params)
    booking = json.loads(text)
    assert reason == "stop"
    assert booking["day"] in ("Friday", "Sunday") and 1 <= booking["people"] <= 12
    for drafter in ({"ngram_draft": True}, {"self_draft_layers": 1}):
        assert answer(make_engine(**drafter), params) == (text, reason)


@pytest.mark.parametrize("schema", ["{", '{"type": "no such type"}', '{"$ref": "#/nowhere"}'])
def test_a_schema_that_does_not_compile_is_refused_and_hurts_nobody(
    make_engine: MakeEngine, schema: str
) -> None:
    engine = make_engine()
    branch = engine.branch("b")
    with pytest.raises(GrammarError, match="expected a JSON schema"):
        branch.commit([5, 6], SamplingParams(json_schema=schema))
    branch.commit([5, 6], SamplingParams(max_tokens=2))
    assert engine.has_work()
    branch.close()
    engine.check_integrity()

"""Replies under a JSON schema, drafted or not."""

import json
from collections.abc import Callable

import pytest

from engine.engine import Engine
from engine.types import Done, GrammarError, InvalidRequest, SamplingParams, TextDelta, ToolCall

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


TOOLS = json.dumps(
    [
        {"name": "book_table", "parameters": json.loads(SCHEMA)},
        {"name": "hang_up", "parameters": {}},
    ]
)


@pytest.mark.parametrize("drafter", [{}, {"ngram_draft": True}, {"self_draft_layers": 1}])
def test_a_forced_reply_is_one_call_of_one_of_the_tools(
    make_engine: MakeEngine, drafter: dict[str, object]
) -> None:
    engine = make_engine(**drafter)
    params = SamplingParams(max_tokens=120, temperature=1.0, seed=3, forced_tools=TOOLS)
    engine.branch("b").commit([5, 6, 7], params)
    events = []
    while engine.has_work():
        events += engine.step()
    call, done = events
    assert isinstance(call, ToolCall) and isinstance(done, Done)
    if call.name == "book_table":
        assert set(json.loads(call.arguments_json)) == {"day", "people"}
    else:
        assert (call.name, call.arguments_json) == ("hang_up", "{}")
    assert done.finish_reason == "stop"


@pytest.mark.parametrize(
    ("tools", "sentence"),
    [
        ("[", "expected tools as JSON"),
        ("[]", "expected a list of tools"),
        ('[{"name": "a", "parameters": {"type": "nonsense"}}]', "parameters compile"),
    ],
)
def test_tools_that_cannot_be_forced_are_refused(
    make_engine: MakeEngine, tools: str, sentence: str
) -> None:
    branch = make_engine().branch("b")
    with pytest.raises(GrammarError, match=sentence):
        branch.commit([5, 6], SamplingParams(forced_tools=tools))


def test_a_checkpoint_without_a_call_notation_forces_no_tool(make_engine: MakeEngine) -> None:
    engine = make_engine()
    engine.notation = None
    with pytest.raises(GrammarError, match="knows tool calls"):
        engine.branch("b").commit([5, 6], SamplingParams(forced_tools=TOOLS))


def test_a_schema_and_forced_tools_exclude_each_other() -> None:
    with pytest.raises(InvalidRequest, match="json_schema"):
        SamplingParams(json_schema=SCHEMA, forced_tools=TOOLS)

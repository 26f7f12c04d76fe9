"""Replies under a JSON schema or a tool's, drafted or not."""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from torch import Tensor

import engine.text.grammar as grammar_module
from engine import reply as replies
from engine.engine import Engine
from engine.text.grammar import GrammarCompiler, OfferedCalls
from engine.text.text import Text
from engine.text.tool_calls import NOTATIONS
from engine.types import (
    Done,
    GrammarError,
    InvalidRequest,
    PreemptiveCall,
    PreemptiveDelta,
    SamplingParams,
    TextDelta,
    ToolCall,
)
from tests.stepping import drain

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


@pytest.fixture(autouse=True)
def refuse_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """However busy this machine is, a schema is waited for."""
    monkeypatch.setattr(grammar_module, "AT_ONCE_S", 20.0)


def answer(engine: Engine, params: SamplingParams) -> tuple[str, str]:
    branch = engine.branch("b")
    branch.commit([5, 6, 7], params)
    text, reason = "", ""
    for event in drain(engine):
        if isinstance(event, TextDelta):
            text += event.text
        elif isinstance(event, Done):
            reason = event.finish_reason
    branch.close()
    return text, reason


@pytest.mark.parametrize("seed", range(4))
def test_a_reply_under_a_schema_is_valid_whoever_drafts(
    make_engine: MakeEngine, shallow_model: Path, seed: int
) -> None:
    params = SamplingParams(max_tokens=120, temperature=1.0, seed=seed, json_schema=SCHEMA)
    text, reason = answer(make_engine(), params)
    booking = json.loads(text)
    assert reason == "stop"
    assert booking["day"] in ("Friday", "Sunday") and 1 <= booking["people"] <= 12
    for drafter in ({"ngram_draft": True}, {"draft_dir": shallow_model}):
        assert answer(make_engine(**drafter), params) == (text, reason)


def test_a_text_under_a_schema_holds_no_call_whatever_it_says(make_engine: MakeEngine) -> None:
    engine = make_engine()
    assert engine.notation is not None
    said = '"<tool_call>[[[</tool_call>"'
    params = SamplingParams(max_tokens=100, json_schema='{"type": "string"}')
    reply = engine.new_reply(1, params)
    assert "".join(map(str, reply.accept(engine.text.encode(said)))) == said


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


def test_a_schema_over_the_bounds_is_refused_without_being_quoted(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(grammar_module.LIMITS, "max_grammar_size", 5)
    with pytest.raises(GrammarError, match="expected a JSON schema that compiles") as refused:
        make_engine().branch("b").commit([5, 6], SamplingParams(json_schema=SCHEMA))
    assert "Friday" not in str(refused.value) and len(str(refused.value)) < 300


TOOLS = json.dumps(
    [
        {"name": "book_table", "parameters": json.loads(SCHEMA)},
        {"name": "hang_up", "parameters": {}},
    ]
)


@pytest.mark.parametrize("drafter", ["none", "ngram", "model"])
def test_a_forced_reply_is_one_call_of_one_of_the_tools(
    make_engine: MakeEngine, shallow_model: Path, drafter: str
) -> None:
    draft_dir = shallow_model if drafter == "model" else None
    engine = make_engine(ngram_draft=drafter == "ngram", draft_dir=draft_dir)
    params = SamplingParams(max_tokens=120, temperature=1.0, seed=3, forced_tools=TOOLS)
    engine.branch("b").commit([5, 6, 7], params)
    events = drain(engine)
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


Told = tuple[str, list[tuple[str, object]], Done]


def reply_of(engine: Engine, params: SamplingParams, prompt: tuple[int, ...] = (5, 6, 7)) -> Told:
    branch = engine.branch("b")
    branch.commit(list(prompt), params)
    found = told(engine)
    branch.close()
    return found


def told(engine: Engine) -> Told:
    """What a committed reply comes to: its text, its calls, its end."""
    text, calls, ends = "", list[tuple[str, object]](), list[Done]()
    for event in drain(engine):
        match event:
            case TextDelta():
                text += event.text
            case ToolCall():
                calls.append((event.name, json.loads(event.arguments_json)))
            case Done():
                ends.append(event)
    (done,) = ends
    return text, calls, done


def may_call(seed: int, **changes: object) -> SamplingParams:
    offered = {"max_tokens": 100, "temperature": 1.0, "seed": seed, "offered_tools": TOOLS}
    return SamplingParams(**{**offered, **changes})  # type: ignore[arg-type]


# With these seeds the tiny model opens a call, among other things.
@pytest.mark.parametrize("seed", [5, 15, 16])
def test_a_call_in_a_reply_that_may_speak_is_bound_whoever_drafts(
    make_engine: MakeEngine, shallow_model: Path, seed: int
) -> None:
    text, calls, done = reply_of(make_engine(), may_call(seed))
    ((name, arguments),) = calls
    assert done.error is None
    if name == "book_table":
        assert isinstance(arguments, dict)
        assert arguments["day"] in ("Friday", "Sunday") and 1 <= arguments["people"] <= 12
    else:
        assert (name, arguments) == ("hang_up", {})
    for drafter in ({"ngram_draft": True}, {"draft_dir": shallow_model}):
        found = reply_of(make_engine(**drafter), may_call(seed))
        assert found[:2] == (text, calls)
        assert found[2].finish_reason == done.finish_reason
    before, unbound, _ = reply_of(make_engine(), may_call(seed, offered_tools=None))
    assert not unbound and before != text
    n_before = next(i for i, (a, b) in enumerate(zip(before + "\0", text, strict=False)) if a != b)
    assert 0 < n_before < len(text)  # it speaks before the call, and is free again behind it


@pytest.mark.parametrize("seed", [31, 35, 54, 56])
@pytest.mark.parametrize("answered", [(8, 9, 10, 11), (8, 12, 10, 11)], ids=["same", "changed"])
def test_a_drafted_call_is_kept_or_verified_without_changing_the_reply(
    make_engine: MakeEngine, seed: int, answered: tuple[int, ...]
) -> None:
    engine, params = make_engine(), may_call(seed)
    *expected, plain = reply_of(make_engine(), params, answered)
    branch = engine.branch("b")
    branch.stage([8, 9])
    attempt = branch.begin_preemptive([10, 11], params)
    n_called = 0
    while engine.has_work():
        n_called += sum(isinstance(event, PreemptiveCall) for event in engine.step())
    branch.commit(list(answered), params, attempt=attempt)
    *found, done = told(engine)
    assert n_called == 1 and len(expected[1]) == 1
    assert (found, done.finish_reason) == (expected, plain.finish_reason)


def test_what_was_drafted_behind_the_mark_of_a_call_is_verified_too(
    make_engine: MakeEngine,
) -> None:
    engine, params = make_engine(), may_call(5)
    branch = engine.branch("b")
    branch.commit([5, 6, 7], params)
    told(engine)
    tokens = branch.sequence.tokens[3:]
    mark = tokens.index(engine.text.tokenizer.token_to_id("<tool_call>"))
    branch.close()
    other = engine.branch("other")
    reply = engine.new_reply(3, params)
    other.commit([5, 6, 7], params)
    assert other.reply is not None and reply.params == other.reply.params
    other.reply.proposals = tokens[: mark + 12]
    n_steps = 0
    while other.reply is not None and len(other.reply.tokens) < mark + 12:
        engine.step()
        n_steps += 1
    assert n_steps == 2  # up to the mark, and what follows it under its grammar
    told(engine)
    assert other.sequence.tokens[3:] == tokens


def test_tools_whose_parameters_do_not_compile_bind_the_name_alone(make_engine: MakeEngine) -> None:
    tools = '[{"name": "hang_up", "parameters": {"properties": {"a": {"type": "nonsense"}}}}]'
    assert takes(make_engine(), tools, '{"name": "hang_up", "arguments": {"any": 1}}')
    assert not takes(make_engine(), tools, '{"name": "book_table", "arguments": {}}')


def takes(engine: Engine, tools: str, call: str) -> bool:
    """Whether an opened call may be written so, in the tokenizer's own tokens, and then ends."""
    text = engine.text
    return _takes(GrammarCompiler(text, text.vocab_size), text, tools, call)


def _takes(compiler: GrammarCompiler, text: Text, tools: str, call: str) -> bool:
    hermes = NOTATIONS["<tool_call>"]
    offered = compiler.offered(SamplingParams(offered_tools=tools), hermes)
    assert isinstance(offered, OfferedCalls)
    grammar = offered.begin.grammar()
    assert grammar is not None
    try:
        for token in text.encode(call + hermes.close):
            assert not grammar.is_over
            grammar.advance(token)
    except GrammarError:
        return False
    return grammar.is_over


@pytest.mark.parametrize(
    "call",
    [
        '{"name": "book_table", "arguments": {"day": "Friday", "people": 4}}',
        '\n{"name": "book_table", "arguments": {"day": "Friday", "people": 4}}\n',
        '{"name":"book_table","arguments":{"day":"Friday","people":4}}',
        '{"name": "hang_up", "arguments": {}}',
    ],
)
def test_a_call_may_be_written_with_spaces_or_without(make_engine: MakeEngine, call: str) -> None:
    assert takes(make_engine(), TOOLS, call)


@pytest.mark.parametrize(
    "call",
    [
        '{"name": "book", "arguments": {}}',
        '{"name": "book_table", "arguments": {"day": "Friday"}}',
        '{"name": "book_table", "arguments": {"day": "Monday", "people": 4}}',
        '{"name": "hang_up", "arguments": {"a": 1}}',
        '{"name": "hang_up"}',
        '\n\n\n{"name": "hang_up", "arguments": {}}',
    ],
)
def test_no_other_call_may_be_written(make_engine: MakeEngine, call: str) -> None:
    assert not takes(make_engine(), TOOLS, call)


@pytest.fixture(scope="module")
def spaced() -> Text:
    """Of a tokenizer that writes a space before each word within JSON."""
    text = Text.read(Path(__file__).parents[3] / "engine" / "embedded" / "agent")
    call = '{"name": "book_table", "arguments": {"day": "Friday", "people": 4}}'
    spelled = "".join(text.tokenizer.decode([token]) for token in text.encode(call))
    assert '" arguments' in spelled and '" people' in spelled and '{"day' in spelled
    return text


ORDER = json.dumps(
    [
        {
            "name": "order",
            "parameters": {
                "type": "object",
                "properties": {
                    "note": {"type": "string"},
                    "size": {"type": "string", "enum": ["large", "small"]},
                    "to": {
                        "type": "object",
                        "properties": {"street": {"type": "string"}, "at": {"type": "string"}},
                        "required": ["street"],
                    },
                    "items": {"type": "array", "items": {"type": "string"}},
                },
                "required": ["items"],
            },
        }
    ]
)


@pytest.mark.parametrize("arguments", [
    '{"items": ["latte", "black tea"]}',
    '{"note": "no sugar", "items": ["latte"]}',
    '{"size": "small", "items": ["2 lattes"]}',  # the first of the names may be left out
    '{"note": "5 pm", "size": "large", "to": {"street": "high street", "at": "5 pm"}, "items": []}',
])  # fmt: skip
def test_arguments_may_be_written_with_a_space_before_each_word(
    spaced: Text, arguments: str
) -> None:
    compiler = GrammarCompiler(spaced, spaced.vocab_size)
    assert _takes(compiler, spaced, ORDER, f'{{"name": "order", "arguments": {arguments}}}')


@pytest.mark.parametrize("arguments", [
    '{"products": ["latte"]}',
    '{"items": "latte"}',
    '{"note": "no sugar"}',
    '{"size": "huge", "items": []}',
    '{"items": [], "to": {"at": "5 pm"}}',
    '{"items": [], "colour": "red"}',
    "{}",
])  # fmt: skip
def test_no_other_arguments_may_be_written_with_such_spaces(spaced: Text, arguments: str) -> None:
    compiler = GrammarCompiler(spaced, spaced.vocab_size)
    assert not _takes(compiler, spaced, ORDER, f'{{"name": "order", "arguments": {arguments}}}')
    nameless = f'{{"name": "orders", "arguments": {arguments}}}'
    assert not _takes(compiler, spaced, ORDER, nameless)


def test_a_space_that_the_decoder_would_leave_in_a_value_may_not_be_written(spaced: Text) -> None:
    """It takes one out behind `: "`, and none behind `:"`."""
    compiler, tokens = GrammarCompiler(spaced, spaced.vocab_size), list[int]()
    offered = compiler.offered(SamplingParams(offered_tools=ORDER), NOTATIONS["<tool_call>"])
    assert offered is not None and (grammar := offered.begin.grammar()) is not None
    for piece in ('{"name": "order", "arguments": {"size":', '" small"', ', "items": []}}'):
        tokens += spaced.tokenizer.encode(piece, add_special_tokens=False).ids
    assert '"size":" small"' in spaced.tokenizer.decode(tokens)
    with pytest.raises(GrammarError, match="expected a token the grammar allows"):
        for token in tokens:
            grammar.advance(token)


def test_a_word_as_long_as_may_be_has_room_for_its_space(spaced: Text) -> None:
    compiler = GrammarCompiler(spaced, spaced.vocab_size)
    schema = {"type": "object", "properties": {"code": {"type": "string", "maxLength": 4}}}
    tools = json.dumps([{"name": "check", "parameters": schema}])
    for code, is_taken in (("abcd", True), ("abcde", False)):
        call = f'{{"name": "check", "arguments": {{"code": "{code}"}}}}'
        assert _takes(compiler, spaced, tools, call) == is_taken


def _nested(depth: int) -> dict[str, object]:
    names = {f"n{i}": {"type": "string"} for i in range(8)}
    below = {"below": _nested(depth - 1)} if depth else {}
    return {"type": "object", "properties": {**names, **below}}


def test_a_schema_that_would_be_spelled_without_end_binds_the_name_alone(spaced: Text) -> None:
    """Nine to the power of its depth."""
    compiler = GrammarCompiler(spaced, spaced.vocab_size)
    tools = json.dumps([{"name": "check", "parameters": _nested(28)}])
    assert len(tools) < 64 * 1024
    assert _takes(compiler, spaced, tools, '{"name": "check", "arguments": {"any": 1}}')
    assert not _takes(compiler, spaced, tools, '{"name": "order", "arguments": {}}')
    with pytest.raises(GrammarError, match="at most 262144 characters as it is spelled"):
        compiler.of(SamplingParams(forced_tools=tools), NOTATIONS["<tool_call>"])
    flat = {"type": "object", "properties": {f"n{i}": {} for i in range(4000)}}
    assert _takes(
        compiler, spaced, json.dumps([{"name": "check", "parameters": flat}]),
        '{"name": "check", "arguments": {"any": 1}}',
    )  # fmt: skip


def begun_with(monkeypatch: pytest.MonkeyPatch, engine: Engine, begun: str) -> list[int]:
    """Have the next reply begin with this text; what is left of it to be said."""
    script, drawn = engine.text.encode(begun), replies.choose

    def choose(row: Tensor, params: SamplingParams, seed: int, n_said: int) -> int:
        return script.pop(0) if script else drawn(row, params, seed, n_said)

    monkeypatch.setattr(replies, "choose", choose)
    return script


@pytest.mark.parametrize("begun", ['{"name"', '{{"name"', '\n[{"function"', '```json\n{"name"'])
@pytest.mark.parametrize("is_ahead", [False, True], ids=["asked for", "made ahead"])
def test_a_reply_that_begins_as_a_call_in_text_is_written_anew_as_a_bound_call(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch, begun: str, is_ahead: bool
) -> None:
    engine = make_engine()
    script = begun_with(monkeypatch, engine, begun)
    # The penalty has the engine choose each token itself, where the script stands.
    params = may_call(3, presence_penalty=0.1)
    branch = engine.branch("b", [5])
    attempt = None
    if is_ahead:
        branch.stage([6])
        attempt = branch.begin_preemptive([7], params)
        while engine.has_work():
            assert not any(isinstance(event, PreemptiveDelta) for event in engine.step())
        assert not script
    branch.commit([6, 7], params, attempt)
    text, calls, done = told(engine)
    [(name, arguments)] = calls
    assert (text, done.error, script) == ("", None, [])
    assert name == "hang_up" or (arguments["day"] in ("Friday", "Sunday") and name == "book_table")
    engine.check_integrity()


def test_text_in_braces_is_no_call_and_is_told_whole(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine()
    begun_with(monkeypatch, engine, '{"answer": 4}')
    branch = engine.branch("b", [5])
    branch.commit([6, 7], may_call(3, presence_penalty=0.1, max_tokens=40))
    assert told(engine)[0].startswith('{"answer": 4}')


def test_a_call_cut_off_by_the_replys_limit_is_no_call_and_no_error(
    make_engine: MakeEngine,
) -> None:
    engine = make_engine()
    branch = engine.branch("b")
    branch.commit([5, 6, 7], may_call(5))
    text, calls, _ = told(engine)
    assert calls
    mark = engine.text.tokenizer.token_to_id("<tool_call>")
    n_before = branch.sequence.tokens[3:].index(mark)
    for n_more in (1, 2, 8):
        cut, none, done = reply_of(make_engine(), may_call(5, max_tokens=n_before + n_more))
        assert text.startswith(cut) and not none
        assert (done.finish_reason, done.error) == ("length", None)


def test_without_the_package_calls_are_not_bound_and_replies_go_on(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    unbound = reply_of(make_engine(), may_call(5, offered_tools=None))
    assert reply_of(make_engine(), may_call(5))[:2] == unbound[:2]

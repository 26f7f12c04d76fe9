"""A reply whose tools are still compiled waits for them; no other does, and it says the same."""

import threading
from collections.abc import Callable
from concurrent.futures import Future

import pytest
import torch
from torch import Tensor

import engine.text.grammar as grammar_module
from engine import reply as replies
from engine.branch import Branch
from engine.engine import Engine
from engine.text.grammar import ComingGrammar
from engine.types import Done, Event, SamplingParams, TextDelta, ToolCall
from tests.engine.text.test_grammar import SCHEMA, answer, may_call
from tests.stepping import drain

pytest.importorskip("llguidance", reason="the optional package llguidance is not installed")

MakeEngine = Callable[..., Engine]
HoldUp = Callable[[Engine], threading.Event]
Said = tuple[str, list[tuple[str, str]]]

SEED = 5  # with which the tiny model opens a call, among other things
PROMPT = [5, 6, 7]


@pytest.fixture
def hold_up(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> HoldUp:
    """Has an engine compile no tools and no schema before the event is set."""

    def hold(engine: Engine) -> threading.Event:
        gate = threading.Event()

        def later(compile: Callable[..., object]) -> Callable[..., object]:
            def compile_later(*given: object) -> object:
                assert gate.wait(20), "expected the steps to go on meanwhile"
                return compile(*given)

            return compile_later

        for name in ("_compile_offer", "_compile_schema"):
            monkeypatch.setattr(engine._grammars, name, later(getattr(engine._grammars, name)))
        request.addfinalizer(gate.set)
        return gate

    return hold


def begin_with(monkeypatch: pytest.MonkeyPatch, engine: Engine, begun: str) -> SamplingParams:
    """Parameters of a reply that begins with this text wherever it may."""
    script, drawn = engine.text.encode(begun), replies.choose

    def choose(row: Tensor, params: SamplingParams, seed: int, n_said: int) -> int:
        if seed == SEED and n_said < len(script) and row[script[n_said]] > -torch.inf:
            return script[n_said]
        return drawn(row, params, seed, n_said)

    monkeypatch.setattr(replies, "choose", choose)
    # The penalty has the engine choose each token itself, where the script stands.
    return may_call(SEED, presence_penalty=0.1) if begun else may_call(SEED)


def said(events: list[Event], branch: Branch) -> Said:
    """The text and the calls of a branch."""
    own = [event for event in events if event.branch_id == branch.branch_id]
    text = "".join(event.text for event in own if isinstance(event, TextDelta))
    return text, [(e.name, e.arguments_json) for e in own if isinstance(e, ToolCall)]


def finish(engine: Engine) -> list[Event]:
    events = list[Event]()
    events += drain(engine)
    return events


def answer_neighbour(engine: Engine) -> None:
    branch = engine.branch("neighbour")
    branch.commit([8, 9], SamplingParams(max_tokens=30, seed=SEED + 1))
    while branch.reply is not None:
        engine.step()


@pytest.mark.parametrize("begun", ["", '{"name"'], ids=["marked", "in text"])
def test_a_reply_waits_for_its_tools_and_no_other_reply_does(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch, hold_up: HoldUp, begun: str
) -> None:
    engine = make_engine()
    params = begin_with(monkeypatch, engine, begun)
    branch = engine.branch("b")
    branch.commit(PROMPT, params)
    expected = said(finish(engine), branch)
    assert len(expected[1]) == 1

    engine = make_engine()
    gate = hold_up(engine)
    branch = engine.branch("b")
    branch.commit(PROMPT, params)
    events = list[Event]()
    while branch.reply is not None and not branch.reply.awaits_grammar():
        events += engine.step()
    answer_neighbour(engine)
    assert branch.reply is not None and branch.reply.awaits_grammar()
    assert engine.has_work() and not engine.step()  # which takes no longer than a moment
    gate.set()
    assert said(events + finish(engine), branch) == expected
    engine.check_integrity()


@pytest.mark.parametrize("begun", ["", '{"name"'], ids=["marked", "in text"])
def test_a_reply_made_ahead_may_be_adopted_while_it_waits(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch, hold_up: HoldUp, begun: str
) -> None:
    engine = make_engine()
    params = begin_with(monkeypatch, engine, begun)
    branch = engine.branch("b")
    branch.commit(PROMPT, params)
    expected = said(finish(engine), branch)

    engine = make_engine()
    gate = hold_up(engine)
    branch = engine.branch("b")
    branch.stage(PROMPT[:-1])
    attempt = branch.begin_preemptive(PROMPT[-1:], params)
    assert branch.preemptive is not None
    while not branch.preemptive.reply.awaits_grammar():
        engine.step()
    answer_neighbour(engine)
    branch.commit(PROMPT, params, attempt)
    events = engine.step()
    gate.set()
    assert said(events + finish(engine), branch) == expected
    engine.check_integrity()


def test_a_call_in_text_that_cannot_be_bound_is_said_again_and_read_as_it_stands(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch, hold_up: HoldUp
) -> None:
    engine = make_engine()
    params = begin_with(monkeypatch, engine, '{"name": "hang_up", "arguments": {}}<|im_end|>')
    monkeypatch.setattr(engine._grammars, "_compile_offer", lambda *offer: None)
    gate = hold_up(engine)
    branch = engine.branch("b")
    branch.commit(PROMPT, params)
    while branch.reply is not None and not branch.reply.awaits_grammar():
        engine.step()
    gate.set()
    assert said(finish(engine), branch) == ("", [("hang_up", "{}")])


def test_a_compilation_that_breaks_binds_nothing_and_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    broken: Future[None] = Future()
    broken.set_exception(RecursionError("too deep"))
    coming = ComingGrammar(broken, lambda matcher, error: pytest.fail("there is none"))
    assert coming.is_here and coming.grammar() is None
    assert "could not be compiled" in caplog.text


def test_a_reply_waits_for_its_schema_and_no_other_reply_does(
    make_engine: MakeEngine, hold_up: HoldUp
) -> None:
    params = SamplingParams(max_tokens=120, temperature=1.0, seed=SEED, json_schema=SCHEMA)
    expected, _ = answer(make_engine(), params)
    engine = make_engine()
    gate = hold_up(engine)
    branch = engine.branch("b")
    branch.commit(PROMPT, params)
    answer_neighbour(engine)
    assert branch.reply is not None and branch.reply.awaits_grammar()
    gate.set()
    assert said(finish(engine), branch) == (expected, [])
    engine.check_integrity()


def test_a_schema_that_shows_late_that_it_does_not_compile_ends_its_own_reply(
    make_engine: MakeEngine, hold_up: HoldUp
) -> None:
    engine = make_engine()
    gate = hold_up(engine)
    branch = engine.branch("b")
    branch.commit(PROMPT, SamplingParams(json_schema='{"type": "no such type"}'))
    answer_neighbour(engine)
    gate.set()
    [done] = [event for event in finish(engine) if isinstance(event, Done)]
    assert done.finish_reason == "error" and "expected a JSON schema" in done.error
    branch.commit(PROMPT, SamplingParams(max_tokens=2))
    finish(engine)
    engine.check_integrity()


def test_masks_that_do_not_come_in_time_end_their_reply_and_no_other(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grammar_module, "MASKS_S", 0.05)
    engine, gate = make_engine(), threading.Event()
    branch = engine.branch("b")
    branch.commit(PROMPT, SamplingParams(max_tokens=40, seed=SEED, json_schema=SCHEMA))
    engine._grammars._worker.submit(gate.wait, 20)  # what the masks wait behind
    events = list[Event]()
    while branch.reply is not None:
        events += engine.step()
    [done] = [event for event in events if isinstance(event, Done)]
    assert done.finish_reason == "error" and "the masks of a step within" in done.error
    answer_neighbour(engine)
    gate.set()
    engine.check_integrity()

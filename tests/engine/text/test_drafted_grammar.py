"""Guesses at replies that a grammar binds: as exact as any, up to the grammar's last token."""

from collections.abc import Callable

import pytest

from engine.engine import Engine
from engine.types import SamplingParams
from tests.engine.test_speculative import Oracle, draft_always
from tests.engine.text.test_grammar import SCHEMA, TOOLS, Told, reply_of, told

pytest.importorskip("llguidance", reason="the optional package llguidance is not installed")

MakeEngine = Callable[..., Engine]


def reply_and_tokens(engine: Engine, params: SamplingParams) -> tuple[Told, list[int]]:
    branch = engine.branch("b")
    branch.commit([5, 6, 7], params)
    found = told(engine)
    tokens = branch.sequence.tokens[3:]
    branch.close()
    engine.check_integrity()
    return found, tokens


@pytest.mark.parametrize("n_most", [1, 2, 3, 7])
@pytest.mark.parametrize("seed", [3, 4])
@pytest.mark.parametrize("bound", [{"forced_tools": TOOLS}, {"json_schema": SCHEMA}])
def test_a_drafter_that_knows_the_whole_reply_changes_nothing_of_it(
    make_engine: MakeEngine, bound: dict[str, str], seed: int, n_most: int
) -> None:
    """Its guesses reach beyond the grammar's last token, where only the end may follow."""
    params = SamplingParams(max_tokens=120, temperature=1.0, seed=seed, **bound)  # type: ignore[arg-type]
    (text, calls, done), tokens = reply_and_tokens(make_engine(), params)
    engine = make_engine()
    draft_always(engine, n_most, [Oracle(tokens, [])])
    found, _ = reply_and_tokens(engine, params)
    assert found[:2] == (text, calls)
    assert (found[2].finish_reason, found[2].error) == (done.finish_reason, None)
    usage = found[2].usage
    # Of the end itself it is not told whether it stood, for nothing follows it.
    assert 0 < usage.guessed_tokens - 1 <= usage.confirmed_tokens


@pytest.mark.parametrize("bound", [{"forced_tools": TOOLS}, {"json_schema": SCHEMA}])
def test_what_a_grammar_forces_is_guessed_and_stands(
    make_engine: MakeEngine, bound: dict[str, str]
) -> None:
    """A random model spells bytes in its own way: the first guess of a run tells."""
    params = SamplingParams(max_tokens=120, temperature=1.0, seed=3, **bound)  # type: ignore[arg-type]
    (text, calls, plain), _ = reply_and_tokens(make_engine(max_draft_tokens=0), params)
    assert plain.usage.guessed_tokens == 0
    engine = make_engine()
    assert engine.speculation.names == ["grammars"]
    draft_always(engine, 7)
    (found_text, found_calls, done), _ = reply_and_tokens(engine, params)
    assert (found_text, found_calls, done.error) == (text, calls, None)
    assert 0 < done.usage.confirmed_tokens <= done.usage.guessed_tokens


def test_a_grammar_has_no_say_in_a_free_reply_and_costs_it_nothing(make_engine: MakeEngine) -> None:
    engine = make_engine()
    [(drafter, length)] = engine.speculation._drafters
    length.drafted = lambda *_: pytest.fail("nothing was guessed, and nothing spent")  # type: ignore[method-assign]
    _, done = reply_of(engine, SamplingParams(max_tokens=9, ignore_eos=True))[1:]
    assert done.usage.guessed_tokens == 0

"""Branches from the outside: staging, committing, replying ahead, sharing, ending."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from engine import model
from engine.branch import Branch
from engine.engine import Engine
from engine.reply import Reply
from engine.sequence import common_prefix
from engine.text.tool_calls import MalformedToolCall, ParsedCall
from engine.types import (
    BLOCK_TOKENS,
    Done,
    Event,
    InvalidRequest,
    OutOfMemory,
    PreemptiveDelta,
    PreemptiveDone,
    PromptTooLong,
    SamplingParams,
    Staged,
    TextDelta,
)
from tests.stepping import drain

MakeEngine = Callable[..., Engine]

SYSTEM = [{"role": "system", "content": "You are the front desk of a small hotel by the sea."}]
GREEDY = SamplingParams(max_tokens=12, ignore_eos=True)
SEEDED = SamplingParams(max_tokens=12, ignore_eos=True, temperature=0.9, top_p=0.95, seed=5)


def only(events: list[Event], kind: type) -> list:  # type: ignore[type-arg]
    return [event for event in events if isinstance(event, kind)]


def reply_of(events: list[Event]) -> str:
    return "".join(event.text for event in only(events, TextDelta))


class Turn:
    """The token pieces of one caller's turn on a fixed history."""

    def __init__(self, engine: Engine, said: str) -> None:
        text = engine.text
        self.history = text.encode_chat(SYSTEM)
        start = len(self.history)
        self.open = text.encode_chat(SYSTEM, open_user=said)[start:]
        messages = [*SYSTEM, {"role": "user", "content": said}]
        self.closed = text.encode_chat(messages, add_generation_prompt=True)[start:]
        self.tail = self.closed[len(self.open) :]

    def cold(self, make_engine: MakeEngine, params: SamplingParams, **changes: str) -> str:
        """The reply of a fresh engine that was given the whole prompt at once."""
        engine = make_engine(**changes)
        engine.branch("cold").commit(self.history + self.closed, params)
        return reply_of(drain(engine))


def test_a_revision_computes_only_what_changed(make_engine: MakeEngine) -> None:
    engine = make_engine()
    branch = engine.branch("b", Turn(engine, "").history)
    first, second = Turn(engine, "book a table for four"), Turn(engine, "book a table for five")
    branch.stage(first.open)
    staged = only(drain(engine), Staged)[-1]
    assert staged.n_resident == staged.n_prefilled == len(first.history) + len(first.open)
    branch.stage(second.open)
    n_common = next(
        i for i, (a, b) in enumerate(zip(first.open, second.open, strict=False)) if a != b
    )
    assert only(drain(engine), Staged)[-1].n_prefilled == len(second.open) - n_common


def test_where_another_model_reads_the_end_staged_words_take_no_logits_and_no_second_step(
    make_engine: MakeEngine,
) -> None:
    engine = make_engine()
    turn, asked = Turn(engine, "good morning"), list[int]()
    run = engine.runner.step

    def noted(extensions: Any, interrupted: Any = None) -> Any:
        asked.extend(one.n_logits for one in extensions)
        return run(extensions, interrupted)

    engine.runner.step = noted  # type: ignore[method-assign]
    branch = engine.branch("b", turn.history, reads_end=False)
    assert not only(drain(engine), Staged)  # nothing is yet
    n_all = len(turn.history) + len(turn.open)
    for n_prefilled in (n_all, 0):
        branch.stage(turn.open)
        assert only(drain(engine), Staged) == [Staged("b", n_all, n_prefilled, None)]
    assert asked and not any(asked) and engine.metrics()["steps"] == len(asked)
    branch.begin_preemptive(turn.tail, GREEDY)
    drain(engine)
    branch.commit(turn.closed, GREEDY)
    assert reply_of(drain(engine)) == turn.cold(make_engine, GREEDY)


def test_words_whose_end_is_read_are_told_of_with_it_though_the_reply_to_them_computed_them(
    make_engine: MakeEngine,
) -> None:
    engine = make_engine()
    turn, longer = Turn(engine, "good morning"), Turn(engine, "good morning to you")
    branch = engine.branch("b", turn.history)
    branch.stage(turn.open)
    drain(engine)
    branch.begin_preemptive(turn.tail, SamplingParams(max_tokens=9, ignore_eos=True))
    engine.step()
    for words in (turn, longer):  # staged again, and changed before that was computed
        branch.stage(words.open)
    (told,) = only(drain(engine), Staged)
    assert told.p_end_of_turn is not None


@pytest.mark.parametrize("share_steps", [False, True])
def test_words_whose_end_is_read_have_a_step_of_their_own_before_the_reply_to_them(
    make_engine: MakeEngine, share_steps: bool
) -> None:
    engine = make_engine(share_steps=share_steps)
    turn = Turn(engine, "good morning")
    branch = engine.branch("b", turn.history)
    drain(engine)
    branch.stage(turn.open)
    branch.begin_preemptive(turn.tail, GREEDY)
    (told,) = engine.step()
    assert isinstance(told, Staged) and told.p_end_of_turn is not None
    n_rows = engine.metrics()["rows"]
    engine.step()
    assert engine.metrics()["rows"] - n_rows == len(turn.tail)  # no word is computed twice


def test_of_a_prompt_that_ends_the_words_otherwise_no_more_is_kept_than_they_share(
    make_engine: MakeEngine,
) -> None:
    engine, again = make_engine(), make_engine()
    branch = engine.branch("b", reads_end=False)
    branch.stage([5, 6, 7])
    branch.begin_preemptive([9, 8], GREEDY, n_cut=1)  # a token that joins the last and the tail
    engine.step()
    branch.stage([5, 6, 7, 4])
    assert branch.sequence.n_resident == 2
    for one in (engine, again):
        drain(one)
    other = again.branch("b")
    for one in (branch, other):
        one.commit([5, 6, 7, 4, 8], GREEDY)
    assert reply_of(drain(engine)) == reply_of(drain(again))


def test_a_history_is_computed_for_others_too_before_a_reply_made_ahead_takes_words_along(
    make_engine: MakeEngine,
) -> None:
    engine = make_engine()
    turn = Turn(engine, "good morning")
    branch = engine.branch("b", turn.history, reads_end=False)
    branch.stage(turn.open)
    branch.begin_preemptive(turn.tail, GREEDY)
    engine.step()
    assert engine.metrics()["kv_blocks_shared"] == len(turn.history) // BLOCK_TOKENS > 0


def test_words_that_nobody_reads_are_computed_in_one_step_with_the_prompt_of_the_reply_to_them(
    make_engine: MakeEngine,
) -> None:
    engine = make_engine()
    turn, longer = Turn(engine, "good morning"), Turn(engine, "good morning to you")
    branch = engine.branch("b", turn.history, reads_end=False)
    drain(engine)
    branch.stage(turn.open)
    branch.begin_preemptive(turn.tail, GREEDY)
    events = engine.step()
    assert sum(event.n_tokens for event in only(events, PreemptiveDelta)) <= 1
    assert branch.preemptive is not None and len(branch.preemptive.reply.tokens) == 1
    branch.stage(longer.open)  # what was computed with the prompt stays
    n_common = common_prefix(turn.open, longer.open)
    told = only(drain(engine), Staged)
    n_before, n_after = (len(turn.history) + len(one.open) for one in (turn, longer))
    n_new = len(longer.open) - n_common
    assert [one.n_resident for one in told] == [n_before, n_after]
    assert [one.n_prefilled for one in told] == [n_before, n_new]
    attempt = branch.begin_preemptive(longer.tail, GREEDY)
    drain(engine)
    branch.commit(longer.closed, GREEDY, attempt)
    assert reply_of(drain(engine)) == longer.cold(make_engine, GREEDY)
    branch.close()  # the last one, at which all blocks are counted


@pytest.mark.parametrize("params", [GREEDY, SEEDED], ids=["greedy", "seeded"])
def test_a_reply_made_ahead_for_the_same_words_is_adopted_at_once(
    make_engine: MakeEngine, params: SamplingParams
) -> None:
    engine = make_engine()
    turn = Turn(engine, "good morning")
    branch = engine.branch("b", turn.history)
    branch.stage(turn.open)
    attempt = branch.begin_preemptive(turn.tail, params)
    events = drain(engine)
    ahead = "".join(event.text for event in only(events, PreemptiveDelta))
    assert only(events, PreemptiveDone)[-1].finish_reason == "length"
    branch.commit(turn.closed, params, attempt)
    events = engine.step()
    assert reply_of(events) == ahead == turn.cold(make_engine, params)
    done = only(events, Done)[-1]
    assert done.usage.adopted_tokens == done.usage.output_tokens == 12


@pytest.mark.parametrize("is_ahead", [False, True])
def test_a_call_that_breaks_off_ends_its_reply_by_name_and_is_never_adopted(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch, is_ahead: bool
) -> None:
    engine = make_engine()
    turn = Turn(engine, "good morning")
    branch = engine.branch("b", turn.history)
    branch.stage(turn.open)

    def breaks_off(self: Reply, tokens: Sequence[int]) -> list[str]:
        raise MalformedToolCall("expected a tool call as JSON")

    with monkeypatch.context() as broken:
        broken.setattr(Reply, "accept", breaks_off)
        attempt = branch.begin_preemptive(turn.tail, SEEDED) if is_ahead else None
        if not is_ahead:
            branch.commit(turn.closed, SEEDED)
        ends = [e for e in drain(engine) if isinstance(e, Done | PreemptiveDone)]
    assert [end.finish_reason for end in ends] == ["malformed_call"]
    if is_ahead:
        branch.commit(turn.closed, SEEDED, attempt)
        assert reply_of(drain(engine)) == turn.cold(make_engine, SEEDED)


@pytest.mark.parametrize("params", [GREEDY, SEEDED], ids=["greedy", "seeded"])
def test_a_reply_made_ahead_for_other_words_is_verified_not_trusted(
    make_engine: MakeEngine, params: SamplingParams
) -> None:
    engine = make_engine()
    guessed, said = Turn(engine, "good morning"), Turn(engine, "good evening, sir")
    branch = engine.branch("b", guessed.history)
    branch.stage(guessed.open)
    attempt = branch.begin_preemptive(guessed.tail, params)
    drain(engine)
    branch.stage(said.open)
    drain(engine)
    branch.commit(said.closed, params, attempt)
    events = drain(engine)
    assert reply_of(events) == said.cold(make_engine, params)
    usage = only(events, Done)[-1].usage
    assert usage.drafted_tokens == 11
    assert usage.accepted_tokens < 11


def test_a_reply_made_ahead_that_still_stands_costs_one_pass(make_engine: MakeEngine) -> None:
    """Salvage: prompt recomputed, all its tokens verified in the same step."""
    engine = make_engine()
    turn = Turn(engine, "good morning")
    branch = engine.branch("b", turn.history)
    branch.stage(turn.open)
    attempt = branch.begin_preemptive(turn.tail, SEEDED)
    drain(engine)
    assert branch.preemptive is not None
    branch.preemptive.prompt = []  # as if it had been made for other words
    branch.commit(turn.closed, SEEDED, attempt)
    events = engine.step()
    assert only(events, Done)[-1].usage.accepted_tokens == 11
    assert reply_of(events) == turn.cold(make_engine, SEEDED)


def test_history_after_a_reply_is_where_the_next_turn_starts(make_engine: MakeEngine) -> None:
    engine = make_engine()
    turn = Turn(engine, "good morning")
    branch = engine.branch("b", turn.history)
    branch.commit(turn.closed, GREEDY)
    drain(engine)
    whole = list(branch.sequence.tokens)
    branch.commit(turn.closed, GREEDY)
    second = reply_of(drain(engine))
    cold = make_engine()
    cold.branch("cold").commit(whole + turn.closed, GREEDY)
    assert reply_of(drain(cold)) == second


def test_a_second_call_finds_the_system_prompt_resident(make_engine: MakeEngine) -> None:
    engine = make_engine()
    history = Turn(engine, "").history
    engine.branch("first", history)
    drain(engine)
    engine.branch("second", history)
    assert engine.branch("second-salted", history, salt="tenant").sequence.n_resident == 0
    shared = engine._branches["second"].sequence.n_resident
    assert shared == len(history) // 16 * 16


def test_only_committed_words_are_shared(make_engine: MakeEngine) -> None:
    engine = make_engine()
    turn = Turn(engine, "a secret of more than sixteen tokens that was never committed")
    first = engine.branch("first", turn.history)
    first.stage(turn.open)
    drain(engine)
    first.close()
    second = engine.branch("second", turn.history)
    second.stage(turn.open)
    assert second.sequence.n_resident == len(turn.history) // 16 * 16


def test_stop_string_ends_the_reply_and_is_cut(make_engine: MakeEngine) -> None:
    engine = make_engine()
    turn = Turn(engine, "good morning")
    engine.branch("a", turn.history).commit(turn.closed, GREEDY)
    whole = reply_of(drain(engine))
    stop = whole[4:7]
    stopped = SamplingParams(max_tokens=12, ignore_eos=True, stop=(stop,))
    engine.branch("b", turn.history).commit(turn.closed, stopped)
    events = drain(engine)
    assert reply_of(events) == whole[: whole.index(stop)]
    assert only(events, Done)[-1].finish_reason == "stop"


def test_neighbours_do_not_change_a_reply(make_engine: MakeEngine) -> None:
    engine = make_engine()
    turns = [Turn(engine, f"table for {n} please") for n in ("two", "four", "eleven", "ten")]
    for i, turn in enumerate(turns):
        engine.branch(f"b{i}", turn.history).commit(turn.closed, SEEDED)
    events = drain(engine)
    for i, turn in enumerate(turns):
        mine = [event for event in events if event.branch_id == f"b{i}"]
        assert reply_of(mine) == turn.cold(make_engine, SEEDED)


def test_a_commit_overtakes_replies_made_ahead_and_staging(make_engine: MakeEngine) -> None:
    engine = make_engine()
    turn = Turn(engine, "good morning")
    for i in range(3):
        branch = engine.branch(f"ahead{i}", turn.history)
        branch.stage(turn.open)
        branch.begin_preemptive(turn.tail, GREEDY)
    for _ in range(3):
        engine.step()
    engine.branch("late", turn.history).commit(turn.closed, GREEDY)
    events = engine.step()
    assert [type(event) for event in events if event.branch_id != "late"] == []
    assert only(engine.step(), PreemptiveDelta) == []


def test_a_step_for_nobody_who_waits_gives_way_to_a_commit_and_is_made_up_for(
    make_engine: MakeEngine,
) -> None:
    engine = make_engine()
    turn = Turn(engine, "I would like to book a table")
    branch = engine.branch("b", turn.history)
    branch.stage(turn.open)
    drain(engine)
    branch.begin_preemptive(turn.tail, SEEDED)
    engine.step()
    n_polls_of_a_step = 5  # two in each of two layers, and one before the head
    for patience in range(n_polls_of_a_step):
        polls = iter([False] * (1 + patience) + [True])  # the first is for the drafters
        engine.step(lambda polls=polls: next(polls))
        assert engine.metrics()["abandoned_steps"] == patience + 1
        engine.check_integrity()
        engine.step()
    drain(engine)
    branch.commit(turn.closed, SEEDED, attempt=1)
    assert reply_of(drain(engine)) == turn.cold(make_engine, SEEDED)


def test_whoever_is_asked_for_the_way_is_told_whom_the_step_is_for(
    make_engine: MakeEngine,
) -> None:
    engine = make_engine()
    for name in ("a", "b"):
        engine.branch(name).stage([5, 6, 7])
    served: list[frozenset[str]] = []

    def interrupted() -> bool:
        served.append(engine.serving)
        return False

    engine.step(interrupted)
    assert set(served) == {frozenset({"a", "b"})} and not engine.serving
    engine._branches["a"].begin_preemptive([8], GREEDY)
    served.clear()
    engine.step(interrupted)
    engine.step(interrupted)
    # A drafter that is asked between two steps serves nobody yet.
    assert set(served) == {frozenset(), frozenset({"a"})}


def test_a_long_step_of_a_committed_reply_is_heard_of_and_gives_way_to_nobody(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, asked = make_engine(), []

    def interrupted() -> bool:
        asked.append(True)
        return True

    monkeypatch.setattr(model, "LONG_STEP_ROWS", 4)
    engine.branch("b").commit([5, 6, 7, 8, 9], GREEDY)
    engine.step(interrupted)
    assert len(asked) >= 2 and engine.metrics()["abandoned_steps"] == 0
    assert model.unheeded(interrupted, 3) is None  # a token's step is over before it is asked


def test_staged_words_give_way_too_and_a_committed_reply_never(make_engine: MakeEngine) -> None:
    engine = make_engine()
    branch = engine.branch("b")
    branch.stage([5, 6, 7])
    assert engine.metrics()["abandoned_steps"] == 0
    assert engine.step(lambda: True) == []
    branch.commit([5, 6, 7, 8], GREEDY)
    events: list[Event] = []
    while not only(events, Done):
        events += engine.step(lambda: True)
    assert engine.metrics()["steps"] == GREEDY.max_tokens
    assert engine.metrics()["abandoned_steps"] == 1


def test_of_two_steps_in_a_row_one_goes_through_however_often_it_is_interrupted(
    make_engine: MakeEngine,
) -> None:
    engine = make_engine()
    branch = engine.branch("b")
    branch.stage([5, 6, 7])
    branch.begin_preemptive([8], GREEDY)
    events: list[Event] = []
    for _ in range(2 * (1 + GREEDY.max_tokens)):
        events += engine.step(lambda: True)
    assert only(events, Staged) and only(events, PreemptiveDone)


def test_cancel_ends_the_reply_and_leaves_the_branch_usable(make_engine: MakeEngine) -> None:
    engine = make_engine()
    turn = Turn(engine, "good morning")
    branch = engine.branch("b", turn.history)
    branch.commit(turn.closed, GREEDY)
    engine.step()
    branch.cancel()
    assert [event.finish_reason for event in only(drain(engine), Done)] == ["cancelled"]
    branch.commit(turn.closed, GREEDY)
    assert only(drain(engine), Done)[-1].finish_reason == "length"


def close_new(engine: Engine, branch: Branch, turn: Turn) -> None:
    """Nothing asked yet."""


def close_staged(engine: Engine, branch: Branch, turn: Turn) -> None:
    branch.stage(turn.open)
    drain(engine)


def close_replying_ahead(engine: Engine, branch: Branch, turn: Turn) -> None:
    close_staged(engine, branch, turn)
    branch.begin_preemptive(turn.tail, GREEDY)
    engine.step()


def close_replying(engine: Engine, branch: Branch, turn: Turn) -> None:
    branch.commit(turn.closed, GREEDY)
    engine.step()


def close_cancelled(engine: Engine, branch: Branch, turn: Turn) -> None:
    close_replying(engine, branch, turn)
    branch.cancel()


@pytest.mark.parametrize(
    "bring_to_state",
    [close_new, close_staged, close_replying_ahead, close_replying, close_cancelled],
)
def test_close_in_any_state_is_silent_and_leaks_nothing(
    make_engine: MakeEngine, bring_to_state: Callable[[Engine, Branch, Turn], None]
) -> None:
    engine = make_engine()
    branch = engine.branch("b", Turn(engine, "").history)
    bring_to_state(engine, branch, Turn(engine, "good morning"))
    branch.close()
    branch.close()
    assert drain(engine) == []
    engine.check_integrity()
    assert engine.pool.n_free + len(engine.tree) == engine.pool.n_blocks


def test_requests_that_can_never_fit_are_refused_and_hurt_nobody(make_engine: MakeEngine) -> None:
    engine = make_engine(kv_tokens=128)
    turn = Turn(engine, "good morning")
    engine.branch("good", turn.history).commit(turn.closed, GREEDY)
    with pytest.raises(OutOfMemory, match="the KV pool"):
        engine.branch("hungry", turn.history).commit(turn.closed, SamplingParams(max_tokens=400))
    with pytest.raises(PromptTooLong, match="below 512 tokens, found 600"):
        make_engine().branch("long").stage([5] * 600)
    assert only(drain(engine), Done)[-1].finish_reason == "length"
    engine.check_integrity()


def test_commits_that_do_not_fit_together_take_turns(make_engine: MakeEngine) -> None:
    engine = make_engine(kv_tokens=112)
    turn = Turn(engine, "good morning")
    for i in range(3):
        engine.branch(f"b{i}").commit(turn.history + turn.closed, GREEDY)
    done = only(drain(engine), Done)
    assert [event.branch_id for event in done] == ["b0", "b1", "b2"]
    assert {event.finish_reason for event in done} == {"length"}
    engine.check_integrity()


def test_the_reply_ends_at_the_context_limit(make_engine: MakeEngine) -> None:
    engine = make_engine(context_length=64)
    branch = engine.branch("b")
    branch.commit([5] * 60, SamplingParams(max_tokens=50, ignore_eos=True))
    done = only(drain(engine), Done)[-1]
    assert (done.finish_reason, done.usage.output_tokens) == ("length", 4)


def test_a_branch_refuses_what_its_state_forbids(make_engine: MakeEngine) -> None:
    engine = make_engine()
    branch = engine.branch("b")
    with pytest.raises(InvalidRequest, match="new branch id"):
        engine.branch("b")
    with pytest.raises(InvalidRequest, match="at least one token"):
        branch.stage([])
    branch.commit([5, 6], GREEDY)
    with pytest.raises(InvalidRequest, match="has a reply under way"):
        branch.stage([5])
    branch.close()
    with pytest.raises(InvalidRequest, match="closed"):
        branch.commit([5], GREEDY)


@pytest.mark.parametrize("wrong", [[-1], [5, 10_000]])
def test_a_token_id_out_of_range_hurts_only_who_sent_it(
    make_engine: MakeEngine, wrong: list[int]
) -> None:
    engine = make_engine()
    engine.branch("good").commit([5, 6], GREEDY)
    bad = engine.branch("bad")
    for ask in (bad.stage, lambda tokens: bad.begin_preemptive(tokens, GREEDY)):
        with pytest.raises(InvalidRequest, match="expected token ids from 0 to"):
            ask(wrong)
    with pytest.raises(InvalidRequest, match="expected token ids"):
        bad.commit(wrong, GREEDY)
    with pytest.raises(InvalidRequest, match="expected token ids"):
        engine.branch("worse", wrong)
    with pytest.raises(PromptTooLong):
        engine.branch("long", [5] * 512)
    assert only(drain(engine), Done)[-1].finish_reason == "length"
    assert list(engine._branches) == ["good", "bad"]


@pytest.mark.parametrize("is_ahead", [False, True])
def test_an_error_nobody_foresaw_ends_one_reply_and_no_other(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch, is_ahead: bool
) -> None:
    engine = make_engine()
    good, bad = Turn(engine, "table for two please"), Turn(engine, "nested brackets please")
    hit = engine.branch("bad", bad.history)
    if is_ahead:
        hit.stage(bad.open)
        drain(engine)
        hit.begin_preemptive(bad.tail, GREEDY)
        assert hit.preemptive is not None
        broken = hit.preemptive.reply
    else:
        hit.commit(bad.closed, GREEDY)
        assert hit.reply is not None
        broken = hit.reply
    accept, n_accepted = Reply.accept, 0

    def fails_at_the_third(reply: Reply, tokens: list[int]) -> list[str | ParsedCall]:
        nonlocal n_accepted
        n_accepted += reply is broken
        if reply is broken and n_accepted == 3:
            raise RecursionError("maximum recursion depth exceeded")
        return accept(reply, tokens)

    monkeypatch.setattr(Reply, "accept", fails_at_the_third)
    engine.branch("good", good.history).commit(good.closed, GREEDY)
    events = drain(engine)
    ends = only([e for e in events if e.branch_id == "bad"], PreemptiveDone if is_ahead else Done)
    assert [end.finish_reason for end in ends] == ["error"]
    assert reply_of([e for e in events if e.branch_id == "good"]) == good.cold(make_engine, GREEDY)
    hit.commit(bad.closed if is_ahead else [5, 6], GREEDY)  # the branch is sound, and its KV too
    after = [e for e in drain(engine) if e.branch_id == "bad"]
    assert only(after, Done)[-1].finish_reason == "length"
    if is_ahead:
        assert reply_of(after) == bad.cold(make_engine, GREEDY)
    engine.check_integrity()


def test_usage_and_timings_tell_what_happened(make_engine: MakeEngine) -> None:
    engine = make_engine()
    turn = Turn(engine, "good morning")
    branch = engine.branch("b", turn.history)
    branch.stage(turn.open)
    drain(engine)
    branch.commit(turn.closed, GREEDY)
    done = only(drain(engine), Done)[-1]
    n_staged = len(turn.history) + len(turn.open)
    assert done.usage.prompt_tokens == n_staged + len(turn.tail)
    assert done.usage.cached_tokens == n_staged
    assert done.usage.prefilled_tokens == len(turn.tail)
    assert 0 <= done.timings.queue_ms <= done.timings.ttft_ms <= done.timings.total_ms
    assert len(done.timings.token_gaps_ms) == 11

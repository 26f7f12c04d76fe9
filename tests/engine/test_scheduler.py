"""Who is served when: fairness between prompts, replies made ahead, batch replies last."""

from collections.abc import Callable
from pathlib import Path

import pytest

from engine.branch import Branch
from engine.engine import Engine
from engine.prefix_tree import PUBLIC
from engine.scheduler import ROUND_WAIT_S, SMALLEST_CHUNK, share_out
from engine.step_cost import StepCost
from engine.types import (
    Done,
    EngineConfig,
    Event,
    InvalidRequest,
    PreemptiveDone,
    SamplingParams,
    Staged,
    TextDelta,
)
from tests.stepping import drain

MakeEngine = Callable[..., Engine]
GREEDY = SamplingParams(max_tokens=6, ignore_eos=True)


@pytest.mark.parametrize(
    ("pending", "n_rows", "expected"),
    [
        ([], 64, []),
        ([500], 64, [64]),
        ([500, 5], 64, [59, 5]),
        ([500, 40, 5], 64, [32, 27, 5]),
        ([5, 500, 6], 64, [5, 53, 6]),
        ([500, 500], 1, [1, 0]),
    ],
)
def test_the_oldest_prompt_moves_and_the_shortest_finish(
    pending: list[int], n_rows: int, expected: list[int]
) -> None:
    assert share_out(pending, n_rows) == expected


def test_a_short_turn_does_not_wait_for_a_long_prompt(make_engine: MakeEngine) -> None:
    engine = make_engine(step_tokens=32)
    engine.branch("long").commit([5] * 300, GREEDY)
    short = engine.branch("short")
    short.commit([6] * 10, GREEDY)
    engine.step()
    assert short.reply is not None and len(short.reply.tokens) == 1
    assert {event.finish_reason for event in drain(engine) if isinstance(event, Done)} == {"length"}


def test_a_preemptive_reply_at_its_bound_can_still_be_adopted(make_engine: MakeEngine) -> None:
    engine = make_engine(preemptive_tokens=3)
    branch = engine.branch("b")
    branch.stage([5, 6, 7])
    attempt = branch.begin_preemptive([8], GREEDY)
    drain(engine)
    branch.commit([5, 6, 7, 8], GREEDY, attempt)
    done = drain(engine)[-1]
    assert isinstance(done, Done)
    assert (done.usage.adopted_tokens, done.usage.output_tokens) == (3, 6)


def test_a_reply_made_ahead_may_write_the_last_staged_tokens_otherwise(
    make_engine: MakeEngine,
) -> None:
    words, prompt = list(range(5, 40)), [*range(5, 38), 50, 51, 52]
    plain = make_engine()
    plain.branch("b").commit(prompt, GREEDY)
    expected = [e.text for e in drain(plain) if isinstance(e, TextDelta)]

    engine = make_engine()
    branch = engine.branch("b")
    branch.stage(words)
    attempt = branch.begin_preemptive([50, 51, 52], GREEDY, n_cut=2)
    drain(engine)
    branch.stage(words)  # the same again: what was made stays
    assert branch.preemptive is not None and branch.preemptive.staged == words
    drain(engine)
    branch.commit(prompt, GREEDY, attempt)
    events = drain(engine)
    assert "".join(e.text for e in events if isinstance(e, TextDelta)) == "".join(expected)
    done = events[-1]
    assert isinstance(done, Done) and done.usage.adopted_tokens == 6
    branch.close()
    engine.check_integrity()


@pytest.mark.parametrize("n_cut", [-1, 4])
def test_no_more_is_cut_than_is_staged(make_engine: MakeEngine, n_cut: int) -> None:
    branch = make_engine().branch("b", [5, 6, 7])
    branch.stage([8, 9, 10])
    with pytest.raises(InvalidRequest, match="expected n_cut of 0 to 3"):
        branch.begin_preemptive([11], GREEDY, n_cut=n_cut)


def test_batch_replies_wait_until_nothing_else_is_due(make_engine: MakeEngine) -> None:
    engine = make_engine()
    batch = SamplingParams(max_tokens=6, ignore_eos=True, is_batch=True)
    engine.branch("batch").commit([5, 6, 7], batch)
    engine.branch("caller").commit([5, 6, 8], GREEDY)
    done = [event.branch_id for event in drain(engine) if isinstance(event, Done)]
    assert done == ["caller", "batch"]


def test_a_batch_reply_gives_its_memory_to_a_caller_and_ends_the_same(
    make_engine: MakeEngine,
) -> None:
    batch = SamplingParams(max_tokens=20, ignore_eos=True, is_batch=True)

    def said(events: list[Event]) -> str:
        mine = [e for e in events if isinstance(e, TextDelta) and e.branch_id == "batch"]
        return "".join(event.text for event in mine)

    alone = make_engine(kv_tokens=96)
    alone.branch("batch").commit([5] * 30, batch)
    expected = said(drain(alone))
    engine = make_engine(kv_tokens=96)
    engine.branch("batch").commit([5] * 30, batch)
    events = [event for _ in range(4) for event in engine.step()]
    engine.branch("caller").commit([6] * 30, GREEDY)
    events += drain(engine)
    done = [event.branch_id for event in events if isinstance(event, Done)]
    assert done == ["caller", "batch"]
    assert said(events) == expected
    engine.check_integrity()


def test_a_batch_reply_gives_up_memory_that_it_was_promised_and_has_not_used(
    make_engine: MakeEngine,
) -> None:
    engine = make_engine(kv_tokens=128)
    engine.branch("first").commit([6] * 10, GREEDY)
    batch = SamplingParams(max_tokens=20, ignore_eos=True, is_batch=True)
    engine.branch("batch").commit([5] * 60, batch)
    events = engine.step()
    engine.branch("second").commit([7] * 60, GREEDY)
    events += drain(engine)
    done = [event.branch_id for event in events if isinstance(event, Done)]
    assert done == ["first", "second", "batch"]


@pytest.mark.parametrize(("n_steps", "end"), [(3, "lost"), (20, "length")])
def test_what_was_made_ahead_still_begins_the_reply_though_its_memory_was_taken_for_a_caller(
    make_engine: MakeEngine, n_steps: int, end: str
) -> None:
    engine = make_engine(kv_tokens=96)
    branch = engine.branch("ahead")
    branch.stage([5] * 20)
    attempt = branch.begin_preemptive([8], GREEDY)
    events = [event for _ in range(n_steps) for event in engine.step()]
    assert branch.preemptive is not None
    n_made = len(branch.preemptive.reply.tokens)
    branch.preemptive.reply.tokens[0] = unlikely = branch.preemptive.reply.tokens[0] ^ 1
    engine.branch("caller").commit([6] * 70, GREEDY)
    events += drain(engine)
    assert [e.finish_reason for e in events if isinstance(e, PreemptiveDone)] == [end]
    assert branch.preemptive.sequence is not None and not branch.preemptive.sequence.table
    branch.preemptive.sequence.tokens[21] = unlikely  # computed anew it would be another
    branch.commit([5] * 20 + [8], GREEDY, attempt)
    (done,) = [event for event in drain(engine) if isinstance(event, Done)]
    assert branch.sequence.tokens[21] == unlikely
    assert (done.usage.adopted_tokens, done.usage.output_tokens) == (n_made, 6)
    engine.check_integrity()


def test_an_attempt_keeps_what_the_one_before_it_said_the_same_way(make_engine: MakeEngine) -> None:
    engine = make_engine()
    branch = engine.branch("ahead")
    branch.stage([5] * 20)
    branch.begin_preemptive([8], GREEDY)
    drain(engine)
    assert branch.preemptive is not None
    first = list(branch.preemptive.reply.tokens)
    attempt = branch.begin_preemptive([8], GREEDY)
    n_steps = 0
    while engine.has_work():
        engine.step()
        n_steps += 1
    assert branch.preemptive.reply.tokens == first and n_steps == 1  # verified, not written again
    n_made = engine.metrics()["speculated_tokens"]
    assert n_made == len(first) + 1  # the last was not proposed: a pass samples one more itself
    branch.commit([5] * 20 + [8], GREEDY, attempt)
    (done,) = [event for event in drain(engine) if isinstance(event, Done)]
    assert (done.usage.adopted_tokens, done.usage.discarded_tokens) == (len(first), 1)


def test_what_the_next_attempt_verifies_is_no_waste_and_counts_1(
    make_engine: MakeEngine,
) -> None:
    engine = make_engine()
    branch = engine.branch("ahead")
    branch.stage([5] * 20)
    for _ in range(4):
        attempt = branch.begin_preemptive([8], GREEDY)
        ended = [event for event in drain(engine) if isinstance(event, PreemptiveDone)]
        assert [(event.finish_reason, event.n_tokens) for event in ended[-1:]] == [("length", 6)]
    assert engine.metrics()["speculated_tokens"] == 9  # a pass samples one more itself
    branch.commit([5] * 20 + [8], GREEDY, attempt)
    (done,) = [event for event in drain(engine) if isinstance(event, Done)]
    assert (done.usage.adopted_tokens, done.usage.discarded_tokens) == (6, 3)
    assert engine.metrics()["discarded_tokens"] == 3


@pytest.mark.parametrize("end", ["cancel", "close", "no attempt named"])
def test_what_nobody_verifies_any_more_is_waste(make_engine: MakeEngine, end: str) -> None:
    engine = make_engine()
    branch = engine.branch("ahead")
    branch.stage([5] * 20)
    branch.begin_preemptive([8], GREEDY)
    drain(engine)
    attempt = branch.begin_preemptive([8], GREEDY)
    branch.commit([5] * 20 + [9], GREEDY, attempt if end in ("cancel", "close") else None)
    if end == "cancel":
        branch.cancel()
    elif end == "close":
        branch.close()
    events = drain(engine)
    done = [event for event in [*engine.outbox, *events] if isinstance(event, Done)]
    assert [event.usage.discarded_tokens for event in done] == ([] if end == "close" else [6])
    assert engine.metrics()["discarded_tokens"] == 6


@pytest.mark.parametrize("begins_again", [False, True])
def test_what_an_attempt_said_outlives_one_after_it_that_had_no_step(
    make_engine: MakeEngine, begins_again: bool
) -> None:
    engine = make_engine()
    branch = engine.branch("ahead")
    branch.stage([5] * 20)
    branch.begin_preemptive([8], GREEDY)
    drain(engine)
    attempt = branch.begin_preemptive([8], GREEDY)
    engine.step(lambda: True)  # given up: somebody commits
    if begins_again:
        attempt = branch.begin_preemptive([8], GREEDY)
    branch.commit([5] * 20 + [8], GREEDY, attempt)
    (done,) = [event for event in drain(engine) if isinstance(event, Done)]
    usage = done.usage
    n_kept = GREEDY.max_tokens - 1  # a pass samples one more itself
    assert (usage.drafted_tokens, usage.accepted_tokens) == (n_kept, n_kept)
    assert usage.discarded_tokens == 1
    engine.check_integrity()


def test_a_reply_made_ahead_whose_memory_was_taken_is_computed_again_within_the_time_of_a_step(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine()
    long = SamplingParams(max_tokens=20, ignore_eos=True)
    branch = engine.branch("ahead")
    branch.stage([5] * 300)
    attempt = branch.begin_preemptive([8], long)
    assert branch.preemptive is not None
    while len(branch.preemptive.reply.tokens) < 2:
        engine.step()
    engine.branch("caller").commit([6, 7], long)
    engine.step()
    branch.yield_preemptive()
    branch.sequence.release()
    branch.commit([5] * 300 + [8], long, attempt)
    # A row takes a tenth of a step's time: a chunk is the smallest.
    monkeypatch.setattr(engine.scheduler, "observe", lambda n_rows, elapsed_ms: None)
    engine.scheduler.cost = StepCost()
    engine.scheduler.cost.observe(100, 10 * engine.config.step_budget_ms)
    asked: list[tuple[str, int]] = []
    monkeypatch.setattr(
        engine.speculation,
        "propose",
        lambda branch_id, target, reply, n: asked.append((branch_id, n)) or [],
    )
    booked: list[int] = []
    monkeypatch.setattr(
        engine.speculation, "verified", lambda decoded, ms: booked.append(len(decoded))
    )
    engine.step()  # tells what was adopted
    rows, n_before = list[float](), engine.metrics()["rows"]
    while branch.sequence.n_pending > 1:
        engine.step()
        rows.append(engine.metrics()["rows"] - n_before)
        n_before = engine.metrics()["rows"]
    assert max(rows) == SMALLEST_CHUNK and len(rows) == 5
    assert set(asked) == {("caller", 1)} and set(booked) == {1}
    drain(engine)
    other = make_engine()
    alone = other.branch("alone")
    alone.commit([5] * 300 + [8], long)
    drain(other)
    assert branch.sequence.tokens == alone.sequence.tokens


def test_callers_words_are_staged_before_the_rest_of_the_operators_prefix(
    make_engine: MakeEngine,
) -> None:
    prefix = [7 + i * i % 90 for i in range(320)]
    engine = make_engine(background_tokens=32)
    engine.tree.public = prefix
    operators = engine.branch("operator", prefix, PUBLIC)
    operators.stage(prefix[-1:])
    for _ in range(5):
        engine.step()
    assert operators.sequence.n_resident == 160
    other = engine.branch("other")  # whose instructions are its own
    other.stage([5, 6, 7])
    sharing = engine.branch("sharing", prefix, "a tenant")
    assert sharing.sequence.n_resident == 160  # of both, nobody computes the first half again
    sharing.stage([8, 9])
    told = [event for event in engine.step() if isinstance(event, Staged)]
    assert [event.branch_id for event in told] == ["other"]
    told = [event for event in drain(engine) if isinstance(event, Staged)]
    assert [event.branch_id for event in told] == ["sharing", "operator"]
    assert engine.metrics()["staged_tokens"] < len(prefix) + 32


def rows_of_steps(engine: Engine, n_steps: int = 40) -> list[int]:
    """How many rows each of the next steps has."""
    rows, n_before = list[int](), int(engine.metrics().get("rows", 0))
    for _ in range(n_steps):
        engine.step()
        rows.append(int(engine.metrics()["rows"]) - n_before)
        n_before += rows[-1]
    return rows


def test_a_cold_prompt_is_cut_fine_only_beside_somebodys_reply(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a device where most of a step is the reading of the weights."""
    alone, beside = (
        make_engine(share_steps=True, step_tokens=256, kv_tokens=4096) for _ in range(2)
    )
    for engine in (alone, beside):
        engine.scheduler.cost = StepCost()
        engine.scheduler.cost.observe(64, 8.0)
        engine.scheduler.cost.observe(256, 14.0)  # 6 ms, and 1 for each 32 rows
        monkeypatch.setattr(engine.scheduler, "observe", lambda n_rows, elapsed_ms: None)
    beside.branch("reply").commit([6, 7], SamplingParams(max_tokens=60, ignore_eos=True))
    beside.step()
    for engine in (alone, beside):
        engine.branch("cold").commit([5 + i % 90 for i in range(400)], GREEDY)
    assert rows_of_steps(alone, 2) == [256, 144]
    assert rows_of_steps(beside, 4) == [128, 128, 128, 17 + 3]


def test_whatever_nobody_waits_for_shares_one_budget(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine(share_steps=True, background_tokens=64, kv_tokens=4096)
    engine.branch("reply").commit([6, 7], SamplingParams(max_tokens=60, ignore_eos=True))
    batch = SamplingParams(max_tokens=6, ignore_eos=True, is_batch=True)
    engine.branch("text").commit([8 + i % 80 for i in range(300)], batch)
    made_ahead = engine.branch("ahead")
    made_ahead.stage([5] * 20)
    while made_ahead.sequence.n_pending:
        engine.step()
    made_ahead.begin_preemptive([5 + i % 70 for i in range(60)], GREEDY)
    engine.branch("words").stage([7 + i % 60 for i in range(50)])
    assert max(rows_of_steps(engine)) <= 64
    assert not engine.has_work() or engine.metrics()["replies"] >= 1


def first_token_steps(engine: Engine, at_once: int, turns: list[int]) -> list[int]:
    """Steps to the first token of four tenants who ask now and then, beside one who asks always.

    at_once: how many replies that one has under way. turns: the steps in which the others ask.
    """
    begun: dict[str, int] = {}
    branches: dict[str, Branch] = {}
    waited: list[int] = []
    n_greedy = 0
    for step in range(max(turns) + 40):
        while sum(branch_id.startswith("greedy") for branch_id in begun) < at_once:
            name, n_greedy = f"greedy{n_greedy}", n_greedy + 1
            begun[name] = step
            branches[name] = engine.branch(name, salt="greedy", caller=name)
            branches[name].commit([7] * 60, GREEDY)
        for tenant in "abcd":
            if step in turns:
                name = f"{tenant}{step}"
                begun[name] = step
                branches[name] = engine.branch(name, salt=tenant)
                branches[name].commit([ord(tenant)] * 60, GREEDY)
        told = engine.step()
        for event in told:
            if isinstance(event, TextDelta) and event.branch_id in begun:
                if not event.branch_id.startswith("greedy"):
                    waited.append(step - begun.pop(event.branch_id) + 1)
            if isinstance(event, Done) and event.branch_id.startswith("greedy"):
                begun.pop(event.branch_id)
            if isinstance(event, Done):
                branches.pop(event.branch_id).close()
    return waited


def test_one_tenant_at_ten_times_its_share_does_not_make_the_others_wait(
    make_engine: MakeEngine,
) -> None:
    turns = list(range(5, 200, 20))

    def p95(at_once: int) -> int:
        engine = make_engine(step_tokens=64, kv_tokens=4096)
        waited = sorted(first_token_steps(engine, at_once, turns))
        assert len(waited) == 4 * len(turns)
        return waited[int(0.95 * len(waited))]

    assert p95(at_once=10) <= 1.15 * p95(at_once=1)


def test_one_caller_with_five_replies_is_served_beside_its_tenants_other_callers(
    make_engine: MakeEngine,
) -> None:
    engine = make_engine(step_tokens=32)
    for number in range(5):
        engine.branch(f"many{number}", salt="t", caller="many").commit([5 + number] * 60, GREEDY)
    late = engine.branch("one", salt="t", caller="one")
    late.commit([20] * 60, GREEDY)
    order = [event.branch_id for event in drain(engine) if isinstance(event, Done)]
    assert order.index("one") <= 1


def test_one_tenants_staged_words_do_not_make_another_tenants_wait(
    make_engine: MakeEngine,
) -> None:
    engine = make_engine(background_tokens=32, step_tokens=32)
    for number in range(5):
        branch = engine.branch(f"many{number}", salt="many", caller=f"caller{number}")
        branch.stage([5 + number] * 60)
    engine.branch("one", salt="one", caller="one").stage([20] * 60)
    order = [event.branch_id for event in drain(engine) if isinstance(event, Staged)]
    assert order.index("one") <= 1 and len(order) == 6


def test_a_tenants_second_reply_waits_for_memory_no_longer_than_its_round_is_worth(
    tiny_model: Path,
) -> None:
    now = [0.0]
    config = EngineConfig(dtype="fp64", kv_tokens=384)
    engine = Engine.load(tiny_model, config, clock=lambda: now[0])
    engine.branch("first", salt="t").commit([5] * 10, SamplingParams(200, ignore_eos=True))
    engine.branch("second", salt="t").commit([6] * 90, GREEDY)
    newcomers = 0
    ended: list[str] = []
    while "first" not in ended:
        while newcomers < 2 + len(ended):  # two of other tenants ask for the room at any time
            words = [7 + newcomers] * 90
            engine.branch(f"new{newcomers}", salt=f"n{newcomers}").commit(words, GREEDY)
            newcomers += 1
        ended += [event.branch_id for event in engine.step() if isinstance(event, Done)]
        now[0] += ROUND_WAIT_S / 10
    assert "second" in ended and ended.index("second") < 5

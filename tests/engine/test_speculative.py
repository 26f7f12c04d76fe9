"""Drafting changes the speed of a reply and nothing else."""

import json
import os
import random
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from engine.drafting.draft_length import DraftLength
from engine.drafting.drafters import Drafter, ModelDrafter, NgramDrafter
from engine.drafting.speculation import Speculation
from engine.engine import Engine
from engine.load.description import describe
from engine.reply import Reply
from engine.sequence import Sequence
from engine.types import CheckpointError, Done, EngineConfig, SamplingParams, Staged, TextDelta
from tests.engine.conftest import WriteCheckpoint
from tests.stepping import drain

MakeEngine = Callable[..., Engine]

SAMPLINGS = (
    {},
    {"temperature": 0.8, "seed": 4},
    {"temperature": 1.3, "top_k": 30, "top_p": 0.9},
    {"temperature": 0.6, "frequency_penalty": 0.4, "presence_penalty": 0.3},
    {"stop": ("e",)},
)


class Oracle(Drafter):
    """Knows the reply, and errs where told: any acceptance rate one wants."""

    name = "oracle"

    def __init__(self, reply: list[int], errors: Iterable[int]) -> None:
        self.reply, self.errors = reply, set(errors)

    def propose(self, branch_id: str, target: Sequence, reply: Reply, n_most: int) -> list[int]:
        start = len(reply.tokens)
        guesses = self.reply[start : start + n_most]
        return [7 if start + i in self.errors else token for i, token in enumerate(guesses)]


def answer(
    engine: Engine, prompt: list[int], params: SamplingParams, branch_id: str = "b"
) -> tuple[str, list[int], Done]:
    """Text, tokens and end of one reply."""
    branch = engine.branch(branch_id)
    branch.commit(prompt, params)
    text, done = "", None
    for event in drain(engine):
        if isinstance(event, TextDelta):
            text += event.text
        elif isinstance(event, Done):
            done = event
    assert done is not None
    tokens = branch.sequence.tokens[len(prompt) :]
    branch.close()
    return text, tokens, done


def draft_always(engine: Engine, n_most: int, drafters: Iterable[Drafter] = ()) -> None:
    """Draft this many tokens whatever it costs, with these drafters or the engine's own."""
    drafters = drafters or [drafter for drafter, _ in engine.speculation._drafters]
    engine.speculation = Speculation(drafters, n_most, engine.clock)
    for _, length in engine.speculation._drafters:
        length.choose = lambda *_: n_most  # type: ignore[method-assign]


@pytest.fixture(scope="module")
def engines(tiny_model: Path, shallow_model: Path) -> dict[str, Engine]:
    def make(**changes: object) -> Engine:
        settings = {"dtype": "fp64", "kv_tokens": 1024, "poison": True, **changes}
        engine = Engine.load(tiny_model, EngineConfig(**settings))  # type: ignore[arg-type]
        engine.notation = None
        return engine

    return {
        "off": make(),
        "oracle": make(),
        "ngram": make(ngram_draft=True),
        "model": make(draft_dir=tiny_model),
        "shallow": make(draft_dir=shallow_model),
    }


def test_any_drafter_gives_the_same_reply(engines: dict[str, Engine]) -> None:
    """Few cases by default; VOICELOOP_FUZZ_EXAMPLES gives the number of a long run."""
    chance = random.Random(1)
    for case in range(int(os.environ.get("VOICELOOP_FUZZ_EXAMPLES", "24"))):
        prompt = [chance.randrange(3, 60) for _ in range(chance.randrange(1, 40))]
        params = SamplingParams(
            max_tokens=chance.randrange(1, 14),
            ignore_eos=case % 3 > 0,
            **SAMPLINGS[case % len(SAMPLINGS)],  # type: ignore[arg-type]
        )
        expected = answer(engines["off"], prompt, params)
        errors = [i for i in range(14) if chance.random() < 0.4]
        oracle = [Oracle(expected[1], errors)]
        for name in ("oracle", "ngram", "model", "shallow"):
            draft_always(engines[name], 1 + case % 5, oracle if name == "oracle" else ())
            found = answer(engines[name], prompt, params)
            assert found[:2] == expected[:2], f"case {case}, drafter {name}"
            assert found[2].finish_reason == expected[2].finish_reason
    for engine in engines.values():
        engine.check_integrity()


def converse(
    engine: Engine, asked: list[tuple[list[int], SamplingParams, int | None]]
) -> list[tuple[list[int], Done]]:
    """Replies side by side, each cancelled before the step of that number (None: never)."""
    branches = [engine.branch(f"b{i}") for i in range(len(asked))]
    for branch, (prompt, params, _) in zip(branches, asked, strict=True):
        branch.commit(prompt, params)
    done, n_steps = dict[str, Done](), 0
    while len(done) < len(asked):
        for branch, (_, _, cancelled_at) in zip(branches, asked, strict=True):
            if n_steps == cancelled_at:
                branch.cancel()
        done |= {event.branch_id: event for event in engine.step() if isinstance(event, Done)}
        n_steps += 1
    found = [
        (branch.sequence.tokens[len(prompt) :], done[branch.branch_id])
        for branch, (prompt, _, _) in zip(branches, asked, strict=True)
    ]
    for branch in branches:
        branch.close()
    return found


def test_drafting_beside_others_and_cancels_changes_no_token(
    tiny_model: Path, shallow_model: Path
) -> None:
    """Every drafter, k from 1 to 5, batches of 1 to 5, some replies cancelled on the way."""
    chance = random.Random(2)
    n_cases = int(os.environ.get("VOICELOOP_FUZZ_EXAMPLES", "16"))
    shared = {"dtype": "fp64", "kv_tokens": 2048, "poison": True, "share_steps": True}
    engines = {
        name: Engine.load(tiny_model, EngineConfig(**{**shared, **changes}))  # type: ignore[arg-type]
        for name, changes in (
            ("off", {}),
            ("ngram", {"ngram_draft": True}),
            ("model", {"draft_dir": tiny_model}),
            ("shallow", {"draft_dir": shallow_model}),
        )
    }
    for engine in engines.values():
        engine.notation = None
    for case in range(n_cases):
        asked = []
        for i in range(1 + case % 5):
            prompt = [chance.randrange(3, 60) for _ in range(chance.randrange(1, 40))]
            params = SamplingParams(
                max_tokens=chance.randrange(1, 14),
                ignore_eos=True,
                **SAMPLINGS[(case + i) % len(SAMPLINGS)],  # type: ignore[arg-type]
            )
            asked.append((prompt, params, chance.choice([None, None, None, 2, 5])))
        whole = [(prompt, params, None) for prompt, params, _ in asked]
        expected = converse(engines["off"], whole)
        for name in ("ngram", "model", "shallow"):
            draft_always(engines[name], 1 + case % 5)
            for (tokens, done), (truth, _) in zip(
                converse(engines[name], asked), expected, strict=True
            ):
                what = f"case {case}, drafter {name}"
                if done.finish_reason == "cancelled":
                    assert tokens == truth[: len(tokens)], what
                else:
                    assert tokens == truth, what
    for engine in engines.values():
        engine.check_integrity()


def test_right_guesses_save_steps(make_engine: MakeEngine) -> None:
    engine = make_engine()
    params = SamplingParams(max_tokens=13, ignore_eos=True)
    _, tokens, _ = answer(engine, [5, 6, 7], params, "plain")
    draft_always(engine, 3, [Oracle(tokens, [])])
    _, _, done = answer(engine, [5, 6, 7], params, "drafted")
    assert len(done.timings.token_gaps_ms) == 3  # after the first token, 4 a step
    assert done.usage.accepted_tokens == done.usage.drafted_tokens == 9


def test_a_draft_model_of_its_own_weights_is_always_right(engines: dict[str, Engine]) -> None:
    engine = engines["model"]
    draft_always(engine, 4)
    params = SamplingParams(max_tokens=12, ignore_eos=True, temperature=0.9, seed=2)
    _, _, done = answer(engine, [5, 6, 7], params)
    assert 0 < done.usage.drafted_tokens == done.usage.accepted_tokens
    assert done.usage.guessed_tokens == done.usage.confirmed_tokens == done.usage.drafted_tokens


def test_ngrams_continue_what_was_said_before(tiny_model: Path, make_engine: MakeEngine) -> None:
    engine = make_engine()
    reply = engine.new_reply(9, SamplingParams())
    target = Sequence(engine.pool, engine.tree)
    target.tokens = [10, 11, 12, 13, 14, 99, 10, 11, 12]
    drafter = NgramDrafter()
    assert drafter.propose("b", target, reply, 3) == [13, 14, 99]
    target.tokens.append(50)
    assert drafter.propose("b", target, reply, 3) == []


def test_an_n_gram_is_found_at_whole_tokens_alone(make_engine: MakeEngine) -> None:
    """Bytes alike that begin inside another token are no match."""
    engine = make_engine()
    target = Sequence(engine.pool, engine.tree)
    target.tokens = [5 << 8, 6 << 8, 9 << 8, 40, 5, 6]
    reply = engine.new_reply(4, SamplingParams())
    assert NgramDrafter().propose("b", target, reply, 2) == []
    target.tokens = [5, 6, 77, 5 << 8, 6 << 8, 9 << 8, 40, 5, 6]
    reply = engine.new_reply(5, SamplingParams())
    assert NgramDrafter().propose("b", target, reply, 1) == [77]


def test_a_revised_prompt_is_looked_through_anew(make_engine: MakeEngine) -> None:
    engine = make_engine()
    target, drafter = Sequence(engine.pool, engine.tree), NgramDrafter()
    target.tokens = [10, 11, 12, 13, 10, 11]
    assert drafter.propose("b", target, engine.new_reply(6, SamplingParams()), 1) == [12]
    target.tokens = [10, 11, 99, 13, 14, 10, 11]
    assert drafter.propose("b", target, engine.new_reply(7, SamplingParams()), 1) == [99]
    drafter.forget("b", [])
    target.tokens = [20, 21, 22, 20, 21]
    assert drafter.propose("b", target, engine.new_reply(5, SamplingParams()), 1) == [22]


def test_the_last_of_several_places_is_continued_and_the_longest_first(
    make_engine: MakeEngine,
) -> None:
    engine = make_engine()
    target, reply = Sequence(engine.pool, engine.tree), engine.new_reply(9, SamplingParams())
    target.tokens = [1, 2, 3, 50, 9, 2, 3, 60, 1, 2, 3]
    assert NgramDrafter().propose("b", target, reply, 1) == [50]  # three tokens alike, not two
    target.tokens = [2, 3, 50, 9, 2, 3, 60, 8, 2, 3]
    assert NgramDrafter().propose("c", target, reply, 1) == [60]


def decode(
    length: DraftLength,
    n_tokens: int,
    accepted: float,
    per_row_ms: float = 0.5,
    draft_ms: float = 0.2,
    seed: int = 5,
) -> tuple[float, list[int]]:
    """A reply of so many tokens, whose plain steps take 2 ms: its time over theirs, and choices."""
    chance, choices, n_said, spent_ms = random.Random(seed), list[int](), 0, 0.0
    while n_said < n_tokens:
        k = length.choose(1)
        n_accepted = next((i for i in range(k) if chance.random() >= accepted), k)
        if k:
            length.drafted(1, k, draft_ms * k)
        length.verified(k, n_accepted)
        length.stepped(1, 1 + k, n_accepted, 2.0 + per_row_ms * k)
        choices.append(k)
        n_said += n_accepted + 1
        spent_ms += 2.0 + (per_row_ms + draft_ms) * k
    return spent_ms / (2.0 * n_said), choices


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("accepted", [0.0, 0.2, 0.5])
@pytest.mark.parametrize("draft_ms", [0.2, 1.0, 3.0, 30.0])
def test_no_drafter_costs_more_than_a_few_percent(
    accepted: float, draft_ms: float, seed: int
) -> None:
    """Whatever a draft costs or how it errs; beside the first try, of 150 steps at most."""
    length = DraftLength(range(1, 5))
    decode(length, 100, accepted, draft_ms=draft_ms, seed=seed)
    ratio, _ = decode(length, 8000, accepted, draft_ms=draft_ms, seed=seed)
    assert ratio <= 1.02


@pytest.mark.parametrize("draft_ms", [0.0, 0.6])
def test_a_drafter_that_always_errs_costs_little_in_its_first_replies_too(draft_ms: float) -> None:
    ratio, _ = decode(DraftLength(range(1, 9)), 400, 0.0, per_row_ms=0.25, draft_ms=draft_ms)
    assert ratio <= 1.015


def test_bad_luck_ends_no_try_that_pays() -> None:
    """Seven guesses of ten stand, each for half a step's time with its row: 0.88 is to be had."""
    ratios = [
        decode(DraftLength(range(1, 9)), 3000, 0.7, per_row_ms=0.25, draft_ms=0.7, seed=seed)[0]
        for seed in range(10)
    ]
    assert sum(ratios) / len(ratios) < 0.9


def test_a_good_drafter_is_used_from_the_first_reply_on() -> None:
    ratio, choices = decode(DraftLength(range(1, 5)), 60, 0.95, per_row_ms=0.1, draft_ms=0.1)
    assert ratio < 0.6 and choices.index(4) < 8
    _, choices = decode(DraftLength(range(1, 5)), 2000, 0.95, per_row_ms=0.1, draft_ms=0.1)
    assert choices.count(4) > 0.9 * len(choices)


def test_a_bad_drafter_is_off_within_a_few_steps_and_tried_again() -> None:
    _, choices = decode(DraftLength(range(1, 5)), 600, 0.1, per_row_ms=0.5)
    first = next(i for i, k in enumerate(choices) if k)
    assert 0 in choices[first : first + 8]
    assert 0 < sum(k > 0 for k in choices) < 0.1 * len(choices)
    assert any(choices[first + 64 :])


def test_a_drafter_that_lost_by_an_old_cost_gets_another_chance() -> None:
    length = DraftLength(range(1, 5))
    _, choices = decode(length, 300, 0.95, draft_ms=6.0)
    assert sum(k > 0 for k in choices) < 10
    decode(length, 1000, 0.95, per_row_ms=0.1, draft_ms=0.1)
    ratio, choices = decode(length, 600, 0.95, per_row_ms=0.1, draft_ms=0.1)
    assert ratio < 0.6 and choices.count(0) < 0.1 * len(choices)


def test_one_held_up_step_turns_no_drafter_off() -> None:
    length = DraftLength([4])
    decode(length, 100, 0.95, per_row_ms=0.1, draft_ms=0.1)
    length.stepped(1, 5, 4, 40.0)
    _, choices = decode(length, 100, 0.95, per_row_ms=0.1, draft_ms=0.1)
    assert choices.count(0) <= 1


def test_a_first_try_that_was_held_up_is_soon_followed_by_another() -> None:
    length = DraftLength([4])
    length.stepped(1, 1, 0, 2.0)
    length.verified(4, 0)
    length.stepped(1, 5, 0, 60.0)  # the machine did something else for 29 plain steps
    _, choices = decode(length, 200, 0.95, per_row_ms=0.1, draft_ms=0.1)
    assert 0 < choices.index(4) < 140


@pytest.mark.parametrize("read_ms", [0.1, 1.0, 8.0, 100.0])
def test_a_drafter_that_only_reads_prompts_costs_no_more_than_a_few_percent(read_ms: float) -> None:
    """Replies too short for it ever to catch up: it never guesses, so nothing is ever verified."""
    length, spent_ms = DraftLength(range(1, 5)), list[float]()
    for _ in range(8000):
        n_before = len(spent_ms)
        if length.choose(1):
            length.drafted(1, 0, read_ms)
            spent_ms.append(read_ms)
        length.stepped(1, 1, 0, 2.0)
        assert len(spent_ms) - n_before <= 1
    assert sum(spent_ms[1:]) <= 0.05 * 2.0 * 8000


def model_drafter(engine: Engine) -> ModelDrafter:
    [found] = [one for one, _ in engine.speculation._drafters if isinstance(one, ModelDrafter)]
    return found


def read_by_the_draft(engine: Engine, branch_id: str = "b") -> int:
    """Tokens of a branch that the engine's draft model has read."""
    sequence = model_drafter(engine)._sequences.get(branch_id)
    return sequence.n_resident if sequence is not None else 0


def test_a_draft_model_reads_what_is_staged_while_the_caller_speaks(
    make_engine: MakeEngine, tiny_model: Path
) -> None:
    engine = make_engine(draft_dir=tiny_model)
    branch, words = engine.branch("b"), [3 + i % 50 for i in range(100)]
    branch.stage(words)
    drain(engine)
    assert read_by_the_draft(engine) == len(words) - 1  # the last one's logits are the first guess
    params = SamplingParams(max_tokens=8, ignore_eos=True)
    branch.commit([*words, 4], params)
    engine.step()  # the first token of the reply
    assert branch.reply is not None
    drafter = model_drafter(engine)
    assert len(drafter.propose("b", branch.sequence, branch.reply, 3)) == 3, "nothing to catch up"
    drain(engine)
    branch.close()
    engine.check_integrity()


def test_a_draft_model_with_more_rows_of_vocabulary_than_the_target_is_refused(
    make_engine: MakeEngine, tiny_model: Path, write_checkpoint: WriteCheckpoint
) -> None:
    """It could guess an id that the target has no row for."""
    n_rows = json.loads((tiny_model / "config.json").read_text())["vocab_size"]
    with pytest.raises(CheckpointError, match=f"^draft_dir: .* found {n_rows + 8}"):
        make_engine(draft_dir=write_checkpoint(vocab_size=n_rows + 8))
    make_engine(write_checkpoint(vocab_size=n_rows + 8), draft_dir=tiny_model)


def test_a_branch_without_words_is_nothing_for_a_draft_model_to_read(
    make_engine: MakeEngine, tiny_model: Path
) -> None:
    """Two callers of an agent without instructions: one speaks before the other."""
    engine = make_engine(draft_dir=tiny_model)
    silent, branch = engine.branch("silent"), engine.branch("b")
    branch.stage([3 + i % 50 for i in range(20)])
    drain(engine)
    assert "silent" not in model_drafter(engine)._sequences
    empty = model_drafter(engine)._follow("none", Sequence(engine.pool, engine.tree))
    assert empty.n_resident == 0
    silent.stage([3 + i % 50 for i in range(40)])
    drain(engine)
    assert read_by_the_draft(engine, "silent") == 39
    silent.close()
    branch.close()
    engine.check_integrity()


def test_staged_words_wait_for_no_draft_model_and_no_commit_does(
    make_engine: MakeEngine, tiny_model: Path
) -> None:
    engine = make_engine(draft_dir=tiny_model)
    branch = engine.branch("b")
    branch.stage([3 + i % 50 for i in range(100)])
    told = engine.step()
    assert any(isinstance(event, Staged) for event in told), "before the draft model reads"
    assert read_by_the_draft(engine) == 0
    engine.step(lambda: True)
    assert read_by_the_draft(engine) == 0, "a commit waits"
    engine.step(lambda: False)
    assert 0 < read_by_the_draft(engine) <= 16
    branch.close()


def test_a_draft_model_that_stands_back_reads_nothing_ahead(
    make_engine: MakeEngine, tiny_model: Path
) -> None:
    engine = make_engine(draft_dir=tiny_model)
    for _, length in engine.speculation._drafters:
        length.stepped(1, 1, 0, 2.0)
        length.drafted(1, 1, 100.0)
        length.verified(1, 0)
        length.stepped(1, 2, 0, 2.5)
        assert not length.is_on
    branch = engine.branch("b")
    branch.stage([3 + i % 50 for i in range(100)])
    drain(engine)
    assert read_by_the_draft(engine) == 0
    branch.close()


def test_staged_words_that_were_never_answered_are_shared_with_nobody(
    make_engine: MakeEngine, tiny_model: Path
) -> None:
    engine = make_engine(draft_dir=tiny_model)
    branch, words = engine.branch("b"), [3 + i % 50 for i in range(100)]
    branch.stage(words)
    drain(engine)
    drafter = model_drafter(engine)
    branch.close()
    assert drafter.tree.match(words, "") == []
    assert drafter.pool.n_free == drafter.pool.n_blocks


class Sure:
    """Guesses every token, for nothing."""

    name = "sure"

    def propose(self, branch_id: str, target: Sequence, reply: Reply, n_most: int) -> list[int]:
        return [7] * n_most

    def stage(self, branch_id: str, target: Sequence) -> bool:
        return False

    def forget(self, branch_id: str, committed: list[int]) -> None:
        pass


class Broken(Sure):
    name = "broken"

    def propose(self, branch_id: str, target: Sequence, reply: Reply, n_most: int) -> list[int]:
        raise IndexError

    def stage(self, branch_id: str, target: Sequence) -> bool:
        raise IndexError


def test_a_drafter_that_fails_at_a_reply_is_dropped_and_the_next_one_guesses(
    make_engine: MakeEngine, caplog: pytest.LogCaptureFixture
) -> None:
    engine = make_engine()
    params = SamplingParams(max_tokens=13, ignore_eos=True)
    _, expected, _ = answer(engine, [5, 6, 7], params)
    draft_always(engine, 3, [Broken(), Oracle(expected, [])])
    _, tokens, done = answer(engine, [5, 6, 7], params)
    assert tokens == expected and done.usage.confirmed_tokens == 9
    assert engine.speculation.names == ["oracle"]
    answer(engine, [5, 6, 7], params)
    assert [one.message for one in caplog.records if "broken" in one.message] == [
        "broken failed, and drafts no more until the next start"
    ]


def test_a_drafter_that_fails_at_staged_words_is_dropped_and_no_step_fails(
    make_engine: MakeEngine, tiny_model: Path
) -> None:
    engine = make_engine(draft_dir=tiny_model)
    draft_always(engine, 3, [Broken(), model_drafter(engine)])
    branch = engine.branch("b")
    branch.stage([3 + i % 50 for i in range(20)])
    drain(engine)
    assert engine.speculation.names == ["a draft model"]
    assert read_by_the_draft(engine) == 19
    branch.close()
    engine.check_integrity()


@pytest.mark.parametrize("n_drafters", [1, 2])
def test_drafters_that_looked_good_beside_slow_first_steps_are_found_out(
    make_engine: MakeEngine, n_drafters: int
) -> None:
    """While the machine warms up a plain step takes 6 ms, then 2; a drafted one always takes 4."""
    engine = make_engine()
    speculation = Speculation([Sure() for _ in range(n_drafters)], 1, lambda: 0.0)
    reply = engine.new_reply(1, SamplingParams(max_tokens=400))
    target, n_drafted_steps = Sequence(engine.pool, engine.tree), 0
    for step in range(1000):
        k = len(speculation.propose("b", target, reply, 1))
        speculation.verified([(reply, k, k * (step % 2))], 4.0 if k else 6.0 if step < 20 else 2.0)
        n_drafted_steps += k
    assert 0 < n_drafted_steps < 200


@pytest.mark.parametrize("n_drafters", [1, 2])
@pytest.mark.parametrize("company_every", [1000, 2])
def test_all_drafters_stand_back_until_a_plain_step_was_measured(
    make_engine: MakeEngine, n_drafters: int, company_every: int
) -> None:
    engine = make_engine()
    speculation = Speculation([Sure() for _ in range(n_drafters)], 1, lambda: 0.0)
    reply = engine.new_reply(1, SamplingParams(max_tokens=400))
    target, timed, n_plain = Sequence(engine.pool, engine.tree), list[int](), 0
    for step in range(800):
        k = len(speculation.propose("b", target, reply, 1))
        has_company = step % company_every == 1
        speculation.verified([(reply, k, k)], None if has_company else 2.0)
        n_plain += step >= 20 and k == 0
        if step >= 20 and not has_company:
            timed.append(k)
    plain = [i for i, k in enumerate(timed) if k == 0]
    assert len(plain) > 9 and {b - a for a, b in zip(plain, plain[1:], strict=False)} == {33}
    assert n_plain <= 2 * len(plain)  # in company none is paid for but what comes before such a one


@pytest.mark.parametrize("has_company", [False, True])
def test_in_a_batch_what_a_step_costs_and_gains_counts_once(has_company: bool) -> None:
    """8 replies: a drafted step takes three plain ones and gives each reply 1.5 tokens."""
    length, n_replies, n_drafted_steps = DraftLength([4]), 8, 0
    for step in range(1000):
        k = length.choose(n_replies)
        n_drafted_steps += k > 0
        hits = [(step + i) % 2 if k else 0 for i in range(n_replies)]
        for n_accepted in hits:
            length.verified(k, n_accepted)
        is_timed = not has_company or step < 20
        elapsed_ms = 2.0 if not k else 6.0
        length.stepped(
            n_replies, n_replies * (1 + k), sum(hits) / n_replies, elapsed_ms if is_timed else None
        )
    assert 0 < n_drafted_steps < 20


def test_a_batch_is_drafted_for_once_its_own_plain_step_was_measured() -> None:
    length = DraftLength([4])
    for _ in range(10):
        length.stepped(1, 1, 0, 2.0)
    assert length.choose(1) == 4
    assert length.choose(2) == 0
    length.stepped(2, 2, 0, 2.2)
    assert length.choose(2) == 4


def test_nobody_drafts_for_a_reply_that_nobody_waits_for(make_engine: MakeEngine) -> None:
    engine = make_engine()
    params = SamplingParams(max_tokens=9, ignore_eos=True, is_batch=True)
    _, tokens, _ = answer(engine, [5, 6, 7], params, "plain")
    draft_always(engine, 3, [Oracle(tokens, [])])
    _, _, done = answer(engine, [5, 6, 7], params, "drafted")
    assert done.usage.drafted_tokens == 0


def made_ahead(engine: Engine, words: list[int], tail: list[int], params: SamplingParams) -> int:
    """A reply made ahead to these words; its number."""
    branch = engine.branch("b")
    branch.stage(words)
    attempt = branch.begin_preemptive(tail, params)
    drain(engine)
    return attempt


@pytest.mark.parametrize(("opening", "n_kept"), [([0, 1, 2, 3], 4), ([0, 1, 9, 3], 2), ([9], 0)])
def test_the_step_of_a_prompt_verifies_how_its_reply_made_ahead_begins(
    make_engine: MakeEngine, opening: list[int], n_kept: int
) -> None:
    params = SamplingParams(max_tokens=13, ignore_eos=True)
    _, expected, _ = answer(make_engine(), [5, 6, 7], params)
    engine, oracle = make_engine(), Oracle(expected, range(13))
    oracle.opening = lambda prompt: [[*expected[:4], *[8] * 9][i] for i in opening]  # type: ignore[method-assign]
    draft_always(engine, 3, [oracle])
    branch = engine.branch("b", reads_end=False)
    branch.stage([5, 6])
    attempt = branch.begin_preemptive([7], params)
    engine.step()
    ahead = branch.preemptive
    assert ahead is not None and ahead.reply.tokens == expected[: n_kept + 1]
    drain(engine)
    assert engine.metrics()["speculated_tokens"] == 13
    branch.commit([5, 6, 7], params, attempt)
    n_steps = engine.metrics()["steps"]
    assert any(isinstance(event, TextDelta) for event in engine.step())
    assert engine.metrics()["steps"] == n_steps  # what is adopted is told before the next one
    drain(engine)
    assert branch.sequence.tokens[3:] == expected


def test_a_guess_that_no_step_verified_is_not_taken_for_what_was_made_ahead(
    make_engine: MakeEngine,
) -> None:
    engine, oracle = make_engine(), Oracle([5], range(13))
    oracle.opening = lambda prompt: [8, 8]  # type: ignore[method-assign]
    draft_always(engine, 3, [oracle])
    branch = engine.branch("b", reads_end=False)
    branch.stage([5, 6])
    branch.begin_preemptive([7], SamplingParams(max_tokens=9))
    engine.step(lambda: True)
    assert engine.metrics()["abandoned_steps"] == 1
    assert branch.preemptive is not None and branch.preemptive.reply.proposals == []


def test_a_reply_is_taken_to_begin_as_the_agents_last_turn(make_engine: MakeEngine) -> None:
    tail = [1, 2, 3, 4]
    said = [5, *tail, 20, 21, 22, 23, 24, 6, 7, *tail]
    assert NgramDrafter().opening(said) == [20, 21, 22, 23]
    assert NgramDrafter().opening(said[1 + len(tail) :]) == []
    engine = make_engine()
    draft_always(engine, 3, [NgramDrafter()])
    for of_last_attempt, max_tokens, expected in (([], 9, 4), ([], 3, 2), ([8], 9, 1)):
        reply = engine.new_reply(len(said), SamplingParams(max_tokens=max_tokens))
        reply.proposals = of_last_attempt  # goes before any guess
        engine.speculation.guess_opening(reply, said)
        assert len(reply.proposals) == expected


@pytest.mark.parametrize("errors", [[], [2, 7]])
@pytest.mark.parametrize("answered", [[5, 6, 7], [5, 8, 7]], ids=["same", "changed"])
def test_a_reply_made_ahead_is_drafted_for_and_counted_once(
    make_engine: MakeEngine, answered: list[int], errors: list[int]
) -> None:
    params = SamplingParams(max_tokens=13, ignore_eos=True)
    _, expected, _ = answer(make_engine(), answered, params)
    engine = make_engine()
    _, ahead, _ = answer(engine, [5, 6, 7], params)
    draft_always(engine, 3, [Oracle(ahead, errors)])
    n_steps = engine.metrics()["steps"]
    attempt = made_ahead(engine, [5, 6], [7], params)
    n_plain = 13 + 1  # a token a step, and the words staged
    assert engine.metrics()["steps"] - n_steps <= n_plain - 13 // 2
    assert engine.metrics()["speculated_tokens"] == 13
    branch, done = engine._branches["b"], None
    branch.commit(answered, params, attempt)
    while engine.has_work():
        done = next((e for e in engine.step() if isinstance(e, Done)), done)
    assert branch.sequence.tokens[3:] == expected and done is not None
    usage = done.usage
    if answered == [5, 6, 7]:
        assert usage.adopted_tokens == 13
        assert 0 < usage.confirmed_tokens <= usage.guessed_tokens
        assert usage.confirmed_tokens <= usage.accepted_tokens <= usage.drafted_tokens
        assert usage.guessed_tokens <= usage.drafted_tokens
    assert 0 <= usage.discarded_tokens <= 13
    branch.close()
    engine.check_integrity()


def test_guesses_at_a_reply_made_ahead_are_not_taken_for_its_words(
    make_engine: MakeEngine,
) -> None:
    """A commit between a guess and its step verifies what was said, and no guess."""
    engine = make_engine()
    params = SamplingParams(max_tokens=13, ignore_eos=True)
    draft_always(engine, 3, [Oracle([9] * 13, [])])
    branch = engine.branch("b")
    branch.stage([5, 6])
    branch.begin_preemptive([7], params)
    ahead = branch.preemptive
    assert ahead is not None
    while not ahead.reply.tokens:
        engine.step()
    waits = iter([False])  # no commit waits for the drafter, but one does for the step
    engine.step(lambda: next(waits, True))
    assert engine.metrics()["abandoned_steps"] == 1
    assert ahead.reply.proposals == []


def test_no_drafter_works_for_a_reply_made_ahead_while_a_commit_waits(
    make_engine: MakeEngine,
) -> None:
    engine = make_engine()
    oracle = Oracle([9] * 13, [])
    draft_always(engine, 3, [oracle])
    branch = engine.branch("b")
    branch.stage([5, 6])
    branch.begin_preemptive([7], SamplingParams(max_tokens=13, ignore_eos=True))
    ahead = branch.preemptive
    assert ahead is not None
    while not ahead.reply.tokens:
        engine.step()
    oracle.propose = lambda *_: pytest.fail("a commit waits")  # type: ignore[method-assign]
    engine.step(lambda: True)


def test_a_draft_model_shares_what_was_committed_and_not_what_was_made_ahead(
    make_engine: MakeEngine, tiny_model: Path
) -> None:
    engine = make_engine(draft_dir=tiny_model)
    draft_always(engine, 3)
    params = SamplingParams(max_tokens=40, ignore_eos=True)
    words = [3 + i % 50 for i in range(60)]
    for _, length in engine.speculation._drafters:
        length.drafted = length.stepped = lambda *_: None  # type: ignore[method-assign]
    made_ahead(engine, words, [7], params)
    drafter = model_drafter(engine)
    assert read_by_the_draft(engine) > 60
    engine._branches["b"].close()
    assert drafter.tree.match(words, "") == []
    answer(engine, words, params)
    assert len(drafter.tree.match(words, "")) == 60 // 16
    assert drafter.pool.n_free + len(drafter.tree) == drafter.pool.n_blocks


def test_a_step_is_booked_once_for_all_its_replies(make_engine: MakeEngine) -> None:
    engine = make_engine(share_steps=True)
    params = SamplingParams(max_tokens=9, ignore_eos=True)
    _, tokens, _ = answer(engine, [5, 6, 7], params)
    draft_always(engine, 2, [Oracle(tokens, [])])
    [(_, length)] = engine.speculation._drafters
    booked: list[tuple[int, int, float]] = []
    length.stepped = lambda n, rows, hits, ms: booked.append((n, rows - n, hits))  # type: ignore[method-assign, assign]
    asked = [([5, 6, 7], params, None)] * 2
    assert [reply for reply, _ in converse(engine, asked)] == [tokens, tokens]
    # After the first token of each 3 a step; of the last step's two guesses both are kept.
    assert booked == [(2, 4, 2.0), (2, 4, 2.0), (2, 2, 1.0)]


def test_a_draft_model_of_another_tokenizer_is_refused(
    tiny_model: Path, tmp_path: Path, make_engine: MakeEngine
) -> None:
    shutil.copytree(tiny_model, tmp_path, dirs_exist_ok=True)
    vocabulary = (tmp_path / "tokenizer.json").read_text(encoding="utf-8")
    other = vocabulary.replace("</tool_call>", "</tool_talk>")
    (tmp_path / "tokenizer.json").write_text(other, encoding="utf-8")
    with pytest.raises(CheckpointError, match="^draft_dir: .* tokenizer, found another"):
        make_engine(draft_dir=tmp_path)


def test_a_draft_model_is_asked_beside_kernels_too_and_changes_no_reply(
    tiny_model: Path, shallow_model: Path
) -> None:
    """Its guesses come from the host, so that no step is launched before they are there."""
    pytest.importorskip("triton", reason="the GPU path needs triton")
    changes: dict[str, Any] = {"device": "reference", "dtype": "fp32", "kv_tokens": 1024}
    params = SamplingParams(max_tokens=40, ignore_eos=True, temperature=0.7, seed=3)
    said = []
    for draft in (None, tiny_model, shallow_model):
        config = EngineConfig(draft_dir=draft, ngram_draft=True, **changes)
        engine = Engine.load(tiny_model, config)
        if draft is not None:
            draft_always(engine, 3)
        _, tokens, done = answer(engine, [5, 6, 7, 9], params)
        said.append(tokens)
        if draft == tiny_model:  # which knows it all
            assert done.usage.accepted_tokens > 10
            assert describe(engine).count("a draft model") == 1
    assert said[0] == said[1] == said[2]

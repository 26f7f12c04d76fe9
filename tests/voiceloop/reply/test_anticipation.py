"""The open user turn's branch: staged as words firm up, adopted where it fits, closed where not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.fakes import FakeLanguageModel, Fault
from voiceloop.backends import ChatMessage, Generated, GenerateParams, TextDelta
from voiceloop.config import Ahead
from voiceloop.errors import BackendError, Overloaded
from voiceloop.reply.anticipation import MAX_UNREAD_EVENTS, Anticipation, Context

pytestmark = pytest.mark.virtual_time
HISTORY = (ChatMessage("system", "Be kind."), ChatMessage("assistant", "Hello."))


class Bench:
    def __init__(self, model: FakeLanguageModel, tasks: asyncio.TaskGroup) -> None:
        self.seen: list[tuple[tuple[str, ...], float | None]] = []
        self.anticipation = Anticipation(
            model, "s", tasks, lambda words, p_end: self.seen.append((words, p_end)), Ahead()
        )


@asynccontextmanager
async def bench_of(model: FakeLanguageModel) -> AsyncIterator[Bench]:
    """Everything the bench started is cancelled after the block."""
    async with asyncio.TaskGroup() as tasks:
        bench = Bench(model, tasks)
        try:
            yield bench
        finally:
            for task in tasks._tasks:  # type: ignore[attr-defined]
                task.cancel()
    assert not model.open_branches


async def reply_of(branch, tail) -> str:  # type: ignore[no-untyped-def]
    await branch.commit(tail, GenerateParams())
    text = ""
    async for event in branch.events():
        match event:
            case TextDelta():
                text += event.text
            case Generated():
                return text
    raise AssertionError


async def test_stable_words_are_staged_and_all_words_at_a_pause() -> None:
    model = FakeLanguageModel(p_end_of_turn=lambda text: 0.1 * len(text.split()))
    async with bench_of(model) as bench:
        bench.anticipation.open(HISTORY, ())
        await asyncio.sleep(0)
        bench.anticipation.observe_words(("a",), ("lot",), full=False)
        bench.anticipation.observe_words(("a",), ("latte",), full=False)
        bench.anticipation.observe_words(("a",), ("latte",), full=True)
        await asyncio.sleep(0.01)
        (branch,) = model.branches
        assert branch.staged == ["", "a", "a latte"]
        assert bench.seen[-1] == (("a", "latte"), pytest.approx(0.2))


async def test_words_that_came_before_the_branch_stood_are_staged_then() -> None:
    model = FakeLanguageModel()
    async with bench_of(model) as bench:
        bench.anticipation.open(HISTORY, ())
        bench.anticipation.observe_words(("early",), (), full=False)
        await asyncio.sleep(0)
        assert model.branches[0].staged == ["early"]


async def test_the_turn_adopts_the_branch_that_fits_its_prompt() -> None:
    model = FakeLanguageModel(["Fine."])
    async with bench_of(model) as bench:
        bench.anticipation.open(HISTORY, ())
        await asyncio.sleep(0)
        branch, tail = bench.anticipation.adopt((*HISTORY, ChatMessage("user", "hi")), ())
        assert tail == (ChatMessage("user", "hi"),)
        assert await reply_of(branch, tail) == "Fine."
        assert len(model.branches) == 1
        branch.close()


async def test_another_history_gets_another_branch() -> None:
    model = FakeLanguageModel(["Fine."])
    async with bench_of(model) as bench:
        bench.anticipation.open(HISTORY, ())
        await asyncio.sleep(0)
        branch, tail = bench.anticipation.adopt(
            (HISTORY[0], ChatMessage("user", "new"), ChatMessage("user", "hi")), ()
        )
        assert await reply_of(branch, tail) == "Fine."
        assert len(model.branches) == 2 and len(model.open_branches) == 1


async def test_words_are_staged_again_where_the_conversation_before_them_has_changed() -> None:
    model = FakeLanguageModel(["Fine."])
    said, heard = ChatMessage("assistant", "Hello to you."), ChatMessage("assistant", "Hello")
    async with bench_of(model) as bench:
        bench.anticipation.open((HISTORY[0], said), ())
        await asyncio.sleep(0)
        bench.anticipation.observe_words(("a", "latte"), (), full=False)
        assert not bench.anticipation.follow((HISTORY[0], said), ())
        assert bench.anticipation.follow((HISTORY[0], heard), ())
        await asyncio.sleep(0.01)
        (second,) = model.branches[1:]
        assert (second.messages, second.staged) == ([HISTORY[0], heard], ["a latte"])
        assert bench.seen[-1][0] == ("a", "latte")
        (kept,) = model.open_branches
        assert kept is second


async def test_the_turn_s_own_first_words_are_no_other_conversation() -> None:
    model = FakeLanguageModel()
    own = ChatMessage("user", "a latte")  # told of, for an answer began and was taken back
    async with bench_of(model) as bench:
        bench.anticipation.open(HISTORY, ())
        await asyncio.sleep(0)
        assert not bench.anticipation.follow((*HISTORY, own), ())
        assert len(model.branches) == 1


async def test_a_branch_that_failed_while_staging_is_replaced() -> None:
    model = FakeLanguageModel(["Fine."], faults=[Fault("stage")])
    async with bench_of(model) as bench:
        bench.anticipation.open(HISTORY, ())
        await asyncio.sleep(0.01)
        branch, tail = bench.anticipation.adopt((*HISTORY, ChatMessage("user", "hi")), ())
        assert await reply_of(branch, tail) == "Fine."


async def test_a_branch_that_cannot_open_fails_its_commit() -> None:
    model = FakeLanguageModel(faults=[Fault("branch")])
    async with bench_of(model) as bench:
        branch = bench.anticipation.new_branch(Context(HISTORY))
        with pytest.raises(BackendError):
            await branch.commit((ChatMessage("user", "hi"),), GenerateParams())


async def test_an_aborted_turn_leaves_no_branch() -> None:
    model = FakeLanguageModel()
    async with bench_of(model) as bench:
        bench.anticipation.open(HISTORY, ())
        await asyncio.sleep(0)
        bench.anticipation.abort()
        await asyncio.sleep(0)
        assert not model.open_branches and not bench.anticipation.is_open


async def test_a_commit_refused_while_many_events_wait_is_told_after_them() -> None:
    model = FakeLanguageModel()
    async with bench_of(model) as bench:
        live = bench.anticipation.new_branch(Context(HISTORY))
        await asyncio.sleep(0.01)
        (branch,) = model.branches
        for index in range(MAX_UNREAD_EVENTS):
            branch._pipe.put(TextDelta(f"{index}"))
        await asyncio.sleep(0.01)

        def refuse(tail: object, params: object) -> bool:
            raise Overloaded("expected room, found none")

        branch.commit = refuse  # type: ignore[method-assign]
        assert not live.commit_now((), GenerateParams())
        n_events = 0
        with pytest.raises(Overloaded):
            async with asyncio.timeout(5):
                async for _ in live.events():
                    n_events += 1
        assert n_events == MAX_UNREAD_EVENTS

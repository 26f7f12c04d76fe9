"""Searches of one session: begun while the caller speaks, settled in the pause."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.scripted_retriever import ScriptedRetriever
from voiceloop.errors import BackendError, Overloaded
from voiceloop.knowledge.fused import FusedRetriever
from voiceloop.knowledge.placement import Notes
from voiceloop.knowledge.prefetch import GRACE_MS
from voiceloop.knowledge.retrieval import DEADLINE_MS, LOOK_UP_MS, Retrieval

pytestmark = pytest.mark.virtual_time


@asynccontextmanager
async def session(retriever: ScriptedRetriever) -> AsyncIterator[Retrieval]:
    async with asyncio.TaskGroup() as tasks:
        retrieval = Retrieval(retriever, tasks, asyncio.get_running_loop().time)
        yield retrieval
        retrieval.close()


async def after(ms: float) -> None:
    await asyncio.sleep(ms / 1000.0)


def said(text: str) -> tuple[str, ...]:
    return tuple(text.split())


async def test_what_was_found_while_the_caller_spoke_is_ready_in_the_pause() -> None:
    retriever = ScriptedRetriever()
    async with session(retriever) as retrieval:
        retrieval.observe_words(said("return my boots"), (), full=False)
        await after(400)
        retrieval.observe_words(said("return my"), said("boots"), full=True)
        assert "return my boots" in retrieval.settle().notes.text
        assert retriever.asked == ["return my boots"]
        assert retrieval.retrieved.waited_ms == 0.0


async def test_the_last_words_are_searched_in_the_pause_within_its_grace() -> None:
    retriever = ScriptedRetriever(takes_ms=GRACE_MS / 2)
    async with session(retriever) as retrieval:
        retrieval.observe_words(said("return"), said("boots"), full=True)
        await after(GRACE_MS)
        assert "return boots" in retrieval.settle().notes.text
        assert retrieval.retrieved.waited_ms == pytest.approx(GRACE_MS / 2)


async def test_a_reply_that_begins_in_the_pause_settles_the_passages() -> None:
    retriever = ScriptedRetriever(takes_ms=10.0)
    async with session(retriever) as retrieval:
        retrieval.observe_words(said("return boots"), (), full=True)
        assert retrieval.settle().notes == Notes()
        await after(GRACE_MS)
        assert retrieval.settle().notes == Notes() and retrieval.retrieved.is_late


@pytest.mark.parametrize("error", [Overloaded("busy"), BackendError("gone"), RuntimeError("bug")])
async def test_a_search_that_fails_costs_the_passages_and_not_the_call(error: Exception) -> None:
    retriever = ScriptedRetriever(error=error)
    async with session(retriever) as retrieval:
        retrieval.observe_words(said("return boots"), (), full=False)
        await after(200)
        retriever.error = None
        retrieval.observe_words(said("return boots"), (), full=True)
        await after(GRACE_MS)
        assert "return boots" in retrieval.settle().notes.text
        assert len(retriever.asked) == 2


async def test_a_store_that_does_not_answer_is_given_up_and_asked_again() -> None:
    retriever = ScriptedRetriever(takes_ms=60_000.0)
    async with session(retriever) as retrieval:
        retrieval.observe_words(said("return boots"), (), full=False)
        await after(DEADLINE_MS + 1)
        assert retriever.n_cancelled == 1
        retrieval.observe_words(said("return boots"), (), full=False)
        assert len(retriever.asked) == 1  # its task has not begun
        await after(1)
        assert len(retriever.asked) == 2


async def test_a_caller_who_goes_on_after_a_pause_is_searched_for_again() -> None:
    retriever = ScriptedRetriever()
    async with session(retriever) as retrieval:
        retrieval.observe_words(said("return boots"), (), full=True)
        await after(300)
        retrieval.observe_words(said("return boots bought abroad"), (), full=False)
        await after(300)
        assert "bought abroad" in retrieval.settle().notes.text


async def test_other_words_in_a_second_pause_are_searched_without_a_partial_between() -> None:
    retriever = ScriptedRetriever()
    async with session(retriever) as retrieval:
        retrieval.observe_words(said("return boots"), (), full=True)
        await after(300)
        assert "return boots" in retrieval.settle().notes.text
        retrieval.observe_words(said("return boots abroad"), (), full=True)
        await after(GRACE_MS)
        assert "return boots abroad" in retrieval.settle().notes.text
        retrieval.observe_words(said("return boots abroad"), (), full=True)
        await after(GRACE_MS)
        assert retriever.asked == ["return boots", "return boots abroad"]


async def test_stable_words_that_the_pause_knew_already_settle_nothing_anew() -> None:
    retriever = ScriptedRetriever()
    async with session(retriever) as retrieval:
        retrieval.observe_words(said("return leather boots"), said("abroad"), full=True)
        await after(GRACE_MS)
        retrieval.observe_words(said("return leather"), (), full=False)
        await after(200)
        assert "return leather boots abroad" in retrieval.settle().notes.text
        assert retriever.asked == ["return leather boots abroad"]


async def test_another_turn_begins_with_nothing_and_ends_what_was_under_way() -> None:
    retriever = ScriptedRetriever(takes_ms=100.0)
    async with session(retriever) as retrieval:
        retrieval.observe_words(said("return boots"), (), full=False)
        await after(10)
        retrieval.begin_turn()
        await after(500)
        assert retriever.n_cancelled == 1
        assert retrieval.settle().notes == Notes() and retrieval.retrieved.n_searches == 0


async def test_what_waits_for_the_search_of_a_pause_is_done_when_that_is_answered() -> None:
    async with session(ScriptedRetriever(takes_ms=10.0)) as retrieval:
        done: list[str] = []
        retrieval.observe_words(said("return boots"), (), full=True)
        retrieval.when_settled(
            said("return boots"), lambda: done.append(retrieval.settle().notes.text)
        )
        assert not done
        await after(GRACE_MS)
        assert len(done) == 1 and "return boots" in done[0]
        retrieval.when_settled(said("return boots"), lambda: done.append("at once"))
        assert done[1:] == ["at once"]


async def test_what_waits_is_done_after_the_grace_though_nothing_was_found() -> None:
    async with session(ScriptedRetriever(takes_ms=1000.0)) as retrieval:
        done: list[str] = []
        retrieval.observe_words(said("return boots"), (), full=True)
        retrieval.when_settled(said("return boots"), lambda: done.append("late"))
        await after(GRACE_MS + 1)
        assert done == ["late"]


@pytest.mark.parametrize("more", ["words", "answer", "turn"])
async def test_what_waits_is_dropped_where_the_pause_is_over(more: str) -> None:
    async with session(ScriptedRetriever(takes_ms=10.0)) as retrieval:
        done: list[str] = []
        retrieval.observe_words(said("return boots"), (), full=True)
        retrieval.when_settled(said("return boots"), lambda: done.append(more))
        match more:
            case "words":
                retrieval.observe_words(said("return boots bought abroad"), (), full=False)
            case "answer":
                retrieval.settle()
            case "turn":
                retrieval.begin_turn()
        await after(200)
        assert not done


async def test_words_that_nobody_answered_are_searched_with_those_that_follow() -> None:
    retriever = ScriptedRetriever()
    async with session(retriever) as retrieval:
        retrieval.begin_turn("return boots")
        retrieval.observe_words(said("abroad"), (), full=True)
        await after(GRACE_MS)
        assert retriever.asked == ["return boots abroad"]


@pytest.mark.parametrize("takes_ms, n_passages", [(LOOK_UP_MS / 2, 1), (LOOK_UP_MS * 2, 0)])
async def test_what_was_not_spoken_is_looked_up_within_its_budget(
    takes_ms: float, n_passages: int
) -> None:
    now = asyncio.get_running_loop().time
    async with session(ScriptedRetriever(takes_ms)) as retrieval:
        began_s = now()
        settled = await retrieval.look_up("return my boots")
        assert 1000 * (now() - began_s) == pytest.approx(min(takes_ms, LOOK_UP_MS))
        assert len(settled.notes.sources) == n_passages
        assert settled.lookup(None).fate == ("waited" if n_passages else "failed")


async def test_without_looking_ahead_nothing_is_searched_while_the_caller_speaks() -> None:
    retriever = ScriptedRetriever()
    async with asyncio.TaskGroup() as tasks:
        clock = asyncio.get_running_loop().time
        retrieval = Retrieval(retriever, tasks, clock, looks_ahead=False)
        retrieval.observe_words(said("return boots"), (), full=True)
        await after(300)
    assert not retriever.asked and not retrieval.has_words


@pytest.mark.parametrize("slow_ms", [2 * GRACE_MS, 60_000.0])
async def test_a_folder_s_passages_are_not_kept_waiting_by_a_slow_service(slow_ms: float) -> None:
    class Folder(ScriptedRetriever):
        async def search(self, words, n_most, so_far=lambda _: None):  # type: ignore[no-untyped-def]
            return await super().search((*words, "filed"), n_most)

    fused = FusedRetriever((Folder(1.0), ScriptedRetriever(slow_ms, is_local=False)))
    async with asyncio.TaskGroup() as tasks:
        retrieval = Retrieval(fused, tasks, asyncio.get_running_loop().time)
        retrieval.observe_words(said("return"), said("boots"), full=True)
        await after(GRACE_MS + 1)
        settled = retrieval.settle()
        assert "return boots filed]" in settled.notes.text and not settled.retrieved.is_late
        assert settled.retrieved.searched_ms == pytest.approx(1.0)
        for before in (None, settled):  # within LOOK_UP_MS, within LAST_WORDS_MS
            found = await retrieval.look_up("red boots", before)
            assert "red boots filed" in found.notes.text
        retrieval.close()


async def test_a_reply_that_is_considered_before_the_pause_s_words_are_told_waits_for_them() -> (
    None
):
    async with session(ScriptedRetriever()) as retrieval:
        retrieval.observe_words(said("return red"), (), full=False)
        await after(200)
        done: list[str] = []
        words = said("return red boots")
        retrieval.when_settled(words, lambda: done.append(retrieval.settle().notes.text))
        assert not done
        await after(GRACE_MS)
        assert len(done) == 1 and "return red boots]" in done[0]

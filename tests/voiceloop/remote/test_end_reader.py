"""Two language models in one branch: one answers, the other tells whether the turn is over."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from types import SimpleNamespace
from typing import cast

import pytest

from tests.callers import Caller
from tests.fakes import FakeLanguageModel, FakeRecognizer, FakeVoice, Fault, instant_backends
from voiceloop.agent import AgentConfig
from voiceloop.backends import (
    Backends,
    ChatMessage,
    Generated,
    GenerateParams,
    LanguageModel,
    PreemptiveDelta,
    PreemptiveDone,
    RouteSigns,
    Staged,
    TextDelta,
    Verified,
)
from voiceloop.errors import BackendError
from voiceloop.remote.readers.end_of_words import MAX_HISTORY_CHARACTERS, EndReadingModel, recent

pytestmark = pytest.mark.virtual_time

Clock = Callable[[], float]
USER = (ChatMessage("user", "a table for two"),)


def models(**reading: object) -> tuple[FakeLanguageModel, FakeLanguageModel]:
    reader = FakeLanguageModel(p_end_of_turn=lambda text: len(text) / 100, **reading)  # type: ignore[arg-type]
    return FakeLanguageModel(["certainly"]), reader


async def test_both_are_staged_one_reads_the_end_and_the_other_answers() -> None:
    answering, reader = models()
    reader.stage_delay_ms = 5.0
    branch = await EndReadingModel(answering, reader).branch("b1", ())
    events = branch.events()
    branch.stage(1, "a table")
    # Tokens resident in the reader save the answering model nothing: those of the latter are told.
    assert await anext(events) == Staged(1, 0, 0, 0.07)
    assert await anext(events) == Staged(1, 2, 1, None)
    branch.commit(USER, GenerateParams())
    assert await anext(events) == TextDelta("certainly")
    assert isinstance(await anext(events), Generated)
    await branch.close()
    assert (len(answering.prompts), len(reader.prompts)) == (1, 0)
    assert answering.branches[0].staged == reader.branches[0].staged == ["a table"]
    assert not answering.open_branches and not reader.open_branches


async def test_the_answering_model_drafts_and_verifies_and_its_route_head_is_heard() -> None:
    answering, reader = models()
    answering.stage_delay_ms, answering.route = 5.0, RouteSigns(0.5, 0.1, 0.2)
    branch = await EndReadingModel(answering, reader).branch("b1", ())
    events = branch.events()
    branch.stage(1, "a table")
    assert await anext(events) == Staged(1, 0, 0, 0.07)
    assert await anext(events) == Staged(1, 2, 1, None, answering.route)
    branch.draft(1, USER, GenerateParams())
    draft = await anext(events)
    assert isinstance(draft, PreemptiveDone) and len(draft.tokens) == 1
    branch.begin_preemptive(2, USER, GenerateParams())
    branch.verify(2, draft.tokens)
    assert Verified(2, 1) in [await anext(events) for _ in range(3)]
    await branch.close()


async def test_the_end_is_told_before_the_answering_model_has_read_the_words() -> None:
    answering, reader = models()
    answering.stage_delay_ms = 5.0
    branch = await EndReadingModel(answering, reader).branch("b1", ())
    events = branch.events()
    branch.stage(1, "a table")
    assert await anext(events) == Staged(1, 0, 0, 0.07)
    assert await anext(events) == Staged(1, 2, 1, None)
    await branch.close()


async def test_the_model_that_answers_stages_no_words_that_a_reply_to_them_begins_with() -> None:
    answering, reader = models()
    reader.stage_delay_ms = 5.0
    branch = await EndReadingModel(answering, reader).branch("b1", ())
    events = branch.events()
    branch.stage(1, "a table")
    branch.stage(2, "a table for two")
    while await anext(events) != Staged(2, 0, 0, 0.15):
        pass
    assert not answering.branches[0].staged
    branch.begin_preemptive(1, USER, GenerateParams())
    assert isinstance(await anext(events), PreemptiveDelta)
    assert not answering.branches[0].staged
    branch.stage(3, "a table for two please")
    while await anext(events) != Staged(3, 0, 0, 0.22):
        pass
    await anext(events)
    assert answering.branches[0].staged == ["a table for two please"]
    await branch.close()


async def test_the_reader_is_given_what_was_said_and_not_the_instructions() -> None:
    answering, reader = models()
    history = (ChatMessage("system", "Be brief."), ChatMessage("assistant", "Hello, this is Ava."))
    branch = await EndReadingModel(answering, reader).branch("b1", history)
    assert reader.branches[0].messages == list(history[1:])
    assert answering.branches[0].messages == list(history)
    await branch.close()


async def test_a_call_without_the_reader_goes_on() -> None:
    answering, reader = models(faults=[Fault("branch")])
    branch = await EndReadingModel(answering, reader).branch("b1", ())
    events = branch.events()
    branch.stage(1, "a table")
    assert isinstance(await anext(events), Staged)
    branch.commit(USER, GenerateParams())
    assert await anext(events) == TextDelta("certainly")
    await branch.close()


async def test_a_reader_that_fails_in_mid_call_leaves_no_stage_unanswered() -> None:
    answering, reader = models(faults=[Fault("stage", nth=1)])
    branch = await EndReadingModel(answering, reader).branch("b1", ())
    events = branch.events()
    branch.stage(1, "a")
    assert await anext(events) == Staged(1, 0, 0, 0.01)
    assert await anext(events) == Staged(1, 1, 1, None)
    branch.stage(2, "a table")
    assert await anext(events) == Staged(2, 0, 0, None)
    assert await anext(events) == Staged(2, 2, 1, None)
    branch.stage(3, "a table for")
    staged = await anext(events)
    assert isinstance(staged, Staged) and staged.stage_id == 3 and staged.p_end_of_turn is None
    branch.commit(USER, GenerateParams())
    assert await anext(events) == TextDelta("certainly")
    await branch.close()
    assert not reader.open_branches


async def test_a_failed_answer_is_the_branchs_failure_and_both_are_closed() -> None:
    answering = FakeLanguageModel(faults=[Fault("commit")])
    reader = FakeLanguageModel()
    branch = await EndReadingModel(answering, reader).branch("b1", ())
    branch.commit(USER, GenerateParams())
    with pytest.raises(BackendError):
        await anext(branch.events())
    await branch.close()
    assert not answering.open_branches and not reader.open_branches


def test_a_long_call_is_read_by_its_last_messages() -> None:
    said = tuple(ChatMessage("user", f"{n} " + "x" * 500) for n in range(20))
    kept = recent(said)
    assert kept == said[-len(kept) :]
    assert 0 < sum(len(message.content) for message in kept) <= MAX_HISTORY_CHARACTERS


async def test_a_model_with_a_reader_beside_it_tells_how_busy_it_is() -> None:
    busy, idle = (SimpleNamespace(utilization=share) for share in (0.9, 0.0))
    model = EndReadingModel(cast(LanguageModel, busy), cast(LanguageModel, idle))
    assert Backends(FakeRecognizer([]), model, FakeVoice()).utilization() == 0.9


@pytest.mark.parametrize(("language", "judged", "n_read"), [("en-GB", 0.98, 1), ("de", 0.75, 0)])
async def test_in_another_language_the_answering_model_judges_the_end_by_itself(
    clock: Clock, language: str, judged: float, n_read: int
) -> None:
    answering = FakeLanguageModel(["Um neun."], p_end_of_turn=lambda text: 0.75)
    reader = FakeLanguageModel(p_end_of_turn=lambda text: 0.98)
    backends = dataclasses.replace(
        instant_backends(), language_model=EndReadingModel(answering, reader)
    )
    async with Caller(clock, backends, AgentConfig(language=language)) as caller:
        await caller.say(800)
        await caller.listen_until("response.done")
        timeline = (await caller.wait_for("voiceloop.timeline")).event["timeline"]
        assert timeline["endpoint"]["p_end"] == judged
    assert min(len(reader.branches), 1) == n_read


async def test_beside_a_reader_the_answering_model_is_asked_to_read_no_ends() -> None:
    answering, unread, reader = (FakeLanguageModel() for _ in range(3))
    answering.unread = lambda: unread  # type: ignore[attr-defined]
    model = EndReadingModel(answering, reader)
    await (await model.branch("b1", ())).close()
    assert (len(unread.branches), len(answering.branches), model.alone) == (1, 0, answering)


async def test_in_another_language_a_model_with_an_english_head_is_no_evidence(
    clock: Clock,
) -> None:
    model = FakeLanguageModel(["Um neun."], p_end_of_turn=lambda text: 0.98)
    backends = dataclasses.replace(instant_backends(), language_model=model)
    async with Caller(clock, backends, AgentConfig(language="de")) as caller:
        await caller.say(800)
        await caller.listen_until("response.done")
        timeline = (await caller.wait_for("voiceloop.timeline")).event["timeline"]
        assert timeline["endpoint"].get("p_end") is None

"""What one call leaves out at each level of the ladder, so that the others are answered."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.callers import Caller
from tests.fakes import FakeLanguageModel, FakeRecognizer, FakeVoice, instant_backends
from voiceloop.admission.ladder import Level
from voiceloop.backends import Backends

pytestmark = pytest.mark.virtual_time
Clock = Callable[[], float]
ANSWER = "A large latte is four dollars and 50 cents. Would you like oat milk in it? It is free."


def models(model: FakeLanguageModel) -> Backends:
    return instant_backends(
        recognizer=FakeRecognizer(("a large latte please",), ms_per_word=100),
        language_model=model,
        voice=FakeVoice(first_audio_ms=50),
    )


async def call_at(level: Level, clock: Clock) -> tuple[FakeLanguageModel, Caller]:
    """One turn of a call at this level."""
    model = FakeLanguageModel([ANSWER], ttft_ms=50, ms_per_token=20, p_end_of_turn=lambda t: 0.9)
    async with Caller(clock, models(model), level=lambda: level) as caller:
        await caller.say(800)
        await caller.listen_until("response.done", limit_ms=30_000)
    assert not model.open_branches
    return model, caller


async def test_nothing_is_left_out_while_there_is_no_need(clock: Clock) -> None:
    model, caller = await call_at(Level.NORMAL, clock)
    assert any(branch.attempts for branch in model.branches)
    assert len(model.branches[0].staged) > 2  # words were staged as they came
    assert caller.transcript() == ANSWER


async def test_without_speculation_no_reply_is_begun_ahead(clock: Clock) -> None:
    model, caller = await call_at(Level.NO_SPECULATION, clock)
    assert not any(branch.attempts for branch in model.branches)
    assert len(model.branches[0].staged) > 2
    assert caller.transcript() == ANSWER


async def test_without_held_work_words_are_staged_at_the_pause_alone(clock: Clock) -> None:
    model, caller = await call_at(Level.NO_HELD_WORK, clock)
    assert model.branches[0].staged == ["", "a large latte please"]
    assert caller.transcript() == ANSWER


@pytest.mark.parametrize("level", [Level.SHORTER, Level.SHEDDING])
async def test_a_shorter_reply_ends_with_a_sentence_and_is_whole(
    clock: Clock, level: Level
) -> None:
    model, caller = await call_at(level, clock)
    assert caller.transcript() == "A large latte is four dollars and 50 cents."
    assert caller.statuses() == ["completed"]


async def test_a_short_first_sentence_is_no_answer_and_goes_on(clock: Clock) -> None:
    model = FakeLanguageModel(["Sure. That is a large latte with oat milk then. Anything else?"])
    async with Caller(clock, models(model), level=lambda: Level.SHORTER) as caller:
        await caller.say(800)
        await caller.listen_until("response.done", limit_ms=30_000)
    assert caller.transcript() == "Sure. That is a large latte with oat milk then."
    [said] = [item for item in caller.session.protocol.conversation.items() if item.id][-1:]
    assert "Anything" not in str(said)

"""What one call leaves out while the machine is busy, so that the others are answered."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.callers import Caller
from tests.fakes import FakeLanguageModel, FakeRecognizer, FakeVoice, instant_backends
from voiceloop.admission.overload import Level
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


@pytest.mark.parametrize("level", [Level.BUSY, Level.FULL])
async def test_on_a_busy_machine_no_reply_is_begun_ahead(clock: Clock, level: Level) -> None:
    model, caller = await call_at(level, clock)
    assert not any(branch.attempts for branch in model.branches)
    assert len(model.branches[0].staged) > 2
    assert caller.transcript() == ANSWER

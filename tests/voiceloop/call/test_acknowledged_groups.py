"""A low "mm-hm" between the groups of what a caller dictates, where the agent's file has one."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.callers import Caller
from tests.fakes import FakeLanguageModel, FakeRecognizer, instant_backends
from voiceloop.agent import AgentConfig, Waiting

pytestmark = pytest.mark.virtual_time
SAID = "my number is four one five five five five oh one four two"


@pytest.mark.parametrize(("lines", "n_signs"), [(("Mm-hm.",), 1), ((), 0)])
async def test_a_group_is_acknowledged_once_and_the_turn_goes_on(
    clock: Callable[[], float], lines: tuple[str, ...], n_signs: int
) -> None:
    backends = instant_backends(
        recognizer=FakeRecognizer([SAID], ms_per_word=200),
        language_model=FakeLanguageModel(lambda m: f"You said {m[-1].content}."),
    )
    agent = AgentConfig(waiting=Waiting(acknowledge=lines))
    async with Caller(clock, backends, agent) as line:
        await line.say(1200)  # six words: three digits
        await line.wait_quietly(700)
        assert len(line.of("response.created")) == n_signs
        await line.say(1400)
        await line.listen_until("response.done", count=n_signs + 1)
        messages = line.session.protocol.shown.messages()
    assert [m.content for m in messages if m.role == "user"] == [SAID]
    assert [m.content for m in messages if m.role == "assistant"] == [f"You said {SAID}."]
    assert len(line.of("input_audio_buffer.committed")) == 1


@pytest.mark.parametrize(("lines", "n_signs"), [(("Mm-hm.",), 1), ((), 0)])
async def test_after_a_hand_off_groups_are_acknowledged_as_the_new_agent_has_it(
    clock: Callable[[], float], lines: tuple[str, ...], n_signs: int
) -> None:
    backends = instant_backends(recognizer=FakeRecognizer([SAID], ms_per_word=200))
    before = () if lines else ("Mm-hm.",)
    agent, after = (AgentConfig(waiting=Waiting(acknowledge=one)) for one in (before, lines))
    async with Caller(clock, backends, agent) as line:
        line.session._call.hand_to(line.session._answering._replace(agent=after))
        await line.say(1200)
        await line.wait_quietly(700)
        assert len(line.of("response.created")) == n_signs
        await line.say(1400)
        await line.listen_until("response.done", count=n_signs + 1)

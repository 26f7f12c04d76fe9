"""A call whose line breaks goes on over another: with what was said, heard, set and owed."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from clients.connection import typed
from tests.callers import Caller
from tests.fakes import FakeLanguageModel, FakeRecognizer, FakeVoice, Reply, instant_backends
from voiceloop.access.keys import KeyRing
from voiceloop.agent import AgentConfig, AgentTool
from voiceloop.backends import ChatMessage, ToolCall
from voiceloop.call.connection import Hello
from voiceloop.capabilities import Capabilities
from voiceloop.config import Config, Limits
from voiceloop.resume.ticket import REFRESH_S, RESUMABLE_S, Tickets
from voiceloop.tools.toolbox import toolbox_of

SHARED = KeyRing((), shared=("shared",))
pytestmark = pytest.mark.virtual_time
Clock = Callable[[], float]
ASKS = Hello(resume=True)


@pytest.fixture
def tickets(clock: Clock) -> Tickets:
    return Tickets(SHARED, clock)


def newest_ticket(caller: Caller) -> dict[str, Any]:
    return caller.of("voiceloop.resume_ticket")[-1].event


async def spoken_turn(caller: Caller) -> None:
    n_done = len(caller.of("response.done"))
    await caller.say(800)
    await caller.listen_until("response.done", count=n_done + 1)
    await caller.wait_quietly(1000)


async def test_a_broken_call_goes_on_where_another_server_shares_the_secret(clock: Clock) -> None:
    model = FakeLanguageModel(["Two lattes, noted.", "And one tea."])
    backends = instant_backends(
        recognizer=FakeRecognizer(["two lattes", "and one tea"]), language_model=model
    )
    here, there = Tickets(SHARED, clock), Tickets(SHARED, clock)
    async with Caller(clock, backends, hello=ASKS, tickets=here) as caller:
        await spoken_turn(caller)
        held = newest_ticket(caller)
        first_id = caller.session.protocol.session_id
    gone: list[str] = []
    async with Caller(
        clock, backends, tickets=there, on_resumed=lambda call_id, by: gone.append(call_id)
    ) as again:
        again.send("voiceloop.resume", ticket=held["ticket"])
        resumed = (await again.wait_for("voiceloop.resumed")).event
        await spoken_turn(again)
        assert again.of("voiceloop.resume_ticket")  # the setting went with it
    assert (resumed["session_id"], resumed["items"]) == (first_id, 2)
    assert gone == [first_id]
    words = [(message.role, message.content) for message in model.prompts[-1][1:]]
    assert words == [
        ("user", "two lattes"),
        ("assistant", "Two lattes, noted."),
        ("user", "and one tea"),
    ]
    assert not again.of("error")


async def test_nobody_is_sent_a_ticket_unasked(clock: Clock, tickets: Tickets) -> None:
    async with Caller(clock, tickets=tickets) as caller:
        await spoken_turn(caller)
        assert not caller.of("voiceloop.resume_ticket")
        caller.send("session.update", session={"voiceloop": {"resume": True}})
        await caller.wait_for("voiceloop.resume_ticket")


async def test_a_call_that_breaks_before_its_first_words_goes_on_with_its_settings(
    clock: Clock, tickets: Tickets
) -> None:
    async with Caller(clock, hello=ASKS, tickets=tickets) as caller:
        await caller.wait_for("session.created")
        await asyncio.sleep(0)
        first = newest_ticket(caller)["ticket"]
        caller.send("session.update", session={"instructions": "Be brief."})
        await caller.wait_for("session.updated")
        await asyncio.sleep(0)  # and the server dies
        held = newest_ticket(caller)["ticket"]
        assert held != first
    async with Caller(clock, tickets=tickets) as again:
        again.send("voiceloop.resume", ticket=held)
        assert (await again.wait_for("voiceloop.resumed")).event["items"] == 0
        assert again.session.protocol.settings.instructions == "Be brief."
        await spoken_turn(again)
    assert again.statuses() == ["completed"]


async def test_who_comes_back_is_sent_no_ticket_that_takes_the_place_of_the_one_to_show(
    clock: Clock, tickets: Tickets
) -> None:
    hello = replace(ASKS, is_returning=True)
    async with Caller(clock, hello=hello, tickets=tickets) as caller:
        await asyncio.sleep(REFRESH_S - 1)
        assert not caller.of("voiceloop.resume_ticket")
        await spoken_turn(caller)  # it is another call after all
        assert caller.of("voiceloop.resume_ticket")


async def test_settings_that_change_again_and_again_are_in_one_ticket(
    clock: Clock, tickets: Tickets
) -> None:
    async with Caller(clock, hello=ASKS, tickets=tickets) as caller:
        for number in range(50):
            caller.send("session.update", session={"instructions": f"Be number {number}."})
        await caller.wait_for("session.updated", count=50)
        await asyncio.sleep(1)
        assert len(caller.of("voiceloop.resume_ticket")) == 3  # at the start, the first, the last
        _, snapshot = tickets.read(newest_ticket(caller)["ticket"], "")
        assert snapshot.settings["instructions"] == "Be number 49."


async def test_a_ticket_is_renewed_so_that_a_quiet_call_has_a_minute_left_at_any_moment(
    clock: Clock, tickets: Tickets
) -> None:
    async with Caller(clock, hello=ASKS, tickets=tickets) as caller:
        await asyncio.sleep(200)
        sent = caller.of("voiceloop.resume_ticket")
        for earlier, later in zip(sent, sent[1:], strict=False):
            assert earlier.event["expires_at"] - later.at_s >= RESUMABLE_S - 1
        assert 200 / REFRESH_S - 2 <= len(sent) <= 200 / REFRESH_S + 1  # and no oftener


async def test_what_was_interrupted_is_resumed_as_it_was_heard(
    clock: Clock, tickets: Tickets
) -> None:
    model = FakeLanguageModel(["one two three four five six seven eight nine ten", "Okay.", "Yes."])
    backends = instant_backends(
        recognizer=FakeRecognizer(["tell me a story", "stop please", "go on"]),
        language_model=model,
        voice=FakeVoice(ms_per_char=100),
    )
    async with Caller(clock, backends, hello=ASKS, tickets=tickets) as caller:
        await caller.say(900)
        await caller.listen_until("response.output_audio.delta")
        await caller.wait_quietly(1500)
        await caller.say(700)
        await caller.listen_until("response.done", count=2)
        await caller.wait_quietly(1000)
        heard = model.prompts[1][-2].content
    async with Caller(clock, backends, tickets=tickets) as again:
        again.send("voiceloop.resume", ticket=newest_ticket(caller)["ticket"])
        await spoken_turn(again)
    assert heard and heard != "one two three four five six seven eight nine ten"
    assert model.prompts[-1][2].content == heard


async def test_a_turn_that_the_break_left_unanswered_is_answered_at_once(
    clock: Clock, tickets: Tickets
) -> None:
    slow = FakeLanguageModel(["It is a long story that nobody heard the end of."])
    voice = FakeVoice(ms_per_char=100)
    backends = instant_backends(
        recognizer=FakeRecognizer(["tell me a story"]), language_model=slow, voice=voice
    )
    async with Caller(clock, backends, hello=ASKS, tickets=tickets) as caller:
        await caller.say(900)
        await caller.listen_until("response.output_audio.delta")
        await caller.wait_quietly(1500)  # and the line breaks within the reply
        held = newest_ticket(caller)
    async with Caller(clock, backends, tickets=tickets) as again:
        again.send("voiceloop.resume", ticket=held["ticket"])
        await again.wait_for("response.done")
    assert again.statuses() == ["completed"]
    assert [m.content for m in slow.prompts[-1]][1:] == ["tell me a story"]


async def test_a_call_in_which_the_agent_spoke_last_waits_for_its_caller(
    clock: Clock, tickets: Tickets
) -> None:
    async with Caller(clock, hello=ASKS, tickets=tickets) as caller:
        await spoken_turn(caller)
    async with Caller(clock, tickets=tickets) as again:
        again.send("voiceloop.resume", ticket=newest_ticket(caller)["ticket"])
        await again.wait_for("voiceloop.resumed")
        await again.wait_quietly(3000)
        assert not again.of("response.created")


async def test_a_resumed_call_is_not_greeted(clock: Clock, tickets: Tickets) -> None:
    agent = AgentConfig(greeting="Hello there!")
    async with Caller(clock, agent=agent, hello=ASKS, tickets=tickets) as caller:
        await caller.listen_until("response.done")
        await caller.wait_quietly(1000)
        held = newest_ticket(caller)
    async with Caller(clock, agent=agent, tickets=tickets) as again:
        again.send("voiceloop.resume", ticket=held["ticket"])
        await again.wait_quietly(3000)
        assert not again.of("response.created")


@pytest.mark.parametrize("is_asked", [None, False, True])
async def test_who_asked_for_the_greeting_and_lost_it_is_greeted_anew(
    clock: Clock, tickets: Tickets, is_asked: bool | None
) -> None:
    agent = AgentConfig(greeting="Hello there!")
    async with Caller(clock, agent=agent, hello=ASKS, tickets=tickets) as caller:
        await caller.wait_for("response.created")  # and the server dies
        held = newest_ticket(caller)["ticket"]
    hello = Hello(greeting=is_asked, is_returning=True)
    async with Caller(clock, agent=agent, hello=hello, tickets=tickets) as again:
        await asyncio.sleep(3)  # over a slow line
        again.send("voiceloop.resume", ticket=held)
        await again.wait_for("voiceloop.resumed")
        await again.wait_quietly(3000)
        assert bool(again.of("response.created")) is (is_asked is True)
        assert not again.of("error")


async def test_sound_that_comes_before_the_ticket_greets_nobody(
    clock: Clock, tickets: Tickets
) -> None:
    agent, hello = AgentConfig(greeting="Hello there!"), Hello(greeting=True, is_returning=True)
    async with Caller(clock, agent=agent, hello=ASKS, tickets=tickets) as caller:
        await caller.listen_until("response.done")
        await caller.wait_quietly(1000)
        held = newest_ticket(caller)["ticket"]
    async with Caller(clock, agent=agent, hello=hello, tickets=tickets) as again:
        await again.wait_quietly(200)  # a microphone that did not wait for the session
        again.send("voiceloop.resume", ticket=held)
        await again.wait_for("voiceloop.resumed")


async def test_a_ticket_that_is_refused_has_nobody_greeted_who_tells_what_was_said(
    clock: Clock, tickets: Tickets
) -> None:
    agent, hello = AgentConfig(greeting="Hello there!"), Hello(greeting=True, is_returning=True)
    async with Caller(clock, agent=agent, hello=hello, tickets=tickets) as again:
        again.send("voiceloop.resume", ticket="rt_of.somewhere.else")
        await again.wait_for("error")
        again.send("conversation.item.create", item=typed("two lattes"))
        await again.wait_quietly(8000)
        assert not again.of("response.created")


@pytest.mark.parametrize("code", ["resume_ticket_used", "resume_too_late"])
async def test_a_ticket_that_is_refused_is_an_error_and_the_new_call_goes_on(
    clock: Clock, tickets: Tickets, code: str
) -> None:
    async with Caller(clock, hello=ASKS, tickets=tickets) as caller:
        await spoken_turn(caller)
        held = newest_ticket(caller)["ticket"]
    if code == "resume_ticket_used":
        claims, _ = tickets.read(held, "")
        tickets.use(claims)
        tickets.settle(claims)
    async with Caller(clock, tickets=tickets) as again:
        if code == "resume_too_late":
            await spoken_turn(again)
        again.send("voiceloop.resume", ticket=held)
        error = (await again.wait_for("error")).event["error"]
        assert error["code"] == code
        await spoken_turn(again)
        assert not again.of("voiceloop.resumed")


async def test_a_ticket_whose_voice_is_not_spoken_here_stays_good(clock: Clock) -> None:
    tickets, asked = Tickets(SHARED, clock), {"audio": {"output": {"voice": "deep"}}}
    async with Caller(clock, hello=Hello(resume=True, session=asked), tickets=tickets) as caller:
        await spoken_turn(caller)
        held = newest_ticket(caller)["ticket"]
    known = Capabilities(voices=("heart",))
    backends = replace(instant_backends(), known=lambda: known)
    async with Caller(clock, backends, tickets=tickets) as again:
        again.send("voiceloop.resume", ticket=held)
        error = (await again.wait_for("error")).event["error"]
        assert error["param"] == "session.audio.output.voice"
        assert error["code"] == "resume_refused"  # what clients that wait for an answer look for
    tickets.read(held, "")


async def test_a_line_that_breaks_again_at_once_goes_on_by_the_ticket_that_came_first(
    clock: Clock, tickets: Tickets
) -> None:
    async with Caller(clock, hello=ASKS, tickets=tickets) as caller:
        await spoken_turn(caller)
        held = newest_ticket(caller)["ticket"]
    async with Caller(clock, tickets=tickets) as cut:
        cut.send("voiceloop.resume", ticket=held)
        await cut.wait_for("voiceloop.resumed")
        sent = [seen.type for seen in cut.transport.received]
        assert sent[sent.index("voiceloop.resumed") + 1] == "voiceloop.resume_ticket"
        renewed = newest_ticket(cut)["ticket"]
    async with Caller(clock, tickets=tickets) as again:  # the news of it had not arrived
        again.send("voiceloop.resume", ticket=held)
        assert (await again.wait_for("voiceloop.resumed")).event["items"] == 2
        await spoken_turn(again)
    for old in (held, renewed):
        async with Caller(clock, tickets=tickets) as late:
            late.send("voiceloop.resume", ticket=old)
            if old == renewed:  # of the line between, which nobody has taken up
                await late.wait_for("voiceloop.resumed")
            else:
                error = (await late.wait_for("error")).event["error"]
                assert error["code"] == "resume_ticket_used"


async def test_the_longest_time_of_a_call_counts_over_all_its_connections(
    clock: Clock, tickets: Tickets
) -> None:
    config = Config(limits=Limits(session_minutes=5.0))
    async with Caller(clock, config=config, hello=ASKS, tickets=tickets) as caller:
        await asyncio.sleep(200)
        held = newest_ticket(caller)["ticket"]
    async with Caller(clock, config=config, tickets=tickets) as again:
        begun_s = clock()
        again.send("voiceloop.resume", ticket=held)
        expired = await again.wait_for("error")
    assert expired.event["error"]["code"] == "session_expired"
    assert expired.at_s - begun_s == pytest.approx(100, abs=REFRESH_S + 2)


async def test_a_server_that_stops_gives_a_ticket_of_the_last_turn_before_it_closes(
    clock: Clock, tickets: Tickets
) -> None:
    model = FakeLanguageModel(["One moment, please."])
    backends = instant_backends(recognizer=FakeRecognizer(["hello"]), language_model=model)
    config = Config(limits=Limits(drain_s=60.0))
    async with Caller(clock, backends, config=config, hello=ASKS, tickets=tickets) as caller:
        await caller.say(800)
        await caller.listen_until("response.output_audio.delta")
        caller.session.end()
        await caller.wait_for("response.done")
        await asyncio.sleep(1)
        assert caller.transport.closed == (1012, "the server restarts")
        assert caller.transport.received[-1].type == "voiceloop.resume_ticket"
    _, snapshot = tickets.read(newest_ticket(caller)["ticket"], "")
    assert [item.text for item in snapshot.items] == ["hello", "One moment, please."]


async def test_settings_that_no_ticket_has_room_for_are_told_once(
    clock: Clock, tickets: Tickets
) -> None:
    text = random.Random(7).randbytes(60_000).hex()
    async with Caller(clock, hello=ASKS, tickets=tickets) as caller:
        caller.send("session.update", session={"instructions": text})
        error = (await caller.wait_for("error")).event["error"]
        await asyncio.sleep(100)
        assert error["code"] == "resume_too_large"
        assert len(caller.of("error")) == 1
        caller.send("session.update", session={"instructions": "Be brief."})
        n_sent = len(caller.of("voiceloop.resume_ticket"))
        await caller.wait_for("voiceloop.resume_ticket", count=n_sent + 1)


# --- tool calls under way when the line broke -----------------------------------------------------


def order(is_clients: bool, side_effect_free: bool) -> AgentConfig:
    result = None if is_clients else '{"status": "ordered"}'
    tool = AgentTool("order", "Orders.", result=result, side_effect_free=side_effect_free)
    return AgentConfig(tools=(tool,))


def calls_then_tells(messages: tuple[ChatMessage, ...]) -> Reply:
    last = messages[-1]
    if last.role == "tool":
        return Reply(f"It says {last.content}.")
    return Reply("", (ToolCall("call_1", "order", "{}"),))


async def broken_within_a_call(clock: Clock, tickets: Tickets, agent: AgentConfig) -> str:
    """A ticket of a call whose tool was called and has not answered."""
    async with Caller(clock, agent=agent, hello=ASKS, tickets=tickets) as caller:
        for item in (
            typed("go"),
            {"type": "function_call", "call_id": "call_1", "name": "order", "arguments": "{}"},
        ):
            caller.send("conversation.item.create", item=item)
        await asyncio.sleep(5)
        return str(newest_ticket(caller)["ticket"])


@pytest.mark.parametrize(
    ("is_clients", "side_effect_free", "told"),
    [
        (False, False, "it may have been done"),  # never a second time
        (False, True, "ordered"),  # changes nothing: called again
        (True, False, "no answer in time"),  # the client has not said what came of it
    ],
)
async def test_a_tool_call_without_a_result_gets_its_due(
    clock: Clock, tickets: Tickets, is_clients: bool, side_effect_free: bool, told: str
) -> None:
    agent = order(is_clients, side_effect_free)
    held = await broken_within_a_call(clock, tickets, agent)
    model = FakeLanguageModel(calls_then_tells)
    backends = instant_backends(language_model=model)
    async with Caller(clock, backends, agent=agent, tickets=tickets, **toolbox(agent, clock)) as it:
        it.send("voiceloop.resume", ticket=held)
        while told not in it.transcript():
            await it.wait_quietly(100)
            assert it.sent_ms < 30_000, it.types()
    n_calls = sum(len(message.tool_calls) for message in model.prompts[-1])
    assert n_calls == 1


async def test_a_call_that_broke_behind_the_line_said_meanwhile_is_answered(
    clock: Clock, tickets: Tickets
) -> None:
    agent = order(is_clients=False, side_effect_free=True)
    async with Caller(clock, agent=agent, hello=ASKS, tickets=tickets) as caller:
        for item in (
            typed("go"),
            {"type": "function_call", "call_id": "call_1", "name": "order", "arguments": "{}"},
            {"type": "message", "role": "assistant",
             "content": [{"type": "output_text", "text": "One moment."}]},
        ):  # fmt: skip
            caller.send("conversation.item.create", item=item)
        await asyncio.sleep(5)
        held = str(newest_ticket(caller)["ticket"])
    backends = instant_backends(language_model=FakeLanguageModel(calls_then_tells))
    async with Caller(clock, backends, agent=agent, tickets=tickets, **toolbox(agent, clock)) as it:
        it.send("voiceloop.resume", ticket=held)
        while "ordered" not in it.transcript():
            await it.wait_quietly(100)
            assert it.sent_ms < 30_000, it.types()


def toolbox(agent: AgentConfig, clock: Clock) -> dict[str, Any]:
    return {"toolbox": toolbox_of(agent, clock)}


async def test_a_client_that_knows_the_result_says_it_after_it_has_resumed(
    clock: Clock, tickets: Tickets
) -> None:
    agent = order(is_clients=True, side_effect_free=False)
    held = await broken_within_a_call(clock, tickets, agent)
    backends = instant_backends(language_model=FakeLanguageModel(calls_then_tells))
    async with Caller(clock, backends, agent=agent, tickets=tickets) as again:
        again.send("voiceloop.resume", ticket=held)
        output = {"type": "function_call_output", "call_id": "call_1", "output": "done"}
        again.send("conversation.item.create", item=output)
        again.send("response.create")
        await again.wait_for("response.done")
        await asyncio.sleep(15)
    assert json.dumps(again.transcript()) == '"It says done."'
    assert len(again.of("response.done")) == 1

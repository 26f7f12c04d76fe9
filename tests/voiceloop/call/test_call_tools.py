"""The tools that act on the call: what was said with them is heard first."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np
import pytest

from tests.callers import Caller
from tests.fakes import FakeLanguageModel, FakeRecognizer, Reply, instant_backends
from tests.voiceloop.call.test_sound_line import MemoryLine
from voiceloop.agent import AgentConfig
from voiceloop.backends import Backends, ChatMessage, ToolCall
from voiceloop.call.acts import MAX_TRANSFER_S
from voiceloop.call.connection import Hello
from voiceloop.call_manners import CallManners, Transfer
from voiceloop.config import Config
from voiceloop.doors.sip.door import RING_S
from voiceloop.doors.sip.leg import TRANSFER_S
from voiceloop.errors import NotOnThisLine, TransferFailed
from voiceloop.phone_settings import PhoneSettings
from voiceloop.telephony import Announcement, PhoneCall

pytestmark = pytest.mark.virtual_time
Clock = Callable[[], float]
NONE = Config()
AGENT = AgentConfig(
    call=CallManners(tools=("end_call",), end_words=("goodbye",), goodbye="Bye now.")
)


def ending(words: str, *heard: str) -> Backends:
    """A model that ends the call where it hears that that is all, saying this with it."""

    def reply(messages: tuple[ChatMessage, ...]) -> Reply:
        if "all" in messages[-1].content:
            return Reply(words, (ToolCall("c1", "end_call", "{}"),))
        return Reply("Yes, of course.")

    return instant_backends(
        recognizer=FakeRecognizer(list(heard) or ["that is all"], ms_per_word=150),
        language_model=FakeLanguageModel(reply),
    )


@pytest.mark.parametrize(
    ("words", "said"), [("Thank you for calling.", "Thank you for calling."), ("", "Bye now.")]
)
async def test_the_agent_hangs_up_after_its_goodbye_was_heard(
    clock: Clock, words: str, said: str
) -> None:
    async with Caller(clock, ending(words), AGENT) as caller:
        await caller.say(700)
        while not caller.transport.closed:
            await caller.wait_quietly(20)
        closed_s = clock()
    assert caller.transport.closed == (1000, "the agent ended the call")
    assert caller.transcript() == said
    heard_until_s = caller.first_audio_s() + caller.audio_ms() / 1000
    assert 0.5 < closed_s - heard_until_s < 0.8
    assert set(caller.statuses()) == {"completed"}


async def test_who_speaks_against_the_goodbye_keeps_the_line(clock: Clock) -> None:
    backends = ending("Thank you for calling, and goodbye to you.", "that is all", "not yet please")
    async with Caller(clock, backends, AGENT) as caller:
        await caller.say(700)
        await caller.listen_until("response.output_audio.delta")
        await caller.wait_quietly(600)
        await caller.say(900)
        await caller.listen_until("response.done", count=2)
        await caller.wait_quietly(3000)
        assert not caller.transport.closed
        await caller.say(500)
        await caller.listen_until("response.done", count=3)
    assert "of course" in caller.transcript()


async def test_a_farewell_ends_the_call_without_the_model(clock: Clock) -> None:
    recognizer = FakeRecognizer(["goodbye"], ms_per_word=400)
    backends = instant_backends(
        recognizer=recognizer, language_model=FakeLanguageModel(["I must not be asked."])
    )
    async with Caller(clock, backends, AGENT) as caller:
        await caller.say(600)
        while not caller.transport.closed:
            await caller.wait_quietly(20)
    assert caller.transcript() == "Bye now."
    assert caller.transport.closed == (1000, "the agent ended the call")


async def test_who_did_not_switch_it_on_has_no_such_tool(clock: Clock) -> None:
    plain = replace(AGENT, call=CallManners())
    async with Caller(clock, ending("Never."), plain) as caller:
        assert caller.session.protocol.settings.tools == ()


@dataclass
class MemoryPhone:
    """A telephone that does what it is told, or fails to connect anybody."""

    clock: Clock
    failure: Exception | None = None
    announces: bool = True
    rings_s: float = 2.0
    asked: list[tuple[str, Announcement | None]] = field(default_factory=list)
    pressed: list[str] = field(default_factory=list)
    at_s: float = 0.0

    async def hang_up(self) -> None:
        """The line ends."""

    async def transfer(self, target: str, announcement: Announcement | None = None) -> None:
        self.at_s = self.clock()
        self.asked.append((target, announcement))
        if announcement is not None and not self.announces:
            raise NotOnThisLine("expected a line that can announce")
        await asyncio.sleep(self.rings_s)
        if self.failure is not None:
            raise self.failure

    async def send_digits(self, digits: str) -> None:
        self.at_s = self.clock()
        self.pressed.append(digits)


PHONE = Hello(door="phone", greeting=True, phone=PhoneCall("sip", "+4930123"))
DESK = Transfer("desk", "tel:+493055", ("talk to a person",))


def phoned(
    clock: Clock, phone: MemoryPhone, backends: Backends, agent: AgentConfig, config: Config = NONE
) -> Caller:
    line = MemoryLine(clock)
    return Caller(clock, backends, agent, config, hello=PHONE, line=line, phone=phone)


def calling(name: str, arguments: str, words: str = "") -> Backends:
    """A model that makes this call at the first thing it hears."""

    def reply(messages: tuple[ChatMessage, ...]) -> Reply:
        n_turns = sum(message.role == "user" for message in messages)
        if n_turns == 1 and messages[-1].role != "tool":
            return Reply(words, (ToolCall("c1", name, arguments),))
        return Reply("Anything else?")

    recognizer = FakeRecognizer(["i want sales", "are you there", "yes"], ms_per_word=150)
    return instant_backends(recognizer=recognizer, language_model=FakeLanguageModel(reply))


async def test_a_caller_is_handed_over_once_that_was_said(clock: Clock) -> None:
    phone = MemoryPhone(clock)
    backends = calling("transfer", '{"to": "desk"}')
    async with phoned(clock, phone, backends, AgentConfig(transfers=(DESK,))) as caller:
        await caller.say(700)
        await caller.listen_until("output_audio_buffer.stopped")
        (stopped,) = caller.of("output_audio_buffer.stopped")
        while not caller.transport.closed:
            await caller.say(100)  # to who took the call: the agent hears nothing of it
    assert phone.asked == [("tel:+493055", None)] and phone.at_s >= stopped.at_s - 0.1
    assert caller.transcript() == CallManners().transferring
    assert caller.transport.closed == (1000, "the caller was handed over")
    assert caller.statuses() == ["completed"] * 2


@pytest.mark.parametrize("announces", [True, False])
async def test_who_takes_a_warm_transfer_hears_a_summary_first(
    clock: Clock, announces: bool
) -> None:
    phone = MemoryPhone(clock, announces=announces)
    told = '{"to": "desk", "summary": "She wants a  refund."}'
    agent = AgentConfig(transfers=(replace(DESK, warm=True),))
    async with phoned(clock, phone, calling("transfer", told, "I will ask."), agent) as caller:
        await caller.say(700)
        while not caller.transport.closed:
            await caller.wait_quietly(20)
    (target, announcement), *rest = phone.asked
    assert announcement is not None and announcement.text == "She wants a refund."
    assert len(announcement.sound) > 2 * 24_000 * 0.5
    assert rest == ([] if announces else [(target, None)])


@pytest.mark.parametrize("warm", [True, False])
async def test_a_caller_hears_it_ring_until_somebody_takes_them(clock: Clock, warm: bool) -> None:
    phone = MemoryPhone(clock, rings_s=60.0)
    backends = calling("transfer", '{"to": "desk", "summary": "A refund."}')
    agent = AgentConfig(transfers=(replace(DESK, warm=warm),))
    async with phoned(clock, phone, backends, agent) as caller:
        await caller.say(700)
        await caller.listen_until("output_audio_buffer.stopped")
        while not caller.transport.closed:
            await caller.wait_quietly(100)
    line = caller.transport.line
    assert isinstance(line, MemoryLine)
    rings = [
        at_s
        for at_s, samples in line.sent
        if phone.at_s < at_s and np.abs(np.frombuffer(samples, "<i2").astype(int)).max() > 1000
    ]
    silences = [after - before for before, after in pairwise(rings)]
    assert rings[0] - phone.at_s < 5.1 and max(silences) < 4.1  # a second in five
    assert 55.0 < rings[-1] - phone.at_s < 60.1
    assert caller.transport.closed == (1000, "the caller was handed over")


def test_the_longest_way_to_a_colleague_fits_into_a_transfer() -> None:
    assert MAX_TRANSFER_S >= RING_S + 60.0 + 2 * TRANSFER_S  # a summary, and two REFERs


async def test_a_caller_whom_nobody_takes_comes_back_with_a_sentence(clock: Clock) -> None:
    phone = MemoryPhone(clock, failure=TransferFailed("busy"))
    backends = calling("transfer", '{"to": "desk"}')
    async with phoned(clock, phone, backends, AgentConfig(transfers=(DESK,))) as caller:
        await caller.say(700)
        await caller.listen_until("output_audio_buffer.stopped", count=2)
        await caller.say(500)
        await caller.listen_until("output_audio_buffer.stopped", count=3)
    assert CallManners().not_transferred in caller.transcript()
    assert caller.transcript().endswith("Anything else?")


async def test_a_transfer_the_server_does_not_allow_is_not_offered(clock: Clock) -> None:
    """Nor one that the agent's file does not name, whatever number the model is talked into."""
    config = Config(phone=PhoneSettings(transfer_to=("tel:+4930*",)))
    premium = Transfer("far", "tel:+1900555")
    phone = MemoryPhone(clock)
    backends = calling("transfer", '{"to": "tel:+1900555"}')
    agent = AgentConfig(transfers=(DESK, premium))
    async with phoned(clock, phone, backends, agent, config) as caller:
        (tool,) = caller.session.protocol.settings.tools
        assert tool.parameters["properties"]["to"]["enum"] == ["desk"]
        await caller.say(700)
        await caller.listen_until("output_audio_buffer.stopped")
        await caller.wait_quietly(1000)
    assert phone.asked == [] and caller.transcript() == "Anything else?"


def test_a_pattern_reaches_no_other_host() -> None:
    phone = PhoneSettings(transfer_to=("sip:*@pbx", "tel:+4930*"))
    assert phone.allows("sip:7@PBX") and phone.allows("tel:+4930")
    for target in ("sip:7@evil;x=@pbx", "sip:7@evil?a@pbx", "tel:+49301;phone-context=1", "tel:+1"):
        assert not phone.allows(target)
    assert not PhoneSettings().allows("tel:+4930")


async def test_who_asks_for_a_person_needs_no_model(clock: Clock) -> None:
    phone = MemoryPhone(clock)
    recognizer = FakeRecognizer(["can i talk to a person please"], ms_per_word=100)
    backends = instant_backends(
        recognizer=recognizer, language_model=FakeLanguageModel(["I must not be asked."])
    )
    async with phoned(clock, phone, backends, AgentConfig(transfers=(DESK,))) as caller:
        await caller.say(900)
        while not caller.transport.closed:
            await caller.wait_quietly(20)
    assert phone.asked == [("tel:+493055", None)]
    assert caller.transcript() == CallManners().transferring


async def test_keys_are_pressed_when_what_was_said_with_them_is_over(clock: Clock) -> None:
    phone = MemoryPhone(clock)
    backends = calling("send_digits", '{"digits": "1, 2#"}')
    agent = AgentConfig(call=CallManners(tools=("send_digits",)))
    async with phoned(clock, phone, backends, agent) as caller:
        await caller.say(700)
        await caller.listen_until("response.done")
        await caller.wait_quietly(500)
        assert not caller.transport.closed
    assert phone.pressed == ["1w2#"]


async def test_a_client_without_a_telephone_has_none_of_its_tools(clock: Clock) -> None:
    agent = AgentConfig(call=CallManners(tools=("end_call", "send_digits")), transfers=(DESK,))
    async with Caller(clock, calling("end_call", "{}"), agent) as caller:
        assert [tool.name for tool in caller.session.protocol.settings.tools] == ["end_call"]

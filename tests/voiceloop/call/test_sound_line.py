"""A call over a line that carries sound beside its events: what its client is told, and when."""

from __future__ import annotations

import base64
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from tests.callers import Caller
from tests.fakes import FakeLanguageModel, FakeRecognizer, instant_backends, quiet
from voiceloop.agent import AgentConfig
from voiceloop.call.connection import Hello
from voiceloop.reply.playout import FADE_OUT_MS

pytestmark = pytest.mark.virtual_time

Clock = Callable[[], float]
WEBRTC = Hello(door="webrtc")
LONG = "Once upon a time there was a cafe that had everything, and everybody came to eat there."


@dataclass
class MemoryLine:
    """Keeps what it is given, and when."""

    clock: Clock
    lead_ms: float = 40.0
    delay_ms: float | None = 80.0
    sent: list[tuple[float, bytes]] = field(default_factory=list)
    n_cleared: int = 0

    def play_delay_ms(self) -> float | None:
        return self.delay_ms

    def send_sound(self, samples: bytes) -> None:
        self.sent.append((self.clock(), samples))

    def clear_sound(self) -> None:
        self.n_cleared += 1

    @property
    def sent_ms(self) -> float:
        return sum(len(samples) for _, samples in self.sent) / 48.0


async def test_a_turn_is_heard_and_answered_without_sound_in_any_event(clock: Clock) -> None:
    line = MemoryLine(clock)
    async with Caller(clock, hello=WEBRTC, line=line) as caller:
        await caller.say(700)
        await caller.listen_until("output_audio_buffer.stopped")
    assert not caller.of("response.output_audio.delta")
    (started,), (stopped,) = (
        caller.of(f"output_audio_buffer.{told}") for told in ("started", "stopped")
    )
    (done,) = caller.of("response.done")
    response_id = done.event["response"]["id"]
    assert started.event["response_id"] == stopped.event["response_id"] == response_id
    types = [r.type for r in caller.transport.received]
    assert types.index("response.content_part.added") < types.index(started.type)
    assert types.index("response.done") < types.index(stopped.type)
    first_s, last_s = line.sent[0][0], line.sent[-1][0]
    assert started.at_s == first_s
    assert 1000 * (stopped.at_s - first_s) == pytest.approx(line.sent_ms, abs=1)
    assert 1000 * (stopped.at_s - last_s) <= line.lead_ms + 1  # never further ahead


@pytest.mark.parametrize("delay_ms", [80.0, None])
async def test_a_barge_in_clears_the_sound_and_says_what_was_heard(
    clock: Clock, delay_ms: float | None
) -> None:
    backends = instant_backends(
        recognizer=FakeRecognizer(["tell me a story", "something else now"], ms_per_word=400),
        language_model=FakeLanguageModel([LONG]),
    )
    line = MemoryLine(clock, delay_ms=delay_ms)
    async with Caller(clock, backends, hello=WEBRTC, line=line) as caller:
        await caller.say(700)
        await caller.listen_until("output_audio_buffer.started")
        begun_s, n_before = clock(), len(line.sent)
        await caller.wait_quietly(800)
        await caller.say(1500)
        (cut,) = caller.of("conversation.item.truncated")
        sent_ms = sum(len(s) for at_s, s in line.sent if at_s <= cut.at_s) / 48.0
        await caller.listen_until("response.done", count=2)
    (cleared,) = caller.of("output_audio_buffer.cleared")
    (response,) = caller.of("response.created")[:1]
    assert cleared.event["response_id"] == response.event["response"]["id"]
    assert line.n_cleared == 1 and n_before
    if delay_ms is None:  # what was sent is heard, but for the fade
        assert 0 <= sent_ms - cut.event["audio_end_ms"] <= FADE_OUT_MS
    else:  # less is, by what the line and its listener's buffer still hold
        assert sent_ms - cut.event["audio_end_ms"] >= delay_ms
    assert 0 < cut.event["audio_end_ms"] < 1000 * (cut.at_s - begun_s) + line.lead_ms
    types = [r.type for r in caller.transport.received]
    assert types.index("response.done") < types.index(cleared.type) < types.index(cut.type)


async def test_an_answer_that_is_taken_back_is_cleared_and_counts_as_unheard(clock: Clock) -> None:
    model = FakeLanguageModel(lambda m: f"You said {m[-1].content}.")
    recognizer = FakeRecognizer(["i want a latte", "with oat milk"], ms_per_word=200)
    backends = instant_backends(recognizer=recognizer, language_model=model)
    async with Caller(clock, backends, hello=WEBRTC, line=MemoryLine(clock)) as caller:
        await caller.say(800)
        await caller.listen_until("output_audio_buffer.started")
        await caller.wait_quietly(120)
        await caller.say(700)
        await caller.listen_until("output_audio_buffer.stopped")
    (cut,) = caller.of("conversation.item.truncated")
    first, second = caller.of("output_audio_buffer.started")
    (cleared,), (stopped,) = (
        caller.of(f"output_audio_buffer.{told}") for told in ("cleared", "stopped")
    )
    assert cut.event["audio_end_ms"] == 0
    assert cleared.event["response_id"] == first.event["response_id"]
    assert stopped.event["response_id"] == second.event["response_id"]
    assert "oat milk" in caller.transcript(second.event["response_id"])


@pytest.mark.parametrize("cancels", [True, False])
async def test_clear_is_answered_and_silences_the_agent(clock: Clock, cancels: bool) -> None:
    backends = instant_backends(language_model=FakeLanguageModel([LONG]))
    line = MemoryLine(clock)
    async with Caller(clock, backends, hello=WEBRTC, line=line) as caller:
        caller.send("output_audio_buffer.clear")  # before there was any
        nothing = await caller.wait_for("output_audio_buffer.cleared")
        assert nothing.event["response_id"] == ""
        await caller.say(700)
        await caller.listen_until("output_audio_buffer.started")
        await caller.wait_quietly(400)
        if cancels:  # as the stock SDK does
            caller.send("response.cancel")
        caller.send("output_audio_buffer.clear")
        cleared = await caller.wait_for("output_audio_buffer.cleared", count=2)
        await caller.wait_quietly(1000)
        assert 1000 * (line.sent[-1][0] - cleared.at_s) <= 20  # the fade
        (done,) = caller.of("response.done")
        assert cleared.event["response_id"] == done.event["response"]["id"]
        assert caller.statuses() == ["cancelled"]
        assert not caller.of("output_audio_buffer.stopped")


async def test_the_client_chooses_no_format_and_appends_no_sound(clock: Clock) -> None:
    async with Caller(clock, hello=WEBRTC, line=MemoryLine(clock)) as caller:
        caller.send("input_audio_buffer.append", audio=base64.b64encode(b"\0\0").decode())
        refused = await caller.wait_for("error")
        assert "sound on the line" in refused.event["error"]["message"]
        pcmu = {"format": {"type": "audio/pcmu"}}
        caller.send("session.update", session={"audio": {"input": pcmu, "output": pcmu}})
        updated = await caller.wait_for("session.updated")
        audio = updated.event["session"]["audio"]
        line_format = {"type": "audio/pcm", "rate": 24000}
        assert audio["input"]["format"] == audio["output"]["format"] == line_format
        caller.send("response.create", response={"audio": {"output": pcmu}})
        created = await caller.wait_for("response.created")
        assert created.event["response"]["audio"]["output"]["format"] == line_format


async def test_push_to_talk_commits_the_sound_of_the_line(clock: Clock) -> None:
    backends = instant_backends(recognizer=FakeRecognizer(["a latte please"]))
    async with Caller(clock, backends, hello=WEBRTC, line=MemoryLine(clock)) as caller:
        asked = {"turn_detection": None, "transcription": {}}
        caller.send("session.update", session={"audio": {"input": asked}})
        await caller.wait_for("session.updated")
        await caller.say(700)
        caller.send("input_audio_buffer.commit")
        heard = await caller.wait_for("conversation.item.input_audio_transcription.completed")
    assert heard.event["transcript"] == "a latte please"


async def test_sound_alone_does_not_decide_who_begins(clock: Clock) -> None:
    agent = AgentConfig(greeting="Hello!")
    async with Caller(clock, agent=agent, hello=WEBRTC, line=MemoryLine(clock)) as caller:
        caller.transport.put_sound(quiet(20, 24_000))
        caller.send("session.update", session={"instructions": "Be brief."})
        await caller.wait_for("session.updated")
        await caller.wait_quietly(3000)
    assert not caller.of("response.created")

"""A whole call on fakes and a virtual clock: who speaks when, and what the wire says of it."""

from __future__ import annotations

import asyncio
import base64
import logging
import re
from collections.abc import Callable

import pytest

from tests.callers import Caller
from tests.fakes import FakeLanguageModel, FakeRecognizer, FakeVoice, instant_backends, quiet
from voiceloop.config import Config, Limits

pytestmark = pytest.mark.virtual_time
Clock = Callable[[], float]


async def test_a_spoken_turn_is_answered_in_the_documented_order(clock: Clock) -> None:
    async with Caller(clock) as caller:
        await caller.say(800)
        await caller.listen_until("response.done")
    types = caller.types()
    order = [
        "session.created",
        "input_audio_buffer.speech_started",
        "input_audio_buffer.speech_stopped",
        "input_audio_buffer.committed",
        "conversation.item.added",
        "conversation.item.done",
        "response.created",
        "response.output_item.added",
        "conversation.item.added",
        "response.content_part.added",
        "response.output_audio_transcript.delta",
        "response.output_audio.delta",
    ]
    assert types[: len(order)] == order
    assert caller.statuses() == ["completed"]
    assert caller.transcript() == "Sure, I can help you with that."
    assert caller.of("input_audio_buffer.speech_started")[0].event["audio_start_ms"] < 64


async def test_the_gap_is_the_wait_and_little_more(clock: Clock) -> None:
    backends = instant_backends(recognizer=FakeRecognizer(["what time is it now"], ms_per_word=150))
    async with Caller(clock, backends) as caller:
        end_s = await caller.say(800)
        await caller.listen_until("response.done")
        gap_ms = 1000 * (caller.first_audio_s() - end_s)
        timeline = (await caller.wait_for("voiceloop.timeline")).event["timeline"]
    needed_ms = timeline["endpoint"]["needed_ms"]
    assert gap_ms == pytest.approx(needed_ms, abs=60)
    summed_ms = sum(stage["ms"] for stage in timeline["stages"])
    assert summed_ms == pytest.approx(timeline["gap_ms"], abs=0.01)  # stages are in whole us
    assert timeline["outcome"] == "completed"


async def test_a_word_stops_the_agent_and_history_keeps_what_was_heard(clock: Clock) -> None:
    model = FakeLanguageModel(["one two three four five six seven eight nine ten", "Okay."])
    backends = instant_backends(
        recognizer=FakeRecognizer(["tell me a story", "stop please"]),
        language_model=model,
        voice=FakeVoice(ms_per_char=100),
    )
    async with Caller(clock, backends) as caller:
        await caller.say(900)
        await caller.listen_until("response.output_audio.delta")
        await caller.wait_quietly(1500)
        onset_s = clock()
        await caller.say(700)
        await caller.listen_until("response.done", count=2)
    started = caller.of("input_audio_buffer.speech_started")[1]
    assert 1000 * (started.at_s - onset_s) <= 300
    assert caller.statuses() == ["cancelled", "completed"]
    first_id = caller.of("response.done")[0].event["response"]["id"]
    last_audio_s = [
        r.at_s
        for r in caller.of("response.output_audio.delta")
        if r.event["response_id"] == first_id
    ][-1]
    assert 1000 * (last_audio_s - onset_s) <= 250
    heard = model.prompts[1][-2].content
    assert heard and "one two three four five six".startswith(heard.strip())
    assert len(heard.split()) >= 3


async def test_a_backchannel_ducks_and_the_agent_goes_on(clock: Clock) -> None:
    reply = " ".join(f"wo{number}" for number in range(10, 30))
    backends = instant_backends(
        recognizer=FakeRecognizer(["tell me a story", "yeah"], ms_per_word=150),
        language_model=FakeLanguageModel([reply]),
        voice=FakeVoice(ms_per_char=60),
    )
    async with Caller(clock, backends) as caller:
        await caller.say(700)
        await caller.listen_until("response.output_audio.delta")
        await caller.wait_quietly(1000)
        await caller.say(300)
        await caller.listen_until("response.done", limit_ms=20_000)
    assert caller.statuses() == ["completed"]
    assert caller.audio_ms() == pytest.approx(20 * 240, abs=1)
    assert len(caller.of("input_audio_buffer.speech_started")) == 1


async def test_a_client_that_stops_sending_is_answered(clock: Clock) -> None:
    async with Caller(clock) as caller:
        await caller.say(800)
        await caller.wait_for("response.done")
    assert caller.statuses() == ["completed"]


async def test_a_client_that_asks_for_notices_is_warned_before_its_time_is_over(
    clock: Clock,
) -> None:
    config = Config(limits=Limits(session_minutes=5.0))
    async with Caller(clock, config=config) as caller:
        start_s = clock()
        caller.send("session.update", session={"voiceloop": {"notices": True}})
        warning = await caller.wait_for("voiceloop.session_expiring")
        assert warning.event["seconds_left"] == 60
        assert warning.at_s - start_s == pytest.approx(240, abs=1)
        error = await caller.wait_for("error")
        assert error.event["error"]["code"] == "session_expired"
        assert error.at_s - start_s == pytest.approx(300, abs=1)
    async with Caller(clock, config=config) as caller:
        await caller.wait_for("error")
        assert not caller.of("voiceloop.session_expiring")


async def test_a_client_that_asks_for_notices_is_told_that_the_server_shuts_down(
    clock: Clock,
) -> None:
    async with Caller(clock, config=Config(limits=Limits(drain_s=7.0))) as caller:
        caller.send("session.update", session={"voiceloop": {"notices": True}})
        await caller.wait_for("session.updated")
        caller.session.end()
        caller.session.end()
        warning = await caller.wait_for("voiceloop.session_expiring")
        assert warning.event["seconds_left"] == 7
    assert len(caller.of("voiceloop.session_expiring")) == 1
    assert caller.transport.closed == (1012, "the server restarts")


async def test_a_client_that_reads_late_hears_that_its_session_expired(clock: Clock) -> None:
    limits = Limits(session_minutes=5.0)
    async with Caller(clock, config=Config(limits=limits)) as caller:
        caller.send("conversation.item.create", item=long_item())
        await caller.wait_for("conversation.item.done")
        await asyncio.sleep(60 * limits.session_minutes - 1.0)
        caller.transport.reading = False
        for _ in range(3):
            caller.send("conversation.item.retrieve", item_id="long")
        await asyncio.sleep(limits.slow_client_s - 2.0)
        assert caller.transport.closed is None
        caller.transport.reading = True
        error = await caller.wait_for("error")
        assert error.event["error"]["code"] == "session_expired"
    assert caller.transport.closed == (1001, "session expired")


def long_item() -> dict[str, object]:
    content = [{"type": "input_text", "text": "x" * 500_000}]
    return {"id": "long", "type": "message", "role": "user", "content": content}


async def test_a_client_that_leaves_much_unread_is_not_heard_until_it_is_cut(clock: Clock) -> None:
    async with Caller(clock) as caller:
        caller.send("conversation.item.create", item=long_item())
        await caller.wait_for("conversation.item.done")
        caller.transport.reading = False
        for _ in range(200):
            caller.send("conversation.item.retrieve", item_id="long")
        await asyncio.sleep(Config().limits.slow_client_s / 2)
        assert caller.session.protocol.outbox.n_bytes < 3 * 1024 * 1024
        await asyncio.sleep(Config().limits.slow_client_s)
        assert caller.transport.closed == (1013, "the client does not read")


async def test_a_client_that_reads_late_loses_nothing_that_it_asked_for(clock: Clock) -> None:
    async with Caller(clock) as caller:
        caller.send("conversation.item.create", item=long_item())
        await caller.wait_for("conversation.item.done")
        caller.transport.reading = False
        for _ in range(20):
            caller.send("conversation.item.retrieve", item_id="long")
        await asyncio.sleep(1)
        assert not caller.of("conversation.item.retrieved")
        caller.transport.reading = True
        await caller.wait_for("conversation.item.retrieved", count=20)
        assert caller.session.protocol.outbox.n_bytes == 0


async def test_the_log_has_a_line_for_each_call_and_no_word_of_it(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "voiceloop.call")
    backends = instant_backends(recognizer=FakeRecognizer(["my name is nobody"]))
    async with Caller(clock, backends) as caller:
        await caller.say(800)
        await caller.wait_for("response.done")
        session_id = caller.of("session.created")[0].event["session"]["id"]
    [line] = [record.getMessage() for record in caplog.records]
    assert re.fullmatch(rf"call {session_id}: \d+\.\d s, turns: 1; the client hung up", line)


async def test_others_are_served_between_frames_that_came_at_once(clock: Clock) -> None:
    n_passes = 0

    async def neighbour() -> None:
        nonlocal n_passes
        while True:
            n_passes += 1
            await asyncio.sleep(0)

    audio = base64.b64encode(quiet(100, 24_000).tobytes()).decode()
    async with Caller(clock) as caller:
        for _ in range(200):
            caller.send("input_audio_buffer.append", audio=audio)
        caller.send("input_audio_buffer.clear")
        beside = asyncio.create_task(neighbour())
        await caller.wait_for("input_audio_buffer.cleared")
        beside.cancel()
    assert n_passes >= 200

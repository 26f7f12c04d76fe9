"""A chat service that hears: the sound of the caller's turn beside its words."""

from __future__ import annotations

import base64
import io
import json
import wave
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from tests.callers import Caller
from tests.fakes import (
    FakeLanguageModel,
    FakeRecognizer,
    FakeVoice,
    instant_backends,
    utterance,
)
from tests.remote_service import Answer, Service, scripted_remote
from voiceloop.agent import AgentConfig, AgentSlot, Waiting
from voiceloop.backends import (
    OWN_MODEL,
    Backends,
    Cascade,
    ChatMessage,
    GenerateParams,
    NamedModel,
)
from voiceloop.config import load_config
from voiceloop.errors import ConfigError
from voiceloop.listening.turn_sound import MOST_BYTES, TurnSound
from voiceloop.remote.language import RemoteLanguageModel

pytestmark = pytest.mark.virtual_time
Clock = Callable[[], float]
AGENT = AgentConfig(instructions="Be kind.", waiting=Waiting(say=()))
LOUD = utterance(500, 16_000).astype("<i2").tobytes()
WORDS = "what time do you close today"


class HearingService(Service):
    """Takes at most so many parts of sound in a request."""

    def __init__(self, most_parts: int = 16) -> None:
        super().__init__()
        self.most_parts = most_parts
        self.text = "At six."
        self.bodies: list[dict[str, Any]] = []

    def answer_to(self, path: str, body: bytes) -> Answer:
        if path != "/v1/chat/completions":
            return super().answer_to(path, body)
        asked = json.loads(body)
        if len(sounds_of(asked)) > self.most_parts:
            told = f"At most {self.most_parts} audio(s) may be provided in one prompt."
            return Answer([json.dumps({"error": {"message": told}}).encode()], 400)
        self.bodies.append(asked)
        line = {"choices": [{"delta": {"content": self.text}, "finish_reason": "stop"}]}
        return Answer([f"data: {json.dumps(line)}\n\n".encode(), b"data: [DONE]\n\n"])

    @property
    def replies(self) -> list[dict[str, Any]]:
        """The requests that were not only to make it read."""
        return [body for body in self.bodies if body["max_tokens"] > 1]


def sounds_of(body: dict[str, Any]) -> list[float]:
    """Seconds of each part of sound in a request, each a WAV file at 16 kHz."""
    found = []
    for message in body["messages"]:
        for part in message["content"] if isinstance(message["content"], list) else ():
            if part["type"] == "input_audio":
                assert part["input_audio"]["format"] == "wav"
                data = base64.b64decode(part["input_audio"]["data"])
                with wave.open(io.BytesIO(data)) as file:
                    assert (file.getframerate(), file.getsampwidth()) == (16_000, 2)
                    samples = np.frombuffer(file.readframes(file.getnframes()), "<i2")
                assert np.abs(samples.astype(int)).max() > 5000  # the caller is in it
                found.append(len(samples) / 16_000)
    return found


@asynccontextmanager
async def hearing(
    clock: Clock, service: HearingService, said: Sequence[str] = (WORDS,)
) -> AsyncIterator[Backends]:
    async with scripted_remote(service) as remote:
        connection = remote.connect()
        await connection.start()
        model = RemoteLanguageModel(connection, clock=clock, hears=True)
        yield Backends(FakeRecognizer(said, ms_per_word=100), model, FakeVoice())


async def say_with_a_pause(caller: Caller, service: HearingService) -> int:
    """A turn of two clauses; returns how often the service was asked before the second."""
    detection = {"type": "semantic_vad", "eagerness": "low"}
    session = {"type": "realtime", "audio": {"input": {"turn_detection": detection}}}
    caller.send("session.update", session=session)
    await caller.wait_for("session.updated")
    await caller.say(400)
    await caller.wait_quietly(300)
    n_before = len(service.bodies)
    await caller.say(1200)
    await caller.listen_until("response.done", limit_ms=15_000)
    return n_before


async def test_the_committed_turn_goes_to_the_service_as_sound_and_words(clock: Clock) -> None:
    service = HearingService()
    async with hearing(clock, service) as backends, Caller(clock, backends, AGENT) as caller:
        await caller.say(1500)
        await caller.listen_until("response.done")
    [*_, body] = service.replies
    [seconds] = sounds_of(body)
    assert 1.4 < seconds < 2.0  # with what led into it, and not the silence that ended it
    assert WORDS in body["messages"][-1]["content"][-1]["text"]


async def test_history_keeps_the_words_and_no_sound(clock: Clock) -> None:
    service = HearingService()
    async with hearing(clock, service) as backends, Caller(clock, backends, AGENT) as caller:
        for count in (1, 2):
            await caller.say(1000)
            await caller.listen_until("response.done", count=count)
    [*_, body] = service.replies
    assert len(sounds_of(body)) == 1
    earlier = [m["content"] for m in body["messages"][:-1] if m["role"] == "user"]
    assert earlier == [WORDS]


async def test_sound_before_a_pause_is_a_part_of_its_own_and_read_ahead(clock: Clock) -> None:
    service = HearingService()
    async with hearing(clock, service) as backends, Caller(clock, backends, AGENT) as caller:
        n_before = await say_with_a_pause(caller, service)
        assert n_before  # asked in the pause
    first = next(sounds_of(body) for body in service.bodies if sounds_of(body))
    [*_, body] = service.replies
    assert len(sounds_of(body)) == 2 and sounds_of(body)[0] == first[0]


async def test_a_reply_begun_in_a_pause_stands_where_no_word_followed(clock: Clock) -> None:
    service, params = HearingService(), GenerateParams(max_tokens=40)
    said = ChatMessage("user", "Yes, please.", sound=(LOUD,))
    async with hearing(clock, service) as backends:
        branch = await backends.language_model.branch("s.b1", ())
        branch.begin_preemptive(1, (said,), params)
        await service.wait_asked("/chat/completions", 1)
        coughed = replace(said, sound=(LOUD, LOUD[:3200]))
        assert branch.commit((coughed,), params)
        await branch.close()
    assert len(service.replies) == 1


@pytest.mark.parametrize(("most_parts", "wanted"), [(1, 1), (0, 0)])
async def test_a_service_that_refuses_sound_gets_less_of_it_from_then_on(
    clock: Clock, most_parts: int, wanted: int
) -> None:
    service = HearingService(most_parts)
    async with hearing(clock, service) as backends, Caller(clock, backends, AGENT) as caller:
        await say_with_a_pause(caller, service)
        assert caller.statuses() == ["completed"]
    [*_, body] = service.replies
    assert len(sounds_of(body)) == wanted


async def test_without_turn_detection_the_committed_sound_is_sent(clock: Clock) -> None:
    service = HearingService()
    async with hearing(clock, service) as backends, Caller(clock, backends, AGENT) as caller:
        caller.send(
            "session.update",
            session={"type": "realtime", "audio": {"input": {"turn_detection": None}}},
        )
        await caller.wait_for("session.updated")
        await caller.say(1000)
        caller.send("input_audio_buffer.commit")
        caller.send("response.create")
        await caller.wait_for("response.done")
    [*_, body] = service.replies
    assert sounds_of(body) == [pytest.approx(1.0, abs=0.1)]


async def test_of_turns_that_nobody_answers_the_latest_sound_is_kept(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("voiceloop.realtime.shown.MOST_SOUND_BYTES", 16_000 * 2 * 5 // 2)
    service = HearingService()
    said = ["one", "two", "three", "four"]
    async with hearing(clock, service, said) as backends, Caller(clock, backends, AGENT) as caller:
        session = {"type": "realtime", "audio": {"input": {"turn_detection": None}}}
        caller.send("session.update", session=session)
        await caller.wait_for("session.updated")
        for count in range(1, 5):
            await caller.say(1000)
            caller.send("input_audio_buffer.commit")
            await caller.wait_for("input_audio_buffer.committed", count=count)
            await caller.wait_quietly(200)
        caller.send("response.create")
        await caller.wait_for("response.done")
    [body] = service.replies
    assert 1.5 < sum(sounds_of(body)) < 2.5
    assert "one two three four" in json.dumps(body)


async def test_a_typed_turn_has_no_sound(clock: Clock) -> None:
    service = HearingService()
    async with hearing(clock, service) as backends, Caller(clock, backends, AGENT) as caller:
        await caller.say(1000)
        await caller.listen_until("response.done")
        said = [{"type": "input_text", "text": WORDS}]
        item = {"type": "message", "role": "user", "content": said}
        caller.send("conversation.item.create", item=item)
        caller.send("response.create")
        await caller.wait_for("response.done", count=2)
    assert sounds_of(service.replies[-1]) == []


@pytest.mark.parametrize("is_detected", [True, False])
async def test_the_answer_to_a_sensitive_question_is_heard_by_no_service(
    clock: Clock, is_detected: bool
) -> None:
    service = HearingService()
    service.text = "What is your PIN?"
    slot = AgentSlot(asked="your PIN", kind="number", digits=4, name="pin", sensitive=True)
    agent = AgentConfig(instructions="Be kind.", slots=(slot,), waiting=Waiting(say=()))
    async with hearing(clock, service, [WORDS, "one two three four"]) as backends:
        async with Caller(clock, backends, agent) as caller:
            if not is_detected:
                session = {"type": "realtime", "audio": {"input": {"turn_detection": None}}}
                caller.send("session.update", session=session)
                await caller.wait_for("session.updated")
            for count in (1, 2):
                await caller.say(1000)
                if not is_detected:
                    caller.send("input_audio_buffer.commit")
                    caller.send("response.create")
                await caller.listen_until("response.done", count=count)
    asked = [body for body in service.bodies if "one two" not in json.dumps(body)]
    assert len(asked) == len(service.bodies)
    assert sounds_of(service.replies[0]) and not sounds_of(service.replies[-1])


async def test_of_two_models_only_the_one_that_hears_is_given_sound(clock: Clock) -> None:
    service, small = HearingService(), FakeLanguageModel(["I read."])
    async with hearing(clock, service) as found:
        named = {OWN_MODEL: NamedModel(small), "big": NamedModel(found.language_model)}
        backends = instant_backends(
            language_model=small, models=named, cascade=Cascade(OWN_MODEL, "big"),
            recognizer=FakeRecognizer([WORDS], ms_per_word=100),
        )  # fmt: skip
        async with Caller(clock, backends, AGENT) as caller:
            await caller.say(1000)
            await caller.listen_until("response.done")
            caller.send("response.create", response={"reasoning": {"effort": "low"}})
            await caller.wait_for("response.done", count=2)
    assert sounds_of(service.replies[-1])
    assert small.prompts and not any(m.sound for prompt in small.prompts for m in prompt)


def test_of_a_long_turn_the_latest_sound_is_kept() -> None:
    sound = TurnSound()
    for number in range(40):
        sound.feed(bytes([number]) * (MOST_BYTES // 30))
        if number == 5:
            sound.pause()
    sound.pause()
    assert sum(map(len, sound.pieces)) == MOST_BYTES
    assert sound.pieces[-1][-1] == 39
    assert sound.n_bytes == 40 * (MOST_BYTES // 30)
    assert sound.since(sound.n_bytes - 4) == b"\x27" * 4


def test_hearing_needs_a_service(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="llm_hears: expected llm_url"):
        load_config(flags={"llm_hears": "true"})
    file = tmp_path / "voiceloop.toml"
    for where in ('model = "qwen"', 'url = "worker://cloud:9001"'):
        file.write_text(f'[[models]]\nname = "ears"\ntakes = ["sound"]\n{where}\n')
        with pytest.raises(ConfigError, match=r"models\[0\].takes: expected the url of a service"):
            load_config(file)

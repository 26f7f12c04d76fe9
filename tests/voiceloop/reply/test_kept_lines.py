"""Lines kept as sound: spoken once, bounded, and nothing where the voice could not."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.callers import Caller
from tests.fakes import FakeRecognizer, FakeVoice, FakeVoiceStream, Fault, instant_backends
from voiceloop.agent import AgentConfig, Crisis
from voiceloop.backends import Speech, SpeechEnd, VoiceOptions
from voiceloop.call.connection import Hello
from voiceloop.config import Config
from voiceloop.reply import voice as kept_lines
from voiceloop.reply.voice import MOST_OPTIONS, KeptLine, KeptLines
from voiceloop.server.app import Gateway

pytestmark = pytest.mark.virtual_time
DEFAULT = VoiceOptions()
FALLBACK = AgentConfig().fallback
CRISIS = Crisis(("hurt myself",), "Please call your local helpline. Somebody is there now.")


async def test_a_kept_line_sounds_as_the_voice_spoke_it() -> None:
    lines, voice = KeptLines(), FakeVoice()
    await lines.keep(voice, "Sorry, once more?", DEFAULT)
    line = lines.line("Sorry, once more?", DEFAULT)
    assert line is not None and line.rate_hz == voice.rate_hz
    for _ in range(2):  # as often as it is needed
        stream = await line.open("any", DEFAULT)
        stream.feed("Sorry, once more?")
        stream.finish()
        heard = [event async for event in stream.events()]
        spoken = [word.text for piece in heard if isinstance(piece, Speech) for word in piece.words]
        assert spoken == ["Sorry,", "once", "more?"] and isinstance(heard[-1], SpeechEnd)
    assert not voice.open_streams


async def test_another_voice_or_another_line_is_not_kept() -> None:
    lines = KeptLines()
    await lines.keep(FakeVoice(), "Sorry?", DEFAULT)
    assert lines.line("Sorry?", VoiceOptions("bright")) is None
    assert lines.line("Pardon?", DEFAULT) is None


@pytest.mark.parametrize("action", ["fail", "hang", "overload"])
async def test_a_voice_that_cannot_speak_keeps_nothing_and_ends_nothing(action) -> None:
    lines = KeptLines()
    await lines.keep(FakeVoice(faults=[Fault("open", action)]), "Sorry?", DEFAULT)
    assert lines.line("Sorry?", DEFAULT) is None


class AskedVoice(FakeVoice):
    """Remembers what it was opened with, and how many of its streams were open at once."""

    def __init__(self, bug: Exception | None = None, **options: Any) -> None:
        super().__init__(first_audio_ms=50.0, **options)
        self.asked: list[VoiceOptions] = []
        self.most_open = 0
        self._bug = bug

    async def open(self, stream_id: str, options: VoiceOptions) -> FakeVoiceStream:
        self.asked.append(options)
        if (bug := self._bug) is not None:
            self._bug = None
            raise bug
        stream = await super().open(stream_id, options)
        self.most_open = max(self.most_open, len(self.open_streams))
        return stream


async def test_lines_wanted_together_are_spoken_one_after_the_other_and_each_once() -> None:
    lines, voice, bright = KeptLines(), AskedVoice(), VoiceOptions("bright")
    for options in (DEFAULT, bright, DEFAULT):
        lines.keep_soon(voice, "Sorry?", options)
    await asyncio.sleep(2.0)
    lines.keep_soon(voice, "Sorry?", DEFAULT)  # is there: the voice is not asked
    lines.keep_soon(voice, "Pardon?", DEFAULT)
    await asyncio.sleep(2.0)
    assert lines.line("Sorry?", DEFAULT) is not None and lines.line("Sorry?", bright) is not None
    assert lines.line("Pardon?", DEFAULT) is not None
    assert voice.asked == [DEFAULT, bright, DEFAULT] and voice.most_open == 1


async def test_after_another_lexicon_lines_are_spoken_anew_also_one_that_is_being_spoken() -> None:
    lines, before, after = KeptLines(), AskedVoice(), AskedVoice()
    lines.keep_soon(before, "Sorry?", DEFAULT)
    await asyncio.sleep(2.0)
    lines.keep_soon(before, "Pardon?", DEFAULT)
    await asyncio.sleep(0.01)
    lines.forget()
    for text in ("Sorry?", "Pardon?"):
        assert lines.line(text, DEFAULT) is None
        lines.keep_soon(after, text, DEFAULT)
    await asyncio.sleep(2.0)
    assert lines.line("Sorry?", DEFAULT) is not None and lines.line("Pardon?", DEFAULT) is not None
    assert len(before.asked) == 2 and len(after.asked) == 2 and not before.open_streams
    await lines.close()


async def test_a_bug_of_the_voice_costs_one_line_and_neither_its_keeper_nor_the_next() -> None:
    lines = KeptLines()
    await lines.keep(AskedVoice(bug=TypeError("oops")), "Sorry?", DEFAULT)
    voice = AskedVoice(bug=TypeError("oops"))
    for text in ("Sorry?", "Pardon?"):
        lines.keep_soon(voice, text, DEFAULT)
    await asyncio.sleep(2.0)
    assert lines.line("Sorry?", DEFAULT) is None and lines.line("Pardon?", DEFAULT) is not None
    lines.keep_soon(voice, "Sorry?", DEFAULT)  # wanted again, it is tried again
    await asyncio.sleep(2.0)
    assert lines.line("Sorry?", DEFAULT) is not None


async def test_no_more_lines_are_wanted_at_a_time_than_are_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kept_lines, "MOST_LINES", 2)
    lines, voice = KeptLines(), AskedVoice()
    for text in ("one", "two", "three"):
        lines.keep_soon(voice, text, DEFAULT)
    await asyncio.sleep(2.0)
    assert len(voice.asked) == 2 and lines.line("three", DEFAULT) is None


async def test_a_client_that_changes_its_speed_for_ever_gives_the_voice_little_to_keep(
    clock: Callable[[], float],
) -> None:
    voice, kept = AskedVoice(), KeptLines()
    agent = AgentConfig(crisis=CRISIS)
    async with Caller(clock, instant_backends(voice=voice), agent, kept_lines=kept) as caller:
        for n in range(20):
            speed = 0.5 + 0.05 * n
            audio = {"output": {"speed": speed}}
            caller.send("session.update", session={"type": "realtime", "audio": audio})
            await caller.wait_for("session.updated", count=n + 1)
            await asyncio.sleep(2.0)
        first = VoiceOptions(DEFAULT.voice, 0.5)
        assert kept.line(FALLBACK, first) is not None
        assert kept.line(CRISIS.answer, first) is not None
    assert len(voice.asked) == len(agent.kept_lines) * MOST_OPTIONS


async def test_the_line_unused_longest_goes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_lines, "MOST_LINES", 2)
    lines, voice = KeptLines(), FakeVoice()
    for text in ("one", "two"):
        await lines.keep(voice, text, DEFAULT)
    assert lines.line("one", DEFAULT) is not None
    await lines.keep(voice, "three", DEFAULT)
    assert lines.line("two", DEFAULT) is None and lines.line("one", DEFAULT) is not None


async def test_what_is_being_spoken_is_given_up_at_the_end() -> None:
    lines, voice = KeptLines(), FakeVoice(faults=[Fault("feed", "hang")])
    lines.keep_soon(voice, "Sorry?", DEFAULT)
    await asyncio.sleep(0)
    await lines.close()
    assert not voice.open_streams and lines.line("Sorry?", DEFAULT) is None


@pytest.mark.parametrize("at", ["open", "feed"])
async def test_a_reply_whose_voice_fails_ends_in_the_kept_fallback(
    clock: Callable[[], float], at: str
) -> None:
    kept = KeptLines()
    for text in AgentConfig().kept_lines:  # so that the call's own voice is not asked for them
        await kept.keep(FakeVoice(), text, DEFAULT)
    faults = [Fault(at), *([Fault(at, nth=1)] if at == "feed" else [])]  # a lost one is asked twice
    backends = instant_backends(voice=FakeVoice(faults=faults))
    async with Caller(clock, backends, kept_lines=kept) as caller:
        caller.send("response.create", response={"output_modalities": ["audio"]})
        await caller.wait_for("response.done", count=2)
        assert caller.statuses() == ["failed", "failed"]
        spoken = caller.of("response.output_audio_transcript.done")[-1].event["transcript"]
        assert spoken == FALLBACK and caller.audio_ms() > 500.0
        caller.send("response.create", response={"output_modalities": ["audio"]})
        await caller.wait_for("response.done", count=3)
        assert caller.statuses()[2] == "completed"


async def test_a_crisis_answer_is_said_as_it_was_kept_and_needs_no_voice(
    clock: Callable[[], float],
) -> None:
    agent = AgentConfig(crisis=CRISIS)
    backends = instant_backends(recognizer=FakeRecognizer(["i want to hurt myself"]))
    gateway = Gateway(Config(), agent, backends)
    await gateway.calls.kept_lines.keep_all(backends.voice, agent)
    backends = replace(backends, voice=FakeVoice(faults=[Fault("open", "hang")]))
    async with Caller(clock, backends, agent, kept_lines=gateway.calls.kept_lines) as caller:
        await caller.say(1300)
        await caller.listen_until("response.done")
    assert caller.statuses() == ["completed"] and caller.transcript() == CRISIS.answer


async def test_a_reply_that_nobody_hears_has_no_kept_fallback(clock: Callable[[], float]) -> None:
    kept = KeptLines()
    await kept.keep(FakeVoice(), FALLBACK, DEFAULT)
    backends = instant_backends(voice=FakeVoice(faults=[Fault("open")]))
    async with Caller(clock, backends, kept_lines=kept) as caller:
        caller.send("response.create", response={"output_modalities": ["text"]})
        await caller.wait_for("response.done")
    assert caller.statuses() == ["completed"] and caller.audio_ms() == 0.0


async def test_a_greeting_is_spoken_once_for_all_callers_unless_it_names_them(
    clock: Callable[[], float],
) -> None:
    voice, kept = AskedVoice(), KeptLines()
    agent = AgentConfig(greeting="Hello there, and welcome.")
    kept.keep_all_soon(voice, agent)
    kept.keep_all_soon(voice, replace(agent, greeting="Hello {caller.number}."))
    await asyncio.sleep(5.0)
    n_asked = len(voice.asked)
    for _ in range(2):
        hello = Hello(greeting=True)
        async with Caller(clock, instant_backends(voice=voice), agent, None, hello=hello,
                          kept_lines=kept) as caller:  # fmt: skip
            await caller.wait_for("response.done")
        assert caller.transcript() == agent.greeting and caller.audio_ms() > 500.0
    assert len(voice.asked) == n_asked == len(agent.kept_lines) + 1


async def test_half_a_line_is_not_kept() -> None:
    lines = KeptLines()
    half = KeptLine(24_000, (Speech(b"\0\0" * 240, 24_000),))
    await lines.keep(half, "Sorry?", DEFAULT)
    assert lines.line("Sorry?", DEFAULT) is None

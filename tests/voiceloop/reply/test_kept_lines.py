"""Lines kept as sound: spoken once, bounded, and nothing where the voice could not."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from tests.callers import Caller
from tests.fakes import FakeVoice, Fault, instant_backends
from voiceloop.agent import AgentConfig
from voiceloop.backends import Speech, SpeechEnd, VoiceOptions
from voiceloop.reply.sound import kept_lines
from voiceloop.reply.sound.kept_lines import KeptLines

pytestmark = pytest.mark.virtual_time
DEFAULT = VoiceOptions()
FALLBACK = AgentConfig().fallback


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


async def test_lines_are_spoken_one_at_a_time_and_each_once() -> None:
    lines, voice = KeptLines(), FakeVoice(first_audio_ms=50.0)
    lines.keep_soon(voice, "Sorry?", DEFAULT)
    lines.keep_soon(voice, "Sorry?", VoiceOptions("bright"))
    await asyncio.sleep(2.0)
    assert lines.line("Sorry?", DEFAULT) is not None
    assert lines.line("Sorry?", VoiceOptions("bright")) is None
    voice.plan = FakeVoice(faults=[Fault("open")]).plan
    lines.keep_soon(voice, "Sorry?", DEFAULT)  # is there: the voice is not asked
    await asyncio.sleep(2.0)
    assert lines.line("Sorry?", DEFAULT) is not None


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
    await kept.keep(FakeVoice(), FALLBACK, DEFAULT)
    backends = instant_backends(voice=FakeVoice(faults=[Fault(at)]))
    async with Caller(clock, backends, kept_lines=kept) as caller:
        caller.send("response.create", response={"output_modalities": ["audio"]})
        await caller.wait_for("response.done", count=2)
        assert caller.statuses() == ["failed", "failed"]
        spoken = caller.of("response.output_audio_transcript.done")[-1].event["transcript"]
        assert spoken == FALLBACK and caller.audio_ms() > 500.0
        caller.send("response.create", response={"output_modalities": ["audio"]})
        await caller.wait_for("response.done", count=3)
        assert caller.statuses()[2] == "completed"


async def test_a_reply_that_nobody_hears_has_no_kept_fallback(clock: Callable[[], float]) -> None:
    kept = KeptLines()
    await kept.keep(FakeVoice(), FALLBACK, DEFAULT)
    backends = instant_backends(voice=FakeVoice(faults=[Fault("open")]))
    async with Caller(clock, backends, kept_lines=kept) as caller:
        caller.send("response.create", response={"output_modalities": ["text"]})
        await caller.wait_for("response.done")
    assert caller.statuses() == ["completed"] and caller.audio_ms() == 0.0

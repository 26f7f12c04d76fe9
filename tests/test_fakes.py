"""The fakes keep their own promises: order, timing, faults."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.fakes import (
    FakeLanguageModel,
    FakeRecognizer,
    FakeVoice,
    Fault,
    quiet,
    tone,
)
from voiceloop.backends import (
    Branch,
    ChatMessage,
    Generated,
    GenerateParams,
    LanguageModel,
    Partial,
    Recognizer,
    RecognizerOptions,
    RecognizerStream,
    Speech,
    SpeechEnd,
    TextDelta,
    Transcript,
    Voice,
    VoiceOptions,
    VoiceStream,
)
from voiceloop.errors import WorkerLost

pytestmark = pytest.mark.virtual_time


async def test_recognizer_reveals_words_with_loud_audio_and_ends_with_all_of_them() -> None:
    recognizer: Recognizer = FakeRecognizer(["one two three"], ms_per_word=100)
    stream: RecognizerStream = await recognizer.open("r", RecognizerOptions())
    stream.feed(tone(250, 16_000).tobytes())
    stream.feed(quiet(250, 16_000).tobytes())
    stream.flush()
    stream.finalize()
    await stream.close()
    events = [event async for event in stream.events()]
    assert events[0] == Partial(0, ("one",), ("two",))
    assert events[1] == Partial(0, (), ("one", "two", "three"), flushed=True)
    assert isinstance(events[2], Transcript) and events[2].text == "one two three"


async def test_language_model_waits_as_scripted(clock: Callable[[], float]) -> None:
    model: LanguageModel = FakeLanguageModel(["a b"], ttft_ms=100, ms_per_token=10)
    branch: Branch = await model.branch("b", ())
    branch.commit((ChatMessage("user", "hi"),), GenerateParams())
    start_s, seen = clock(), []
    async for event in branch.events():
        seen.append((round(1000 * (clock() - start_s)), event))
        if isinstance(event, Generated):
            break
    assert [(t, e.text) for t, e in seen if isinstance(e, TextDelta)] == [(100, "a"), (110, " b")]
    await branch.close()


async def test_a_scripted_fault_breaks_the_stream_after_its_events() -> None:
    model = FakeLanguageModel(["a b c"], faults=[Fault("commit", after=2)])
    branch = await model.branch("b", ())
    branch.commit((), GenerateParams())
    seen = []
    with pytest.raises(WorkerLost):
        async for event in branch.events():
            seen.append(event)
    assert len(seen) == 2


async def test_voice_speaks_whole_words_before_the_text_ends() -> None:
    voice: Voice = FakeVoice(ms_per_char=10)
    stream: VoiceStream = await voice.open("v", VoiceOptions())
    stream.feed("Hel")
    stream.feed("lo you")
    events = stream.events()
    first = await anext(events)
    assert isinstance(first, Speech) and first.words[0].text == "Hello"
    stream.finish()
    last = [event async for event in _until_end(events)]
    assert isinstance(last[0], Speech) and last[0].words[0].text_end == len("Hello you")
    assert last[-1] == SpeechEnd(80 * 24)
    await stream.close()


async def _until_end(events):  # type: ignore[no-untyped-def]
    async for event in events:
        yield event
        if isinstance(event, SpeechEnd):
            return

"""Two recognizers in one stream: one hears the words, the other tells what the voice says."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from tests.fakes import FakeRecognizer, Fault
from voiceloop.agent import BargeIn
from voiceloop.backends import Partial, RecognizerEvent, RecognizerOptions, Transcript
from voiceloop.call.barge_in import BargeInJudge
from voiceloop.errors import BackendError
from voiceloop.remote.readers.end_of_voice import VoiceReadingRecognizer, VoiceReadingStream

pytestmark = pytest.mark.virtual_time

LOUD = np.full(16_000 // 2, 8_000, np.int16).tobytes()  # half a second
ENGLISH = RecognizerOptions()


def pair(
    hears_after_ms: float = 0.0, reads_after_ms: float = 0.0, **reading: object
) -> tuple[FakeRecognizer, FakeRecognizer]:
    hearing = FakeRecognizer(["a table"], partial_delay_ms=hears_after_ms)
    reader = FakeRecognizer(["its own"], p_voice=1.5, partial_delay_ms=reads_after_ms, **reading)  # type: ignore[arg-type]
    return hearing, reader


async def opened(
    hearing: FakeRecognizer, reader: FakeRecognizer, options: RecognizerOptions = ENGLISH
) -> VoiceReadingStream:
    stream = await VoiceReadingRecognizer(hearing, reader).open("s1", options)
    assert isinstance(stream, VoiceReadingStream)
    return stream


async def heard_in(stream: VoiceReadingStream, wait_s: float = 1.0) -> list[RecognizerEvent]:
    found: list[RecognizerEvent] = []

    async def collect() -> None:
        async for event in stream.events():
            found.append(event)

    task = asyncio.create_task(collect())
    await asyncio.sleep(wait_s)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    return found


def pauses(events: list[RecognizerEvent]) -> list[tuple[tuple[str, ...], bool, float | None]]:
    return [
        (event.stable_words + event.unstable_words, event.flushed, event.p_voice)
        for event in events
        if isinstance(event, Partial) and (event.flushed or event.p_voice is not None)
    ]


async def test_the_words_of_one_come_with_what_the_other_reads_in_the_voice() -> None:
    hearing, reader = pair(hears_after_ms=80.0, reads_after_ms=30.0)
    stream = await opened(hearing, reader)
    stream.feed(LOUD)
    stream.flush()
    assert pauses(await heard_in(stream))[-1] == (("a", "table"), True, 1.5)
    await stream.close()
    assert not hearing.open_streams and not reader.open_streams


async def test_words_do_not_wait_for_the_voice_which_follows_and_answers_no_flush() -> None:
    hearing, reader = pair(reads_after_ms=50.0)
    stream = await opened(hearing, reader)
    stream.feed(LOUD)
    stream.flush()
    words = ("a", "table")
    assert pauses(await heard_in(stream)) == [(words, True, None), (words, False, 1.5)]
    await stream.close()


async def test_what_a_service_makes_of_the_voice_counts_until_the_reader_has_heard_it() -> None:
    _, reader = pair(reads_after_ms=50.0)
    hearing = FakeRecognizer(["a table"], p_voice=0.5)
    stream = await opened(hearing, reader)
    stream.feed(LOUD)
    stream.flush()
    assert [p_voice for _, _, p_voice in pauses(await heard_in(stream))] == [0.5, 1.5]
    await stream.close()


async def test_a_pause_that_lasts_is_told_of_again() -> None:
    hearing, reader = pair(hears_after_ms=10.0)
    stream = await opened(hearing, reader)
    stream.feed(LOUD)
    stream.flush()
    await asyncio.sleep(0.05)
    (reading,) = reader.open_streams
    reading._pipe.put(Partial(0, (), (), p_voice=2.5))
    reading._pipe.put(Partial(0, ("its",), ()))
    told = pauses(await heard_in(stream))
    assert {p_voice for _, _, p_voice in told} == {1.5, 2.5}
    assert told[-1] == (("a", "table"), False, 2.5)
    await stream.close()


async def test_what_a_young_sound_is_like_comes_with_the_words_of_its_segment_alone() -> None:
    hearing, reader = pair(hears_after_ms=80.0)
    stream = await opened(hearing, reader)
    stream.feed(LOUD)
    (reading,) = reader.open_streams
    reading._pipe.put(Partial(0, (), (), for_agent=-0.5))
    await asyncio.sleep(0.02)
    stream.flush()
    (told,) = [event for event in await heard_in(stream) if isinstance(event, Partial)][-1:]
    assert (told.unstable_words or told.stable_words, told.for_agent) == (("a", "table"), -0.5)
    stream.finalize()
    stream.feed(LOUD)
    stream.flush()
    (told,) = [event for event in await heard_in(stream) if isinstance(event, Partial)][-1:]
    assert (told.segment, told.for_agent) == (1, None)
    await stream.close()


async def test_no_plain_voice_is_kept_out_on_the_readers_word_alone() -> None:
    hearing, reader = pair(hears_after_ms=80.0)
    stream = await opened(hearing, reader)
    stream.feed(LOUD)
    (reading,) = reader.open_streams
    reading._pipe.put(Partial(0, (), (), for_agent=-6.0))
    await asyncio.sleep(0.02)
    stream.flush()
    (told,) = [event for event in await heard_in(stream) if isinstance(event, Partial)][-1:]
    await stream.close()
    judge = BargeInJudge(BargeIn())
    for for_agent, stops in ((-6.0, False), (told.for_agent, True)):
        judge.reset()
        judge.observe_sound(for_agent)
        assert judge.takes_floor(1000.0, voice=0.9) == stops


async def test_a_voice_that_went_on_is_not_judged_by_the_pause_before() -> None:
    """The second pause comes before the reader has told of the first."""
    hearing, reader = pair(reads_after_ms=50.0)
    stream = await opened(hearing, reader)
    stream.feed(LOUD)
    stream.flush()
    await asyncio.sleep(0.02)
    stream.feed(LOUD)
    stream.flush()
    told = pauses(await heard_in(stream))
    assert [p_voice for _, _, p_voice in told] == [None, None, 1.5]
    await stream.close()


async def test_each_segment_is_judged_by_itself() -> None:
    hearing, reader = pair(reads_after_ms=50.0)
    stream = await opened(hearing, reader)
    stream.feed(LOUD)
    stream.flush()
    stream.finalize()
    events = await heard_in(stream)
    assert [p_voice for _, _, p_voice in pauses(events)] == [None]
    assert [event.text for event in events if isinstance(event, Transcript)] == ["a table"]
    stream.feed(LOUD)
    stream.flush()
    assert [event.segment for event in await heard_in(stream)][-1] == 1
    await stream.close()


@pytest.mark.parametrize("fault", ["open", "flush", "finalize"])
async def test_a_call_without_the_reader_goes_on(fault: str) -> None:
    hearing, reader = pair(faults=[Fault(fault)])
    stream = await VoiceReadingRecognizer(hearing, reader).open("s1", ENGLISH)
    for _ in range(2):
        stream.feed(LOUD)
        stream.flush()
        stream.finalize()
    found: list[RecognizerEvent] = []
    async for event in stream.events():
        found.append(event)
        if len([one for one in found if isinstance(one, Transcript)]) == 2:
            break
    assert [one.text for one in found if isinstance(one, Transcript)] == ["a table"] * 2
    await stream.close()
    assert not hearing.open_streams and not reader.open_streams


async def test_what_hears_and_fails_fails_the_stream() -> None:
    hearing, reader = FakeRecognizer(faults=[Fault("flush")]), FakeRecognizer()
    stream = await opened(hearing, reader)
    stream.flush()
    with pytest.raises(BackendError):
        async for _ in stream.events():
            pass
    await stream.close()
    assert not reader.open_streams


@pytest.mark.parametrize(
    "options",
    [RecognizerOptions(language="fr"), RecognizerOptions(is_batch=True)],
)
async def test_only_the_voice_of_an_english_caller_is_read(options: RecognizerOptions) -> None:
    hearing, reader = pair()
    stream = await VoiceReadingRecognizer(hearing, reader).open("s1", options)
    assert not isinstance(stream, VoiceReadingStream) and not reader.open_streams
    await stream.close()


async def test_a_call_does_not_wait_for_a_reader_that_is_not_ready() -> None:
    hearing, reader = pair(faults=[Fault("open", action="hang")])
    stream = await VoiceReadingRecognizer(hearing, reader, lambda: False).open("s1", ENGLISH)
    await stream.close()
    assert not reader.open_streams


async def test_another_language_in_the_call_ends_the_reading() -> None:
    hearing, reader = pair()
    stream = await opened(hearing, reader, RecognizerOptions(language="en-GB"))
    stream.set_options(RecognizerOptions(language="de"))
    stream.feed(LOUD)
    stream.flush()
    assert [p_voice for _, _, p_voice in pauses(await heard_in(stream))] == [None]
    assert not reader.open_streams
    await stream.close()


async def test_a_reader_that_is_given_up_as_the_call_ends_is_closed_all_the_same() -> None:
    hearing, reader = pair()
    stream = await opened(hearing, reader)
    stream.set_options(RecognizerOptions(language="de"))
    await stream.close()
    assert not hearing.open_streams and not reader.open_streams

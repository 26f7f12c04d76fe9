"""A reply that is written anew: what still stands keeps its sound, the rest is spoken again."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence

import pytest

from tests.fakes import FakeVoice, Fault, tone
from voiceloop.agent import Waiting
from voiceloop.backends import Speech, SpokenWord, VoiceOptions
from voiceloop.errors import BackendError, WorkerLost
from voiceloop.reply.bridge import Bridge
from voiceloop.reply.phase import Phase
from voiceloop.reply.playout import Chunk, Pacer, Playout
from voiceloop.reply.speech import ReplySpeech
from voiceloop.reply.voice import KeptLines

pytestmark = pytest.mark.virtual_time
Clock = Callable[[], float]
RATE_HZ, MS_PER_CHAR = 24_000, 60.0


class Spoken:
    def __init__(self, clock: Clock, rate_hz: int = RATE_HZ, faults: Sequence[Fault] = ()) -> None:
        self.voice = FakeVoice(ms_per_char=MS_PER_CHAR, faults=faults)
        self.chunks: list[Chunk] = []
        self.n_streams = 0
        self.speech = ReplySpeech(
            self.voice,
            VoiceOptions(),
            self.new_stream_id,
            Playout(self.chunks.append, clock, rate_hz),
            clock,
            Phase(),
            on_first_audio=lambda at_s: None,
        )

    def new_stream_id(self) -> str:
        self.n_streams += 1
        return f"voice{self.n_streams}"

    def lose(self) -> None:
        for stream in self.voice.open_streams:
            stream._pipe._queue.put_nowait(WorkerLost("expected the voice, found it lost"))

    def words(self) -> list[str]:
        return [word.text for chunk in self.chunks for word in chunk.words]

    def ms(self) -> float:
        return sum(chunk.duration_ms for chunk in self.chunks)


async def say_twice(clock: Clock, first: str, second: str) -> Spoken:
    """The first text is held whole; then the second is written, and all of it leaves."""
    spoken = Spoken(clock)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(spoken.speech.run())
        spoken.speech.say(first)
        spoken.speech.end_version()
        await asyncio.sleep(1)
        assert not spoken.chunks  # held
        spoken.speech.text.begin_version()
        spoken.speech.say(second)
        spoken.speech.finish()
        spoken.speech.release()
    assert not spoken.voice.open_streams
    return spoken


async def test_the_same_text_again_is_said_once_from_what_is_held(clock: Clock) -> None:
    spoken = await say_twice(clock, "Sure thing, one latte.", "Sure thing, one latte.")
    assert spoken.words() == ["Sure", "thing,", "one", "latte."]
    assert (spoken.n_streams, spoken.speech.wasted_ms) == (1, 0.0)


async def test_of_another_text_the_clauses_that_stand_keep_their_sound(clock: Clock) -> None:
    spoken = await say_twice(clock, "Sure thing, one small latte.", "Sure thing, one large latte.")
    assert spoken.words() == ["Sure", "thing,", "one", "large", "latte."]
    assert spoken.n_streams == 2
    assert spoken.speech.wasted_ms == pytest.approx(MS_PER_CHAR * len("onesmalllatte."), abs=1)
    assert spoken.ms() == pytest.approx(MS_PER_CHAR * len("Surething,onelargelatte."), abs=2)
    ends = [word.text_end for chunk in spoken.chunks for word in chunk.words]
    assert ends[-1] == len("Sure thing, one large latte.")


async def test_a_text_that_goes_on_where_the_first_ended_is_finished(clock: Clock) -> None:
    spoken = await say_twice(clock, "Sure thing.", "Sure thing. Anything else?")
    assert spoken.words() == ["Sure", "thing.", "Anything", "else?"]
    assert spoken.speech.wasted_ms == 0.0


async def test_a_text_that_goes_on_behind_what_was_sent_of_a_whole_one_follows_it(
    clock: Clock,
) -> None:
    spoken = Spoken(clock)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(spoken.speech.run())
        spoken.speech.say("Sure thing.")
        spoken.speech.end_version()
        spoken.speech.release()
        await asyncio.sleep(5)
        spoken.speech.text.begin_version()
        spoken.speech.say("Sure thing. Anything else?")
        spoken.speech.finish()
    assert spoken.words() == ["Sure", "thing.", "Anything", "else?"]
    assert spoken.ms() == pytest.approx(MS_PER_CHAR * len("Surething.Anythingelse?"), abs=2)


@pytest.mark.parametrize("promised", [True, False])
async def test_the_last_words_follow_what_stands_of_a_reply_that_broke_off(
    clock: Clock, promised: bool
) -> None:
    spoken = Spoken(clock)
    utterance = spoken.speech
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(utterance.run())
        utterance.say("Sure thing, one small latte")  # held: it was made ahead
        await asyncio.sleep(2)
        utterance.text.begin_version()
        utterance.release() if promised else utterance.release_confirmed()
        utterance.say("Sure thing, one")
        await asyncio.sleep(0.5)  # part of it is sent
        utterance.say_last("Pardon me?")
        utterance.finish()
        utterance.release()
    stands = "Sure thing, one small latte" if promised else "Sure thing, one"
    assert spoken.words() == [*stands.split(), "Pardon", "me?"]
    assert utterance.text.whole == f"{stands} Pardon me?"


async def test_behind_a_whole_reply_that_was_promised_nothing_is_missing(clock: Clock) -> None:
    spoken = Spoken(clock)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(spoken.speech.run())
        spoken.speech.say("Sure thing.")
        spoken.speech.end_version()
        await asyncio.sleep(2)
        spoken.speech.text.begin_version()
        spoken.speech.release()
        spoken.speech.say_last("Pardon me?")
        spoken.speech.finish()
    assert spoken.words() == ["Sure", "thing."]


@pytest.mark.parametrize("mute", ["", "...", " \u2014 "])
async def test_a_version_without_words_leaves_room_for_others(clock: Clock, mute: str) -> None:
    spoken = Spoken(clock)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(spoken.speech.run())
        spoken.speech.say(mute)
        spoken.speech.end_version()
        spoken.speech.release()
        await asyncio.sleep(2)
        assert not spoken.speech.text.has_words
        spoken.speech.say_last("Pardon me?")
        spoken.speech.finish()
    assert spoken.words()[-2:] == ["Pardon", "me?"]


async def test_nothing_stands_of_a_text_that_begins_otherwise(clock: Clock) -> None:
    spoken = await say_twice(clock, "Sure thing.", "No, sorry.")
    assert spoken.words() == ["No,", "sorry."]


async def test_no_sound_leaves_before_the_text_of_its_clause_is_verified(clock: Clock) -> None:
    spoken = Spoken(clock)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(spoken.speech.run())
        spoken.speech.say("Sure thing, one small latte, right away.")
        spoken.speech.end_version()
        await asyncio.sleep(1)
        spoken.speech.text.begin_version()
        spoken.speech.release_confirmed()
        for text, words in [("Sure thi", []), ("ng, one", ["Sure", "thing,"])]:
            spoken.speech.say(text)
            await asyncio.sleep(5)
            assert spoken.words() == words
        spoken.speech.say(" large latte.")
        await asyncio.sleep(5)
        assert spoken.words() == ["Sure", "thing,", "one", "large", "latte."][: len(spoken.words())]
        spoken.speech.finish()
        spoken.speech.release()
    assert spoken.words() == ["Sure", "thing,", "one", "large", "latte."]
    assert spoken.ms() == pytest.approx(MS_PER_CHAR * len("Surething,onelargelatte."), abs=2)
    # Of all that was ready the reply kept the first clause.
    assert spoken.speech.held_ms == pytest.approx(MS_PER_CHAR * len("Surething,"), abs=1)


async def test_a_promised_text_that_is_another_after_it_was_sent_is_an_error(clock: Clock) -> None:
    spoken = Spoken(clock)
    with pytest.raises(ExceptionGroup) as raised:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(spoken.speech.run())
            spoken.speech.say("Sure thing, one latte.")
            spoken.speech.release()
            await asyncio.sleep(0.5)
            assert spoken.words()
            spoken.speech.text.begin_version()
            spoken.speech.say("No, sorry.")
    (error,) = raised.value.exceptions
    assert isinstance(error, BackendError) and "continue what the caller" in str(error)


async def test_new_text_after_a_salvaged_beginning_sounds_before_its_clause_is_whole(
    clock: Clock,
) -> None:
    spoken = Spoken(clock)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(spoken.speech.run())
        spoken.speech.say("Sure thing.")
        await asyncio.sleep(1)
        spoken.speech.text.begin_version()
        spoken.speech.release_confirmed()
        spoken.speech.say("No, we have one")  # the reply goes another way, and is not over
        await asyncio.sleep(2)
        assert spoken.words()[:3] == ["No,", "we", "have"]
        assert spoken.speech.held_ms == 0.0
        spoken.speech.finish()


def test_a_clause_that_was_sent_to_its_end_is_not_sent_beyond_it() -> None:
    for n_samples in range(1, 24_000, 11):
        end_ms = 1000.0 * n_samples / RATE_HZ
        for kept_ms in (end_ms, math.nextafter(end_ms, 0.0), end_ms / 3 + end_ms / 3 + end_ms / 3):
            pacer = Pacer(RATE_HZ)
            pacer._audio.n_sent = n_samples
            assert not pacer.has_sent_beyond(kept_ms)


async def test_a_voice_that_is_lost_behind_the_last_word_is_not_needed_again(clock: Clock) -> None:
    spoken = Spoken(clock, faults=[Fault("open", nth=1)])
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(spoken.speech.run())
        spoken.speech.release()
        spoken.speech.say("Nine to five. ")
        await asyncio.sleep(0.1)
        spoken.lose()
        await asyncio.sleep(5)
        spoken.speech.finish()
    assert spoken.words() == ["Nine", "to", "five."]


async def test_at_another_rate_a_lost_voice_repeats_no_word_either(clock: Clock) -> None:
    """Of its last word the resampler still withholds 2 ms."""
    spoken = Spoken(clock, rate_hz=8000)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(spoken.speech.run())
        spoken.speech.release()
        spoken.speech.say("Nine to five ")
        await asyncio.sleep(2)
        spoken.lose()
        await asyncio.sleep(1)
        spoken.speech.say("today.")
        spoken.speech.finish()
    assert spoken.words() == ["Nine", "to", "five", "today."]
    assert spoken.ms() == pytest.approx(MS_PER_CHAR * len("Ninetofivetoday."), abs=5)


async def test_words_that_come_after_a_pause_are_not_overdue_as_they_come(clock: Clock) -> None:
    spoken, lines = Spoken(clock), list[float]()
    speech = spoken.speech

    def say(line: str, needs_voice: bool) -> bool:
        lines.append(clock())
        return True

    bridge = Bridge(Waiting(), iter(["One moment."]), clock)
    async with asyncio.TaskGroup() as tasks:
        watching = tasks.create_task(bridge.watch(speech.late, speech.changed, say))
        tasks.create_task(speech.run()).add_done_callback(lambda _: watching.cancel())
        speech.release()
        for text in ("Nine ", "to ", "five. "):
            speech.say(text)
            await asyncio.sleep(5)
        speech.finish()
    assert spoken.words() == ["Nine", "to", "five."] and not lines


async def test_a_word_that_breaks_off_before_a_line_is_said_anew_behind_it(clock: Clock) -> None:
    """The voice stands still in the word, and is lost while the line is heard."""
    spoken, kept, line = Spoken(clock), KeptLines(), "One moment."
    await kept.keep(FakeVoice(ms_per_char=MS_PER_CHAR), line, VoiceOptions())
    sound = kept.line(line, VoiceOptions())
    assert sound is not None
    begun = SpokenWord("five.", 6 * MS_PER_CHAR, 11 * MS_PER_CHAR, len("Nine to five."))
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(spoken.speech.run())
        spoken.speech.release()
        spoken.speech.say("Nine to five.")
        await asyncio.sleep(0.1)
        (stream,) = spoken.voice.open_streams
        stream._pipe.put(Speech(tone(MS_PER_CHAR, RATE_HZ).tobytes(), RATE_HZ, (begun,)))
        await asyncio.sleep(2)
        spoken.speech.say_kept(line, sound)
        await asyncio.sleep(0.2)
        spoken.lose()
        spoken.speech.finish()
    assert spoken.words() == ["Nine", "to", "five.", "five."]
    whole = MS_PER_CHAR * len("Ninetof" + "Onemoment." + "five.")
    assert spoken.ms() == pytest.approx(whole, abs=2)

"""A reply that is written anew: what still stands keeps its sound, the rest is spoken again."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable

import pytest

from tests.fakes import FakeVoice
from voiceloop.backends import VoiceOptions
from voiceloop.errors import BackendError
from voiceloop.reply.sound.playout import Chunk, Pacer
from voiceloop.reply.spoken.speech import ReplySpeech

pytestmark = pytest.mark.virtual_time
Clock = Callable[[], float]
RATE_HZ, MS_PER_CHAR = 24_000, 60.0


class Spoken:
    def __init__(self, clock: Clock) -> None:
        self.voice = FakeVoice(ms_per_char=MS_PER_CHAR)
        self.chunks: list[Chunk] = []
        self.n_streams = 0
        self.speech = ReplySpeech(
            self.voice,
            VoiceOptions(),
            self.new_stream_id,
            Pacer(RATE_HZ),
            self.chunks.append,
            clock,
            on_first_audio=lambda at_s: None,
        )

    def new_stream_id(self) -> str:
        self.n_streams += 1
        return f"voice{self.n_streams}"

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
    assert isinstance(error, BackendError) and "promised" in str(error)


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

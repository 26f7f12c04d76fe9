"""A reply that a sound of nobody's cut short goes on where the caller stopped hearing it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from tests.callers import Caller
from tests.fakes import FakeLanguageModel, FakeRecognizer, FakeVoice, instant_backends
from voiceloop.backends import ChatMessage, VoiceOptions
from voiceloop.config import Config
from voiceloop.reply.phase import Phase
from voiceloop.reply.playout import KEPT_MS, Chunk, Playout
from voiceloop.reply.speech import ReplySpeech

pytestmark = pytest.mark.virtual_time
Clock = Callable[[], float]
LONG = "this is a rather long answer that goes on and on for quite some time so one can interrupt"
MS_PER_CHAR = 60.0


def spoken_ms(text: str) -> float:
    return MS_PER_CHAR * len(text.replace(" ", ""))


@asynccontextmanager
async def cut_by_noise(
    clock: Clock, after_ms: float, lead_ms: int = 60
) -> AsyncIterator[tuple[Caller, str]]:
    """A caller and the item of a long reply that a drill has cut short so long after it began."""
    recognizer = FakeRecognizer(["tell me a story", ""])
    backends = instant_backends(recognizer=recognizer, language_model=FakeLanguageModel([LONG]))
    config = Config(pacing_lead_ms=lead_ms)
    async with Caller(clock, backends, config=config, chunk_ms=40) as caller:
        await caller.say(700)
        await caller.listen_until("response.output_audio.delta")
        await caller.wait_quietly(after_ms)
        await caller.say(1200)
        (cut,) = caller.of("response.done")
        yield caller, cut.event["response"]["output"][0]["id"]


def truncate(caller: Caller, item_id: str, played_ms: float) -> None:
    place = {"item_id": item_id, "content_index": 0}
    caller.send("conversation.item.truncate", **place, audio_end_ms=int(played_ms))


def response_ids(caller: Caller) -> list[str]:
    return [received.event["response"]["id"] for received in caller.of("response.done")]


@pytest.mark.parametrize("unplayed_ms", [100.0, 700.0, KEPT_MS - 1.0, 1e9])
async def test_text_and_sound_go_on_at_the_same_place_however_little_was_played(
    clock: Clock, unplayed_ms: float
) -> None:
    async with cut_by_noise(clock, after_ms=2500) as (caller, item_id):
        sent_ms = caller.audio_ms()
        assert sent_ms > KEPT_MS + 500
        truncate(caller, item_id, max(0.0, sent_ms - unplayed_ms))  # 0: it does not know
        await caller.listen_until("voiceloop.timeline", limit_ms=30_000)
        protocol = caller.session.protocol
        messages, (_, second) = protocol.shown.messages(), response_ids(caller)
        times = [
            word.start_ms for reply in protocol.spoken._replies.values() for word in reply.words
        ]
    again_ms = min(unplayed_ms, KEPT_MS)
    assert caller.audio_ms() == pytest.approx(spoken_ms(LONG) + again_ms, abs=25)
    longest_ms = max(spoken_ms(word) for word in LONG.split())
    said_ms, sounds_ms = spoken_ms(caller.transcript(second)), caller.audio_ms(second)
    assert said_ms == pytest.approx(sounds_ms, abs=longest_ms / 2 + 1)
    assert messages[-1] == ChatMessage("assistant", LONG)
    assert min(times) >= 0.0


@pytest.mark.parametrize("tells", [False, True])
async def test_a_client_that_has_played_more_than_was_thought_is_believed(
    clock: Clock, tells: bool
) -> None:
    async with cut_by_noise(clock, after_ms=700, lead_ms=1500) as (caller, item_id):
        shown, sent_ms = caller.session.protocol.shown, caller.audio_ms()
        thought = shown.messages()[-1].content
        if tells:
            truncate(caller, item_id, sent_ms)  # it plays faster than it was thought to
            await caller.wait_for("conversation.item.truncated")
            assert len(shown.messages()[-1].content) > len(thought)
        await caller.listen_until("voiceloop.timeline", limit_ms=30_000)
        assert shown.messages()[-1] == ChatMessage("assistant", LONG)
    again_ms = caller.audio_ms() - spoken_ms(LONG)
    assert again_ms == pytest.approx(0, abs=1) if tells else again_ms > 200


async def test_a_reply_with_a_lead_of_seconds_goes_on_at_the_sample_that_was_heard(
    clock: Clock,
) -> None:
    async with cut_by_noise(clock, after_ms=500, lead_ms=3000) as (caller, item_id):
        sent_ms = caller.audio_ms()
        truncate(caller, item_id, 1000)
        await caller.listen_until("voiceloop.timeline", limit_ms=30_000)
    assert sent_ms > 1000 + KEPT_MS
    assert caller.audio_ms() == pytest.approx(spoken_ms(LONG) + sent_ms - 1000, abs=1)


async def test_a_reply_revised_while_it_is_suspended_goes_on_as_it_was_revised(
    clock: Clock,
) -> None:
    chunks: list[Chunk] = []
    utterance = ReplySpeech(
        FakeVoice(ms_per_char=MS_PER_CHAR), VoiceOptions(), lambda: "voice",
        Playout(chunks.append, clock, 24_000), clock, Phase(), on_first_audio=lambda at_s: None,
    )  # fmt: skip
    whole = "Sure thing, one large latte."
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(utterance.run())
        utterance.say("Sure thing, one small latte.")  # made ahead, and held
        utterance.end_version()
        await asyncio.sleep(2)
        utterance.text.begin_version()
        utterance.release_confirmed()
        utterance.say("Sure thing, one")  # the reply agrees so far: the first clause leaves
        await asyncio.sleep(2)
        utterance.playout.pause()
        utterance.interrupt("Sure", heard_ms := spoken_ms("Sure"))
        n_cut, sent_ms = len(chunks), sum(chunk.duration_ms for chunk in chunks)
        utterance.say(" large latte.")  # and another word than was held
        utterance.finish()
        utterance.release()
        await asyncio.sleep(2)
        assert len(chunks) == n_cut and sent_ms > heard_ms + 100
        utterance.resume()
    words = [[word.text for chunk in part for word in chunk.words]
             for part in (chunks[:n_cut], chunks[n_cut:])]  # fmt: skip
    assert words == [["Sure", "thing,"], ["thing,", "one", "large", "latte."]]
    in_all_ms = sum(chunk.duration_ms for chunk in chunks)
    assert in_all_ms == pytest.approx(spoken_ms(whole) + sent_ms - heard_ms, abs=2)
    assert utterance.text.whole == whole

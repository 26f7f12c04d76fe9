"""What a caller who speaks over the agent hears of it."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from tests.callers import RATE_HZ, Caller
from tests.fakes import FakeLanguageModel, FakeRecognizer, FakeVoice, instant_backends, quiet, tone
from voiceloop.agent import AgentConfig, BargeIn
from voiceloop.call import actions as do
from voiceloop.call.actions import Step
from voiceloop.call.events import CallEvent, SegmentCommitted
from voiceloop.call.turn_taking import CallStatus, ReplyStatus, TurnTaking
from voiceloop.config import Ahead, Config
from voiceloop.listening.events import (
    Activity,
    SoundHeard,
    SoundLost,
    SpeechStarted,
    SpeechWindow,
    WordsHeard,
)
from voiceloop.realtime.commands import ClearAudio, SettingsChanged
from voiceloop.realtime.settings import SemanticVad, SessionSettings
from voiceloop.reply.playout import DUCK_GAIN, LEAD_MS, REDUCED_LEAD_MS, Pacer

pytestmark = pytest.mark.virtual_time
Clock = Callable[[], float]
LONG = "Once upon a time there was a cafe that had everything, and everybody came to eat there."


async def test_a_caller_who_barges_in_hears_silence_before_it_is_decided(clock: Clock) -> None:
    backends = instant_backends(
        recognizer=FakeRecognizer(["tell me a story", "something else now"], ms_per_word=400),
        language_model=FakeLanguageModel([LONG]),
    )
    agent = AgentConfig(barge_in=BargeIn(least_words=3))
    async with Caller(clock, backends, agent, chunk_ms=20) as caller:
        await caller.say(700)
        await caller.listen_until("response.output_audio.delta")
        await caller.wait_quietly(800)
        onset_s = clock()
        await caller.say(1500)
        (decided,) = caller.of("input_audio_buffer.speech_started")[1:]
        last = max(
            r.at_s for r in caller.of("response.output_audio.delta") if r.at_s < decided.at_s
        )
    assert 1000 * (last - onset_s) <= 180  # the fade
    assert 1000 * (decided.at_s - onset_s) >= 300


@pytest.mark.parametrize("truncates", [False, True])
async def test_a_caller_who_goes_on_as_the_answer_begins_has_it_taken_back(
    clock: Clock, truncates: bool
) -> None:
    model = FakeLanguageModel(lambda m: f"You said {m[-1].content}.")
    recognizer = FakeRecognizer(["i want a latte", "with oat milk"], ms_per_word=200)
    backends = instant_backends(recognizer=recognizer, language_model=model)
    async with Caller(clock, backends) as caller:
        await caller.say(800)
        await caller.listen_until("response.output_audio.delta")
        await caller.wait_quietly(120)
        onset_s = clock()
        speaking = asyncio.create_task(caller.say(700))
        await caller.wait_for("input_audio_buffer.speech_started", count=2)
        if truncates:  # as a client does that flushes
            (item,) = (r.event["item"] for r in caller.of("response.output_item.added"))
            place = {"item_id": item["id"], "content_index": 0}
            played_ms = int(caller.audio_ms()) - 20
            caller.send("conversation.item.truncate", **place, audio_end_ms=played_ms)
            await caller.wait_for("conversation.item.truncated")
        await speaking
        await caller.listen_until("response.done", count=2)
        sample = caller.services.metrics.registry.get_sample_value
        assert sample("voiceloop_cuts_total", {"kind": "soft"}) == 1
        assert not sample("voiceloop_cuts_total", {"kind": "hard"})
        messages = caller.session.protocol.shown.messages()
    assert caller.statuses() == ["cancelled", "completed"]
    started, done = caller.of("input_audio_buffer.speech_started")[1], caller.of("response.done")[0]
    assert caller.transport.received.index(started) < caller.transport.received.index(done)
    assert started.at_s - onset_s <= 0.18  # no word is waited for
    assert [(m.role, m.content) for m in messages] == [
        ("user", "i want a latte with oat milk"),
        ("assistant", "You said i want a latte with oat milk."),
    ]


async def test_who_interrupts_is_answered_on_what_was_staged_whatever_the_client_has_played(
    clock: Clock,
) -> None:
    model = FakeLanguageModel([LONG])
    recognizer = FakeRecognizer(["tell me a story", "something else now"], ms_per_word=400)
    backends = instant_backends(recognizer=recognizer, language_model=model)
    agent = AgentConfig(barge_in=BargeIn(least_words=3))
    async with Caller(clock, backends, agent) as caller:
        await caller.say(700)
        await caller.listen_until("response.output_audio.delta")
        await caller.wait_quietly(1500)
        speaking = asyncio.create_task(caller.say(1500))
        await caller.wait_for("input_audio_buffer.speech_started", count=2)
        (item,) = (r.event["item"] for r in caller.of("response.output_item.added"))
        shown = caller.session.protocol.shown
        thought = shown.messages()[-1].content
        place = {"item_id": item["id"], "content_index": 0}
        caller.send("conversation.item.truncate", **place, audio_end_ms=500)
        await caller.wait_for("conversation.item.truncated")
        heard = shown.messages()[-1].content
        assert heard != thought
        await speaking
        await caller.listen_until("response.done", count=2)
    answering = next(b for b in model.branches if b.messages[-2].content == "something else now")
    assert answering.messages[-3].content == heard
    assert answering.staged[-1] == "something else now"  # else nothing was resident at its end


async def test_a_caller_who_goes_on_over_the_answer_was_cut_and_one_who_comes_late_was_not(
    clock: Clock,
) -> None:
    counted = {}
    for after_ms in (600, 2000):
        recognizer = FakeRecognizer(["i want a latte", "with oat milk"], ms_per_word=200)
        model = FakeLanguageModel([LONG])
        backends = instant_backends(recognizer=recognizer, language_model=model)
        async with Caller(clock, backends, AgentConfig(eagerness="high")) as caller:
            timer = {"type": "server_vad", "silence_duration_ms": 200}
            audio = {"input": {"turn_detection": timer}}
            caller.send("session.update", session={"type": "realtime", "audio": audio})
            await caller.say(800)
            await caller.listen_until("response.output_audio.delta")
            await caller.wait_quietly(after_ms)
            await caller.say(1500)
            await caller.wait_quietly(500)
            sample = caller.services.metrics.registry.get_sample_value
            counted[after_ms] = sample("voiceloop_cuts_total", {"kind": "hard"})
    assert counted == {600: 1.0, 2000: None}


@pytest.mark.parametrize(("soft_ms", "loud_ms", "is_taken_back"), [
    (0, 60, False), (90, 60, False), (0, 170, True), (90, 170, True),
])  # fmt: skip
async def test_a_fresh_answer_is_held_at_a_short_sound_and_taken_back_at_a_voice(
    clock: Clock, soft_ms: float, loud_ms: float, is_taken_back: bool
) -> None:
    recognizer = FakeRecognizer(["tell me a story", ""])
    backends = instant_backends(recognizer=recognizer, language_model=FakeLanguageModel([LONG]))
    config = Config(anticipation=Ahead(("early_start",)))  # any sound takes an early start back
    async with Caller(clock, backends, config=config, chunk_ms=20) as caller:
        await caller.say(700)
        await caller.listen_until("response.output_audio.delta")
        await caller.wait_quietly(100)
        soft, loud = tone(soft_ms, RATE_HZ, amplitude=120), tone(loud_ms, RATE_HZ)
        onset_s = clock()
        await caller.play(np.concatenate((soft, loud)))
        await caller.wait_quietly(6000)
    silent = [b - a for a, b in pairwise([r.at_s for r in caller.of("response.output_audio.delta")
              if onset_s <= r.at_s < onset_s + 0.6])]  # fmt: skip
    if is_taken_back:
        assert caller.statuses()[0] == "cancelled"
    else:
        assert caller.statuses() == ["completed"]
        assert max(silent) > 0.2  # held at once, given back


async def test_a_bug_in_a_turn_costs_the_turn_and_not_the_call(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    def reply(messages: object) -> str:
        return LONG

    voice = FakeVoice()
    backends = instant_backends(language_model=FakeLanguageModel(reply), voice=voice)
    async with Caller(clock, backends) as caller:
        voice.open = None  # type: ignore[assignment,method-assign]
        await caller.say(800)
        await caller.listen_until("response.done")
        del voice.open
        await caller.say(800)
        await caller.listen_until("response.done", count=2, limit_ms=20_000)
    assert caller.statuses() == ["failed", "completed"]
    assert "found a bug" in caplog.text


SETTINGS = SessionSettings(turn_detection=SemanticVad())
STATUS = CallStatus(
    SETTINGS, ReplyStatus("r", is_audible=True, heard_ms=9e3, said_lately="once upon a time")
)


def act(pacer: Pacer, actions: Sequence[do.Action]) -> None:
    """What a reply's playout does about the actions that are for it."""
    for action in actions:
        match action:
            case Step.DUCK:
                pacer.duck()
            case Step.PAUSE:
                pacer.pause()
            case Step.RESUME:
                pacer.resume()
            case Step.REDUCE_LEAD:
                pacer.reduce_lead()


def test_what_the_recognizer_makes_of_the_sound_reaches_the_judge() -> None:
    for for_agent, stops in ((None, True), (-1.0, False)):
        turn_taking = TurnTaking(BargeIn())
        turn_taking.on(SpeechStarted(Activity(0.0, 64.0, 0.0, 0.0)), STATUS)
        turn_taking.on(SpeechWindow(Activity(0.0, 200.0, 0.0, 0.0)), STATUS)
        heard = WordsHeard((), ("two", "lattes"), is_full=False, for_agent=for_agent)
        done = turn_taking.on(heard, STATUS)
        assert any(isinstance(one, do.InterruptReply) for one in done) == stops


def test_of_a_sound_without_words_the_client_is_told_at_its_end_alone() -> None:
    status = replace(STATUS, reply=None)
    turn_taking = TurnTaking(BargeIn())
    turn_taking.on(SpeechStarted(Activity(0.0, 64.0, 0.0, 0.0)), status)
    for is_full in (False, True):
        done = turn_taking.on(WordsHeard((), (), is_full=is_full, for_agent=0.5), status)
        assert any(isinstance(one, do.SendPartial) for one in done) == is_full


@pytest.mark.parametrize(
    ("speech_ms", "silence_ms", "echoes", "has_reduced_lead"),
    [(32, 0, False, True), (32, 32, False, False), (640, 0, True, False)],
)
def test_the_lead_is_short_only_while_something_may_come_of_the_sound(
    speech_ms: float, silence_ms: float, echoes: bool, has_reduced_lead: bool
) -> None:
    turn_taking, pacer = TurnTaking(BargeIn()), Pacer(8000)
    if echoes:  # on a speakerphone the agent hears itself
        turn_taking.on(SpeechStarted(Activity(0.0, 64.0, 0.0, 0.0)), STATUS)
        turn_taking.on(WordsHeard((), ("upon", "a", "time"), is_full=False), STATUS)
        turn_taking.on(SpeechWindow(Activity(0.0, 400.0, 300.0, 0.0)), STATUS)
    act(pacer, turn_taking.on(SoundHeard(40.0), STATUS))
    done = turn_taking.on(SpeechStarted(Activity(0.0, speech_ms, silence_ms, 0.0)), STATUS)
    assert not {Step.DUCK, Step.PAUSE} & {one for one in done if isinstance(one, Step)}
    act(pacer, done)
    pacer.push(np.zeros(8000, np.int16))
    while pacer.next_chunk(0.0) is not None:
        pass
    assert pacer.sent_ms == (REDUCED_LEAD_MS if has_reduced_lead else LEAD_MS)


@pytest.mark.parametrize(
    ("lasting_ms", "hears_itself", "level"),
    [(40.0, False, 1.0), (64.0, False, DUCK_GAIN), (128.0, False, 0.0), (300.0, True, 1.0)],
)
def test_a_sound_that_has_lasted_long_enough_ducks_or_pauses_at_its_first_loud_window(
    lasting_ms: float, hears_itself: bool, level: float
) -> None:
    turn_taking, pacer = TurnTaking(BargeIn()), Pacer(8000)
    turn_taking._judge.hears_itself = hears_itself
    pacer.push(np.full(8000, 1000, np.int16))

    def level_at(now_s: float) -> int:
        chunks = []
        while (chunk := pacer.next_chunk(now_s)) is not None:
            chunks.append(chunk)
        return int(chunks[-1].samples[-1]) if chunks else 0

    act(pacer, turn_taking.on(SoundHeard(lasting_ms), STATUS))
    assert level_at(0.0) == round(1000 * level)
    act(pacer, turn_taking.on(SoundLost(), STATUS))  # no speech came of it
    assert level_at(0.3) == 1000


@pytest.mark.parametrize(
    "command",
    [SegmentCommitted(7), ClearAudio(), SettingsChanged(SETTINGS, SessionSettings())],
)
def test_a_loud_window_that_nothing_follows_is_lifted_with_the_client_s_command(
    command: CallEvent,
) -> None:
    turn_taking, manual = TurnTaking(BargeIn()), SessionSettings(turn_detection=None)
    turn_taking.on(SoundHeard(128.0), STATUS)
    status = (
        STATUS
        if isinstance(command, SegmentCommitted | ClearAudio)
        else replace(STATUS, settings=manual)
    )
    assert Step.RESUME in turn_taking.on(command, status)


def heard_levels(caller: Caller, from_s: float) -> list[tuple[float, float]]:
    """(ms since `from_s`, loudness) of each 5 ms as a client without a buffer plays them."""
    found, play_s = [], 0.0
    for received in caller.of("response.output_audio.delta"):
        samples = np.frombuffer(base64.b64decode(received.event["delta"]), "<i2").astype(float)
        play_s = max(play_s, received.at_s)
        for start in range(0, len(samples), 120):
            level = float(np.sqrt(np.mean(samples[start : start + 120] ** 2)))
            found.append((1000 * (play_s + start / 24_000 - from_s), level))
        play_s += len(samples) / 24_000
    return found


@pytest.mark.parametrize("wait_ms", [500, 507, 513, 522])
async def test_a_caller_over_the_agent_hears_it_ducked_within_120_ms_and_then_silent(
    clock: Clock, wait_ms: float
) -> None:
    backends = instant_backends(
        recognizer=FakeRecognizer(["tell me a story", ""]), language_model=FakeLanguageModel([LONG])
    )
    async with Caller(clock, backends, chunk_ms=20) as caller:
        await caller.say(700)
        await caller.listen_until("response.output_audio.delta")
        await caller.wait_quietly(wait_ms)
        onset_s = clock()
        await caller.say(300)
        await caller.wait_quietly(1500)
    levels = heard_levels(caller, onset_s)
    loud = max(level for _, level in levels)
    last_loud_ms = max(ms for ms, level in levels if ms < 300 and level > 0.6 * loud)
    assert last_loud_ms <= 120
    ducked = [ms for ms, level in levels if last_loud_ms < ms < 200 and level > 0.2 * loud]
    assert ducked  # quieter, before it is silent
    assert max(ms for ms, level in levels if ms < 450 and level > 0.01 * loud) <= 200
    assert max(level for ms, level in levels if ms > 700) == pytest.approx(loud, rel=0.02)


async def click(caller: Caller, soft_ms: float = 80.0) -> float:
    """A soft sound for long enough to duck the agent, loud in one window of the detector's.

    Returns when the soft sound began.
    """
    await caller.wait_quietly((4 - soft_ms - caller.sent_ms) % 32)
    onset_s = caller.clock()
    soft, loud = tone(soft_ms, RATE_HZ, amplitude=120), tone(20, RATE_HZ)
    await caller.play(np.concatenate((soft, loud, quiet(12, RATE_HZ))))
    return onset_s


def loudest_between(levels: list[tuple[float, float]], from_ms: float, to_ms: float) -> float:
    return max((level for ms, level in levels if from_ms <= ms < to_ms), default=0.0)


@pytest.mark.parametrize(("soft_ms", "is_held"), [(80, False), (120, True)])
async def test_what_a_click_did_is_lifted_where_the_client_sends_nothing_after_it(
    clock: Clock, soft_ms: float, is_held: bool
) -> None:
    backends = instant_backends(
        recognizer=FakeRecognizer(["tell me a story"]), language_model=FakeLanguageModel([LONG])
    )
    async with Caller(clock, backends, chunk_ms=20) as caller:
        await caller.say(700)
        await caller.listen_until("response.output_audio.delta")
        await caller.wait_quietly(500)
        onset_s = await click(caller, soft_ms)
        await asyncio.sleep(1.5)
    levels = heard_levels(caller, onset_s)
    loud = loudest_between(levels, -300, 0)
    assert loudest_between(levels, 210, 300) < 0.5 * loud
    assert (loudest_between(levels, 210, 300) == 0.0) == is_held
    assert loudest_between(levels, 750, 850) == pytest.approx(loud, rel=0.02)


async def test_a_click_over_the_next_reply_is_lifted_after_a_caller_began_over_the_last_one(
    clock: Clock,
) -> None:
    backends = instant_backends(
        recognizer=FakeRecognizer(["tell me a story", "and another one please"]),
        language_model=FakeLanguageModel(["Sure here.", LONG]),
    )
    async with Caller(clock, backends, chunk_ms=20) as caller:
        await caller.say(700)
        await caller.listen_until("response.output_audio.delta")
        await caller.wait_quietly(440)  # 100 ms are left of the reply: it ends while it is judged
        await caller.say(900)
        await caller.listen_until("response.created", count=2)
        await caller.wait_quietly(700)
        onset_s = await click(caller)
        turn = caller.session._call._replies._current
        assert turn is not None and turn.speech.playout._loudness._target_gain == DUCK_GAIN
        await caller.wait_quietly(600)
        assert turn.speech.playout._loudness._target_gain == 1.0
    assert caller.statuses()[0] == "completed"
    levels = heard_levels(caller, onset_s)
    loud = loudest_between(levels, -300, 0)
    assert loudest_between(levels, 350, 450) == pytest.approx(loud, rel=0.02)

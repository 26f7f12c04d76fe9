"""Audio in, turns out: onset, pre-roll, pauses, the audio clock, a client that stalls."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from audio.codec import encode
from audio.frames import rms_dbfs
from audio.noise_reduction import is_available
from audio.resample import Resampler
from audio.vad import SpeechProbability
from tests.fakes import (
    EnergyVad,
    FakeRecognizer,
    FakeRecognizerStream,
    Fault,
    quiet,
    tone,
    utterance,
)
from voiceloop.backends import ChatMessage, Partial, RecognizerOptions
from voiceloop.errors import BackendError
from voiceloop.listening.events import (
    Activity,
    EndOfTurn,
    ListenEvent,
    PauseWeighed,
    SoundHeard,
    SoundLost,
    SpeechStarted,
    SpeechWindow,
    TranscriptionFailed,
    TurnTranscribed,
    UserTurn,
    WordsHeard,
)
from voiceloop.listening.listener import Listener, ListenerOptions
from voiceloop.listening.segment import LIKELY, LIKELY_RETURN_MS, RETURN_MS
from voiceloop.realtime.settings import (
    AudioFormat,
    NoiseField,
    SemanticVad,
    ServerVad,
    SessionSettings,
)
from voiceloop.slots.question import Slot, SlotKind

pytestmark = pytest.mark.virtual_time
Clock = Callable[[], float]
TIMER = SessionSettings(turn_detection=ServerVad(silence_duration_ms=300))


SLICE_MS = 20  # as a session feeds it


class Recorder:
    """What the listener told, by kind."""

    def __init__(self) -> None:
        self.onsets: list[Activity] = []
        self.activities: list[Activity] = []
        self.ending: list[float] = []
        self.turns: list[UserTurn] = []
        self.failures: list[BackendError] = []
        self.words: list[tuple[str, ...]] = []
        self.sounds: list[float | None] = []  # loud windows of the detector, None: lost
        self.n_risen = 0

    def record(self, event: ListenEvent) -> None:
        match event:
            case SoundHeard(lasting_ms=lasting_ms, sign="loud"):
                self.sounds.append(lasting_ms)
            case SoundHeard():
                self.n_risen += 1
            case SoundLost():
                self.sounds.append(None)
            case SpeechStarted(activity=activity):
                self.onsets.append(activity)
            case SpeechWindow(activity=activity):
                self.activities.append(activity)
            case WordsHeard(stable=stable, unstable=unstable):
                self.words.append(stable + unstable)
            case EndOfTurn(end_ms=end_ms):
                self.ending.append(end_ms)
            case TurnTranscribed(turn=turn):
                self.turns.append(turn)
            case TranscriptionFailed(error=error):
                self.failures.append(error)


class Bench:
    """A listener, what it told, and a caller's line in any format.

    takes_turns: what ends is a turn of the caller; else it is discarded, as a sound over the agent.
    gives_back: each window of speech is at once.
    """

    def __init__(
        self,
        clock: Clock,
        recognizer: FakeRecognizer,
        settings: SessionSettings,
        longest_turn_ms: float = math.inf,
    ) -> None:
        self.told = Recorder()
        self.takes_turns = True
        self.gives_back = False
        self.recognizer = recognizer
        self.format = settings.input_format
        self.listener = Listener(
            recognizer=recognizer,
            options=ListenerOptions(),
            settings=settings,
            vad=EnergyVad(),
            clock=clock,
            stream_id="s",
            deliver=self.advance,
            longest_turn_ms=longest_turn_ms,
        )

    def advance(self, events: Sequence[ListenEvent]) -> None:
        pending = list(events)
        while pending or (pending := self.listener.decide()):
            event = pending.pop(0)
            self.told.record(event)
            if isinstance(event, EndOfTurn) and self.takes_turns:
                pending += self.listener.end_turn()
            elif isinstance(event, EndOfTurn) or (
                isinstance(event, SpeechStarted | SpeechWindow) and self.gives_back
            ):
                self.listener.discard()

    async def play(self, samples: np.ndarray, chunk_ms: int = 20) -> None:
        encoding: Any = {"audio/pcm": "pcm16", "audio/pcmu": "pcmu", "audio/pcma": "pcma"}
        data = encode(samples, encoding[self.format.type])
        per_chunk = self.format.rate * chunk_ms // 1000 * self.format.n_sample_bytes
        per_slice = self.format.rate * SLICE_MS // 1000 * self.format.n_sample_bytes
        for start in range(0, len(data), per_chunk):
            chunk = data[start : start + per_chunk]
            for at in range(0, len(chunk), per_slice):
                self.advance(self.listener.feed(chunk[at : at + per_slice]))
            await asyncio.sleep(chunk_ms / 1000)

    async def say(self, ms: float) -> None:
        await self.play(utterance(ms, self.format.rate))

    async def click(self) -> None:
        """Loud in one of the detector's windows where it begins with one; the next is begun."""
        rate_hz = self.format.rate
        await self.play(np.concatenate((tone(20, rate_hz), quiet(16, rate_hz))))

    async def be_quiet(self, ms: float) -> None:
        await self.play(quiet(ms, self.format.rate))


@asynccontextmanager
async def listening(
    clock: Clock,
    recognizer: FakeRecognizer | None = None,
    settings: SessionSettings = TIMER,
    longest_turn_ms: float = math.inf,
) -> AsyncIterator[Bench]:
    recognizer = recognizer or FakeRecognizer(["one two three"])
    bench = Bench(clock, recognizer, settings, longest_turn_ms)
    task = asyncio.create_task(bench.listener.run())
    await asyncio.sleep(0)
    try:
        yield bench
    finally:
        task.cancel()
        await asyncio.wait([task])


@pytest.mark.parametrize(
    "audio_format",
    [
        AudioFormat("audio/pcm", 24000),
        AudioFormat("audio/pcm", 16000),
        AudioFormat("audio/pcmu", 8000),
        AudioFormat("audio/pcma", 8000),
    ],
)
async def test_a_turn_is_timed_on_the_audio_clock_in_every_format(
    clock: Clock, audio_format: AudioFormat
) -> None:
    settings = SessionSettings(turn_detection=TIMER.turn_detection, input_format=audio_format)
    async with listening(clock, settings=settings) as bench:
        await bench.be_quiet(960)
        await bench.say(800)
        await bench.be_quiet(500)
    (turn,) = bench.told.turns
    assert turn.text == "one two three"
    assert turn.onset_ms == pytest.approx(960, abs=33)
    assert turn.end_ms == pytest.approx(1760, abs=33)
    marks = turn.record.marks
    waited_ms = 1000 * (marks["endpoint_decision"] - marks["speech_end"])
    assert waited_ms == pytest.approx(300, abs=40)


async def test_a_wait_may_end_between_two_chunks(clock: Clock) -> None:
    settings = SessionSettings(turn_detection=ServerVad(silence_duration_ms=313))
    async with listening(clock, settings=settings) as bench:
        await bench.say(800)
        await bench.be_quiet(500)
    (turn,) = bench.told.turns
    assert turn.record.facts.endpoint.silence_ms == pytest.approx(313, abs=0.2)


async def test_the_recognizer_hears_the_sound_before_the_onset(clock: Clock) -> None:
    async with listening(clock) as bench:
        await bench.be_quiet(1000)
        await bench.say(400)
        (stream,) = bench.recognizer.open_streams
        assert isinstance(stream, FakeRecognizerStream)
        assert 400 + 280 <= stream.fed_bytes / 32 <= 400 + 400


async def test_a_soft_sound_before_the_onset_is_told_apart_from_the_voice(clock: Clock) -> None:
    async with listening(clock) as bench:
        await bench.be_quiet(1000)
        await bench.play(tone(120, bench.format.rate, amplitude=120))  # below the detector
        await bench.say(400)
        await bench.be_quiet(600)
        await bench.say(400)
    first, second = bench.told.onsets
    assert first.led_in_ms == pytest.approx(120, abs=40)  # windows and chunks
    assert second.led_in_ms <= 40
    assert first.speech_ms == second.speech_ms == 64.0
    first_ms, second_ms = bench.told.sounds
    assert first_ms == pytest.approx(120 + 32, abs=30) and second_ms == pytest.approx(32, abs=30)


async def test_a_sound_right_after_one_that_was_given_back_has_no_beginning(clock: Clock) -> None:
    async with listening(clock) as bench:
        await bench.be_quiet(500)
        bench.gives_back = True
        await bench.play(tone(640, bench.format.rate), chunk_ms=320)
    assert len(bench.told.onsets) > 2 and 0.0 in bench.told.sounds


async def test_a_click_is_no_onset(clock: Clock) -> None:
    async with listening(clock) as bench:
        await bench.be_quiet(320)
        await bench.say(30)
        await bench.be_quiet(500)
    assert not bench.told.onsets


async def test_a_sound_that_rises_is_told_of_before_the_detector_hears_it_and_is_taken_back(
    clock: Clock,
) -> None:
    async with listening(clock) as bench:
        await bench.be_quiet(500)
        await bench.play(tone(120, bench.format.rate, amplitude=120))  # below the detector
        assert bench.told.n_risen and not bench.told.sounds
        await asyncio.sleep(0.5)  # the client's own gate has closed: no window follows
        assert bench.told.sounds == [None]
        await bench.be_quiet(500)
        n_lost = len(bench.told.sounds)
        await bench.play(tone(120, bench.format.rate, amplitude=120))
        assert len(bench.told.sounds) == n_lost
        await bench.be_quiet(300)
        assert bench.told.sounds[n_lost:] == [None]


async def test_a_stall_that_took_a_loud_window_back_leaves_the_next_one_heard(clock: Clock) -> None:
    async with listening(clock) as bench:
        for _ in range(2):
            await bench.be_quiet(320)
            await bench.click()
            await asyncio.sleep(1.0)
        await bench.say(400)
        await bench.be_quiet(500)
    assert [sound is None for sound in bench.told.sounds] == [False, True, False, True, False]
    assert len(bench.told.turns) == 1


class SlowVad(EnergyVad):
    """Tells of each window what the one before it was."""

    def __init__(self) -> None:
        super().__init__()
        self._was = 0.0

    def feed(self, samples: np.ndarray) -> list[SpeechProbability]:
        told = []
        for window in super().feed(samples):
            told.append(replace(window, probability=self._was))
            self._was = window.probability
        return told


# Its first sound of 24 ms, and a closure: "please".
@pytest.mark.parametrize("paused_ms", range(240, 276, 4))
async def test_who_is_back_with_a_stop_is_waited_for(clock: Clock, paused_ms: float) -> None:
    recognizer = FakeRecognizer(["one two three four"])
    async with listening(clock, recognizer) as bench:
        bench.listener._vad = SlowVad()
        await bench.say(500)
        await bench.be_quiet(paused_ms)
        await bench.play(tone(24, 24_000, 300.0))
        await bench.be_quiet(20)
        await bench.play(tone(500, 24_000, 300.0))
        await bench.be_quiet(600)
    assert [turn.text for turn in bench.told.turns] == ["one two three four"]


async def test_a_sound_that_is_no_voice_keeps_a_turn_open_for_two_windows_at_most(
    clock: Clock,
) -> None:
    async with listening(clock) as bench:
        bench.listener._vad = SlowVad()
        await bench.say(500)
        await bench.be_quiet(260)
        await bench.play(tone(400, 24_000, 300.0, amplitude=250))  # 20 dB above the room
    (turn,) = bench.told.turns
    assert turn.record.facts.endpoint.silence_ms == pytest.approx(300 + RETURN_MS, abs=1)


class DoubtfulVad(EnergyVad):
    """Half hears the next so many windows of a voice."""

    n_doubtful = 0

    def feed(self, samples: np.ndarray) -> list[SpeechProbability]:
        return [self._doubted(window) for window in super().feed(samples)]

    def _doubted(self, window: SpeechProbability) -> SpeechProbability:
        if window.probability < LIKELY or not self.n_doubtful:
            return window
        self.n_doubtful -= 1
        return replace(window, probability=LIKELY)


# Back 20 to 44 ms before the wait of 300 ms is over, and for three windows no plain voice.
@pytest.mark.parametrize("paused_ms", range(256, 280, 4))
async def test_who_is_half_heard_is_waited_for_until_the_voice_is_plain(
    clock: Clock, paused_ms: float
) -> None:
    recognizer = FakeRecognizer(["one two three four"])
    async with listening(clock, recognizer) as bench:
        bench.listener._vad = vad = DoubtfulVad()
        await bench.say(500)
        await bench.be_quiet(paused_ms)
        vad.n_doubtful = 3
        await bench.play(tone(600, 24_000, 300.0))
        await bench.be_quiet(600)
    assert [turn.text for turn in bench.told.turns] == ["one two three four"]


async def test_half_a_voice_keeps_a_turn_open_for_four_windows_at_most(clock: Clock) -> None:
    async with listening(clock) as bench:
        bench.listener._vad = vad = DoubtfulVad()
        await bench.say(500)
        await bench.be_quiet(260)
        vad.n_doubtful = 100
        await bench.play(tone(600, 24_000, 300.0))
    (turn,) = bench.told.turns
    silence_ms = turn.record.facts.endpoint.silence_ms
    assert silence_ms == pytest.approx(300 + LIKELY_RETURN_MS, abs=1)


async def test_half_a_voice_pauses_a_fresh_answer_for_as_long_as_a_voice_takes_to_begin(
    clock: Clock,
) -> None:
    async with listening(clock) as bench:
        bench.listener._early.is_enabled = True
        bench.listener._vad = vad = DoubtfulVad()
        await bench.say(500)
        await bench.be_quiet(500)
        assert len(bench.told.turns) == 1 and not bench.told.n_risen
        n_lost = bench.told.sounds.count(None)
        vad.n_doubtful = 100
        await bench.play(tone(180, 24_000, 300.0))  # by the rule of an open turn lost after 128
        assert bench.told.n_risen and bench.told.sounds.count(None) == n_lost
        await bench.play(tone(80, 24_000, 300.0))
        assert bench.told.sounds.count(None) == n_lost + 1


async def test_a_hesitation_is_waited_for_and_a_sentence_is_not(clock: Clock) -> None:
    settings = SessionSettings(turn_detection=SemanticVad())
    recognizer = FakeRecognizer(["a latte and", "what time do you close"], ms_per_word=250)
    async with listening(clock, recognizer, settings) as bench:
        await bench.say(750)
        await bench.be_quiet(900)
        assert not bench.told.turns
        await bench.be_quiet(1500)
        assert len(bench.told.turns) == 1
        await bench.say(1250)
        await bench.be_quiet(1100)
        assert len(bench.told.turns) == 2


async def test_the_agents_question_shortens_the_wait_for_its_answer(clock: Clock) -> None:
    async with listening(clock, FakeRecognizer([])) as bench:
        reply = ChatMessage("assistant", "Would you like a muffin?")
        bench.listener.observe_history((ChatMessage("user", "hello"), reply))
        assert bench.listener._endpointing.evidence.slot == Slot(SlotKind.YES_NO)
        again = ChatMessage("assistant", "Sorry, could you say that again?")
        bench.listener.observe_history((reply, ChatMessage("user", "mm"), again))
        assert bench.listener._endpointing.evidence.slot == Slot(SlotKind.YES_NO)
        bench.listener.observe_history((reply, ChatMessage("user", "what?")))
        assert bench.listener._endpointing.evidence.slot is None


async def test_the_recognizer_knows_of_how_many_digits_a_number_was_asked_for(clock: Clock) -> None:
    recognizer = FakeRecognizer([])
    async with listening(clock, recognizer) as bench:
        await bench.be_quiet(100)
        (stream,) = recognizer.open_streams
        asked = {"What is your phone number?": 10, "And your zip code?": 5, "Anything else?": 0}
        for question, n_digits in asked.items():
            bench.listener.observe_history((ChatMessage("assistant", question),))
            await bench.be_quiet(1100)  # a recognizer is told something new once a second
            assert stream.options.n_digits == n_digits
            bench.listener.set_options(RecognizerOptions(hotwords=(question,)))  # of the session
            await bench.be_quiet(1100)
            assert stream.options == RecognizerOptions(hotwords=(question,), n_digits=n_digits)


async def test_the_model_s_sure_probability_shortens_the_wait(clock: Clock) -> None:
    settings = SessionSettings(turn_detection=SemanticVad())
    recognizer = FakeRecognizer(["a large latte"], ms_per_word=250)
    async with listening(clock, recognizer, settings) as bench:
        await bench.say(750)
        await bench.be_quiet(100)
        bench.listener.observe_p_end(("a", "large", "latte"), 0.98)
        await bench.be_quiet(500)  # without, it waits 800 ms and more
        assert len(bench.told.turns) == 1


async def test_what_waits_in_the_socket_while_our_own_loop_stands_still_is_no_silence(
    clock: Clock,
) -> None:
    loop: Any = asyncio.get_running_loop()
    async with listening(clock) as bench:
        await bench.say(400)
        loop.virtual_selector.now_s += 1.0  # the machine ran something else
        for _ in range(4):  # from the socket to the listener, behind the timers that are due
            await asyncio.sleep(0)
        await bench.say(400)
        assert not bench.told.ending
        await bench.be_quiet(500)
    assert len(bench.told.onsets) == len(bench.told.turns) == 1


async def test_a_client_that_stops_sending_ends_its_turn_where_our_loop_is_always_late(
    clock: Clock,
) -> None:
    loop: Any = asyncio.get_running_loop()
    async with listening(clock) as bench:
        await bench.say(800)
        stopped_s = loop.time()
        while not bench.told.turns and loop.time() < stopped_s + 5.0:
            await asyncio.sleep(0.05)
            loop.virtual_selector.now_s += 0.1  # each of its timers is 100 ms late
        assert len(bench.told.turns) == 1 and loop.time() < stopped_s + 3.0


async def test_a_client_that_stops_sending_mid_word_still_ends_its_turn(clock: Clock) -> None:
    async with listening(clock) as bench:
        await bench.say(800)
        await asyncio.sleep(1.0)
        assert len(bench.told.turns) == 1
        assert bench.told.activities[-1].silence_ms > 0


async def test_speech_after_the_decision_is_another_turn(clock: Clock) -> None:
    recognizer = FakeRecognizer(["one", "two"], final_delay_ms=400)
    async with listening(clock, recognizer) as bench:
        await bench.say(400)
        await bench.be_quiet(350)
        await bench.say(400)
        await bench.be_quiet(900)
    assert [turn.text for turn in bench.told.turns] == ["one", "two"]
    assert [turn.segment for turn in bench.told.turns] == [0, 1]


async def test_a_commit_ends_the_turn_without_silence(clock: Clock) -> None:
    async with listening(clock, settings=SessionSettings(turn_detection=None)) as bench:
        await bench.say(800)
        segment = bench.listener.commit()
        await asyncio.sleep(0)
    assert [(t.segment, t.text) for t in bench.told.turns] == [(segment, "one two three")]


async def test_what_is_discarded_is_never_reported(clock: Clock) -> None:
    async with listening(clock, FakeRecognizer(["noise", "one"])) as bench:
        await bench.say(300)
        bench.listener.discard()
        await bench.be_quiet(600)
        await bench.say(300)
        await bench.be_quiet(600)
    assert [turn.text for turn in bench.told.turns] == ["one"]


async def test_only_what_ended_as_a_turn_tells_how_its_caller_pauses(clock: Clock) -> None:
    async with listening(clock, FakeRecognizer(["one two three", "one two three"])) as bench:
        await bench.say(800)
        await bench.be_quiet(200)
        bench.listener.discard()
        assert bench.listener._endpointing.evidence.pause_prior_ms is None
        await bench.be_quiet(1500)
        await bench.say(800)
        await bench.be_quiet(600)
        assert bench.listener._endpointing.evidence.pause_prior_ms == 200.0


async def test_a_sound_over_the_agent_tells_nothing_of_how_its_caller_pauses(clock: Clock) -> None:
    async with listening(clock, FakeRecognizer(["one two three", "one two three"])) as bench:
        bench.takes_turns = False  # the agent goes on: its words are nobody's
        await bench.say(800)
        await bench.be_quiet(600)
        assert len(bench.told.ending) == 1
        assert bench.listener._endpointing.evidence.pause_prior_ms is None
        bench.takes_turns = True
        await bench.say(800)
        await bench.be_quiet(600)
        assert bench.listener._endpointing.evidence.pause_prior_ms is not None


async def test_a_recognizer_that_dies_in_mid_word_costs_no_word(clock: Clock) -> None:
    recognizer = FakeRecognizer(["one two three"], faults=[Fault("flush")])
    async with listening(clock, recognizer) as bench:
        await bench.say(800)
        await bench.be_quiet(1000)
    assert [turn.text for turn in bench.told.turns] == ["one two three"]


async def test_the_late_words_of_one_pause_are_not_taken_for_those_of_the_next(
    clock: Clock,
) -> None:
    recognizer = FakeRecognizer(["one two three four"], partial_delay_ms=400)
    async with listening(clock, recognizer) as bench:
        await bench.say(500)
        await bench.be_quiet(160)
        await bench.say(200)
        await bench.be_quiet(600)  # the first pause is answered 80 ms into it, the second too late
    assert [turn.text for turn in bench.told.turns] == ["one two three four"]


async def test_words_that_died_with_the_recognizer_are_asked_for_again(clock: Clock) -> None:
    recognizer = FakeRecognizer(["one two three four five"], faults=[Fault("flush")])
    async with listening(clock, recognizer) as bench:
        for _ in range(2):  # and no later pause waits for them any more
            await bench.say(500)
            await bench.be_quiet(200)
            segment = bench.listener._segment
            assert segment is not None and segment.is_paused and segment.is_flushed


async def test_audio_that_breaks_the_recognizer_twice_fails_its_turn_only(clock: Clock) -> None:
    faults = [Fault("flush"), Fault("finalize")]
    recognizer = FakeRecognizer(
        ["one two three"], ms_per_word=1000, partial_delay_ms=1000, faults=faults
    )
    async with listening(clock, recognizer) as bench:
        await bench.say(800)
        await bench.be_quiet(1500)
        assert len(bench.told.failures) == 1 and not bench.told.turns
        await bench.say(800)
        await bench.be_quiet(1500)
        assert len(bench.told.turns) == 1


async def test_a_recognizer_that_hangs_fails_the_turn_at_its_deadline(clock: Clock) -> None:
    recognizer = FakeRecognizer(["one"], faults=[Fault("flush", "hang")])
    async with listening(clock, recognizer) as bench:
        await bench.say(800)
        await bench.be_quiet(7000)
    assert [error.wire_code for error in bench.told.failures] == ["backend_timeout"]


async def test_a_recognizer_that_has_no_room_is_asked_again(clock: Clock) -> None:
    faults = [Fault("open", "overload", nth=n) for n in range(3)]
    async with listening(clock, FakeRecognizer(["one two"], faults=faults)) as bench:
        await bench.say(800)
        await bench.be_quiet(1500)
    assert [turn.text for turn in bench.told.turns] == ["one two"]


async def test_what_the_recognizer_makes_of_the_voice_counts_while_the_pause_lasts(
    clock: Clock,
) -> None:
    recognizer = FakeRecognizer(["i want a latte"], partial_delay_ms=5000)
    settings = SessionSettings(turn_detection=SemanticVad())
    async with listening(clock, recognizer, settings) as bench:
        listener, words = bench.listener, ("i", "want", "a")
        await bench.say(400)
        await bench.be_quiet(120)
        needed_ms = []
        for p_voice, is_with_words in ((-3.0, True), (3.0, False)):
            partial = Partial(0, (), words, flushed=is_with_words, p_voice=p_voice)
            listener.on_partial(0, partial)
            assert listener._endpointing.evidence.p_voice == p_voice
            listener.on_partial(0, Partial(0, (), words))  # tells nothing of the voice
            assert listener._endpointing.evidence.p_voice == p_voice
            needed_ms.append(listener._endpointing.needed_ms())
        assert needed_ms[0] > needed_ms[1]
        await bench.say(200)
        assert listener._endpointing.evidence.p_voice is None


async def test_what_the_recognizer_makes_of_a_young_sound_comes_with_its_words(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    recognizer = FakeRecognizer(["two lattes"], partial_delay_ms=5000)
    async with listening(clock, recognizer, SessionSettings()) as bench:
        await bench.say(400)
        told: list[object] = []
        monkeypatch.setattr(bench.listener, "_deliver", told.extend)
        bench.listener.on_partial(0, Partial(0, (), ("two",), for_agent=-2.5))
        assert told == [WordsHeard((), ("two",), is_full=False, for_agent=-2.5)]


async def test_a_pause_is_weighed_for_its_own_words_and_for_none_before_it(clock: Clock) -> None:
    """A reply to what was staged before the pause would be asked for, and at once another."""
    settings = SessionSettings(turn_detection=SemanticVad())
    recognizer = FakeRecognizer(["how much is the cake"], ms_per_word=100, partial_delay_ms=100)
    async with listening(clock, recognizer, settings) as bench:
        await bench.say(500)
        await bench.be_quiet(80)
        assert bench.listener.observe_p_end(bench.told.words[-1], 0.5) == []
        await bench.be_quiet(140)
        words = bench.told.words[-1]
        assert bench.listener.observe_p_end(words[:2], 0.5) == []
        [weighed] = bench.listener.observe_p_end(words, 0.5)
        assert isinstance(weighed, PauseWeighed) and weighed.words == words


async def test_a_pause_that_is_weighed_again_was_noticed_when_it_was_weighed_first(
    clock: Clock,
) -> None:
    """The voice is read twice; a late judgement has no reply made ahead, and this is none."""
    settings = SessionSettings(turn_detection=SemanticVad())
    recognizer = FakeRecognizer(["i want a latte and then"], ms_per_word=100)
    async with listening(clock, recognizer, settings) as bench:
        await bench.say(600)
        await bench.be_quiet(120)
        words = bench.told.words[-1]
        [first] = bench.listener.observe_p_end(words, 0.001)
        await bench.be_quiet(200)
        [again] = bench.listener.observe_p_end(words, 0.001)
        assert isinstance(first, PauseWeighed) and isinstance(again, PauseWeighed)
        assert again.paused_ms == first.paused_ms
        await bench.say(100)
        await bench.be_quiet(220)
        [later] = bench.listener.observe_p_end(bench.told.words[-1], 0.001)
        assert isinstance(later, PauseWeighed) and later.paused_ms > first.paused_ms + 50


async def test_words_that_change_in_the_pause_are_given_time_for_their_p_end(clock: Clock) -> None:
    settings = SessionSettings(turn_detection=SemanticVad())
    recognizer = FakeRecognizer(["i want a latte and then"], ms_per_word=100)
    async with listening(clock, recognizer, settings) as bench:
        await bench.say(400)
        await bench.be_quiet(120)
        listener, words = bench.listener, ("i", "want", "a", "tea")
        bench.advance(listener.observe_p_end(bench.told.words[-1], 0.02))
        listener.on_partial(0, Partial(0, (), words, flushed=True))
        listener._endpointing.observe_silence(-5000.0, None)
        bench.advance(listener.decide(listener.now_ms + 79))
        assert not bench.told.turns and not bench.told.ending
        bench.advance(listener.observe_p_end(words, 0.9))
        assert bench.told.turns or bench.told.ending


@pytest.mark.parametrize("is_told", [True, False])
@pytest.mark.parametrize("detection", [SemanticVad(), ServerVad(silence_duration_ms=300)])
async def test_words_that_come_late_are_given_time_for_their_p_end_where_it_counts(
    clock: Clock, is_told: bool, detection: SemanticVad | ServerVad
) -> None:
    settings = SessionSettings(turn_detection=detection)
    recognizer = FakeRecognizer(["what time do you close"], partial_delay_ms=5000)
    async with listening(clock, recognizer, settings) as bench:
        listener, words = bench.listener, ("what", "time", "do", "you", "close")
        if is_told:
            listener._endpointing.observe_p_end(0.5)  # in an earlier turn
        await bench.say(400)
        await bench.be_quiet(120)
        listener._endpointing.observe_silence(-5000.0, None)
        listener.on_partial(0, Partial(0, (), words, flushed=True))
        is_awaited = is_told and isinstance(detection, SemanticVad)
        assert bool(bench.told.ending) != is_awaited
        bench.advance(listener.decide(listener.now_ms + 79))
        assert bool(bench.told.ending) != is_awaited
        bench.advance(listener.observe_p_end(words, None))
        assert len(bench.told.ending) == 1


@pytest.mark.skipif(not is_available(), reason="webrtc-noise-gain is not installed")
@pytest.mark.parametrize(("field", "least_cut_db"), [(None, -1.0), ("far_field", 10.0)])
async def test_the_models_hear_the_caller_without_the_noise_that_a_session_has_taken_out(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, field: NoiseField | None, least_cut_db: float
) -> None:
    heard: list[bytes] = []
    monkeypatch.setattr(FakeRecognizerStream, "feed", lambda self, samples: heard.append(samples))
    noise = np.random.default_rng(0).normal(0.0, 200.0, 5 * 24_000).astype(np.int16)
    settings = SessionSettings(turn_detection=None, noise_reduction=field)  # all that comes is fed
    async with listening(clock, settings=settings) as line:
        await line.play(noise)
    samples = np.frombuffer(b"".join(heard), np.int16)
    at_16_khz = Resampler(24_000, 16_000).push(noise)
    later = slice(2 * 16_000, 4 * 16_000)  # its estimate has settled
    assert rms_dbfs(at_16_khz[later]) - rms_dbfs(samples[later]) >= least_cut_db


async def test_a_caller_who_never_pauses_has_a_turn_of_the_longest_kind(clock: Clock) -> None:
    recognizer = FakeRecognizer([" ".join(["on", "and"] * 20)], ms_per_word=250)
    async with listening(clock, recognizer, longest_turn_ms=5000.0) as bench:
        await bench.say(4900)
        assert not bench.told.turns
        await bench.say(3000)
        assert (
            len(bench.told.turns) == 1 and len(bench.told.onsets) == 1
        )  # what goes on is nobody's
        assert bench.told.turns[0].words[:2] == ("on", "and")
        assert bench.told.turns[0].record.facts.endpoint.reason == "longest_turn"
        await bench.be_quiet(600)
        await bench.say(500)
        assert len(bench.told.onsets) == 2


async def test_after_a_turn_of_the_longest_kind_a_client_that_sends_no_silence_is_heard_at_once(
    clock: Clock,
) -> None:
    recognizer = FakeRecognizer([" ".join(["on", "and"] * 20)], ms_per_word=250)
    async with listening(clock, recognizer, longest_turn_ms=5000.0) as bench:
        await bench.say(6000)
        assert len(bench.told.turns) == 1 and len(bench.told.onsets) == 1
        await asyncio.sleep(0.5)  # push to talk: nothing is sent between two turns
        await bench.say(500)
        assert len(bench.told.onsets) == 2

"""The agent's ear: the caller's audio in, speech onsets, words and ended turns out.

Owns the audio clock (samples received since the session began, at 16 kHz), the voice activity
hysteresis, and the timing of flush and finalize. When speech begins is `Onset`'s to tell, when a
turn is over `Endpointing`'s decision; what follows from it is the session's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from audio.codec import decode
from audio.frames import RECOGNIZER_HZ, VAD_WINDOW_MS, Samples
from audio.resample import Resampler
from voiceloop.backends import ChatMessage, Partial, Recognizer, RecognizerOptions, Transcript
from voiceloop.errors import BackendError
from voiceloop.listening.arrivals import Arrivals
from voiceloop.listening.endpointing import End, Endpointing
from voiceloop.listening.events import Ear, UserTurn
from voiceloop.listening.onset import ONSET_MS, PRE_ROLL_MS, Onset
from voiceloop.listening.prosody import Prosody
from voiceloop.listening.recognition import Recognition
from voiceloop.listening.segment import Stretch
from voiceloop.realtime.settings import AudioFormat, SemanticVad, ServerVad, SessionSettings
from voiceloop.telemetry import TurnTimeline

SPEECH_THRESHOLD = 0.5  # Silero's own default
HYSTERESIS = 0.15  # speech ends only below threshold - this: a weak syllable is no pause
STALL_MS = 300.0  # no audio for this long: the client has stopped sending, wall clock takes over
WATCH_S = 0.05
# The hypothesis may change in the pause; so long its P(end) is waited for before doing without.
P_END_GRACE_MS = 80.0
# A wait that ends before the next chunk can be there is not held up for it: up to so much silence
# is taken for granted, and speech in it takes the answer back.
UNHEARD_MS = 20.0


class VoiceActivity(Protocol):
    """audio.vad.Vad or a fake."""

    def feed(self, samples: Samples) -> Sequence[Any]: ...

    def reset(self) -> None: ...


class Listener:
    """One caller's audio, turn by turn. `feed` is called from the event loop and never waits."""

    def __init__(
        self,
        *,
        recognizer: Recognizer,
        options: RecognizerOptions,
        settings: SessionSettings,
        ear: Ear,
        vad: VoiceActivity,
        clock: Callable[[], float],
        stream_id: str,
    ) -> None:
        self._ear = ear
        self._vad = vad
        self._clock = clock
        self._recognition = Recognition(recognizer, stream_id, options, self)
        self._endpointing = Endpointing(settings.turn_detection or SemanticVad())
        self._prosody = Prosody()
        self._position = 0
        self._arrivals = Arrivals()
        self._decision_due: asyncio.TimerHandle | None = None
        self._onset = Onset()
        self._listens = False
        self._stretch: Stretch | None = None
        self._sound_open = asyncio.Event()  # of a stretch, or of a loud window that may begin one
        self._ended: dict[int, UserTurn] = {}
        self.configure(settings)

    # --- settings ---

    def configure(self, settings: SessionSettings) -> None:
        """Take up the session's settings; audio fed from now on is in its input format."""
        self._set_format(settings.input_format)
        detection = settings.turn_detection
        listened, self._listens = self._listens, detection is not None
        self._threshold, self._onset.pre_roll_ms = SPEECH_THRESHOLD, PRE_ROLL_MS
        if detection is not None:
            self._endpointing.configure(detection)
        elif listened:
            self.discard()
        if isinstance(detection, ServerVad):
            self._threshold = detection.threshold
            self._onset.pre_roll_ms = float(max(detection.prefix_padding_ms, 100))

    def _set_format(self, audio_format: AudioFormat) -> None:
        current = getattr(self, "_resampler", None)
        self._encoding = audio_format.encoding
        if current is None or current.in_hz != audio_format.rate:
            self._resampler = Resampler(audio_format.rate, RECOGNIZER_HZ)

    def set_options(self, options: RecognizerOptions) -> None:
        self._recognition.set_options(options)

    # --- audio in ---

    @property
    def now_ms(self) -> float:
        """The audio clock."""
        return 1000.0 * self._position / RECOGNIZER_HZ

    @property
    def paused_ms(self) -> float | None:
        """How long ago the open turn's pause was noticed; None while the caller speaks."""
        if self._stretch is None or not self._stretch.paused:
            return None
        return 1000.0 * (self._clock() - self._stretch.first_low_s)

    @property
    def needed_ms(self) -> float:
        """The silence that eagerness auto would wait for on what is known now, to weigh a draft."""
        return self._endpointing.auto_wait_ms()

    @property
    def in_speech(self) -> bool:
        """A turn of the caller is open."""
        return self._stretch is not None

    def feed(self, data: bytes) -> None:
        """The next audio of the caller, whole samples in the session's input format."""
        samples = self._resampler.push(decode(data, self._encoding))
        self._position += len(samples)
        self._arrivals.add(self._position, self._clock())
        if not self._listens:
            self._recognition.feed(samples.tobytes())
            return
        self._onset.feed(samples)
        if self._stretch is None:
            self._onset.keep(samples)
        else:
            self._prosody.feed(samples)
            self._recognition.feed(samples.tobytes())
        for window in self._vad.feed(samples):
            end_ms = 1000.0 * window.end_position / RECOGNIZER_HZ
            self._observe(end_ms, window.probability)
        self._decide(self.now_ms)

    def _take_pre_roll(self) -> None:
        self._prosody.reset()
        for samples in self._onset.take_pre_roll():
            self._prosody.feed(samples)
            self._recognition.feed(samples.tobytes())

    # --- voice activity ---

    def _observe(self, end_ms: float, probability: float) -> None:
        """One window of the voice detector."""
        if self._stretch is None:
            self._await_onset(end_ms, probability)
            return
        stretch = self._stretch
        low = self._threshold - (0.0 if stretch.paused else HYSTERESIS)
        if probability >= low:
            if stretch.sound(end_ms, probability):
                self._endpointing.observe_speech(end_ms - VAD_WINDOW_MS)
        elif not stretch.paused:
            self._pause(stretch)
        self._ear.on_activity(stretch.activity(end_ms))

    def _await_onset(self, end_ms: float, probability: float) -> None:
        match self._onset.observe(probability >= self._threshold):
            case "loud":
                self._sound_open.set()
                self._ear.on_sound(self._onset.lasting_ms())
            case "lost":
                self._sound_open.clear()
                self._ear.on_sound(None)
            case "speech":
                self._begin(end_ms)

    def _begin(self, end_ms: float) -> None:
        onset_ms = end_ms - ONSET_MS
        stretch = self._stretch = Stretch(onset_ms, self._arrival_s(onset_ms), end_ms)
        self._endpointing.reset()
        self._endpointing.observe_speech(onset_ms)
        self._take_pre_roll()
        stretch.led_in_ms = self._onset.led_in_ms(self.now_ms - onset_ms)
        self._ear.on_speech_onset(stretch.activity(end_ms))

    def _pause(self, stretch: Stretch) -> None:
        """First low window: ask for the fullest hypothesis while the silence is still young."""
        stretch.pause(self._clock(), self.now_ms - self._prosody.loudness.quiet_ms())
        tail = self._prosody.loudness.tail_level_db(), self._prosody.pitch.tail_semitones()
        self._endpointing.observe_silence(stretch.last_sound_ms, *tail)
        self._recognition.flush()

    def _arrival_s(self, at_ms: float) -> float:
        """When the sample at this point of the audio clock came in."""
        return self._arrivals.at_s(at_ms, self._clock())

    # --- the end of a turn ---

    def observe_history(self, messages: Sequence[ChatMessage]) -> None:
        """The conversation so far: what the agent asked tells what answer to expect."""
        last = messages[-1:]
        reply = last[0].content if last and last[0].role == "assistant" else ""
        self._endpointing.observe_reply(reply)

    def observe_p_end(self, words: tuple[str, ...], p_end: float | None) -> None:
        """P(end of turn) after these words of the open turn, from the language model."""
        stretch = self._stretch
        if stretch is not None and stretch.paused and words == stretch.hypothesis:
            self._endpointing.observe_p_end(p_end)
            self._decide(self.now_ms)

    def _decide(self, now_ms: float) -> None:
        stretch = self._stretch
        if stretch is None or not stretch.paused:
            return
        if now_ms < stretch.p_end_by_ms and self._endpointing.evidence.p_end is None:
            return
        decision = self._endpointing.decide(now_ms)
        if isinstance(decision, End):
            evidence = self._endpointing.evidence
            facts = {
                "reason": decision.reason,
                "needed_ms": round(self._endpointing.needed_ms(), 1),
                "silence_ms": round(decision.silence_ms, 1),
                "p_end": evidence.p_end,
                "words_are_full": evidence.words_are_full,
                "tail_level_db": evidence.tail_level_db,
            }
            self._end_turn(stretch, facts)
        elif decision.wait_ms is not None and decision.wait_ms <= UNHEARD_MS:
            self._decide_at(now_ms + decision.wait_ms + 0.1)  # past it, however rounded

    def _decide_at(self, at_ms: float) -> None:
        """Decide at this point of the audio clock unless a chunk comes first."""
        if (last_s := self._arrivals.last_s) is None:
            return
        self._forget_due()
        delay_s = last_s + (at_ms - self.now_ms) / 1000.0 - self._clock()
        self._decision_due = asyncio.get_running_loop().call_later(
            max(0.0, delay_s), self._decide_unheard, self._position, at_ms
        )

    def _decide_unheard(self, position: int, at_ms: float) -> None:
        if position == self._position:
            self._decide(at_ms)

    def _forget_due(self) -> None:
        if self._decision_due is not None:
            self._decision_due.cancel()
            self._decision_due = None

    def _end_turn(self, stretch: Stretch, facts: dict[str, Any]) -> None:
        timeline = TurnTimeline("", stretch.last_sound_ms)
        timeline.mark("speech_end", self._arrival_s(stretch.last_sound_ms))
        timeline.mark("first_low_frame", stretch.first_low_s)
        timeline.mark("endpoint_decision", self._clock())
        timeline.facts["endpoint"] = facts
        if not (stretch.flushed and stretch.hypothesis):
            self._conclude(self._finalize(stretch, timeline), stretch)
            return
        # The answer to the flush holds all that was said: the final pass has nothing to add, and
        # waiting for it costs 15-40 ms.
        timeline.mark("transcript_final", self._clock())
        segment = self._recognition.segment
        turn = stretch.turn_input(segment, timeline)
        self._recognition.discard()
        self._conclude(segment, stretch)
        self._ear.on_turn(turn)

    def _finalize(self, stretch: Stretch, timeline: TurnTimeline) -> int:
        segment = self._recognition.finalize()
        self._ended[segment] = stretch.turn_input(segment, timeline)
        return segment

    def _conclude(self, segment: int, stretch: Stretch) -> None:
        """Only a turn of the caller tells how the caller pauses; the ear knows whose it was."""
        if self._ear.on_turn_ending(segment, stretch.last_sound_ms, stretch.hypothesis):
            self._endpointing.end_turn()
        self._idle()

    def _idle(self) -> None:
        self._stretch = None
        self._sound_open.clear()
        self._endpointing.reset()
        if self._onset.forget():
            self._ear.on_sound(None)  # it has acted on the loud window

    def commit(self) -> int:
        """End the turn now, whatever the audio says; its words follow. Returns its segment."""
        now_ms = self.now_ms
        if self._stretch is None:
            self._take_pre_roll()
        stretch = self._stretch or Stretch(now_ms, self._clock(), now_ms)
        timeline = TurnTimeline("", stretch.last_sound_ms)
        timeline.mark("speech_end", self._arrival_s(stretch.last_sound_ms))
        timeline.mark("endpoint_decision", self._clock())
        timeline.facts["endpoint"] = {"reason": "commit"}
        self._endpointing.end_turn()
        self._idle()
        return self._finalize(stretch, timeline)

    def ask_for_words(self) -> None:
        """Have the fullest hypothesis of the open turn reported now."""
        self._recognition.flush()

    def discard(self) -> None:
        """Forget the open turn: noise, a backchannel, or the client cleared its buffer."""
        self._recognition.discard()
        self._onset.take_pre_roll()
        self._idle()

    # --- recognition's callbacks ---

    def on_partial(self, segment: int, partial: Partial) -> None:
        if segment != self._recognition.segment:
            return
        words = partial.stable_words + partial.unstable_words
        stretch = self._stretch
        full = partial.flushed
        if stretch is not None:
            stretch.flushed = stretch.flushed or partial.flushed
            # After the flush the recognizer hears only silence, yet may still change its mind.
            full = stretch.paused and stretch.flushed
            if words != stretch.hypothesis and self._endpointing.evidence.p_end is not None:
                stretch.p_end_by_ms = self.now_ms + P_END_GRACE_MS
            stretch.hypothesis = words
            self._endpointing.observe_words(words, full=full)
        self._ear.on_words(partial.stable_words, partial.unstable_words, full=full)
        self._decide(self.now_ms)

    def on_transcript(self, segment: int, transcript: Transcript) -> None:
        ended = self._ended.pop(segment, None)
        if ended is None:
            return
        ended.timeline.mark("transcript_final", self._clock())
        # A final pass that lost everything is worse than the hypothesis that decided the end.
        words = tuple(word.text for word in transcript.words) or ended.words
        self._ear.on_turn(UserTurn(segment, words, ended.onset_ms, ended.end_ms, ended.timeline))

    def on_recognition_failed(self, segment: int, error: BackendError) -> None:
        if (ended := self._ended.pop(segment, None)) is not None:
            self._ear.on_turn_failed(ended, error)

    # --- tasks ---

    async def run(self) -> None:
        """Recognize, and watch for a client that stops sending, until cancelled."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._recognition.run(), name="recognition")
                tasks.create_task(self._watch_for_stall(), name="stall watch")
        finally:
            self._forget_due()

    async def _watch_for_stall(self) -> None:
        while True:
            await self._sound_open.wait()
            await asyncio.sleep(WATCH_S)
            if (last_s := self._arrivals.last_s) is None:
                continue
            stalled_ms = 1000.0 * (self._clock() - last_s)
            if stalled_ms >= STALL_MS:
                self._observe_stall(self.now_ms + stalled_ms)

    def _observe_stall(self, now_ms: float) -> None:
        """No audio came for so long that the wall clock takes over: it is silence."""
        stretch = self._stretch
        if stretch is None:
            self._idle()
            return
        if not stretch.paused:
            self._pause(stretch)
        self._ear.on_activity(stretch.activity(now_ms))
        if self._stretch is stretch:
            self._decide(now_ms)

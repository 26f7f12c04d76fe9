"""The caller's audio in; sounds, words, pauses and ended turns out.

Owns the audio clock (samples received since the session began, at 16 kHz) and the timing of flush
and finalize. `Onset` tells when sound and speech begin, `Endpointing` whether a turn is over, and
turn-taking whose turn it is and what follows. What was heard is returned as events; those that no
call asked for (the recognizer's words, the end of a wait) go to `deliver`.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import msgspec

from audio.frames import RECOGNIZER_HZ, VAD_WINDOW_MS, Samples
from voiceloop.agent import AgentSlot
from voiceloop.backends import ChatMessage, Partial, Recognizer, RecognizerOptions, Transcript
from voiceloop.errors import BackendError
from voiceloop.listening.audio_clock import Alarm, AudioClock, StallWatch
from voiceloop.listening.caller_audio import CallerAudio
from voiceloop.listening.echo import EchoGuard
from voiceloop.listening.endpointing import End, Endpointing
from voiceloop.listening.events import (
    Activity,
    EndIsLikely,
    EndOfTurn,
    GroupHeard,
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
    WordsLate,
)
from voiceloop.listening.prosody import Prosody
from voiceloop.listening.recognition import AwaitedTurns, Recognition
from voiceloop.listening.segment import (
    HYSTERESIS,
    ONSET_MS,
    PRE_ROLL_MS,
    SPEECH_THRESHOLD,
    TONE_WINDOWS,
    EarlyStarts,
    Heard,
    Onset,
    SpeechSegment,
    VoiceActivity,
)
from voiceloop.listening.turn_sound import TurnSound
from voiceloop.realtime.settings import SemanticVad, ServerVad, SessionSettings
from voiceloop.telemetry.record import Endpoint, Mark

# A caller who sounds for longer without a pause (music, a television) is answered all the same.
LONGEST_TURN_MS = 60_000.0
# Who dictates a number prefers a sign of being heard some 200 ms after each group (G. Skantze and
# D. Schlangen, "Incremental dialogue processing in a micro-domain", 2009); digit by digit people
# pause for up to 450 ms, and a sign after each would be none.
ACKNOWLEDGED_AFTER_MS = 450.0
# How long the end-of-turn (EOT) probability of words that come or change in a pause is awaited; the
# engine answers after 10 to 20 ms in calls, the hop included.
P_END_GRACE_MS = 80.0

Deliver = Callable[[Sequence[ListenEvent]], None]


@dataclass(frozen=True, slots=True)
class ListenerOptions:
    """The part of an agent's file that the listener goes by; another agent changes all of it.

    tells_groups: as of `GroupHeard`.
    """

    recognizer: RecognizerOptions = RecognizerOptions()
    slots: Sequence[AgentSlot] = ()
    starts_early: bool = False
    words_late_s: float | None = None
    tells_groups: bool = False


class Listener:
    """One caller's audio, turn by turn. `feed` is called from the event loop and never waits.

    sound: of the open turn; None: nobody hears it.
    """

    def __init__(
        self,
        *,
        recognizer: Recognizer,
        options: ListenerOptions,
        settings: SessionSettings,
        vad: VoiceActivity,
        clock: Callable[[], float],
        stream_id: str,
        deliver: Deliver,
        longest_turn_ms: float = math.inf,
        keeps_sound: bool = False,
    ) -> None:
        self._deliver = deliver
        self._longest_turn_ms = longest_turn_ms
        self._vad = vad
        self._clock = clock
        self._recognition = Recognition(recognizer, stream_id, options.recognizer, self)
        self._endpointing = Endpointing(settings.turn_detection or SemanticVad())
        self._early = EarlyStarts()
        self._prosody = Prosody()
        self._echo = EchoGuard()
        self.sound = TurnSound() if keeps_sound else None
        self._caller_audio = CallerAudio(settings.input_format, settings.noise_reduction)
        self._audio = AudioClock(clock)
        self._alarm = Alarm(self._audio, lambda at_ms: deliver(self.decide(at_ms)))
        self._onset = Onset()
        self._listens = False
        self._segment: SpeechSegment | None = None
        self._stalls = StallWatch(self._audio, self._observe_stall)
        self._ended = AwaitedTurns(lambda turn: deliver([WordsLate(turn)]))
        self._listen_for(options)
        self.configure(settings)

    # --- settings ---

    def configure(self, settings: SessionSettings) -> None:
        self._caller_audio.configure(settings.input_format, settings.noise_reduction)
        detection = settings.turn_detection
        listened, self._listens = self._listens, detection is not None
        self._threshold = SPEECH_THRESHOLD
        self._onset.want_pre_roll(PRE_ROLL_MS)
        if detection is not None:
            takes_back = self._early.is_enabled and settings.takes_answers_back
            self._endpointing.configure(detection, takes_back=takes_back)
        elif listened:
            self.discard()
        if isinstance(detection, ServerVad):
            self._threshold = detection.threshold
            self._onset.want_pre_roll(float(detection.prefix_padding_ms))

    def take(self, options: ListenerOptions) -> None:
        """Another agent goes on with the call."""
        self._listen_for(options)
        self.set_options(options.recognizer)

    def _listen_for(self, options: ListenerOptions) -> None:
        self._tells_groups = options.tells_groups
        self._early.is_enabled = options.starts_early
        self._ended.late_s = options.words_late_s
        self._endpointing.take(options.slots)
        self._endpointing.observe_language(options.recognizer.language)

    def set_options(self, options: RecognizerOptions) -> None:
        n_digits = self._endpointing.n_digits_asked
        self._recognition.set_options(msgspec.structs.replace(options, n_digits=n_digits))
        self._endpointing.observe_language(options.language)

    # --- audio in ---

    def observe_played(self, samples: Samples, rate_hz: int) -> None:
        """Sound of the agent, int16 [n], goes out to the caller now: it may come back."""
        self._echo.play(samples, rate_hz)

    @property
    def now_ms(self) -> float:
        return self._audio.now_ms

    @property
    def sounding_ms(self) -> float:
        """Return for how long the present sound has lasted by its loudness; 0 where that cannot
        tell.
        """
        return self._onset.lasting_ms()

    def feed(self, data: bytes) -> list[ListenEvent]:
        """The next audio of the caller, whole samples in the session's input format.

        Pass less than a window of the voice detector (32 ms) at a time, and act on the events
        before the next: an action may close the segment that the next window would extend.
        """
        samples = self._caller_audio.push(data)
        had_stalled = self._audio.advance(len(samples))
        if not self._listens:
            self._recognize(samples)
            return []
        if len(samples):
            samples = self._echo.push(samples)
        self._onset.feed(samples, had_stalled=had_stalled)
        if self._segment is None:
            self._onset.keep(samples)
        else:
            self._hear(samples)
        found: list[ListenEvent] = []
        self._vad.look_between(self._segment is None and self._onset.heeds_likeness)
        for window in self._vad.feed(samples):
            self._onset.observe_likeness(window.probability)
            if not window.is_between:
                end_ms = 1000.0 * window.end_position / RECOGNIZER_HZ
                found += self._observe(end_ms, window.probability)
        if self._segment is None:
            found += self._tell(self._onset.observe_level(), self.now_ms)
            found += self._doubt(self._onset.may_speak_ms)
        elif self._segment.is_paused and self._early.start is not None:
            found += self._doubt(self._onset.may_be_back_ms)
        return found

    def _doubt(self, longest_ms: float) -> list[ListenEvent]:
        """A sound over an answer that has just begun may be the caller, who goes on: the answer
        pauses until the detector has said, which takes it some 100 ms more than the loudness.
        """
        match self._early.doubt(self.now_ms, longest_ms):
            case True:
                self._stalls.is_awaited.set()
                return [SoundHeard(self._onset.lasting_ms(), "back")]
            case False:
                return [SoundLost()]
        return []

    def _take_pre_roll(self) -> None:
        self._prosody.reset()
        for samples in self._onset.take_pre_roll():
            self._hear(samples)

    def _hear(self, samples: Samples) -> None:
        self._prosody.feed(samples)
        self._recognize(samples)

    def _recognize(self, samples: Samples) -> None:
        heard = samples.tobytes()
        self._recognition.feed(heard)
        if self.sound is not None:
            self.sound.feed(heard)

    # --- voice activity ---

    def _observe(self, end_ms: float, probability: float) -> list[ListenEvent]:
        """One window of the voice detector."""
        segment = self._segment
        if segment is None:
            return self._tell(self._onset.observe(probability >= self._threshold), end_ms)
        if probability >= self._threshold - (0.0 if segment.is_paused else HYSTERESIS):
            if segment.sound(end_ms, probability):
                self._endpointing.observe_speech(end_ms - VAD_WINDOW_MS)
        elif not segment.is_paused:
            self._pause(segment)
        return [SpeechWindow(self._activity(segment, end_ms))]

    def _activity(self, segment: SpeechSegment, now_ms: float) -> Activity:
        level_db = self._prosody.loudness.loud_level_db()
        return segment.activity(now_ms, level_db)

    def _tell(self, heard: Heard, end_ms: float) -> list[ListenEvent]:
        """Return what was heard outside any segment."""
        match heard:
            case "risen" | "likely" | "loud":
                self._stalls.is_awaited.set()
                return [SoundHeard(self._onset.lasting_ms(), heard)]
            case "lost":
                self._stalls.is_awaited.clear()
                return [SoundLost()]
            case "speech":
                return [SpeechStarted(self._begin(end_ms).activity(end_ms))]
        return []

    def _begin(self, end_ms: float) -> SpeechSegment:
        onset_ms = end_ms - ONSET_MS
        segment = self._segment = SpeechSegment(onset_ms, self._audio.arrival_s(onset_ms), end_ms)
        self._endpointing.reset()
        self._early.end_doubt()
        self._endpointing.observe_speech(onset_ms)
        self._take_pre_roll()
        segment.led_in_ms = self._onset.led_in_ms(self.now_ms - onset_ms)
        return segment

    def _pause(self, segment: SpeechSegment) -> None:
        """First low window: ask for the fullest hypothesis while the silence is still young."""
        segment.pause(self._clock(), self.now_ms - self._prosody.loudness.quiet_ms())
        tail = self._prosody.loudness.tail_level_db(), self._prosody.pitch.tail_semitones()
        self._endpointing.observe_silence(segment.last_sound_ms, *tail)
        self._recognition.flush()
        if self.sound is not None:
            self.sound.pause()

    # --- the end of a turn ---

    def observe_history(self, messages: Sequence[ChatMessage]) -> None:
        """The conversation so far: the agent's last question tells what answer to expect."""
        is_theirs = bool(messages) and messages[-1].role == "assistant"
        replies = (one.content for one in messages if is_theirs and one.role == "assistant")
        self._endpointing.observe_replies(*replies)
        self._recognition.expect_digits(self._endpointing.n_digits_asked)

    def observe_p_end(
        self, words: tuple[str, ...], p_end: float | None, *, is_evidence: bool = True
    ) -> list[ListenEvent]:
        """The EOT probability after these words of the open turn, from the language model.

        is_evidence False: it is passed on with `PauseWeighed` and does not count here.
        """
        segment = self._segment
        if segment is None or not segment.is_paused:
            return []
        if words == segment.hypothesis:
            segment.p_end_by_ms = 0.0  # nothing more is told of these words
            self._endpointing.observe_p_end(p_end if is_evidence else None)
        if words != segment.hypothesis or not self._endpointing.evidence.words_are_full:
            return self.decide()  # those of the pause are on their way: a reply to these is none
        paused_ms = segment.weighed_after_ms or 1000.0 * (self._clock() - segment.first_low_s)
        weighed = PauseWeighed(words, p_end, paused_ms, self._endpointing.wait_ms("auto"))
        segment.weighed, segment.weighed_after_ms = weighed, paused_ms
        return self.decide() or [weighed]

    def decide(self, now_ms: float | None = None) -> list[ListenEvent]:
        """Whether the open turn is over by this point of the audio clock (None: now).

        To be called once all other events have been acted on. Where less silence than a chunk is
        missing, the listener decides again by itself once that has passed.
        """
        if (segment := self._segment) is None:
            return []
        now_ms = self.now_ms if now_ms is None else now_ms
        if now_ms - segment.onset_ms >= self._longest_turn_ms:
            return self._end_overlong(segment, now_ms)
        awaits_p_end = now_ms < segment.p_end_by_ms and self._endpointing.evidence.p_end is None
        if not segment.is_paused or awaits_p_end:
            return []
        if (wait_ms := self._early.left_ms(now_ms)) is None:
            end = self._endpointing.decide(now_ms)
            if not isinstance(end, End):
                if nearly_over := segment.take_nearly_over(wait_ms := end.wait_ms):
                    return nearly_over
                if self._ends_group(segment, now_ms):
                    return [GroupHeard()]
            else:  # but a sound that has just begun may be the caller again
                wait_ms = self._onset.may_be_back_ms - (end.silence_ms - end.needed_ms)
                if wait_ms <= 0.0:
                    segment.end = self._endpointing.told(end)
                    return [self._over(segment, self._endpointing.unsure_ms(end))]
        elif wait_ms <= 0.0:
            return [self._over(segment)]
        if wait_ms is not None:
            self._alarm.ring_after(wait_ms, now_ms)
        return []

    def _ends_group(self, segment: SpeechSegment, now_ms: float) -> bool:
        """Whether it is time to acknowledge a group of what is dictated."""
        if not self._tells_groups or segment.is_acknowledged:
            return False
        if now_ms - segment.last_sound_ms < ACKNOWLEDGED_AFTER_MS:
            return False
        segment.is_acknowledged = True
        return self._endpointing.evidence.is_under_way

    def _over(self, segment: SpeechSegment, unsure_ms: float = 0.0) -> ListenEvent:
        """The turn has ended; or, unless that is sure, an answer may begin that is taken back."""
        number = self._recognition.segment
        if unsure_ms and segment.has_all_words and self._early.offer():
            return EndIsLikely(number, segment.last_sound_ms, segment.hypothesis, unsure_ms)
        return EndOfTurn(number, segment.last_sound_ms, segment.hypothesis)

    def observe_early_start(self) -> Endpoint:
        """An answer has begun: the turn is over in EARLY_MS, or goes on. Returns what decided."""
        assert self._segment is not None  # its end was likely a moment ago
        self._early.begin(self.now_ms, self._clock(), self._segment.hypothesis)
        return self._segment.end

    def observe_taken_back(self) -> None:
        """Take in that the early start was taken back: the turn goes on."""
        self._early.take_back()

    def settle(self) -> list[ListenEvent]:
        """An answer that has begun stays: the client acts on it."""
        if self._segment is None or self._early.start is None:
            return []
        return [self._over(self._segment)]

    def _end_overlong(self, segment: SpeechSegment, now_ms: float) -> list[ListenEvent]:
        """Music, a television, or a caller who never pauses: the turn is ended for its length."""
        self._onset.ignore_what_goes_on()
        segment.end = self._endpointing.told(End("longest_turn", 0.0, 0.0))
        return [EndOfTurn(self._recognition.segment, now_ms, segment.hypothesis, is_overlong=True)]

    def end_turn(self) -> list[ListenEvent]:
        """End the open segment as a turn of the caller, from which the pause prior learns.

        Its words come at once where they are all known, else from the recognizer.
        """
        if (segment := self._segment) is None:
            return []
        early = self._early.start
        decided_s = self._clock() if early is None else early.from_s
        segment.end.early = early is not None
        found: list[ListenEvent] = []
        if segment.has_all_words:
            # The answer to the flush holds all that was said: the final pass has nothing to add,
            # and waiting for it costs 15-40 ms.
            turn = self._turn_of(segment, self._recognition.segment, decided_s)
            turn.record.mark(Mark.FIRST_LOW_FRAME, segment.first_low_s)
            turn.record.mark(Mark.TRANSCRIPT_FINAL, decided_s)
            found = [TurnTranscribed(turn)]
            self._recognition.discard()
        else:
            turn = self._finalize(segment, decided_s)
            turn.record.mark(Mark.FIRST_LOW_FRAME, segment.first_low_s)
        self._endpointing.end_turn()
        self._early.end_turn(segment.hypothesis, self.now_ms)
        self._close_segment()
        return found

    def _turn_of(self, segment: SpeechSegment, number: int, decided_s: float) -> UserTurn:
        last_sound_s = self._audio.arrival_s(segment.last_sound_ms)
        turn = segment.user_turn(number, last_sound_s, decided_s)
        if self.sound is None:
            return turn
        if not segment.is_paused:  # else what follows the pause is silence
            self.sound.pause()
        return replace(turn, sound=self.sound.pieces)

    def _finalize(self, segment: SpeechSegment, decided_s: float) -> UserTurn:
        turn = self._turn_of(segment, self._recognition.finalize(), decided_s)
        self._ended.add(turn, self._clock())
        return turn

    def _close_segment(self) -> None:
        self._segment = None
        if self.sound is not None:
            self.sound.begin()
        self._stalls.is_awaited.clear()
        self._endpointing.reset()
        self._early.reset()
        self._onset.forget()

    def commit(self) -> int:
        """End the turn now, whatever the audio says; its words follow. Returns its segment."""
        now_ms = self.now_ms
        if self._segment is None:
            self._take_pre_roll()
        segment = self._segment or SpeechSegment(now_ms, self._clock(), now_ms)
        segment.end = Endpoint("commit")
        turn = self._finalize(segment, self._clock())
        self._endpointing.end_turn()
        self._close_segment()
        return turn.segment

    def request_words(self) -> None:
        """Have the fullest hypothesis of the open segment reported now."""
        self._recognition.flush()

    def discard(self) -> None:
        """Forget the open segment: noise, a backchannel, or the client cleared its buffer."""
        self._recognition.discard()
        self._onset.take_pre_roll()
        self._close_segment()

    def ignore_tone(self) -> None:
        """A key was pressed: what it sounds like is no speech."""
        self.discard()
        self._onset.ignore_what_goes_on(TONE_WINDOWS)

    # --- recognition's callbacks ---

    def on_partial(self, number: int, partial: Partial) -> None:
        if number != self._recognition.segment:
            return
        stable, unstable = partial.stable_words, partial.unstable_words
        words, is_full = stable + unstable, partial.flushed
        if (segment := self._segment) is not None:
            segment.is_flushed = segment.is_flushed or partial.flushed
            # After the flush the recognizer hears only silence, yet may still change its mind.
            is_full = segment.is_paused and segment.is_flushed
            is_new = words != segment.hypothesis or not self._endpointing.evidence.words_are_full
            segment.hypothesis = words
            if partial.flushed or partial.p_voice is not None:
                self._endpointing.observe_voice(partial.p_voice)
            self._endpointing.observe_words(words, full=is_full)
            if is_new and self._endpointing.awaits_p_end:
                segment.p_end_by_ms = self.now_ms + P_END_GRACE_MS
        self._deliver([WordsHeard(stable, unstable, is_full, partial.for_agent)])

    def on_transcript(self, number: int, transcript: Transcript) -> None:
        if (ended := self._ended.take(number)) is None:
            return
        ended.record.mark(Mark.TRANSCRIPT_FINAL, self._clock())
        # A final pass that lost everything is worse than the hypothesis that decided the end.
        words = tuple(word.text for word in transcript.words) or ended.words
        self._deliver([TurnTranscribed(replace(ended, words=words))])

    def on_recognition_failed(self, number: int, error: BackendError) -> None:
        if (ended := self._ended.take(number)) is not None:
            self._deliver([TranscriptionFailed(ended, error)])

    # --- tasks ---

    async def run(self) -> None:
        """Recognize, and watch for a client that stops sending, until cancelled."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._recognition.run(), name="recognition")
                tasks.create_task(self._stalls.run(), name="stall watch")
        finally:
            self._alarm.cancel()
            self._ended.cancel()

    def _observe_stall(self, now_ms: float) -> None:
        """No audio has come for STALL_MS: it counts as silence, on the wall's clock."""
        segment = self._segment
        if segment is None:
            was_heard = self._onset.forget()
            was_doubted = self._early.end_doubt()
            self._close_segment()
            if was_heard or was_doubted:
                self._deliver([SoundLost()])
            return
        if not segment.is_paused:
            self._pause(segment)
        self._deliver([SpeechWindow(self._activity(segment, now_ms))])
        if ended := self.decide(now_ms):
            self._deliver(ended)

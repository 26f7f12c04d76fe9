"""One segment of the caller's speech: its onset, what is known while it is open, its early start.

Owns what precedes a segment: the count of loud windows of the voice detector, the pre-roll that
saves a word's first sound, and the loudness of all sound, which tells that one has begun, and for
how long it has lasted, before the detector takes it for a voice. Of the open segment: where it
began, the last sound, whether it pauses, the hypothesis so far. And whether an answer may begin
while the turn is still open, for how long it can be taken back, and whether that pays with this
caller. Pure; samples are mono int16 at 16 kHz, times are ms of the audio clock (`_ms`) and seconds
of the wall's (`_s`).

Source: a start that corrects itself, G. Skantze and A. Hjalmarsson, "Towards incremental speech
generation in conversational systems" (2013).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Literal, Protocol

import msgspec

from audio.frames import RECOGNIZER_HZ, VAD_WINDOW_MS, Samples
from voiceloop.listening.events import Activity, ListenEvent, PauseWeighed, Sign, UserTurn
from voiceloop.listening.prosody import CLOSURE_FRAMES, LEVEL_MS, LoudnessTrack
from voiceloop.telemetry.record import Endpoint, Mark, TurnRecord

# After a turn that was ended for its length, while its sound goes on: the next segment may begin
# once it has been quiet for so long, as a listener in the room would wait, or at last after so
# long, when the agent has said what it had to. Chosen.
QUIET_WINDOWS = 7  # 224 ms: more than a stop within a word
DEAF_WINDOWS = round(10_000 / VAD_WINDOW_MS)
TONE_WINDOWS = round(320 / VAD_WINDOW_MS)  # of a key: people hold one for 100 to 300 ms

Heard = Sign | Literal["nothing", "lost", "speech"]

SPEECH_THRESHOLD = 0.5  # Silero's own default
# Silero's own too: speech ends only below threshold - this, so that a weak syllable is no pause.
HYSTERESIS = 0.15
ONSET_WINDOWS = 2  # 64 ms of speech: one window alone is often a click
ONSET_MS = ONSET_WINDOWS * VAD_WINDOW_MS
PRE_ROLL_MS = 300.0  # a soft first consonant lies up to 200 ms before the detector's onset
LEAST_PRE_ROLL_MS = 100.0  # where a client asks for less; set by hand
# Where a sound's beginning is looked for: the pre-roll, the onset's windows, and of the room before
# that more than a closure.
LEAD_IN_FRAMES = math.ceil((PRE_ROLL_MS + ONSET_MS) / LEVEL_MS) + CLOSURE_FRAMES + 1
# A sound has risen where so many of its latest frames lie plainly above the room: 50 of 60 ms, for
# a click does not last that. Where the highest of the detector's latest windows is LIKELY it does
# not rule a voice out. Both from the interruptions of `benchmarks.backchannels` (LOG.md,
# 2026-11-22, "the first 100 ms of an interruption").
RISEN_FRAMES, LEAST_RISEN = 6, 5
LIKELY_WINDOWS = 4  # two of the detector's, and the two between
LIKELY = 0.2
# Sounds that rose and were no speech, one after another: after so many the room is one in which
# loudness tells nothing, until a sound that rose turns out to be speech. Chosen.
MOST_IN_VAIN = 3
# For so long a sound that rose may be speech, since noise that beats never falls silent. Chosen:
# the detector's first loud window comes 182 ms after the onset at p95 (LOG.md, as above).
LONGEST_RISE_MS = 600.0
# In a pause so many frames plainly above the room, of those that the detector has not judged yet,
# are a caller who may be back: it has after two of its windows. One frame may be a click; between
# two a stop within the word may be quiet again, as behind the "p" of "please" (LOG.md, 2026-11-23,
# "who is back before the detector hears it").
RETURN_FRAMES = 2
RETURN_MS = 2 * VAD_WINDOW_MS
# Where the detector does not rule a voice out in one of its latest two windows it is asked for two
# more: soft beginnings take it as long (LOG.md, 2026-11-23, "a voice that is half heard").
RETURN_WINDOWS = 2
LIKELY_RETURN_MS = 2 * RETURN_MS


class Rise(Enum):
    """The state of a sound by its loudness."""

    NONE = "none"
    RISEN = "risen"
    LOUD = "loud"  # the detector took one window of it for a voice: likely while it sounds
    IN_VAIN = "in vain"  # it goes on, and no speech came of it: nothing is told of it any more


class VoiceActivity(Protocol):
    """The voice detector: audio.vad.Vad or a fake."""

    def feed(self, samples: Samples) -> Sequence[Any]: ...

    def look_between(self, does: bool) -> None: ...


class Onset:
    """Awaits one segment after another. `feed` takes all sound, `keep` what no segment has."""

    def __init__(self) -> None:
        self._pre_roll_ms = PRE_ROLL_MS
        self._loudness = LoudnessTrack(LEAD_IN_FRAMES)
        self._pre_roll: deque[Samples] = deque()
        self._n_loud = 0
        self._n_quiet = 0  # low windows in a row, while the sound of an ended turn goes on
        self._n_deaf = 0  # windows for which it is still not taken for another turn
        self._likeness: deque[float] = deque(maxlen=LIKELY_WINDOWS)
        self._rise = Rise.NONE
        self._risen_ms = 0.0  # since it rose
        self._n_in_vain = 0

    def want_pre_roll(self, pre_roll_ms: float) -> None:
        """Keep so much from now on; never less than LEAST_PRE_ROLL_MS."""
        self._pre_roll_ms = max(pre_roll_ms, LEAST_PRE_ROLL_MS)

    def feed(self, samples: Samples, *, had_stalled: bool = False) -> None:
        """All sound of the caller [n], within a segment too.

        had_stalled: the client had stopped sending before. A sound that went on is over then,
        though no silence was heard.
        """
        self._loudness.feed(samples)
        self._risen_ms += 1000.0 * len(samples) / RECOGNIZER_HZ
        if had_stalled:
            self._n_deaf = 0

    def keep(self, samples: Samples) -> None:
        """Sound [n] outside any segment: the pre-roll of the next."""
        self._pre_roll.append(samples)
        longest = int((self._pre_roll_ms + ONSET_MS) * RECOGNIZER_HZ / 1000.0)
        while sum(map(len, self._pre_roll)) - len(self._pre_roll[0]) >= longest:
            self._pre_roll.popleft()

    def take_pre_roll(self) -> tuple[Samples, ...]:
        """The pre-roll [n] in chunks; it is empty afterwards."""
        kept = tuple(self._pre_roll)
        self._pre_roll.clear()
        return kept

    def observe_likeness(self, probability: float) -> None:
        """Take in the likeness of speech in any window of the detector: those between too, and
        within a segment.
        """
        self._likeness.append(probability)

    @property
    def is_sounding(self) -> bool:
        """Something is plainly louder than the room, or was within a closure."""
        return self._loudness.n_risen(CLOSURE_FRAMES + 1) > 0

    @property
    def heeds_likeness(self) -> bool:
        """Whether what the detector makes of the present sound is of use before it is speech."""
        tells = self._is_trusted and self._rise is not Rise.IN_VAIN
        return tells and not self._n_deaf and self.is_sounding

    @property
    def _is_trusted(self) -> bool:
        """Loudness tells something in this room."""
        return self._n_in_vain < MOST_IN_VAIN

    def observe_level(self) -> Heard:
        """Return what loudness tells of a sound outside any segment: to be asked with every chunk.

        "risen": it is plainly louder than the room; "likely": and may be a voice; "lost": it is
        over, or has gone on for LONGEST_RISE_MS. The detector's own "speech" may come of it at any
        time.
        """
        if self._n_deaf:
            return "nothing"
        is_rising = self._loudness.n_risen(RISEN_FRAMES) >= LEAST_RISEN
        match self._rise:
            case Rise.NONE if is_rising:
                self._rise, self._risen_ms = Rise.RISEN, 0.0
            case Rise.RISEN | Rise.LOUD if not self.is_sounding:
                return self._end_rise(Rise.NONE)
            case Rise.RISEN | Rise.LOUD if self._risen_ms >= LONGEST_RISE_MS:
                return self._end_rise(Rise.IN_VAIN)
            case Rise.IN_VAIN if not self.is_sounding:
                self._rise = Rise.NONE
        was_loud = self._rise is Rise.LOUD
        is_told = was_loud or (is_rising and self._rise is Rise.RISEN)
        if not is_told or not self._is_trusted:
            return "nothing"
        return "likely" if was_loud or max(self._likeness, default=0.0) >= LIKELY else "risen"

    @property
    def may_be_back_ms(self) -> float:
        """Return for how long the sound that has just begun may be the caller again; 0 where
        none has.
        """
        if max(list(self._likeness)[-RETURN_WINDOWS:], default=0.0) >= LIKELY:
            return LIKELY_RETURN_MS
        is_risen = self._loudness.n_risen(int(RETURN_MS / LEVEL_MS)) >= RETURN_FRAMES
        return RETURN_MS if is_risen else 0.0

    @property
    def may_speak_ms(self) -> float:
        """The same behind a turn, where the detector asks for ONSET_WINDOWS of a voice."""
        is_likely = self._n_loud > 0 or self.may_be_back_ms > RETURN_MS
        return LIKELY_RETURN_MS + ONSET_MS if is_likely else self.may_be_back_ms

    def _end_rise(self, rise: Rise) -> Heard:
        """No speech came of the sound."""
        was_trusted, self._rise = self._is_trusted, rise
        self._n_in_vain = min(self._n_in_vain + 1, MOST_IN_VAIN)
        return "lost" if was_trusted and not self._n_loud else "nothing"

    def observe(self, is_loud: bool) -> Heard:
        """One window of the detector, outside any segment.

        "loud": the first of a sound that may be speech; "speech": it is, and began ONSET_MS ago;
        "lost": it was not, though it may still sound: `observe_level` tells.
        """
        if self._n_deaf:
            self._n_quiet = 0 if is_loud else self._n_quiet + 1
            self._n_deaf = 0 if self._n_quiet >= QUIET_WINDOWS else self._n_deaf - 1
            return "nothing"
        if not is_loud:
            n_loud, self._n_loud = self._n_loud, 0
            return "lost" if n_loud else "nothing"
        self._n_loud += 1
        if self._n_loud < ONSET_WINDOWS:
            self._rise = Rise.LOUD if self._rise is Rise.RISEN else self._rise
            return "loud"
        if self._rise is not Rise.NONE:
            self._n_in_vain = max(0, self._n_in_vain - 1)
        self.forget()
        return "speech"

    def ignore_what_goes_on(self, n_windows: int = DEAF_WINDOWS) -> None:
        """A turn was ended for its length, or by a key: the sound that goes on begins no other for
        so many windows, or until it pauses.
        """
        self.forget()
        self._n_quiet, self._n_deaf = 0, n_windows

    def forget(self) -> bool:
        """Drop the sound so far; whether there was any."""
        was_heard = self._n_loud > 0 or self._rise is not Rise.NONE
        self._n_loud, self._rise = 0, Rise.NONE
        return was_heard

    def lasting_ms(self) -> float:
        return self._loudness.sound_ms()

    def led_in_ms(self, since_onset_ms: float = ONSET_MS) -> float:
        """Sound that led into a segment which the detector has heard for `since_onset_ms`."""
        return max(0.0, self._loudness.sound_ms() - since_onset_ms)


# So little silence is missing that the reply is begun now, for who has been silent for so long has
# mostly finished. A first clause takes the embedded models 60 to 130 ms, quick services some 300.
# Chosen (LOG.md, 2026-11-23, "a reply to whoever waits longest").
NEARLY_OVER_MS = 400.0
# The detector answers some 50 ms after the last sound; beyond three windows the loudness is more
# likely wrong.
LONGEST_VAD_LAG_MS = 3 * VAD_WINDOW_MS


@dataclass(slots=True)
class SpeechSegment:
    """The open segment. `_ms`: on the audio clock; `_s`: seconds of the wall's."""

    onset_ms: float
    onset_arrival_s: float
    last_sound_ms: float
    led_in_ms: float = 0.0
    is_paused: bool = False
    first_low_s: float = 0.0
    is_flushed: bool = False  # the hypothesis covers all that was said before this pause
    hypothesis: tuple[str, ...] = ()
    n_windows: int = 0
    sum_of_probabilities: float = 0.0
    end: Endpoint = field(default_factory=Endpoint)  # what decided that it is over
    p_end_by_ms: float = 0.0  # the EOT probability of the present words is awaited until then
    is_acknowledged: bool = False  # this pause, or there is nothing to acknowledge
    weighed: PauseWeighed | None = None  # of this pause the latest; None once told as nearly over
    weighed_after_ms: float = 0.0  # the first: a second reading of the voice is no late one

    def sound(self, end_ms: float, probability: float) -> bool:
        """A window of speech, of this probability, ends here. Returns whether it ends a pause."""
        resumes, self.is_paused = self.is_paused, False
        self.last_sound_ms = end_ms
        self.n_windows += 1
        self.sum_of_probabilities += probability
        return resumes

    def pause(self, first_low_s: float, quiet_since_ms: float) -> None:
        """A pause begins: the detector's first low window has come in.

        quiet_since_ms: the last sound by its loudness, which is nearer than the detector's.
        """
        self.is_paused, self.is_flushed, self.first_low_s = True, False, first_low_s
        self.weighed, self.weighed_after_ms, self.is_acknowledged = None, 0.0, False
        earliest_ms = max(self.onset_ms, self.last_sound_ms - LONGEST_VAD_LAG_MS)
        self.last_sound_ms = min(max(quiet_since_ms, earliest_ms), self.last_sound_ms)

    def take_nearly_over(self, missing_ms: float | None) -> list[ListenEvent]:
        """Return what was weighed, where it stands and so little silence is missing; once a
        pause.
        """
        weighed, is_near = self.weighed, missing_ms is not None and missing_ms <= NEARLY_OVER_MS
        if weighed is None or not is_near or weighed.words != self.hypothesis:
            return []
        self.weighed = None
        return [msgspec.structs.replace(weighed, is_nearly_over=True)]

    @property
    def has_all_words(self) -> bool:
        """Whether there are words, and they are all that was said before this pause."""
        return self.is_flushed and bool(self.hypothesis)

    def activity(self, now_ms: float, level_db: float | None = None) -> Activity:
        """The segment as of now. level_db: as of `Activity`."""
        silence_ms = max(0.0, now_ms - self.last_sound_ms) if self.is_paused else 0.0
        speech_ms = self.last_sound_ms - self.onset_ms
        voice = self.sum_of_probabilities / self.n_windows if self.n_windows else 1.0
        return Activity(
            self.onset_ms, speech_ms, silence_ms, self.onset_arrival_s, voice, self.led_in_ms,
            level_db,
        )  # fmt: skip

    def user_turn(self, segment: int, last_sound_s: float, decided_s: float) -> UserTurn:
        """The segment as a turn of the caller, which ends here, with the hypothesis for its words.

        last_sound_s: when its last sound arrived.
        """
        record = TurnRecord("", self.last_sound_ms)
        record.mark(Mark.SPEECH_END, last_sound_s)
        record.mark(Mark.ENDPOINT_DECISION, decided_s)
        record.facts.endpoint = self.end
        return UserTurn(
            segment, self.hypothesis, self.onset_ms, self.last_sound_ms,
            last_sound_s, decided_s, record,
        )  # fmt: skip


# So long the answer is heard before the turn is over: a caller who goes on within it takes it back,
# and the turn is the same one still. Callers who were interrupted mid-sentence mostly go on within
# it; whoever comes later is judged as one who speaks over the agent. Chosen, and below
# TAKEN_BACK_MS of `release`, the whole time in which an answer counts as never said: in the rest of
# it the turn is over, the words are out, and the answer is retracted as any fresh one.
EARLY_MS = 250.0
# So long after a turn a sound may pause the answer to it, which has been heard for TAKEN_BACK_MS by
# then, unless it came late. Chosen.
DOUBTED_MS = 1000.0
# Sounds over such an answer that paused it, and no voice came of them: after so many it is the
# room, or the loudspeaker, that is heard. Chosen.
MOST_DOUBTS_IN_VAIN = 2
# Starts that a sound took back although not a word followed: a click, a breath, or the agent's own
# voice out of a loudspeaker. After so many of them a call has no more. Chosen.
MOST_STARTS_IN_VAIN = 2


@dataclass(frozen=True, slots=True)
class EarlyStart:
    """The answer began then, after these words."""

    from_ms: float
    from_s: float
    words: tuple[str, ...]


class EarlyStarts:
    """`offer` at most one a turn; where it is taken, `begin`, then `take_back` or `end_turn`."""

    def __init__(self) -> None:
        self.is_enabled = False
        self._n_in_vain = 0
        self._n_doubts_in_vain = 0
        self._doubted_ms: float | None = None  # since when a sound pauses the answer
        self._fresh_until_ms = 0.0  # the answer to the turn that has ended
        self._start: EarlyStart | None = None
        self.reset()

    def reset(self) -> None:
        """The open turn is over, or was none."""
        self._was_offered = False
        self._start = self._taken_back = None

    def offer(self) -> bool:
        """Whether an answer may begin now that the end is likely; once a turn."""
        if not self.is_enabled or self._was_offered or self._n_in_vain >= MOST_STARTS_IN_VAIN:
            return False
        self._was_offered = True
        return True

    def begin(self, at_ms: float, at_s: float, words: tuple[str, ...]) -> None:
        self._start = EarlyStart(at_ms, at_s, words)

    @property
    def start(self) -> EarlyStart | None:
        return self._start

    def left_ms(self, now_ms: float) -> float | None:
        """Return for how long it can be taken back, at most 0 where it stays; None where there
        is none.
        """
        return None if self._start is None else self._start.from_ms + EARLY_MS - now_ms

    def doubt(self, now_ms: float, longest_ms: float) -> bool | None:
        """Whether a sound over a fresh answer begins to pause it (True) or no longer does (False).

        longest_ms: for how long a sound that has just begun may be the caller's; 0 where none has.
        """
        if self._doubted_ms is None:
            is_fresh = self._start is not None or now_ms < self._fresh_until_ms
            if not is_fresh or longest_ms == 0.0 or self._n_doubts_in_vain >= MOST_DOUBTS_IN_VAIN:
                return None
            self._doubted_ms = now_ms
            return True
        if longest_ms > 0.0 and now_ms - self._doubted_ms < longest_ms:
            return None
        self._doubted_ms = None
        self._n_doubts_in_vain += 1
        return False

    def end_doubt(self) -> bool:
        """Take in that speech has begun, or that no sound comes any more; whether one paused it."""
        was_doubted, self._doubted_ms = self._doubted_ms is not None, None
        return was_doubted

    def take_back(self) -> None:
        self._start, self._taken_back, self._doubted_ms = None, self._start, None

    def end_turn(self, words: tuple[str, ...], now_ms: float) -> None:
        """The caller's turn is over, and these are all of its words."""
        if self.is_enabled:
            self._fresh_until_ms = now_ms + DOUBTED_MS
        if self._taken_back is not None and self._taken_back.words == words:
            self._n_in_vain += 1
        self.reset()

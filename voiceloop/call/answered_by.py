"""The kind of party that answered a call we placed: a person, a machine, or one that asks who
calls.

Owns how a machine is known: by its phrases, by a tone, by a greeting that no person would say
without a pause. Nobody waits for it: the agent speaks and answers as always meanwhile. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from voiceloop.backends import normalize
from voiceloop.listening import events as heard
from voiceloop.reply.answers.call import ASKS_WHO

Answerer = Literal["machine", "screening", "person"]

# Words that a machine says, and of those who lift a telephone nobody (benchmarks.phone, part
# "machines", has the figures). The first two lists are English, the rest German.
MACHINE = (
    "you have reached", "youve reached", "you reached", "leave a message", "leave your message",
    "leave your name", "leave us a message", "leave me a message", "leave a brief",
    "after the tone", "after the beep", "at the tone", "at the beep", "the beep",
    "voicemail", "voice mail",
    "voice mailbox", "mailbox", "cant come to the phone", "cannot come to the phone",
    "cant take your call", "cannot take your call", "unable to take your call",
    "unable to answer", "unable to come", "not available to take", "not available right now",
    "not available right", "is not available", "is unavailable", "please leave",
    "not in service", "opening hours", "are unavailable", "away from my phone",
    "away from the phone", "away from my desk", "not in the office right now",
    "office is closed", "offices are closed", "we are closed", "we are currently closed",
    "were currently closed", "our business hours", "our office hours", "missed your call",
    "get back to you", "return your call", "call you back as soon", "has been forwarded",
    "been forwarded to", "automatic voice", "automated voice", "record your message",
    "please record", "the person you are calling", "the person you are trying",
    "the number you have dialed", "the number you dialed", "the subscriber", "press one for",
    "press 1", "press one", "para espanol", "answering machine",
    "nachricht nach dem", "nach dem signalton", "nach dem ton", "nach dem piep", "signalton",
    "hinterlassen sie", "nicht erreichbar", "zurzeit nicht", "anrufbeantworter", "rufen sie zuruck",
)  # fmt: skip
SCREENING = tuple(
    phrase.replace("'", "")
    for phrase in (*ASKS_WHO, "call screening", "screening service", "google assistant")
)
# A caller who answers for a house says so: the greeting may then be as long as it likes.
PERSON = (
    "how can i help", "how may i help", "can i help you", "may i help", "speaking", "one second",
    "one moment", "hold on", "just a", "good morning", "good afternoon", "good evening",
    "guten tag", "guten morgen", "am apparat",
)  # fmt: skip
# Of the first that is said, without a pause of 0.5 s; people who lift a telephone say less, 2.5 s
# at most in LiveKit's detector. What they say later may be as long as it likes. Chosen.
LONG_GREETING_MS = 2900.0
BEGINS_WITHIN_MS = 4000.0
BREAK_MS = 500.0
WATCHED_MS = 25_000.0  # of a call, then who is there is a person

RATE_HZ = 24_000
FRAME = 480  # 20 ms
TONE_MS, LONGEST_TONE_MS = 180.0, 2500.0
LOWEST_HZ, HIGHEST_HZ = 380.0, 2600.0
PURE = 0.9  # of a tone's energy in five bins, and its pitch stays
LEAST_LEVEL = 150.0  # RMS, of int16: some -47 dB of full scale
QUIET_AFTER_MS = 1800.0  # a machine that has no tone


class Tone:
    """Finds a single tone in the line's sound, and when it is over, or all is silent behind it."""

    def __init__(self) -> None:
        self._rest: NDArray[np.int16] = np.zeros(0, np.int16)
        self._window = np.hanning(2 * FRAME)
        self._frame: NDArray[np.int16] = np.zeros(FRAME, np.int16)
        self._bin = -1
        self._tone_ms = self._quiet_ms = 0.0
        self.was_heard = False

    def hear(self, samples: bytes) -> bool:
        """The next sound, of LINE_FORMAT. Whether a message may begin now."""
        self._rest = np.concatenate((self._rest, np.frombuffer(samples, "<i2")))
        may_begin = False
        while len(self._rest) >= FRAME:
            frame, self._rest = self._rest[:FRAME], self._rest[FRAME:]
            may_begin = self._take(frame) or may_begin
        return may_begin

    def _take(self, frame: NDArray[np.int16]) -> bool:
        both = np.concatenate((self._frame, frame)).astype(np.float64)
        self._frame = frame
        level = float(np.sqrt(np.mean(both[FRAME:] ** 2)))
        self._quiet_ms = 0.0 if level > LEAST_LEVEL else self._quiet_ms + 20.0
        power = np.abs(np.fft.rfft(both * self._window)) ** 2
        peak = int(np.argmax(power[1:])) + 1
        hz = peak * RATE_HZ / (2 * FRAME)
        share = float(power[max(peak - 2, 0) : peak + 3].sum() / (power.sum() + 1e-9))
        is_tone = level > LEAST_LEVEL and share >= PURE and LOWEST_HZ <= hz <= HIGHEST_HZ
        if is_tone and (self._bin < 0 or abs(peak - self._bin) <= 1):  # a hum glides
            self._bin = peak if self._bin < 0 else self._bin
            self._tone_ms += 20.0
            return False
        was_tone = TONE_MS <= self._tone_ms <= LONGEST_TONE_MS
        self._bin, self._tone_ms = (peak, 20.0) if is_tone else (-1, 0.0)
        self.was_heard = self.was_heard or was_tone
        return was_tone or self._quiet_ms >= QUIET_AFTER_MS


class AnsweredBy:
    """The judgement of who answered one call that we placed. Tells who has answered once, and
    `person` when time is up.
    """

    def __init__(self) -> None:
        self.tone = Tone()
        self.by: Answerer | None = None
        self._words = ""
        self._from_ms = 0.0  # of the segment: where what goes on without a break begins
        self._said_before = ""
        self._is_greeting = True  # the segment is the first

    def hear(self, samples: bytes) -> Answerer | None:
        self.tone.hear(samples)
        is_machine = self.tone.was_heard and bool(self._said_before or self._words)
        return self._tell("machine") if is_machine else None

    def observe(self, event: heard.ListenEvent, now_ms: float) -> Answerer | None:
        match event:
            case heard.SpeechWindow(activity=activity):
                return self.observe_speech(
                    activity.speech_ms, activity.silence_ms, activity.onset_ms, now_ms
                )
            case heard.WordsHeard(stable=stable, unstable=unstable):
                return self.observe_words((*stable, *unstable))
            case heard.EndOfTurn(hypothesis=words):
                by = self.observe_words(words)
                self.end_segment()
                return by
        return None

    def observe_speech(
        self, speech_ms: float, silence_ms: float, onset_ms: float, now_ms: float
    ) -> Answerer | None:
        """The open segment: its speech from first to last sound, and the silence behind that."""
        self._is_greeting = self._is_greeting and onset_ms <= BEGINS_WITHIN_MS
        if silence_ms >= BREAK_MS:
            self._from_ms = speech_ms
        elif self._is_long(speech_ms - self._from_ms) and not _has(PERSON, self._words):
            return self._tell("machine")
        return self._tell("person") if now_ms > WATCHED_MS else None

    def observe_words(self, words: Iterable[str]) -> Answerer | None:
        self._words = " ".join(filter(None, map(normalize, words))).replace("'", "")
        whole = f"{self._said_before} {self._words}".strip()
        if _has(SCREENING, whole):
            return self._tell("screening")
        return self._tell("machine") if _has(MACHINE, whole) else None

    def end_segment(self) -> None:
        """The segment is over; what comes may go on with its sentence."""
        self._said_before = f"{self._said_before} {self._words}".strip()[-200:]
        self._words, self._from_ms, self._is_greeting = "", 0.0, False

    def _is_long(self, unbroken_ms: float) -> bool:
        return self._is_greeting and unbroken_ms >= LONG_GREETING_MS

    def _tell(self, by: Answerer) -> Answerer | None:
        """One that screens may turn out to take a message; nothing else changes."""
        if self.by is None or (self.by == "screening" and by == "machine"):
            self.by = by
            return by
        return None


def _has(phrases: Iterable[str], words: str) -> bool:
    said = f" {words} "
    return any(f" {phrase} " in said for phrase in phrases)

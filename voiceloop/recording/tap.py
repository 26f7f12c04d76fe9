"""One call's tap: what the event loop does to have a call kept, which is to put messages away.

Owns whether anything is kept at this moment: the caller's consent, and what is private. It counts
what found no room; a call is never held up.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any

import msgspec

from voiceloop.backends import ToolCall
from voiceloop.call.actions import SpeakFirst
from voiceloop.realtime.sound_line import Digit
from voiceloop.recording.consent import CallConsent, ConsentState
from voiceloop.recording.hidden import without_words
from voiceloop.recording.messages import (
    Begin,
    Cut,
    End,
    Heard,
    Hide,
    Inbox,
    Message,
    Said,
    Told,
)
from voiceloop.telemetry.record import TurnRecord
from voiceloop.telemetry.tap import CallTap, Encoding, KeptCall, Sounded

MAX_FRAME = 256 * 1024  # of a client's event: with sound in it it is larger, and not kept
# What a replay says by itself, or what opens a door.
UNKEPT = ("voiceloop.resume", "conversation.item.truncate", "response.cancel")


class TapState(Enum):
    WAITING = "waiting"  # for the caller's consent
    KEPT = "kept"
    OVER = "over"


class Tap(CallTap):
    """clock: the session's, in seconds."""

    keeps = True

    def __init__(
        self, call: KeptCall, inbox: Inbox, consent: CallConsent, clock: Callable[[], float]
    ) -> None:
        super().__init__(consent)
        self._consent = consent
        self._first_words = consent.first_words
        self._call = call
        self._inbox = inbox
        self._clock = clock
        self._audio_s = 0.0  # of the caller's so far
        self._state = TapState.WAITING
        self._is_private = False
        self._n_lost = 0
        self._keep_where_given()

    @property
    def _is_open(self) -> bool:
        return self._state is TapState.KEPT

    def hear(self, samples: bytes, rate_hz: int, encoding: Encoding, seconds: float) -> None:
        begins_s, self._audio_s = self._audio_s, self._audio_s + seconds
        if self._is_open:
            heard = Heard(samples, rate_hz, encoding, begins_s, seconds, self._clock())
            self._put(heard, len(samples))

    def say(self, sounded: Sounded) -> None:
        self._put(Said(sounded, self._is_private), sounded.samples.nbytes)

    def cut(self, item_id: str, heard_ms: float) -> None:
        self._put(Cut(item_id, heard_ms))

    def client(self, frame: str | bytes) -> None:
        if not self._is_open or len(frame) > MAX_FRAME:
            return
        event = json.loads(frame)
        if event.get("type") not in UNKEPT:
            self._tell("client", {"event": event})

    def observe_line(self, frame: object) -> None:
        if isinstance(frame, Digit):
            self._tell("digits", {"value": frame.key})

    def observe(self, actions: Sequence[object]) -> None:
        if self._state is TapState.WAITING:
            if any(isinstance(a, SpeakFirst) and a.text == self._first_words for a in actions):
                self._consent.begin()
            self._keep_where_given()

    def call(self, call: ToolCall) -> None:
        entry = {"call_id": call.call_id, "name": call.name, "arguments": call.arguments}
        self._tell("calls", entry)

    def result(self, call_id: str, output: str) -> None:
        self._tell("results", {"call_id": call_id, "output": output})

    def turn(self, record: TurnRecord, *, is_private: bool) -> None:
        end = record.end
        entry = record.payload() | {
            "heard": end.heard,
            "said": end.said,
            "usage": msgspec.to_builtins(end.usage),
        }
        self._tell("turns", entry)
        if is_private != self._is_private:
            self._is_private = is_private
            self._put(Hide(is_private, self._clock()))

    def end(self, code: int, why: str, slots: dict[str, str]) -> None:
        if self._is_open:
            self._put(End(self._clock(), code, why, slots, self._n_lost))
        self._state = TapState.OVER

    def _tell(self, section: str, entry: dict[str, Any]) -> None:
        if self._is_open:
            told = without_words(entry) if self._is_private else entry
            self._put(Told(section, told, self._clock()))

    def _keep_where_given(self) -> None:
        """Begin, once the caller has agreed."""
        given = self._consent
        if given.state is not ConsentState.GIVEN:
            return
        self._state = TapState.KEPT
        consent = {"how": given.how, "words": given.words}
        self._put(Begin(self._call, self._clock(), self._audio_s, consent))

    def _put(self, message: Message, n_bytes: int = 0) -> None:
        if self._is_open and not self._inbox.put(self._call.call_id, message, n_bytes):
            self._n_lost += 1

"""A line that carries a call's sound beside its events, and what its client is told of the sound.

Owns the shape of such a line (`SoundLine`), and when ``output_audio_buffer.started``, ``stopped``
and ``cleared`` are due (`OutputBuffer`). A WebSocket is no such line: its client holds the sound
itself. Pure: time is passed in.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol as Shape

from voiceloop.realtime.events import OutputCleared, OutputStarted, OutputStopped, ServerEvent
from voiceloop.realtime.settings import AudioFormat

LINE_FORMAT = AudioFormat()  # of the sound on every such line, whatever its packets hold


@dataclass(frozen=True, slots=True)
class Sound:
    """The next sound of the caller: whole samples in LINE_FORMAT."""

    samples: bytes


@dataclass(frozen=True, slots=True)
class Digit:
    """A key that the caller has pressed, one of `telephony.KEYS`, as the line tells of it."""

    key: str


@dataclass(frozen=True, slots=True)
class Unlocked:
    """An event of one beside the call who has its key: the locks of its client do not hold."""

    event: str | bytes


class SoundLine(Shape):
    """A line that sends the agent's sound. lead_ms: how far ahead of its playing sound is sent."""

    @property
    def lead_ms(self) -> float: ...

    def play_delay_ms(self) -> float | None:
        """How much later than a client without a buffer, next door, this one plays what is sent.
        None: nothing takes back what was sent, so that it is heard, whatever follows.
        """

    def send_sound(self, samples: bytes) -> None:
        """Send samples in LINE_FORMAT; must not block."""

    def clear_sound(self) -> None:
        """Drop what was given and has not left."""


class OutputBuffer:
    """The sound that the server holds for its client. line: None where the client holds it.

    send: queues an event. is_open: whether this response may still have more sound.
    """

    def __init__(
        self,
        line: SoundLine | None,
        send: Callable[[ServerEvent], None],
        is_open: Callable[[str], bool],
    ) -> None:
        self._line = line
        self._send = send
        self._is_open = is_open
        self._response_id = ""  # whose sound plays, or was the last to play
        self._is_playing = False
        self._play_end_s = 0.0

    def observe_sent(self, response_id: str, duration_ms: float, now_s: float) -> None:
        """More sound of this response has left."""
        if not self._is_playing or response_id != self._response_id:
            self._stop()
            self._response_id, self._is_playing = response_id, True
            self._send(OutputStarted(response_id=response_id))
        self._play_end_s = max(self._play_end_s, now_s) + duration_ms / 1000.0

    @property
    def due_s(self) -> float | None:
        """Return when `settle` has something to tell; None while nothing is known to end."""
        if not self._is_playing or self._is_open(self._response_id):
            return None
        return self._play_end_s

    def settle(self, now_s: float) -> None:
        """Tell that a response which is over has been played."""
        if self.due_s is not None and now_s >= self._play_end_s:
            self._stop()

    def is_playing(self, response_id: str) -> bool:
        return self._is_playing and response_id == self._response_id

    def clear(self) -> str | None:
        """Drop the sound that waits, and tell so in any case: clients wait for the answer.

        Returns the response whose sound was playing.
        """
        if self._line is None:
            return None
        self._line.clear_sound()
        was_playing, self._is_playing = self._is_playing, False
        self._send(OutputCleared(response_id=self._response_id))
        return self._response_id if was_playing else None

    def _stop(self) -> None:
        if self._is_playing:
            self._is_playing = False
            self._send(OutputStopped(response_id=self._response_id))

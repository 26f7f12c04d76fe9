"""Events on their way to the client: numbered, encoded, in order.

Owns the queue between the protocol and the writer, how much waits for the client, and which of the
deltas are stale. Pure.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from voiceloop.errors import InvalidRequest
from voiceloop.realtime.beta import to_beta
from voiceloop.realtime.events import AudioDelta, ServerEvent

MAX_ECHO_BYTES = 512 * 1024  # what is echoed stays under the 1 MiB that clients read by default
# On a line that carries sound: under the 256 KiB that browsers take of one data channel message.
MAX_LINE_ECHO_BYTES = 240 * 1024
N_REMEMBERED = 32  # responses cut short whose deltas may still wait in a writer


@dataclass(frozen=True, slots=True)
class Outgoing:
    """One frame for the writer, which may drop a delta whose response was cut short since.

    sound: this in place of data, on a line that carries sound.
    """

    data: str
    response_id: str | None = None
    is_delta: bool = False
    n_bytes: int = 0
    is_audio: bool = False
    sound: AudioDelta | None = None


class Outbox:
    """The queue. ``is_beta``: this client speaks the beta's names. ``carries_sound``: the line
    does, so that a piece of sound becomes no event.

    ``on_put`` is called after each frame that is queued; it must not block.

    ``n_bytes``: queued, or taken and neither sent nor dropped yet. ``n_put``: frames queued so far;
    ``n_done``: of these, the first so many have been sent or dropped.
    """

    def __init__(
        self,
        name: str,
        *,
        is_beta: bool = False,
        on_put: Callable[[], None] = lambda: None,
        carries_sound: bool = False,
    ) -> None:
        self._name = name
        self._carries_sound = carries_sound
        self._is_beta = is_beta
        self._on_put = on_put
        self._queue: list[Outgoing] = []
        self._n_events = 0
        self.n_bytes = self.n_put = self.n_done = 0
        self._cut_short: dict[str, None] = {}  # ordered; the oldest are forgotten

    def put(self, event: ServerEvent, delta_of: str | None = None) -> None:
        """Number the event and queue it; ``delta_of`` names the response of a droppable delta."""
        if self._carries_sound and isinstance(event, AudioDelta):
            n_bytes, is_delta = len(event.delta), delta_of is not None
            self._queue_up(Outgoing("", delta_of, is_delta, n_bytes, is_audio=True, sound=event))
            return
        self._n_events += 1
        event.event_id = f"event_{self._name}_{self._n_events}"
        wire: object = event
        if self._is_beta and (wire := to_beta(msgspec.to_builtins(event))) is None:
            return
        data = msgspec.json.encode(wire)
        is_audio = isinstance(event, AudioDelta)
        self._queue_up(Outgoing(data.decode(), delta_of, delta_of is not None, len(data), is_audio))

    def _queue_up(self, frame: Outgoing) -> None:
        self.n_bytes += frame.n_bytes
        self.n_put += 1
        self._queue.append(frame)
        self._on_put()

    def take(self) -> list[Outgoing]:
        """All frames queued since the last call, in order."""
        taken, self._queue = self._queue, []
        return taken

    def done(self, frame: Outgoing) -> None:
        """A frame that was taken has been sent, or dropped."""
        self.n_bytes -= frame.n_bytes
        self.n_done += 1

    def cut_short(self, response_id: str) -> None:
        """Cut a response short: deltas of it that still wait are stale."""
        self._cut_short[response_id] = None
        if len(self._cut_short) > N_REMEMBERED:
            del self._cut_short[next(iter(self._cut_short))]

    def is_stale(self, frame: Outgoing) -> bool:
        return frame.is_delta and frame.response_id in self._cut_short


def check_echo(value: Any, where: str, most: int = MAX_ECHO_BYTES) -> None:
    """Refuse what would be echoed in too large a frame. Raises: InvalidRequest."""
    n_bytes = len(msgspec.json.encode(value))
    if n_bytes > most:
        raise InvalidRequest(
            f"expected {where} of at most {most} bytes of JSON, found {n_bytes}",
            param=where,
        )

"""How long the full hypothesis takes from the end of a sound, of one call and of several at once.

In real time, as a worker drives the model: audio of every call in frames of 20 ms, a step while
there is work, a flush at the end of each clip, and the wait until its answer.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass

from audio.frames import Samples
from audio.stream import Partial, RecognizerModel, RecognizerOptions, StreamFailed
from benchmarks.harness.one_turn import CHUNK
from clients.errors import ClientError

FRAME_S = 0.02
APART_S = 0.33  # calls do not begin together
LONGEST_WAIT_S = 10.0


@dataclass(slots=True)
class _Call:
    stream: str
    samples: Samples
    starts_at: float
    n_sent: int = 0
    flushed_at: float | None = None
    waited_ms: float | None = None

    def feed(self, model: RecognizerModel, now: float) -> None:
        """Send what has been said by now, and ask for the words once that is all."""
        # A frame can be sent once it has been said to its end.
        while self.n_sent < len(self.samples) and now >= (
            self.starts_at + (self.n_sent // CHUNK + 1) * FRAME_S
        ):
            model.feed(self.stream, self.samples[self.n_sent : self.n_sent + CHUNK])
            self.n_sent += CHUNK
        if self.n_sent >= len(self.samples) and self.flushed_at is None:
            model.flush(self.stream)
            self.flushed_at = now


def flush_waits_ms(model: RecognizerModel, clips: Sequence[Samples], n_calls: int) -> list[float]:
    """Of every clip, n_calls of them being said at once. Raises: ClientError if a stream fails."""
    waits: list[float] = []
    for first in range(0, len(clips) - n_calls + 1, n_calls):
        waits += _together(model, clips[first : first + n_calls])
    return waits


def _together(model: RecognizerModel, clips: Sequence[Samples]) -> list[float]:
    now = time.monotonic()
    calls = {f"{i}": _Call(f"{i}", clip, now + i * APART_S) for i, clip in enumerate(clips)}
    for stream in calls:
        model.open(stream, RecognizerOptions())
    while any(call.waited_ms is None for call in calls.values()):
        now = time.monotonic()
        for call in calls.values():
            call.feed(model, now)
            if call.flushed_at is not None and now - call.flushed_at > LONGEST_WAIT_S:
                raise ClientError(f"expected words within {LONGEST_WAIT_S:.0f} s, found none")
        for event in model.step():
            if isinstance(event, StreamFailed):
                raise ClientError(f"expected words, found a failure: {event.message}")
            if isinstance(event, Partial) and event.flushed:
                call = calls[event.stream_id]
                assert call.flushed_at is not None
                call.waited_ms = 1000.0 * (time.monotonic() - call.flushed_at)
        if not model.has_work():
            time.sleep(0.001)
    for stream in calls:
        model.close(stream)
    return [call.waited_ms for call in calls.values() if call.waited_ms is not None]

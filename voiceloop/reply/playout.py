"""The agent's mouth: audio of one reply, paced to the client, and what of it was heard.

Owns the samples between the voice and the wire. `Pacer` is pure (time is passed in) and decides
what leaves when: at most `lead_ms` ahead of what the client can have played, nothing beyond a
limit, quieter while ducked, nothing while paused, a short fade and then nothing ever again after a
stop. The limit is of what may be said, the pause of who speaks: neither lifts the other. `Playout`
runs a pacer on the event loop. Nobody else knows what the caller has heard.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from voiceloop.backends import SpokenWord

Samples = NDArray[np.int16]

FIRST_CHUNK_MS = 40  # the first sound of a reply leaves as soon as there is so much of it
CHUNK_MS = 20  # one write thereafter: the smaller, the less is ahead of what is being played
# Audio the client holds beyond what it plays. A caller who barges in hears it to its end, at full
# loudness, unless the client flushes. It is also all that a client which plays at once has against
# a late delivery: between two chunks it falls to `LEAD_MS - CHUNK_MS`, so a loop or a network that
# hesitates for longer than 40 to 60 ms is heard as a hole. That suits loopback and a LAN; over the
# internet `pacing_lead_ms` wants 150 to 200, and the duck is heard so much later.
LEAD_MS = 60.0
# From the first loud window on, while a sound is judged: less to hear at full loudness before the
# duck, in smaller writes. A client that plays at once has one of them to play while the next is on
# its way, so holes come with deliveries that are over 10 ms late, for as long as it is judged.
REDUCED_LEAD_MS = 20.0
REDUCED_LEAD_CHUNK_MS = 10
DUCK_GAIN = 0.25  # -12 dB: plainly quieter, still intelligible
GAIN_RAMP_MS = 5  # to and from it: no click, and done within one write
FADE_OUT_MS = 15  # raised cosine: no click, and over before it is heard as a fade
FADE_IN_MS = 5
MAX_BUFFERED_MS = 20_000.0  # the voice waits beyond this
# Of what was sent so much is kept, or the lead where that is more, to be sent again to a client
# that threw it away unheard: more than any client buffers. 96 KB at 24 kHz.
KEPT_MS = 2000.0


@dataclass(frozen=True, slots=True)
class Chunk:
    """Samples int16 [n] for the wire, and the words that begin in them; is_fade: to silence."""

    samples: Samples
    duration_ms: float
    words: tuple[SpokenWord, ...]
    is_fade: bool = False


class Pacer:
    """What leaves when. Positions count samples of the reply at `rate_hz`.

    Invariants: every sample leaves once and in order, again only after a `step_back`, and none
    beyond the limit; after `stop` and its fade none does; `heard_ms` never exceeds what was sent,
    and nothing but a `step_back` decreases it.
    """

    def __init__(self, rate_hz: int, lead_ms: float = LEAD_MS, not_before_s: float = 0.0) -> None:
        self.rate_hz = rate_hz
        self._lead_ms = lead_ms
        self._pieces: deque[Samples] = deque()
        self._n_buffered = 0
        self._kept: deque[Samples] = deque()  # the last that were sent, at full loudness
        self._n_sent = 0
        self._n_limit: int | None = None
        self._words: deque[SpokenWord] = deque()
        self._gain = 1.0
        self._target_gain = 1.0
        self._fade_in = False
        self._has_reduced_lead = False
        self._is_paused = False
        self._stopped = False
        self._finished = False
        self._play_end_s = not_before_s  # when the client has played all that was sent

    # --- input ---

    def push(self, samples: Samples, words: tuple[SpokenWord, ...] = ()) -> None:
        """Add audio [n] int16 after what is there; nothing once stopped or finished."""
        if self._stopped or self._finished:
            return
        if len(samples):
            self._pieces.append(samples)
            self._n_buffered += len(samples)
        self._words.extend(words)

    def finish(self) -> None:
        """No more audio comes."""
        self._finished = True

    def send_until(self, limit_ms: float | None) -> None:
        """Nothing from there on leaves before the limit is raised; None lifts it."""
        self._n_limit = None if limit_ms is None else int(limit_ms * self.rate_hz / 1000.0)

    def recall(self, words: tuple[SpokenWord, ...]) -> None:
        """These words go with the next chunk once more: their sound began in what was sent."""
        self._words.extendleft(reversed(words))

    def step_back(self, to_ms: float, now_s: float) -> None:
        """The client has thrown away what it had of the reply from there on: that is sent again.

        From `kept_from_ms` at the earliest.
        """
        kept = np.concatenate(self._kept) if self._kept else np.zeros(0, np.int16)
        n_back = min(self._n_sent - round(to_ms * self.rate_hz / 1000.0), len(kept))
        if n_back <= 0 or self._stopped:
            return
        self._kept = deque([kept[: len(kept) - n_back]])
        self._pieces.appendleft(kept[len(kept) - n_back :])
        self._n_buffered += n_back
        self._n_sent -= n_back
        self._play_end_s = min(self._play_end_s, now_s)

    def reduce_lead(self) -> None:
        """Somebody may be about to speak: let the client's buffer run down."""
        self._has_reduced_lead = True

    def cut(self, at_ms: float) -> float:
        """Take back the audio from there on, of what has not left; returns its milliseconds."""
        n_kept = max(0, round(at_ms * self.rate_hz / 1000.0) - self._n_sent)
        n_cut = max(0, self._n_buffered - n_kept)
        kept = self._take(self._n_buffered - n_cut)
        self._pieces.clear()
        if len(kept):
            self._pieces.append(kept)
        self._n_buffered = len(kept)
        self._words = deque(word for word in self._words if word.start_ms < at_ms)
        self._finished = False
        return 1000.0 * n_cut / self.rate_hz

    def duck(self) -> None:
        self.reduce_lead()
        self._target_gain = DUCK_GAIN

    def pause(self) -> Chunk | None:
        """Stop sending; the chunk to send now fades out. Nothing is lost: `resume` goes on."""
        if self._is_paused or self._stopped:
            return None
        self._is_paused = True
        chunk = self._fade_out() if self._n_sent else None
        return chunk

    def resume(self) -> None:
        """Full loudness, and go on at the sample after the last one sent."""
        if self._is_paused:
            self._fade_in = self._n_sent > 0
            self._gain = 1.0
        self._is_paused = self._has_reduced_lead = False
        self._target_gain = 1.0

    def stop(self) -> Chunk | None:
        """Never send again; the chunk to send now, if any, fades out. Idempotent."""
        if self._stopped:
            return None
        chunk = self._fade_out() if self._n_sent and not self._is_paused else None
        self._stopped = True
        self._pieces.clear()
        self._n_buffered = 0
        self._words.clear()
        return chunk

    # --- output ---

    def next_chunk(self, now_s: float) -> Chunk | None:
        """The chunk due now, already counted as sent, or None."""
        n_may = self._n_sendable
        if self._is_paused or self._stopped or not n_may:
            return None
        chunk_samples = self.rate_hz * self._chunk_ms // 1000
        if n_may < chunk_samples and n_may == self._n_buffered and not self._finished:
            return None
        if self.wait_s(now_s) > 0:
            return None
        samples = self._draw(min(chunk_samples, n_may))
        return self._sent(self._shape(samples), now_s)

    def wait_s(self, now_s: float) -> float:
        """Seconds until the lead allows another chunk."""
        lead_ms = min(self._lead_ms, REDUCED_LEAD_MS) if self._has_reduced_lead else self._lead_ms
        chunk_ms = min(float(self._chunk_ms), lead_ms)
        room_ms = lead_ms - chunk_ms - 1000.0 * (self._play_end_s - now_s)
        # A microsecond of slack: rounding must not make a loop that waits for nothing.
        return 0.0 if room_ms >= -1e-3 else -room_ms / 1000.0

    @property
    def _n_sendable(self) -> int:
        """Samples that are there and below the limit."""
        if self._n_limit is None:
            return self._n_buffered
        return max(0, min(self._n_buffered, self._n_limit - self._n_sent))

    @property
    def _chunk_ms(self) -> int:
        if self._has_reduced_lead:
            return REDUCED_LEAD_CHUNK_MS
        return CHUNK_MS if self._n_sent else FIRST_CHUNK_MS

    def _draw(self, count: int) -> Samples:
        """The next samples to send."""
        samples = self._take(count)
        self._kept.append(samples)
        n_most = int(max(KEPT_MS, self._lead_ms) * self.rate_hz / 1000.0)
        n_kept = sum(len(piece) for piece in self._kept)
        while n_kept - len(self._kept[0]) >= n_most:
            n_kept -= len(self._kept.popleft())
        return samples

    def _take(self, count: int) -> Samples:
        parts: list[Samples] = []
        while count:
            piece = self._pieces[0]
            if len(piece) <= count:
                parts.append(self._pieces.popleft())
            else:
                parts.append(piece[:count])
                self._pieces[0] = piece[count:]
            count -= len(parts[-1])
            self._n_buffered -= len(parts[-1])
        return np.concatenate(parts) if parts else np.zeros(0, np.int16)

    def _shape(self, samples: Samples) -> Samples:
        """Apply the gain, moving to its target at the beginning of this chunk."""
        if self._gain == self._target_gain == 1.0 and not self._fade_in:
            return samples
        n_ramp = min(len(samples), self.rate_hz * GAIN_RAMP_MS // 1000)
        gain = np.full(len(samples), self._target_gain, np.float32)
        gain[:n_ramp] = np.linspace(self._gain, self._target_gain, n_ramp, dtype=np.float32)
        self._gain = self._target_gain
        if self._fade_in:
            n = min(len(samples), self.rate_hz * FADE_IN_MS // 1000)
            gain[:n] *= 0.5 - 0.5 * np.cos(np.pi * np.arange(n) / max(n, 1))
            self._fade_in = False
        shaped: Samples = np.rint(samples * gain).astype(np.int16)
        return shaped

    def _fade_out(self) -> Chunk | None:
        count = min(self.rate_hz * FADE_OUT_MS // 1000, self._n_sendable)
        if not count:
            return None
        samples = self._shape(self._draw(count))  # a duck that is due makes it steeper
        curve = 0.5 + 0.5 * np.cos(np.pi * np.arange(count) / count)
        faded = np.rint(samples * curve).astype(np.int16)
        return replace(self._sent(faded, self._play_end_s), is_fade=True)

    def _sent(self, samples: Samples, now_s: float) -> Chunk:
        self._n_sent += len(samples)
        duration_ms = 1000.0 * len(samples) / self.rate_hz
        # If the client ran dry it plays this the moment it comes; else after what it still has.
        self._play_end_s = max(self._play_end_s, now_s) + duration_ms / 1000.0
        words: list[SpokenWord] = []
        while self._words and self._words[0].start_ms < self.sent_ms:
            words.append(self._words.popleft())
        return Chunk(samples, duration_ms, tuple(words))

    # --- what is known ---

    @property
    def sent_ms(self) -> float:
        return 1000.0 * self._n_sent / self.rate_hz

    @property
    def kept_from_ms(self) -> float:
        """What was sent from there on can be sent again."""
        n_kept = sum(len(piece) for piece in self._kept)
        return 1000.0 * (self._n_sent - n_kept) / self.rate_hz

    def has_sent_beyond(self, at_ms: float) -> bool:
        """In samples: two sums of milliseconds may differ in their last bit."""
        return self._n_sent > round(at_ms * self.rate_hz / 1000.0)

    @property
    def buffered_ms(self) -> float:
        return 1000.0 * self._n_buffered / self.rate_hz

    @property
    def play_end_s(self) -> float:
        """When the client will have played all that was sent."""
        return self._play_end_s

    @property
    def is_stopped(self) -> bool:
        return self._stopped

    @property
    def is_drained(self) -> bool:
        """Everything that will ever be sent has been sent; below a limit other may come yet."""
        is_sent = self._finished and not self._n_buffered and self._n_limit is None
        return self._stopped or is_sent

    def heard_ms(self, now_s: float) -> float:
        """Of the reply, what a client that plays without a buffer of its own has played."""
        ahead_ms = max(0.0, 1000.0 * (self._play_end_s - now_s))
        return max(0.0, self.sent_ms - ahead_ms)

    def remaining_ms(self, now_s: float) -> float | None:
        """Audio the client has still to play; None while more may come."""
        if not self._finished or self._n_limit is not None:
            return None
        return self.buffered_ms + 1000.0 * max(0.0, self._play_end_s - now_s)

    def is_audible(self, now_s: float) -> bool:
        """The client is playing, or will without any further decision."""
        return self._n_sent > 0 and (now_s < self._play_end_s or not self.is_drained)


class Playout:
    """A pacer on the event loop; `emit(chunk)` must not block."""

    def __init__(
        self, pacer: Pacer, emit: Callable[[Chunk], None], clock: Callable[[], float]
    ) -> None:
        self.pacer = pacer
        self._emit = emit
        self._clock = clock
        self._changed = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()

    async def push(self, samples: Samples, words: tuple[SpokenWord, ...] = ()) -> None:
        """Add audio; waits while MAX_BUFFERED_MS are there already."""
        while self.pacer.buffered_ms > MAX_BUFFERED_MS and not self.pacer.is_stopped:
            self._room.clear()
            await self._room.wait()
        self.pacer.push(samples, words)
        self._changed.set()

    def finish(self) -> None:
        self.pacer.finish()
        self._changed.set()

    def send_until(self, limit_ms: float | None) -> None:
        self.pacer.send_until(limit_ms)
        self._changed.set()

    def reduce_lead(self) -> None:
        self.pacer.reduce_lead()

    def duck(self) -> None:
        self.pacer.duck()

    def pause(self) -> None:
        self._emit_if(self.pacer.pause())

    def resume(self) -> None:
        self.pacer.resume()
        self._changed.set()

    def step_back(self, to_ms: float) -> None:
        self.pacer.step_back(to_ms, self._clock())

    def stop(self) -> None:
        """Silence, for good. What was sent stays counted."""
        self._emit_if(self.pacer.stop())
        self._changed.set()
        self._room.set()

    def heard_ms(self) -> float:
        return self.pacer.heard_ms(self._clock())

    def _emit_if(self, chunk: Chunk | None) -> None:
        if chunk is not None:
            self._emit(chunk)

    async def run(self) -> None:
        """Send until everything that was pushed before `finish` (or `stop`) has left."""
        while not self.pacer.is_drained:
            self._changed.clear()
            # One reading of the clock: a chunk that is not due at the first question and due at the
            # second would be waited for without end.
            now_s = self._clock()
            while (chunk := self.pacer.next_chunk(now_s)) is not None:
                self._emit(chunk)
            if self.pacer.is_drained:
                return
            self._room.set()
            wait_s = self.pacer.wait_s(now_s)
            try:
                # Woken early by new audio, a resume or a stop.
                async with asyncio.timeout(wait_s if wait_s > 0 else None):
                    await self._changed.wait()
            except TimeoutError:
                continue

    async def played_out(self) -> None:
        """Wait until the client has played the last sample that was sent."""
        await asyncio.sleep(max(0.0, self.pacer.play_end_s - self._clock()))

"""The agent's mouth: the audio of one reply, paced to the client, and how much of it was heard.

Owns the samples between the voice and the wire: those still to be sent, and the last of those that
were, for a client that flushes its buffer at a false interruption has to be sent them again. Every
change of their gain is spread over a few milliseconds, since a step is heard as a click. `Pacer`
decides what leaves when (time is passed in): at most `lead_ms` ahead of what the client can have
played, nothing beyond a limit, more quietly while ducked, nothing while paused, and after a stop
one short fade and then nothing ever again. The limit says what may be sent and the pause who
speaks: neither lifts the other. `Playout` runs it on the event loop. Nobody else knows what the
caller has heard.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from voiceloop.backends import SpokenWord
from voiceloop.config import Config

Samples = NDArray[np.int16]

DUCK_GAIN = 0.25  # -12 dB: plainly quieter, still intelligible
GAIN_RAMP_MS = 5  # from one gain to the other: no click, and over within the shortest write (10 ms)
FADE_OUT_MS = 15  # raised cosine: no click, and over before it is heard as a fade
FADE_IN_MS = 5  # raised cosine: only the click has to be avoided
# The same of an early start, at most: it may be taken back, and who goes on has hardly heard it. It
# is over once the turn would have ended without it, mostly after 10 to 60 ms: a longer one takes
# from who has finished what the early start gave. Chosen: at half its length it is 6 dB down.
EARLY_FADE_IN_MS = 100


class Loudness:
    """The gain that `shape` applies: 1, or DUCK_GAIN while ducked."""

    def __init__(self, rate_hz: int) -> None:
        self._rate_hz = rate_hz
        self._gain = 1.0  # of the last sample shaped
        self._target_gain = 1.0
        self._n_fade_in = self._n_faded_in = 0  # samples that are to fade in, and that have

    def duck(self) -> None:
        self._target_gain = DUCK_GAIN

    def restore(self) -> None:
        self._target_gain = 1.0

    def start_again(self, *, fade_in_ms: int) -> None:
        """The next samples follow silence."""
        self._gain = 1.0
        self._n_fade_in, self._n_faded_in = self._rate_hz * fade_in_ms // 1000, 0

    def shape(self, samples: Samples) -> Samples:
        """Apply the gain to samples [n], moving to its target at their beginning."""
        n_to_fade = min(len(samples), self._n_fade_in - self._n_faded_in)
        if self._gain == self._target_gain == 1.0 and not n_to_fade:
            return samples
        n_ramp = min(len(samples), self._rate_hz * GAIN_RAMP_MS // 1000)
        gain = np.full(len(samples), self._target_gain, np.float32)
        gain[:n_ramp] = np.linspace(self._gain, self._target_gain, n_ramp, dtype=np.float32)
        self._gain = self._target_gain
        if n_to_fade:
            faded = self._n_faded_in + np.arange(n_to_fade)
            gain[:n_to_fade] *= 0.5 - 0.5 * np.cos(np.pi * faded / self._n_fade_in)
            self._n_faded_in += n_to_fade
        shaped: Samples = np.rint(samples * gain).astype(np.int16)
        return shaped

    def fade_out(self, samples: Samples) -> Samples:
        """Shape samples [n] and fade them to silence; a duck that is due makes it steeper."""
        count = len(samples)
        curve = 0.5 + 0.5 * np.cos(np.pi * np.arange(count) / count)
        faded: Samples = np.rint(self.shape(samples) * curve).astype(np.int16)
        return faded


class SampleQueue:
    """`draw` moves samples from unsent to sent, `rewind` moves the last of them back.

    n_keep: at least so many of the last sent samples can be taken back.
    Invariants: a sample is in one place only, and order never changes.
    """

    def __init__(self, n_keep: int) -> None:
        self._n_keep = n_keep
        self._unsent: deque[Samples] = deque()
        self._kept: deque[Samples] = deque()  # sent, as they were before any gain
        self.n_unsent = 0
        self.n_sent = 0

    def push(self, samples: Samples) -> None:
        if len(samples):
            self._unsent.append(samples)
            self.n_unsent += len(samples)

    def draw(self, count: int) -> Samples:
        """The next `count` samples, of which there must be so many; they count as sent."""
        samples = self._take(count)
        self.n_sent += count
        self._kept.append(samples)
        n_kept = self.n_kept
        while n_kept - len(self._kept[0]) >= self._n_keep:
            n_kept -= len(self._kept.popleft())
        return samples

    def rewind(self, count: int) -> int:
        """Put the last `count` sent samples back, or as many as are kept; returns how many."""
        kept = np.concatenate(self._kept) if self._kept else np.zeros(0, np.int16)
        count = min(count, len(kept))
        if count <= 0:
            return 0
        self._kept = deque([kept[: len(kept) - count]])
        self._unsent.appendleft(kept[len(kept) - count :])
        self.n_unsent += count
        self.n_sent -= count
        return count

    def cut(self, at: int) -> int:
        """Drop what is unsent from sample `at` of the reply on; returns how many were dropped."""
        n_before, n_stay = self.n_unsent, min(self.n_unsent, max(0, at - self.n_sent))
        stays = self._take(n_stay)
        self._unsent.clear()
        self.n_unsent = 0
        self.push(stays)
        return n_before - n_stay

    @property
    def n_kept(self) -> int:
        return sum(map(len, self._kept))

    def _take(self, count: int) -> Samples:
        parts: list[Samples] = []
        while count:
            piece = self._unsent[0]
            if len(piece) <= count:
                parts.append(self._unsent.popleft())
            else:
                parts.append(piece[:count])
                self._unsent[0] = piece[count:]
            count -= len(parts[-1])
            self.n_unsent -= len(parts[-1])
        return np.concatenate(parts) if parts else np.zeros(0, np.int16)


FIRST_CHUNK_MS = 40  # the first sound of a reply leaves as soon as there is so much of it
CHUNK_MS = 20  # one write thereafter: the smaller, the less is ahead of what is being played
# Audio the client holds beyond what it plays. A caller who barges in hears it to its end, at full
# loudness, unless the client flushes. It is also all that a client which plays at once has against
# a late delivery: between two chunks it falls to `LEAD_MS - CHUNK_MS`, so a loop or a network that
# hesitates for longer than 40 to 60 ms is heard as a hole. That suits loopback and a LAN; over the
# internet `pacing_lead_ms` wants 150 to 200, and the duck is heard so much later.
LEAD_MS = float(Config().pacing_lead_ms)
# The lead and the write while a sound over the agent is judged: less is played at full loudness
# before a duck is heard. Measured (benchmarks/LOG.md, "the floors of auto, in calls"): the duck is
# heard after 124 ms at p95, against 136 with a lead of 40 in writes of 20. One write plays while
# the next is on its way, so meanwhile a delivery that is over 10 ms late is heard as a hole.
REDUCED_LEAD_MS = 20.0
REDUCED_LEAD_CHUNK_MS = 10
MAX_BUFFERED_MS = 20_000.0  # the voice waits beyond this: 1 MB at 24 kHz, more than most replies
# At least so much of what was sent is kept (the lead, where that is longer) for a client that
# flushed it at a false interruption. Chosen: more than the client of a live call buffers beyond its
# lead; 96 KB at 24 kHz.
KEPT_MS = 2000.0


@dataclass(frozen=True, slots=True)
class Chunk:
    """Samples int16 [n] for the wire, and the words that begin in them; is_fade: to silence."""

    samples: Samples
    duration_ms: float
    words: tuple[SpokenWord, ...]
    is_fade: bool = False


class PacerState(Enum):
    SENDING = "sending"
    PAUSED = "paused"
    STOPPED = "stopped"  # for good


class Pacer:
    """The pacing of sent sound: each frame at its time. Positions count samples of the reply at
    `rate_hz`.

    not_before_s: until then the client plays an earlier reply. play_delay_ms: how much later than
    a client next door, without a buffer, this one plays what is sent; None: what is sent is heard.
    Invariants: every sample leaves once and in order, again only after a `rewind`, and none
    beyond the limit; after `stop` and its fade none does; `heard_ms` never exceeds what was sent,
    and nothing but a `rewind` decreases it.
    """

    def __init__(
        self,
        rate_hz: int,
        lead_ms: float = LEAD_MS,
        not_before_s: float = 0.0,
        play_delay_ms: Callable[[], float | None] = lambda: 0.0,
    ) -> None:
        self.rate_hz = rate_hz
        self._play_delay_ms = play_delay_ms
        self.state = PacerState.SENDING
        self._lead_ms = lead_ms
        self._audio = SampleQueue(int(max(KEPT_MS, lead_ms) * rate_hz / 1000.0))
        self._words: deque[SpokenWord] = deque()
        self._loudness = Loudness(rate_hz)
        self._n_limit: int | None = None
        self._has_reduced_lead = False
        self._is_finished = False
        self.changed = asyncio.Event()  # of what may be sent
        self.play_end_s = not_before_s  # when the client has played all that was sent

    # --- input ---

    def push(self, samples: Samples, words: tuple[SpokenWord, ...] = ()) -> None:
        """Add audio [n] int16 after what is there; nothing once stopped or finished."""
        if self.is_stopped or self._is_finished:
            return
        self._audio.push(samples)
        self._words.extend(words)
        self.changed.set()

    def finish(self) -> None:
        self._is_finished = True
        self.changed.set()

    def send_until(self, limit_ms: float | None) -> None:
        """Send nothing from there on until the limit is raised; None lifts it."""
        self._n_limit = None if limit_ms is None else int(limit_ms * self.rate_hz / 1000.0)
        self.changed.set()

    @property
    def is_limited(self) -> bool:
        return self._n_limit is not None

    def cut(self, at_ms: float) -> float:
        n_cut = self._audio.cut(self._position(at_ms))
        self._words = deque(word for word in self._words if word.start_ms < at_ms)
        self._is_finished = False
        return 1000.0 * n_cut / self.rate_hz

    def rewind(self, to_ms: float, now_s: float, words: tuple[SpokenWord, ...] = ()) -> None:
        """The client flushed all it had of the reply from there on: send that again.

        From `kept_from_ms` at the earliest, and nothing of a stopped reply. words: those that go
        with the next chunk once more, since their sound began in what was sent.
        """
        if not self.is_stopped and self._audio.rewind(self._audio.n_sent - self._position(to_ms)):
            self.play_end_s = min(self.play_end_s, now_s)
        self._words.extendleft(reversed(words))

    def reduce_lead(self) -> None:
        """Reduce the lead, since somebody may be about to speak: let the client's buffer run
        down.
        """
        self._has_reduced_lead = True

    def duck(self) -> None:
        self.reduce_lead()
        self._loudness.duck()

    def pause(self) -> Chunk | None:
        """Stop sending; the chunk to send now fades out. No sample is lost."""
        if self.state is not PacerState.SENDING:
            return None
        self.state = PacerState.PAUSED
        return self._fade_out()

    def resume(self) -> None:
        """Full loudness, the whole lead, and on with the sample after the last one sent."""
        if self.state is PacerState.PAUSED:
            self._loudness.start_again(fade_in_ms=FADE_IN_MS if self._audio.n_sent else 0)
            self.state = PacerState.SENDING
        self._has_reduced_lead = False
        self._loudness.restore()
        self.changed.set()

    def begin_softly(self, unsure_ms: float) -> int:
        """Fade in what is sent next, the first of the reply: it may be taken back.

        unsure_ms: until the turn will be over for sure. Returns for how many ms it fades in.
        """
        fade_in_ms = min(max(round(unsure_ms), FADE_IN_MS), EARLY_FADE_IN_MS)
        self._loudness.start_again(fade_in_ms=fade_in_ms)
        return fade_in_ms

    def stop(self) -> Chunk | None:
        """Never send again; the chunk to send now, if any, fades out. Idempotent."""
        chunk = self._fade_out() if self.state is PacerState.SENDING else None
        self.state = PacerState.STOPPED
        self._audio.cut(0)
        self._words.clear()
        self.changed.set()
        return chunk

    # --- output ---

    def next_chunk(self, now_s: float) -> Chunk | None:
        """The chunk due now, already counted as sent, or None."""
        n_may = self._n_sendable
        if self.state is not PacerState.SENDING or not n_may:
            return None
        if n_may == self._audio.n_unsent and self._is_incomplete:
            return None
        if self.wait_s(now_s) > 0:
            return None
        samples = self._audio.draw(min(self._n_chunk, n_may))
        return self._sent(self._loudness.shape(samples), now_s)

    def wait_s(self, now_s: float) -> float:
        """Seconds until the lead allows another chunk."""
        lead_ms = min(self._lead_ms, REDUCED_LEAD_MS) if self._has_reduced_lead else self._lead_ms
        chunk_ms = min(float(self._chunk_ms), lead_ms)
        room_ms = lead_ms - chunk_ms - 1000.0 * (self.play_end_s - now_s)
        # A microsecond of slack: rounding must not make a loop that waits for nothing.
        return 0.0 if room_ms >= -1e-3 else -room_ms / 1000.0

    @property
    def _n_sendable(self) -> int:
        """Samples that are there and below the limit."""
        if self._n_limit is None:
            return self._audio.n_unsent
        return max(0, min(self._audio.n_unsent, self._n_limit - self._audio.n_sent))

    @property
    def _is_incomplete(self) -> bool:
        """Whether what is unsent is no whole chunk, and waits for more."""
        return self._audio.n_unsent < self._n_chunk and not self._is_finished

    @property
    def _n_chunk(self) -> int:
        return self.rate_hz * self._chunk_ms // 1000

    @property
    def _chunk_ms(self) -> int:
        if self._has_reduced_lead:
            return REDUCED_LEAD_CHUNK_MS
        return CHUNK_MS if self._audio.n_sent else FIRST_CHUNK_MS

    def _fade_out(self) -> Chunk | None:
        """The last chunk before silence; None where nothing was sent, or nothing may be."""
        count = min(self.rate_hz * FADE_OUT_MS // 1000, self._n_sendable)
        if not count or not self._audio.n_sent:
            return None
        faded = self._loudness.fade_out(self._audio.draw(count))
        return replace(self._sent(faded, self.play_end_s), is_fade=True)

    def _sent(self, samples: Samples, now_s: float) -> Chunk:
        duration_ms = 1000.0 * len(samples) / self.rate_hz
        # If the client ran dry it plays this the moment it comes; else after what it still has.
        self.play_end_s = max(self.play_end_s, now_s) + duration_ms / 1000.0
        words: list[SpokenWord] = []
        while self._words and self._words[0].start_ms < self.sent_ms:
            words.append(self._words.popleft())
        return Chunk(samples, duration_ms, tuple(words))

    # --- what is known ---

    def _position(self, at_ms: float) -> int:
        return round(at_ms * self.rate_hz / 1000.0)

    @property
    def sent_ms(self) -> float:
        return 1000.0 * self._audio.n_sent / self.rate_hz

    @property
    def kept_from_ms(self) -> float:
        """Return the place from which on sent sound can be sent again."""
        return 1000.0 * (self._audio.n_sent - self._audio.n_kept) / self.rate_hz

    def has_sent_beyond(self, at_ms: float) -> bool:
        """Whether more was sent, in samples: two sums of milliseconds may differ in their last
        bit.
        """
        return self._audio.n_sent > self._position(at_ms)

    @property
    def buffered_ms(self) -> float:
        return 1000.0 * self._audio.n_unsent / self.rate_hz

    @property
    def is_stopped(self) -> bool:
        return self.state is PacerState.STOPPED

    @property
    def is_drained(self) -> bool:
        """Everything that will ever be sent has been sent; below a limit other may come yet."""
        is_sent = self._is_finished and not self._audio.n_unsent and not self.is_limited
        return self.is_stopped or is_sent

    def heard_ms(self, now_s: float) -> float:
        """Return how much of the reply a client that plays without a buffer of its own has
        played.
        """
        if (delay_ms := self._play_delay_ms()) is None:
            return self.sent_ms
        ahead_ms = max(0.0, 1000.0 * (self.play_end_s - now_s) + delay_ms)
        return max(0.0, self.sent_ms - ahead_ms)

    def remaining_ms(self, now_s: float) -> float | None:
        """Audio the client has still to play; None while more may come."""
        if not self._is_finished or self.is_limited:
            return None
        return self.buffered_ms + 1000.0 * max(0.0, self.play_end_s - now_s)

    def silent_from_s(self, now_s: float) -> float:
        """Return when the client will have played all that leaves without more audio; while it is
        paused, as if it went on now.
        """
        is_paused = self.state is PacerState.PAUSED
        ahead_ms = 0.0 if self._is_incomplete else self.buffered_ms
        since_s = max(self.play_end_s, now_s) if is_paused or ahead_ms else self.play_end_s
        return since_s + ahead_ms / 1000.0

    def is_audible(self, now_s: float) -> bool:
        """The client is playing, or will without any further decision."""
        return self._audio.n_sent > 0 and (now_s < self.play_end_s or not self.is_drained)


class Playout(Pacer):
    """A pacer on the event loop; `emit(chunk)` must not block."""

    def __init__(
        self,
        emit: Callable[[Chunk], None],
        clock: Callable[[], float],
        rate_hz: int,
        lead_ms: float = LEAD_MS,
        not_before_s: float = 0.0,
        play_delay_ms: Callable[[], float | None] = lambda: 0.0,
    ) -> None:
        super().__init__(rate_hz, lead_ms, not_before_s, play_delay_ms)
        self._emit = emit
        self._clock = clock
        self._room = asyncio.Event()
        self._room.set()

    async def take(self, samples: Samples, words: tuple[SpokenWord, ...] = ()) -> None:
        """`push`; waits while MAX_BUFFERED_MS are there already."""
        while self.buffered_ms > MAX_BUFFERED_MS and not self.is_stopped:
            self._room.clear()
            await self._room.wait()
        self.push(samples, words)

    def pause(self) -> Chunk | None:
        return self._sends(super().pause())

    def stop(self) -> Chunk | None:
        self._room.set()
        return self._sends(super().stop())

    def _sends(self, chunk: Chunk | None) -> Chunk | None:
        if chunk is not None:
            self._emit(chunk)
        return chunk

    async def run(self) -> None:
        """Send until everything that was pushed before `finish` (or `stop`) has left."""
        while not self.is_drained:
            self.changed.clear()
            # One reading of the clock: a chunk that is not due at the first question and due at the
            # second would be waited for without end.
            now_s = self._clock()
            while (chunk := self.next_chunk(now_s)) is not None:
                self._emit(chunk)
            if self.is_drained:
                return
            self._room.set()
            wait_s = self.wait_s(now_s)
            try:
                # Woken early by new audio, a resume or a stop.
                async with asyncio.timeout(wait_s if wait_s > 0 else None):
                    await self.changed.wait()
            except TimeoutError:
                continue

    async def played_out(self) -> None:
        """Wait until the client has played the last sample that was sent."""
        await asyncio.sleep(max(0.0, self.play_end_s - self._clock()))

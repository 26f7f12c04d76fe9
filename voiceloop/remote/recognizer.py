"""A recognizer behind ``/v1/audio/transcriptions``: a segment is sent when the caller pauses.

``flush`` sends what was said so far, so that its words are there before the turn is known to be
over; when only silence follows, ``finalize`` takes that answer instead of asking again. Where the
voice falls it is sent already, which is some 30 ms before anybody flushes. The service gives no
times: the words share the segment in proportion to their letters.
"""

from __future__ import annotations

import asyncio
import io
import random
import wave
from collections.abc import Sequence
from dataclasses import dataclass, replace

import httpx
import numpy as np

from audio.frames import BYTES_PER_SAMPLE, RECOGNIZER_HZ
from voiceloop.backends import Partial, RecognizerEvent, RecognizerOptions, Transcript, Word
from voiceloop.errors import BackendError
from voiceloop.event_stream import TaskStream
from voiceloop.remote.pool import first_answer, reachable_first
from voiceloop.remote.service import RemoteService

# Over the ten minutes that may be uncommitted, and below the 25 MB that OpenAI's own service takes.
MAX_SEGMENT_BYTES = 24 * 1024 * 1024
# A tenth of a second is what services refuse to hear.
MIN_SEGMENT_BYTES = RECOGNIZER_HZ * BYTES_PER_SAMPLE // 10
FRAME = RECOGNIZER_HZ // 50  # 20 ms: short enough that a syllable stands out
FRAME_BYTES = FRAME * BYTES_PER_SAMPLE
# Speech is some 15-25 dB above a room; a tail 14 dB below the segment's loudest frame has none.
QUIET_RATIO = 0.2
QUIET_RMS = 100.0  # -50 dBFS: below this a frame is silent whatever else the segment holds
# A voice that has fallen: the last frames lie 22 dB under the loud ones of the last 4 s, as in
# `audio.asr.speech_level`. A soft last "s" or "t" may still follow, 25 to 30 dB under them.
FALLEN_RATIO, FALLEN_FRAMES, LOUD_FRAMES, LEAST_FRAMES = 0.08, 2, 200, 10
FAINT_RATIO = 0.03
# Two in three falls of people are no pause, and each costs a request. Chosen.
MOST_FALLS_IN_VAIN = 2  # of a segment
PROMPT_CHARACTERS = 600  # whisper reads at most 224 tokens of its prompt, the last ones


class RemoteRecognizer:
    """``Recognizer`` over a service. reads_falls: it is asked where the voice falls, too."""

    def __init__(
        self,
        *services: RemoteService,
        reads_falls: bool = True,
        draw: random.Random | None = None,
    ) -> None:
        self._services = services
        self._reads_falls = reads_falls
        self._draw = draw or random.Random()

    async def open(self, stream_id: str, options: RecognizerOptions) -> RemoteRecognizerStream:
        services = reachable_first(self._services, self._draw)
        services[0].keep_warm()
        return RemoteRecognizerStream(stream_id, services, options, self._reads_falls)


@dataclass(frozen=True, slots=True)
class _Early:
    """A decode of the first ``n_bytes`` of a segment, begun at a pause; is_guess: where the voice
    fell, which may be one.
    """

    n_bytes: int
    task: asyncio.Task[str]
    is_guess: bool = False


class RemoteRecognizerStream(TaskStream[RecognizerEvent]):
    """One caller. Transcripts come in the order of their segments."""

    def __init__(
        self,
        stream_id: str,
        services: Sequence[RemoteService],
        options: RecognizerOptions,
        reads_falls: bool,
    ) -> None:
        """services: in the order in which they are asked; who has answered is asked again."""
        super().__init__(stream_id)
        self._services = list(services)
        self._options = options
        self._segment = 0
        self._audio = bytearray()
        self._levels: list[float] = []  # of its frames
        self._reads_falls = reads_falls
        self._n_falls_in_vain = 0
        self._early: _Early | None = None
        self._last: asyncio.Task[None] | None = None

    def feed(self, samples: bytes) -> None:
        if not self.live:
            return
        self._audio += samples
        if len(self._audio) > MAX_SEGMENT_BYTES:
            wanted = f"expected at most {MAX_SEGMENT_BYTES} bytes of sound in a segment"
            self._fail(BackendError(f"{wanted}, found more"))
            return
        if self._reads_falls and self._n_falls_in_vain < MOST_FALLS_IN_VAIN:
            self._levels += levels_of(self._audio[len(self._levels) * FRAME_BYTES :])
            if self._has_fallen():
                self._decode_early(is_guess=True)

    def _has_fallen(self) -> bool:
        """Whether the voice has fallen since something was decoded."""
        recent = self._levels[-LOUD_FRAMES:]
        if len(recent) < LEAST_FRAMES:
            return False
        fallen = FALLEN_RATIO * sorted(recent)[len(recent) * 9 // 10]
        n_decoded = self._early.n_bytes // FRAME_BYTES if self._early is not None else 0
        since = recent[max(0, n_decoded - len(self._levels) + len(recent)) :]
        return max(recent[-FALLEN_FRAMES:]) < fallen <= max(since, default=0.0)

    def _decode_early(self, *, is_guess: bool = False) -> None:
        self._drop_early()
        audio = bytes(self._audio)
        self._early = _Early(len(audio), self._keep(self._decode(audio), "decode"), is_guess)
        if is_guess:  # nobody may ever ask how it ended
            self._early.task.add_done_callback(lambda done: done.cancelled() or done.exception())

    def flush(self) -> None:
        if not self.live:
            return
        if self._early is None or not self._covers(self._early):
            self._decode_early()
        elif self._early.is_guess:
            self._early = replace(self._early, n_bytes=len(self._audio), is_guess=False)
        assert self._early is not None
        self._keep(self._answer_flush(self._segment, self._early), "flush")

    def finalize(self) -> None:
        if not self.live:
            return
        early, self._early = self._early, None
        audio = bytes(self._audio)
        if early is not None and not self._covers(early):
            early.task.cancel()
            early = None
        decoding = early.task if early else self._keep(self._decode(audio), "decode")
        finishing = self._finish(self._segment, len(audio), decoding, self._last)
        self._last = self._keep(finishing, "finish")
        self._segment += 1
        self._audio.clear()
        self._levels.clear()
        self._n_falls_in_vain = 0

    def set_options(self, options: RecognizerOptions) -> None:
        self._options = options

    def _covers(self, early: _Early) -> bool:
        """Whether nothing was said after an early decode began."""
        if early.is_guess and early.task.done() and early.task.exception() is not None:
            return False
        ratio = FAINT_RATIO if early.is_guess else QUIET_RATIO
        return is_quiet(bytes(self._audio), early.n_bytes, ratio)

    def _drop_early(self) -> None:
        if self._early is not None:
            self._n_falls_in_vain += self._early.is_guess
            if not self._early.is_guess:  # that would close a connection which is wanted soon
                self._early.task.cancel()
            self._early = None

    async def _answer_flush(self, segment: int, early: _Early) -> None:
        while True:
            try:
                text = await asyncio.shield(early.task)
            except asyncio.CancelledError:
                if not early.task.cancelled():
                    raise
                newer = self._early
                if newer is None or newer is early or segment != self._segment:
                    return  # the transcript answers
                early = newer  # more was said, and then flushed: that answers both
            except BackendError as error:
                self._fail(error)
                return
            else:
                break
        if segment == self._segment:
            self.deliver(Partial(segment, (), tuple(text.split()), flushed=True))

    async def _finish(
        self,
        segment: int,
        n_bytes: int,
        decoding: asyncio.Task[str],
        before: asyncio.Task[None] | None,
    ) -> None:
        if before is not None:
            await asyncio.wait([before])
        try:
            text = await decoding
        except BackendError as error:
            self._fail(error)
            return
        duration_ms = 1000 * n_bytes / BYTES_PER_SAMPLE / RECOGNIZER_HZ
        self.deliver(Transcript(segment, share_time(text.split(), duration_ms)))

    def _fail(self, error: BackendError) -> None:
        self.fail(error)
        self._end()

    async def _decode(self, audio: bytes) -> str:
        if len(audio) < MIN_SEGMENT_BYTES:
            return ""
        form = {"response_format": "json", "language": self._options.language}
        prompt = ", ".join(self._options.hotwords)
        if prompt:
            form["prompt"] = prompt[-PROMPT_CHARACTERS:]
        files = {"file": ("segment.wav", wav(audio), "audio/wav")}

        async def ask(service: RemoteService) -> httpx.Response:
            asked = {**form, "model": service.model}
            return await service.post("/audio/transcriptions", data=asked, files=files)

        response = await first_answer(self._services, ask)
        try:
            text = response.json()["text"]
        except (ValueError, KeyError, TypeError):
            raise BackendError('expected a transcription {"text": ...}, found none') from None
        return str(text)


def is_quiet(audio: bytes, start_byte: int, ratio: float = QUIET_RATIO) -> bool:
    """Whether PCM16 ``audio`` holds no speech from ``start_byte`` on, by its 20 ms levels.

    ratio: of the loudest level, below which there is none.
    """
    levels = levels_of(audio)
    after = levels[start_byte // FRAME_BYTES :]
    return not after or max(after) < max(QUIET_RMS, ratio * max(levels))


def levels_of(audio: bytes | bytearray) -> list[float]:
    """The level of each whole frame of PCM16."""
    samples = np.frombuffer(bytes(audio), dtype="<i2").astype(np.float32)
    frames = samples[: len(samples) // FRAME * FRAME].reshape(-1, FRAME)
    levels: list[float] = np.sqrt(np.mean(frames * frames, axis=1)).tolist()
    return levels


def share_time(words: list[str], duration_ms: float) -> tuple[Word, ...]:
    """Words with times in proportion to their letters."""
    n_letters = sum(len(word) for word in words)
    placed: list[Word] = []
    n_before = 0
    for word in words:
        start_ms = duration_ms * n_before / n_letters
        n_before += len(word)
        placed.append(Word(word, start_ms, duration_ms * n_before / n_letters))
    return tuple(placed)


def wav(audio: bytes) -> bytes:
    """PCM16 mono 16 kHz as a WAV file."""
    file = io.BytesIO()
    with wave.open(file, "wb") as writer:
        writer.setnchannels(1)
        writer.setsampwidth(BYTES_PER_SAMPLE)
        writer.setframerate(RECOGNIZER_HZ)
        writer.writeframes(audio)
    return file.getvalue()

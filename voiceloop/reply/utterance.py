"""One stream of the voice: text to it as it is written, its audio back in the reply's own times."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import NamedTuple

import numpy as np

from audio.resample import Resampler
from voiceloop.backends import Speech, SpeechEnd, SpokenWord, Voice, VoiceOptions, VoiceStream
from voiceloop.errors import BackendError, BackendTimeout, Overloaded, first_error
from voiceloop.reply.playout import Samples
from voiceloop.reply.reply_text import ReplyText, TextEnd

# For a stream to open, and between two pieces of audio once all text is there. Chosen: a voice that
# keeps up with playing needs a fraction of it, and no caller waits longer for the next word.
VOICE_DEADLINE_S = 10.0
FEED_RETRY_S = 0.02  # to a voice with no room for text: one chunk of playout (20 ms) later


class Place(NamedTuple):
    """A place in the text and in its audio."""

    n_chars: int
    at_ms: float


class Utterance:
    """Speaks once, from `begins` on, to where a version of the text ends: `open`, then `speak`.

    n_said: characters that were said, before it or by it, once it is over. has_voice: a stream is
    there, or was to the end. rate_hz: of the reply's audio. changed: set where there is more text,
    or more of it may be made. may_make: whether it may. take: is given each piece of audio [n]
    int16 with the words in it, in the times and characters of the whole reply; it waits while there
    is enough.
    """

    def __init__(
        self,
        text: ReplyText,
        begins: Place,
        rate_hz: int,
        changed: asyncio.Event,
        may_make: Callable[[], bool],
        take: Callable[[Samples, tuple[SpokenWord, ...]], Awaitable[None]],
        clock: Callable[[], float],
    ) -> None:
        self.begins = begins
        self.has_voice = False
        self.n_said = begins.n_chars
        self.n_fed = begins.n_chars  # characters of the text that the voice was given
        self.fed_at_s = clock()  # the last of them; before any, when it was asked for
        self._text = text
        self._rate_hz = rate_hz
        self._changed = changed
        self._may_make = may_make
        self._take = take
        self._clock = clock

    async def open(self, voice: Voice, stream_id: str, options: VoiceOptions) -> VoiceStream:
        """Raises: BackendError, BackendTimeout, Overloaded of the voice."""
        self.fed_at_s = self._clock()
        try:
            async with asyncio.timeout(VOICE_DEADLINE_S):
                stream = await voice.open(stream_id, options)
        except TimeoutError:
            raise BackendTimeout(
                f"The voice did not begin within {VOICE_DEADLINE_S:.0f} s."
            ) from None
        self.has_voice = True
        return stream

    async def speak(self, stream: VoiceStream, rate_hz: int) -> None:
        """rate_hz: of the voice. Raises: as `open`."""
        is_over = False
        try:
            async with asyncio.timeout(None) as stall, asyncio.TaskGroup() as tasks:
                tasks.create_task(self._feed(stream, stall))
                await self._take_audio(stream, Resampler(rate_hz, self._rate_hz), stall)
            is_over, self.n_said = True, self.n_fed
        except TimeoutError:
            raise BackendTimeout(f"The voice sent no sound for {VOICE_DEADLINE_S:.0f} s.") from None
        except BaseExceptionGroup as errors:
            raise first_error(errors) from None
        finally:
            self.has_voice = is_over
            await stream.close()

    def move(self, n_chars: int, ms: float) -> None:
        """Something else is said before what is still to come of it."""
        self.n_fed += n_chars
        self.n_said += n_chars
        self.begins = Place(self.begins.n_chars + n_chars, self.begins.at_ms + ms)

    async def _feed(self, stream: VoiceStream, stall: asyncio.Timeout) -> None:
        while True:
            self._changed.clear()
            text = self._text.whole[self.n_fed :]
            if text and self._may_make():
                try:
                    stream.feed(text)
                    self.n_fed += len(text)
                    self.fed_at_s = self._clock()
                except Overloaded:
                    await asyncio.sleep(FEED_RETRY_S)
                continue
            if self._text.end is not TextEnd.NOTHING and not text:
                break
            await self._changed.wait()
        stream.finish()
        stall.reschedule(asyncio.get_running_loop().time() + VOICE_DEADLINE_S)

    async def _take_audio(
        self, stream: VoiceStream, resampler: Resampler, stall: asyncio.Timeout
    ) -> None:
        async for event in stream.events():
            if isinstance(event, SpeechEnd):
                await self._take(resampler.flush(), ())
                return
            due_s = stall.when()
            stall.reschedule(None)  # a full playout is no fault of the voice
            words = tuple(self._moved(word) for word in event.words)
            await self._take(resampler.push(_samples(event)), words)
            if due_s is not None:
                stall.reschedule(asyncio.get_running_loop().time() + VOICE_DEADLINE_S)
        raise BackendError("The voice closed before the end of speech.")

    def _moved(self, word: SpokenWord) -> SpokenWord:
        """The word in the times and characters of the whole reply."""
        n_chars, at_ms = self.begins
        start_ms, end_ms = word.start_ms + at_ms, word.end_ms + at_ms
        return SpokenWord(word.text, start_ms, end_ms, word.text_end + n_chars)


def _samples(speech: Speech) -> Samples:
    return np.frombuffer(speech.samples, "<i2").astype(np.int16, copy=False)

"""The end of the caller's turn, read from the voice where the recognizer that hears cannot tell it.

A remote service gives words and no judgement of the voice; the head on the embedded recognizer's
encoder gives that of English voices, some 60 ms after the caller falls silent. Owns the pair: what
is fed goes to both, the words come from the one that hears. Without the reader the call goes on,
and endpointing falls back to words and prosody.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import msgspec

from voiceloop.backends import (
    Partial,
    Recognizer,
    RecognizerEvent,
    RecognizerOptions,
    RecognizerStream,
    is_english,
)
from voiceloop.errors import VoiceLoopError
from voiceloop.event_stream import TaskStream

log = logging.getLogger(__name__)

# Log-odds, the least that is told of words for the agent: doubt (`barge_in.AGAINST_LOG_ODDS` is
# below). The reader hears a sound once, and a service's words may come when the sound is over: on
# its word alone no plain voice is kept out (LOG.md, 2026-11-23, "a caller by the sound").
LEAST_FOR_AGENT = -1.0


class VoiceReadingRecognizer:
    """``Recognizer`` that hears words by one model and reads the voice by another.

    is_ready: whether the reader takes a stream at once. A call never waits for one that does not.
    """

    def __init__(
        self,
        hearing: Recognizer,
        reading: Recognizer,
        is_ready: Callable[[], bool] = lambda: True,
    ) -> None:
        self._hearing = hearing
        self._reading = reading
        self._is_ready = is_ready

    async def open(self, stream_id: str, options: RecognizerOptions) -> RecognizerStream:
        """Raises: BackendError or Overloaded where the one that hears gives no stream."""
        hearing = await self._hearing.open(stream_id, options)
        if options.is_batch or not is_read(options) or not self._is_ready():
            return hearing
        try:
            reading = await self._reading.open(f"{stream_id}.voice", RecognizerOptions())
        except VoiceLoopError as error:
            log.warning("the voice is not read: %s", error)
            return hearing
        except BaseException:
            await hearing.close()
            raise
        return VoiceReadingStream(stream_id, hearing, reading)


def is_read(options: RecognizerOptions) -> bool:
    """Whether the head knows such voices: it has learned from English of many accents alone."""
    return is_english(options.language)


class VoiceReadingStream(TaskStream[RecognizerEvent]):
    """One caller in both models. Only the answer to the newest flush tells of the present pause."""

    def __init__(
        self, stream_id: str, hearing: RecognizerStream, reading: RecognizerStream
    ) -> None:
        super().__init__(stream_id)
        self._hearing = hearing
        self._reading = reading
        self._is_read = True
        self._segment = 0
        self._begin_segment()
        self._keep(self._hear(), "hear")
        self._keep(self._read(), "read the voice")

    def _begin_segment(self) -> None:
        self._n_unread = 0  # flushes that the reader has not answered
        self._p_voice: float | None = None  # of the newest flush
        self._for_agent: float | None = None  # the latest
        self._heard: Partial | None = None  # the latest words

    def feed(self, samples: bytes) -> None:
        self._hearing.feed(samples)
        self._ask(lambda reading: reading.feed(samples))

    def flush(self) -> None:
        self._hearing.flush()
        self._n_unread += 1
        self._p_voice = None
        self._ask(lambda reading: reading.flush())

    def finalize(self) -> None:
        self._hearing.finalize()
        self._segment += 1
        self._begin_segment()
        self._ask(lambda reading: reading.finalize())

    def set_options(self, options: RecognizerOptions) -> None:
        self._hearing.set_options(options)
        if not is_read(options):
            self._stop_reading()

    async def close(self) -> None:
        await super().close()
        await self._hearing.close()
        await self._reading.close()

    def _ask(self, action: Callable[[RecognizerStream], None]) -> None:
        """Ask the reader; what it does not take in full it would judge wrongly from then on."""
        if not self._is_read:
            return
        try:
            action(self._reading)
        except VoiceLoopError as error:
            log.warning("the voice is no longer read: %s", error)
            self._stop_reading()

    def _stop_reading(self) -> None:
        if self._is_read:
            self._is_read = False
            self._keep(self._reading.close(), "close the voice reader")

    async def _hear(self) -> None:
        try:
            async for event in self._hearing.events():
                if isinstance(event, Partial) and event.segment == self._segment:
                    self._heard = event
                    self.deliver(self._told(event))
                else:
                    self.deliver(event)
        except VoiceLoopError as error:
            self.fail(error)

    def _told(self, heard: Partial) -> Partial:
        """The words with what the voice tells, as far as that is known yet; else with what whoever
        hears them makes of it.
        """
        p_voice = heard.p_voice if self._p_voice is None else self._p_voice
        return msgspec.structs.replace(heard, p_voice=p_voice, for_agent=self._for_agent)

    async def _read(self) -> None:
        try:
            async for event in self._reading.events():
                if isinstance(event, Partial) and event.segment == self._segment:
                    if event.for_agent is not None:
                        self._for_agent = max(event.for_agent, LEAST_FOR_AGENT)
                    self._observe(event.p_voice, answers_flush=event.flushed)
        except VoiceLoopError as error:
            log.warning("the voice is no longer read: %s", error)
            self._stop_reading()

    def _observe(self, p_voice: float | None, *, answers_flush: bool) -> None:
        """Take in the reader's judgement of a pause as it begins, and perhaps again while it
        lasts.
        """
        self._n_unread -= answers_flush
        if self._n_unread > 0 or p_voice is None:
            return
        self._p_voice = p_voice
        if self._heard is not None:  # else it comes with the words
            self.deliver(self._told(msgspec.structs.replace(self._heard, flushed=False)))

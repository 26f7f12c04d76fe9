"""The voice of a reply that an upstream server speaks: its sound, and ours for the rest.

Owns which of the text that it is fed the server has said. The rest (the fallback behind a reply
that broke off, a line while it is late) is said by the server's own voice, before or behind it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import numpy as np

from audio.frames import BYTES_PER_SAMPLE, VOICE_HZ
from audio.resample import Resampler
from voiceloop.backends import Speech, SpeechEnd, SpokenWord, Voice, VoiceEvent, VoiceOptions
from voiceloop.errors import VoiceLoopError
from voiceloop.event_stream import TaskStream, spoken
from voiceloop.remote.upstream.response import ReplySound, UpstreamResponse

MOST_MARKS = 8  # characters between two words of a text: spaces, and marks that no voice says


class UpstreamVoiceStream(TaskStream[VoiceEvent]):
    """One utterance. response: that was asked for last, and that no stream has yet; None while
    there is none. beside: says what the upstream has not.
    """

    rate_hz = VOICE_HZ

    def __init__(
        self,
        stream_id: str,
        response: Callable[[], UpstreamResponse | None],
        beside: Voice,
        options: VoiceOptions,
    ) -> None:
        super().__init__(stream_id)
        self._response_of = response
        self._response: UpstreamResponse | None = None
        self._beside, self._options = beside, options
        self._text = ""  # all that was fed
        self._n_own = 0  # characters of it that the upstream has said
        self._n_placed = 0  # characters before the next word
        self._lines: list[tuple[int, str]] = []  # that it has not: where each begins
        self._is_finished = False
        self._n_samples = 0
        self._began_at_ms = 0.0  # where the upstream's sound does
        self._waiting: list[SpokenWord] = []  # words whose text was not fed yet
        self._more = asyncio.Event()
        self._keep(self._run(), "upstream voice")

    def feed(self, text: str) -> None:
        n_own = len(text) if self._says else max(0, self._n_given - self._n_own)
        own, line = text[:n_own], text[n_own:]
        self._n_own += len(own)
        if line and self._lines and not own:
            begins, before = self._lines.pop()
            self._lines.append((begins, before + line))
        elif line:
            self._lines.append((len(self._text) + len(own), line))
        self._text += text
        self.look()

    def finish(self) -> None:
        self._is_finished = True
        self.look()

    def look(self) -> None:
        """Look whether there is more to say."""
        self._more.set()

    @property
    def _says(self) -> bool:
        """Whether what is fed now is the text of the upstream's sound."""
        response = self._taken()
        is_whole = response is not None and response.failure is None and not response.is_left
        return is_whole and response is not None and response.speaks

    @property
    def _n_given(self) -> int:
        response = self._response
        return len(response.text) if response is not None and response.speaks else 0

    def _taken(self) -> UpstreamResponse | None:
        taken = self._response
        has_said = taken is not None and (taken.has_begun or taken.failure is None)
        if not has_said and (found := self._response_of()) is not None:
            self._response = found
            found.sound.on_more = self.look
        return self._response

    async def _run(self) -> None:
        try:
            while not self._is_over():
                self._more.clear()
                await self._may_go_on.wait()
                if not (self._say_own() or await self._say_line()):
                    await self._more.wait()
        except VoiceLoopError as error:
            self.fail(error)
            return
        self.deliver(SpeechEnd(self._n_samples))

    def _sound(self) -> ReplySound | None:
        response = self._taken()
        return response.sound if response is not None else None

    def _is_over(self) -> bool:
        sound = self._sound()
        is_said = sound is None or (sound.is_over and not sound.has_more)
        return self._is_finished and is_said and not self._lines and not self._waiting

    def _say_own(self) -> bool:
        """The next piece of the upstream's sound, and the words whose text is there.

        No sound before the first of its text: what is said is known as soon as it is heard.
        """
        sound = self._sound()
        if sound is None or not (self._n_own or sound.is_over):
            return False
        if not sound.has_begun:
            self._began_at_ms = 1000.0 * self._n_samples / VOICE_HZ
        piece = sound.take()
        if piece is not None:
            self._waiting += piece[1]
        n_waiting = len(self._waiting)
        words = tuple(self._placed())
        if piece is not None or words:
            self._play(piece[0] if piece is not None else b"", words)
        return piece is not None or len(self._waiting) < n_waiting

    def _placed(self) -> list[SpokenWord]:
        """The words in the text that was fed, which may have lost marks that no voice says."""
        placed = []
        while self._waiting:
            word = self._waiting[0]
            within = self._n_placed + len(word.text) + MOST_MARKS
            at = self._text.find(word.text, self._n_placed, within)
            if at < 0 and not self._is_finished and len(self._text) < within:
                break  # it is on its way
            self._waiting.pop(0)
            if at < 0:
                continue
            self._n_placed = at + len(word.text)
            at_ms = self._began_at_ms
            start_ms, end_ms = word.start_ms + at_ms, word.end_ms + at_ms
            placed.append(SpokenWord(word.text, start_ms, end_ms, self._n_placed))
        return placed

    async def _say_line(self) -> bool:
        """Say a line that the upstream has not said, in our voice: before its sound, or behind it.

        Returns whether a line was said.
        """
        sound = self._sound()
        if not self._lines or (sound is not None and sound.has_begun and not sound.is_over):
            return False
        begins, line = self._lines[0]
        is_whole = self._is_finished or self._n_own or line.rstrip().endswith((".", "!", "?"))
        if not is_whole:
            return False
        self._lines.pop(0)
        at_ms = 1000.0 * self._n_samples / VOICE_HZ
        resampler = Resampler(self._beside.rate_hz, VOICE_HZ)
        async for event in spoken(self._beside, line, self._options, f"{self.stream_id}.line"):
            if isinstance(event, SpeechEnd):
                self._play(resampler.flush().astype("<i2").tobytes(), ())
                continue  # to the end of it, which closes the voice's stream
            moved = tuple(
                SpokenWord(w.text, w.start_ms + at_ms, w.end_ms + at_ms, w.text_end + begins)
                for w in event.words
            )
            self._n_placed = max(self._n_placed, *(word.text_end for word in moved), 0)
            samples = np.frombuffer(event.samples, "<i2").astype(np.int16, copy=False)
            self._play(resampler.push(samples).astype("<i2").tobytes(), moved)
        return True

    def _play(self, samples: bytes, words: tuple[SpokenWord, ...]) -> None:
        self._n_samples += len(samples) // BYTES_PER_SAMPLE
        self.deliver(Speech(samples, VOICE_HZ, words))

"""A voice behind ``/v1/audio/speech``: one request a clause, its PCM passed on as it arrives.

The gateway may not import the voices' own chunker, so a plain one stands here: sentences, and an
earlier cut for the first clause, which the caller waits for. The service gives no word times: they
follow the letters at the rate this voice has spoken so far, and are set right at each clause's end.
"""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from audio.frames import BYTES_PER_SAMPLE
from voiceloop.backends import Speech, SpeechEnd, SpokenWord, VoiceEvent, VoiceOptions
from voiceloop.errors import BackendError, Overloaded
from voiceloop.event_stream import TaskStream
from voiceloop.remote.pool import first_answer, reachable_first
from voiceloop.remote.service import RemoteService

RATE_HZ = 24_000  # of response_format "pcm", by OpenAI's definition
BYTES_PER_MS = RATE_HZ * BYTES_PER_SAMPLE / 1000
MIN_PIECE_BYTES = 960  # 20 ms: what a frame on the wire holds
MAX_TEXT_CHARACTERS = 100_000
MAX_CLAUSE_CHARACTERS = 400  # a reply without any mark must still begin to be spoken
# The first comma counts from here on: half a second of speech ("Certainly,"), in which a quick
# service has made the next clause. Before it, silence would follow.
FIRST_CLAUSE_CHARACTERS = 8
CHARACTERS_PER_S = 15.0  # of English at 170 words a minute; replaced by what this voice does

# The end of a sentence, unless a title or an initial comes before its full stop; a figure such as
# "3.50" has no space after the point. The first clause ends at its mark where a letter is before
# it: the space comes a token later, and the caller waits.
_TITLE = r"(?<!\bMr)(?<!\bMrs)(?<!\bMs)(?<!\bDr)(?<!\bSt)(?<!\b[A-Z])"
_SENTENCE_END = re.compile(rf"{_TITLE}[.!?]+[\"')]*\s")
_FIRST_END = re.compile(rf"{_TITLE}[,;:.!?][\"')]*\s|(?<=[^\W\d_])[,;:!?]\Z")
_WORD = re.compile(r"\S+")


class RemoteVoice:
    """``Voice`` over a service; ``voice`` is spoken where the options name "default"."""

    rate_hz = RATE_HZ

    def __init__(
        self, *services: RemoteService, voice: str = "alloy", draw: random.Random | None = None
    ) -> None:
        self._services = services
        self._voice = voice
        self._draw = draw or random.Random()

    async def open(self, stream_id: str, options: VoiceOptions) -> RemoteVoiceStream:
        services = reachable_first(self._services, self._draw)
        services[0].keep_warm()
        name = self._voice if options.voice in ("", "default") else options.voice
        return RemoteVoiceStream(stream_id, services, name, options.speed)


class ClauseCutter:
    """Text deltas to clauses; what is not cut yet waits for more text."""

    def __init__(self) -> None:
        self._text = ""
        self._is_first = True

    def add(self, text: str) -> list[str]:
        self._text += text
        clauses: list[str] = []
        while (end := self._find_end()) is not None:
            clauses.append(self._text[:end])
            self._text = self._text[end:]
            self._is_first = False
        return clauses

    def rest(self) -> str:
        text, self._text = self._text, ""
        return text

    def _find_end(self) -> int | None:
        if self._is_first:
            found = _FIRST_END.search(self._text, FIRST_CLAUSE_CHARACTERS)
            if found is not None:
                return found.end()
        found = _SENTENCE_END.search(self._text)
        if found is not None:
            return found.end()
        if len(self._text) > MAX_CLAUSE_CHARACTERS:
            return self._text.rfind(" ", 1, MAX_CLAUSE_CHARACTERS) + 1 or MAX_CLAUSE_CHARACTERS
        return None


@dataclass(frozen=True, slots=True)
class _PlacedWord:
    """A word of a clause: its letters' share, and where it ends in the whole text."""

    text: str
    start: int
    end: int
    text_end: int


class RemoteVoiceStream(TaskStream[VoiceEvent]):
    """One utterance: its clauses are asked for one after the other."""

    def __init__(
        self, stream_id: str, services: Sequence[RemoteService], voice: str, speed: float
    ) -> None:
        """services: in the order in which they are asked; who has answered is asked again."""
        super().__init__(stream_id)
        self._services = list(services)
        self._voice = voice
        self._speed = speed
        self._cutter = ClauseCutter()
        self._clauses: list[str] = []
        self._n_fed = 0
        self._n_spoken = 0  # characters
        self._n_bytes = 0
        self._ms_per_character = 1000 / (CHARACTERS_PER_S * speed)
        self._finished = False
        self._more = asyncio.Event()
        self._keep(self._run(), "voice")

    def feed(self, text: str) -> None:
        if self._n_fed + len(text) > MAX_TEXT_CHARACTERS:
            raise Overloaded(f"expected at most {MAX_TEXT_CHARACTERS} characters, found more")
        self._n_fed += len(text)
        self._clauses += self._cutter.add(text)
        if self._clauses:
            self._more.set()

    def finish(self) -> None:
        if not self._finished:
            self._finished = True
            self._clauses.append(self._cutter.rest())
            self._more.set()

    async def _run(self) -> None:
        try:
            while True:
                while self._clauses:
                    await self._may_go_on.wait()
                    await self._speak(self._clauses.pop(0))
                if self._finished:
                    break
                self._more.clear()
                await self._more.wait()
        except BackendError as error:
            self.fail(error)
            return
        self.deliver(SpeechEnd(self._n_bytes // BYTES_PER_SAMPLE))

    async def _speak(self, clause: str) -> None:
        words = self._place(clause)
        self._n_spoken += len(clause)
        if not words:
            return
        n_bytes = self._n_bytes
        await first_answer(
            self._services,
            lambda service: self._speak_by(service, clause, words),
            lambda: self._n_bytes == n_bytes,  # of this clause nothing has been heard
        )

    async def _speak_by(
        self, service: RemoteService, clause: str, words: list[_PlacedWord]
    ) -> None:
        body: dict[str, Any] = {
            "model": service.model,
            "input": clause.strip(),
            "voice": self._voice,
            "response_format": "pcm",
            "speed": self._speed,
        }
        start_ms = self._n_bytes / BYTES_PER_MS
        waiting = bytearray()
        async with service.stream("/audio/speech", json=body) as response:
            _check_pcm(response.headers.get("content-type", ""))
            async with aclosing(service.pieces(response)) as pieces:
                async for piece in pieces:
                    waiting += piece
                    if len(waiting) >= MIN_PIECE_BYTES:
                        self._pass_on(waiting, words, start_ms)
        self._complete(waiting, words, start_ms)

    def _place(self, clause: str) -> list[_PlacedWord]:
        return [
            _PlacedWord(found.group(), found.start(), found.end(), self._n_spoken + found.end())
            for found in _WORD.finditer(clause)
        ]

    def _pass_on(self, waiting: bytearray, words: list[_PlacedWord], start_ms: float) -> None:
        """Deliver whole samples, and the words that have ended by then at the rate so far."""
        n_bytes = len(waiting) - len(waiting) % BYTES_PER_SAMPLE
        self._n_bytes += n_bytes
        elapsed_ms = self._n_bytes / BYTES_PER_MS - start_ms
        ended: list[SpokenWord] = []
        # The last word waits for the clause's end, which alone says when it was spoken.
        while len(words) > 1 and words[0].end * self._ms_per_character <= elapsed_ms:
            ended.append(_spoken(words.pop(0), start_ms, self._ms_per_character))
        self.deliver(Speech(bytes(waiting[:n_bytes]), RATE_HZ, tuple(ended)))
        del waiting[:n_bytes]

    def _complete(self, waiting: bytearray, words: list[_PlacedWord], start_ms: float) -> None:
        """The clause is over: what is left of its words shares what is left of its time."""
        if len(waiting) % BYTES_PER_SAMPLE:
            raise BackendError("expected whole 16-bit samples of PCM, found an odd byte count")
        self._n_bytes += len(waiting)
        duration_ms = self._n_bytes / BYTES_PER_MS - start_ms
        if duration_ms == 0:
            raise BackendError("expected the clause as PCM, found no audio")
        n_characters = words[-1].end
        from_character = words[0].start
        from_ms = min(from_character * self._ms_per_character, duration_ms)
        rate = (duration_ms - from_ms) / (n_characters - from_character)
        spoken = tuple(
            _spoken(word, start_ms + from_ms - from_character * rate, rate) for word in words
        )
        self._ms_per_character = duration_ms / n_characters
        self.deliver(Speech(bytes(waiting), RATE_HZ, spoken))


def _spoken(word: _PlacedWord, start_ms: float, ms_per_character: float) -> SpokenWord:
    return SpokenWord(
        word.text,
        start_ms + word.start * ms_per_character,
        start_ms + word.end * ms_per_character,
        word.text_end,
    )


def _check_pcm(content_type: str) -> None:
    """A service that ignores ``response_format`` would be heard as noise. Raises: BackendError."""
    for wrong in ("mpeg", "wav", "ogg", "opus", "aac", "flac", "json", "html"):
        if wrong in content_type:
            raise BackendError(f"expected PCM from the voice service, found {content_type}")

"""The common part of voices that are fed text and answer with sound over a WebSocket.

Owns an utterance's clauses, which go out as soon as they are whole, and where its words lie in the
sound. A vendor's file says how its messages are written and read.
"""

from __future__ import annotations

import base64
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping

from websockets.asyncio.client import ClientConnection

from voiceloop.backends import Speech, SpeechEnd, SpokenWord, VoiceEvent, VoiceOptions
from voiceloop.errors import BackendError, ConfigError, Overloaded
from voiceloop.remote.socket_stream import Dialler, SocketStream
from voiceloop.remote.voice import BYTES_PER_MS, MAX_TEXT_CHARACTERS, RATE_HZ, ClauseCutter

BYTES_PER_SAMPLE = 2
WORD = re.compile(r"\S+")


class StreamingVoice(ABC):
    """``Voice`` of one vendor; each utterance has a connection, dialled while nobody waits."""

    rate_hz = RATE_HZ
    vendor = ""
    default_url = ""
    default_model = ""
    default_voice = ""

    def __init__(self, *, url: str, key: str, model: str) -> None:
        """Raises: ConfigError without a key."""
        if not key:
            raise ConfigError(f"tts_key: expected a key of {self.vendor}, found none")
        self.url = (url or self.default_url).rstrip("/")
        self.model = model or self.default_model
        self._dialler = Dialler(self._headers(key), f"a voice of {self.vendor}")

    @property
    def reachable(self) -> bool:
        return self._dialler.reachable

    async def start(self) -> None:
        """Find out that it is there. Raises: as `dial`."""
        socket = await self._dialler.take(self._address(self.default_voice))
        await socket.close()

    async def close(self) -> None:
        await self._dialler.close()

    async def open(self, stream_id: str, options: VoiceOptions) -> StreamingVoiceStream:
        """Raises: BackendError, BackendTimeout, BackendRefused (key, voice)."""
        voice = self.default_voice if options.voice in ("", "default") else options.voice
        socket = await self._dialler.take(self._address(voice))
        return self._stream(stream_id, socket, voice, options.speed)

    @abstractmethod
    def _headers(self, key: str) -> Mapping[str, str]:
        """Return the headers of the handshake."""

    @abstractmethod
    def _address(self, voice: str) -> str:
        """Return where this voice is spoken."""

    @abstractmethod
    def _stream(
        self, stream_id: str, socket: ClientConnection, voice: str, speed: float
    ) -> StreamingVoiceStream: ...


class StreamingVoiceStream(SocketStream[VoiceEvent]):
    """One utterance."""

    def __init__(self, stream_id: str, service: str, socket: ClientConnection) -> None:
        super().__init__(stream_id, service, socket)
        self._cutter = ClauseCutter()
        self._text = ""  # all that was fed
        self._n_told = 0  # characters of it whose words' times are told
        self._told_ms = 0.0  # where the last of these ends
        self._n_bytes = 0  # of sound
        self._is_finished = False

    def feed(self, text: str) -> None:
        if len(self._text) + len(text) > MAX_TEXT_CHARACTERS:
            raise Overloaded(f"expected at most {MAX_TEXT_CHARACTERS} characters, found more")
        self._text += text
        for clause in self._cutter.add(text):
            self._say(clause)

    def finish(self) -> None:
        if not self._is_finished:
            self._is_finished = True
            self._end_text(self._cutter.rest())

    @abstractmethod
    def _say(self, clause: str) -> None:
        """Send a clause, of which more follow."""

    @abstractmethod
    def _end_text(self, rest: str) -> None:
        """Send the rest, "" where there is none, and that no more follows."""

    @property
    def _played_ms(self) -> float:
        """Return the length of the sound that has come."""
        return self._n_bytes / BYTES_PER_MS

    def _play(self, sound: str, words: tuple[SpokenWord, ...] = ()) -> None:
        """Pass on sound in base64. Raises: BackendError where it is no PCM16."""
        try:
            samples = base64.b64decode(sound, validate=True)
        except ValueError as error:
            raise BackendError(f"expected sound of {self._service} in base64") from error
        if len(samples) % BYTES_PER_SAMPLE:
            raise BackendError(f"expected whole samples of {self._service}, found an odd count")
        self._n_bytes += len(samples)
        if samples or words:
            self.deliver(Speech(samples, RATE_HZ, words))

    def _placed(self, word: str, start_ms: float, end_ms: float) -> SpokenWord:
        """The next word as the vendor tells it, found again in the text that was fed."""
        at = self._text.find(word, self._n_told)
        if at >= 0:
            self._n_told = at + len(word)
        self._told_ms = max(self._told_ms, end_ms)
        return SpokenWord(word, start_ms, end_ms, self._n_told)

    def _end_sound(self) -> None:
        """All sound has come: words whose times nobody told share what is left of it."""
        left = list(WORD.finditer(self._text, self._n_told))
        each_ms = max(0.0, self._played_ms - self._told_ms) / max(1, len(left))
        words = []
        for found in left:
            start_ms = self._told_ms
            words.append(self._placed(found.group(), start_ms, start_ms + each_ms))
        self._play("", tuple(words))
        self._is_over = True
        self.deliver(SpeechEnd(self._n_bytes // BYTES_PER_SAMPLE))

"""The streams of a voice: what all voices do around their model.

Owns the open replies, their turns, and the names and speeds a voice answers to. A subclass gives
the samples, in `_begin`, or in `step` where a fragment takes several.
"""

import re
from abc import ABC, abstractmethod

from ..errors import AudioError, UnknownStream
from ..frames import VOICE_HZ
from ..stream import Event, VoiceOptions, failed
from .reply import Fragment, Reply

# The voices of the Realtime and speech APIs. Stock clients name one unasked: where a model has
# none of that name it speaks in its own first voice, as it would for a client that names none.
STOCK_VOICES = frozenset(
    ("alloy", "ash", "ballad", "cedar", "coral", "echo", "fable", "marin", "nova", "onyx")
    + ("sage", "shimmer", "verse")
)


class ReplyVoice(ABC):
    """`VoiceModel` over a model that gives float32 samples at model_hz in one of voices."""

    rate_hz = VOICE_HZ
    speeds = (0.5, 2.5)  # the slowest and the fastest
    quiet = 10 ** (-50 / 20)  # -50 dBFS: what a model gives before its first word is below this

    def __init__(self, voices: tuple[str, ...], model_hz: int) -> None:
        self.voices = voices
        self._model_hz = model_hz
        self._replies: dict[str, Reply] = {}

    def open(self, stream_id: str, options: VoiceOptions) -> None:
        """Raises: AudioError on a voice or speed that is not there, or an id in use."""
        if stream_id in self._replies:
            raise AudioError(f"expected a new stream id, found {stream_id!r} in use")
        voice = self._voice_named(options.voice)
        slowest, fastest = self.speeds
        if not slowest <= options.speed <= fastest:
            raise AudioError(f"expected a speed of {slowest} to {fastest}, found {options.speed}")
        self._replies[stream_id] = Reply(
            stream_id,
            voice,
            speed=options.speed,
            model_hz=self._model_hz,
            quiet=self.quiet,
            phonemes=self._phonemes,
            is_english=self._speaks_english(voice),
        )

    def feed(self, stream_id: str, text: str) -> None:
        self._reply(stream_id).feed(text)

    def flush(self, stream_id: str) -> None:
        self._reply(stream_id).flush()

    def finish(self, stream_id: str) -> None:
        self._reply(stream_id).finish()

    def close(self, stream_id: str) -> None:
        self._replies.pop(stream_id, None)

    def has_work(self) -> bool:
        return any(reply.has_fragment or reply.is_finished for reply in self._replies.values())

    @staticmethod
    def _phonemes(match: re.Match[str]) -> str:
        """A word said by its sounds, as the model reads it; "" where it reads none."""
        return ""

    def _speaks_english(self, voice: str) -> bool:
        """Whether numbers and signs are to be spelled out for it, as is done in English alone."""
        return True

    def step(self) -> list[Event]:
        """One fragment of every reply that has one, and the end of those that are over.

        A fragment that fails ends its own reply alone.
        """
        events: list[Event] = []
        for stream_id, reply in list(self._replies.items()):
            fragment = reply.next_fragment()
            try:
                if fragment is not None:
                    events += self._begin(fragment, reply)
            except Exception as error:  # models raise what they like
                self.close(stream_id)
                events.append(failed(stream_id, error))
                continue
            if reply.is_finished and not reply.has_fragment:
                self.close(stream_id)
                events += reply.end()
        return events

    @abstractmethod
    def _begin(self, fragment: Fragment, reply: Reply) -> list[Event]:
        """Say the fragment; a voice whose fragments take several steps has a `step` of its own."""

    def _reply(self, stream_id: str) -> Reply:
        if stream_id not in self._replies:
            raise UnknownStream(stream_id)
        return self._replies[stream_id]

    def _voice_named(self, name: str) -> str:
        if name in self.voices:
            return name
        if name and name not in STOCK_VOICES:
            raise AudioError(f"expected a voice of {', '.join(self.voices)}, found {name!r}")
        return self.voices[0]

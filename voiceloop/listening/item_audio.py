"""Item audio: audio inside a conversation item (`input_audio`), not streamed by the caller.

Owns its recognition: a stream of its own beside the caller's, the words for the item, and the
replies that wait because they were asked for before the words were known.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing

import msgspec

from audio.codec import decode
from audio.frames import RECOGNIZER_HZ
from audio.resample import Resampler
from voiceloop.backends import Recognizer, RecognizerOptions, Transcript
from voiceloop.errors import BackendError, BackendTimeout, Overloaded
from voiceloop.realtime.protocol import Protocol
from voiceloop.realtime.settings import AudioFormat

SLICE_S = 0.2  # converted at once: under a millisecond of the event loop
DEADLINE_S = 30.0  # the largest frame by default, 2 MiB of base64, holds 33 s at 24 kHz


class ItemAudio:
    """Recognizes the audio of one item after the other, for one session."""

    def __init__(
        self,
        recognizer: Recognizer,
        protocol: Protocol,
        tasks: asyncio.TaskGroup,
    ) -> None:
        self._recognizer = recognizer
        self._protocol = protocol
        self._tasks = tasks
        self._one_at_a_time = asyncio.Lock()  # first come, first heard
        self._listening: dict[str, asyncio.Task[None]] = {}

    def hear(
        self, item_id: str, audio: bytes, audio_format: AudioFormat, options: RecognizerOptions
    ) -> None:
        """Recognize an item's audio, after those before it; words or failure go to the protocol."""

        def heard(task: asyncio.Task[None]) -> None:
            if self._listening.get(item_id) is task:  # not another one's that has the id now
                del self._listening[item_id]

        words = self._hear(item_id, audio, audio_format, options)
        task = self._tasks.create_task(words, name="item audio")
        self._listening[item_id] = task
        task.add_done_callback(heard)

    def forget(self, item_id: str) -> None:
        """The item was deleted: cancel its recognition. An item without audio is ignored."""
        if (task := self._listening.pop(item_id, None)) is not None:
            task.cancel()

    def then(self, act: Callable[[], None]) -> None:
        """Call `act` once the words of all items so far are known; at once where they are."""
        listening = tuple(self._listening.values())

        async def act_later() -> None:
            await asyncio.wait(listening)
            act()

        if listening:
            self._tasks.create_task(act_later(), name="reply to item audio")
        else:
            act()

    async def _hear(
        self, item_id: str, audio: bytes, audio_format: AudioFormat, options: RecognizerOptions
    ) -> None:
        try:
            async with self._one_at_a_time, asyncio.timeout(DEADLINE_S):
                text, n_heard = await self._recognize(audio, audio_format, options)
        except TimeoutError:
            late = BackendTimeout(f"The recognizer sent no words within {DEADLINE_S:.0f} s.")
            self._protocol.transcription_failed(item_id, late.message)
        except (BackendError, Overloaded) as error:
            self._protocol.transcription_failed(item_id, error.message)
        else:
            seconds = n_heard / RECOGNIZER_HZ
            self._protocol.transcription_completed(item_id, text, seconds)

    async def _recognize(
        self, audio: bytes, audio_format: AudioFormat, options: RecognizerOptions
    ) -> tuple[str, int]:
        """The words, and how many samples they were heard in."""
        resampler = Resampler(audio_format.rate, RECOGNIZER_HZ)
        n_slice = int(audio_format.rate * SLICE_S) * audio_format.n_sample_bytes
        n_heard = 0
        # As a file's: half a minute of sound at once says nothing of how late a call's answers are.
        options = msgspec.structs.replace(options, is_batch=True)
        stream = await self._recognizer.open(self._protocol.new_id("item_audio"), options)
        try:
            for start in range(0, len(audio), n_slice):
                samples = decode(audio[start : start + n_slice], audio_format.encoding)
                heard = resampler.push(samples)
                n_heard += len(heard)
                stream.feed(heard.astype("<i2").tobytes())
                await asyncio.sleep(0)  # others are served between two slices
            rest = resampler.flush()
            n_heard += len(rest)
            stream.feed(rest.astype("<i2").tobytes())
            stream.finalize()
            async with aclosing(stream.events()) as events:  # type: ignore[type-var]
                async for event in events:
                    if isinstance(event, Transcript):
                        return event.text, n_heard
        finally:
            await stream.close()
        raise BackendError("The recognizer closed before the words of an item's audio.")

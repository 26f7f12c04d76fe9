"""What the agent says in one response: text in as it is written, paced audio out.

Owns the voice's streams and the words they spoke. Text may be spoken before it is certain, while it
is the text of a reply made ahead. Nothing of it is sent before `release_confirmed` or `release`:
after the former a clause is sent once the newest version of the text has confirmed it, after the
latter all audio as it comes. Where the newest version differs, the clauses before the difference
keep their audio; the rest is thrown away and spoken anew. What was sent is never revised.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from enum import Enum
from typing import NamedTuple

import numpy as np

from audio.resample import Resampler
from voiceloop.backends import Speech, SpeechEnd, SpokenWord, Voice, VoiceOptions, VoiceStream
from voiceloop.errors import BackendError, BackendTimeout, Overloaded
from voiceloop.reply.sound.playout import Chunk, Pacer, Playout
from voiceloop.reply.text import ReplyText, TextEnd

# For a stream to open, and between two pieces of audio once all text is there. Chosen: a voice that
# keeps up with playing needs a fraction of it, and no caller waits longer for the next word.
VOICE_DEADLINE_S = 10.0
CLAUSE_MARKS = ".,;:?!"
FEED_RETRY_S = 0.02  # to a voice with no room for text: one chunk of playout (20 ms) later
# A reply made ahead may be thrown away, so no more of it is spoken before its release than plays
# while the rest is synthesized: a clause or two. Chosen, not measured.
MOST_HELD_MS = 2500.0


class Release(Enum):
    """Which of the audio that is made may be sent."""

    NONE = "none"
    EARLY = "early"  # all that is made, which may be taken back
    CONFIRMED = "confirmed"  # clauses that the newest version of the text has confirmed
    ALL = "all"


class Place(NamedTuple):
    """A place in the text and in its audio."""

    n_chars: int
    at_ms: float


class ReplySpeech:
    """Speaks once. `run` ends when all of the text has been said and sent.

    on_first_audio: called with every piece of audio: when the text of its words was written.
    speaks_ahead: whether audio is made before it is released.
    """

    def __init__(
        self,
        voice: Voice,
        options: VoiceOptions,
        new_stream_id: Callable[[], str],
        pacer: Pacer,
        emit: Callable[[Chunk], None],
        clock: Callable[[], float],
        *,
        on_first_audio: Callable[[float], None],
        speaks_ahead: bool = True,
    ) -> None:
        self.playout = Playout(pacer, emit, clock)
        self._pacer = pacer
        self.playout.send_until(0.0)
        self.text = ReplyText()
        self.wasted_ms = 0.0  # of audio that was made and not heard
        self.held_ms = 0.0  # of audio that was ready at the release, and was right
        self.has_failed = False
        self._voice, self._options = voice, options
        self._new_stream_id = new_stream_id
        self._clock = clock
        self._on_first_audio = on_first_audio
        self._changed = asyncio.Event()
        self._release = Release.NONE
        self._speaks = asyncio.Event()
        self._words: list[SpokenWord] = []
        self._item_from = Place(0, 0.0)  # what lies before it was said in earlier items
        self._heard: Place | None = None  # up to where, while it is interrupted
        self._tasks: asyncio.TaskGroup | None = None
        self._speaking: asyncio.Task[None] | None = None
        if speaks_ahead:
            self._speaks.set()

    # --- text ---

    async def run(self) -> None:
        """Raises: BackendError, BackendTimeout, Overloaded of the voice."""
        async with asyncio.TaskGroup() as self._tasks:
            if self._speaking is None:
                self._speak_from(Place(0, 0.0))
            self._tasks.create_task(self.playout.run())

    def say(self, text: str) -> None:
        """The next text of the newest version; what the one before has there too stays as it is.

        Raises: BackendError where it revises what was sent: a promised reply that is another.
        """
        text = text[self.text.confirm(text) :]
        if not text:
            self._raise_limit()
            return
        if not self.text.is_confirmed:
            self._revise()
        self.text.add(text, self._clock())
        if self._release is Release.CONFIRMED:
            self.release()  # past all that was held: what comes from here on is never revised
        self._changed.set()

    def say_ahead(self, text: str) -> None:
        """Say this before the reply's own words, none of which is there yet."""
        self.say(text)
        self.text.n_ahead = len(self.text.whole)

    def say_last(self, text: str) -> None:
        """The reply breaks off: say this behind what is certain of it.

        Behind a whole version that was released on a promise nothing is missing, and nothing said.
        """
        if self._release is Release.ALL:
            self.text.n_confirmed = len(self.text.whole)
            if self.text.end is not TextEnd.NOTHING and self.text.has_words:
                return
        said = self.text.confirmed
        self.say(" " + text if said and not said[-1].isspace() else text)

    def end_version(self) -> None:
        """The newest version of the text ends here, and a later one may go on from here.

        The voice is told the end; the playout stays open. Raises: BackendError as `say`.
        """
        if not self.text.is_confirmed:
            self._revise()
        self.text.end = TextEnd.VERSION
        self._changed.set()

    def finish(self) -> None:
        """The reply ends here. Raises: BackendError as `say`."""
        self.end_version()
        self.text.end = TextEnd.REPLY

    def _revise(self) -> None:
        """Throw away what the newest version has not confirmed; what follows is said next."""
        if self._pacer.is_stopped:
            return
        kept = self._clauses_within(self.text.n_confirmed)
        if self._pacer.has_sent_beyond(kept.at_ms):  # only where released on a promise
            raise BackendError("expected the reply that was promised, found another")
        self.text.cut_unconfirmed()
        self.held_ms = min(self.held_ms, kept.at_ms)
        self.wasted_ms += self._pacer.cut(kept.at_ms)
        self._words = [word for word in self._words if word.text_end <= kept.n_chars]
        if self._speaking is not None:
            self._speaking.cancel()
        self._speak_from(kept)

    # --- sent ---

    def release_confirmed(self) -> None:
        """Send each clause that is ready once the newest version has confirmed it."""
        self._set_release(Release.CONFIRMED)
        self._raise_limit()

    def release(self) -> None:
        """Send all that is ready, and all that follows as it comes."""
        self._set_release(Release.ALL)
        self.playout.send_until(None)

    @property
    def may_start_early(self) -> bool:
        """Whether a beginning is held, and nobody is writing the text anew."""
        return self._pacer.buffered_ms > 0.0 and self.text.is_confirmed

    def start_early(self) -> None:
        """Send what is held, faded in; `take_back` or `release` follows."""
        self._pacer.begin_softly()
        self._set_release(Release.EARLY)
        self.playout.send_until(None)

    def take_back(self) -> None:
        """After `start_early` and `playout.pause`: hold all of it again, from its first sample."""
        begun = tuple(word for word in self._words if word.start_ms < self._pacer.sent_ms)
        self._release = Release.NONE
        self.playout.send_until(0.0)
        self.playout.rewind(0.0, begun)
        self.text.take_back(0)
        self.playout.resume()

    def _set_release(self, release: Release) -> None:
        if self._release is Release.NONE:
            self.held_ms = self._pacer.buffered_ms
        self._release = release
        self._speaks.set()
        self._changed.set()

    def _raise_limit(self) -> None:
        if self._release is Release.CONFIRMED:
            self.playout.send_until(self._clauses_within(self.text.n_confirmed).at_ms)

    def stop(self) -> None:
        """Silence, for good; idempotent. Audio that nobody has heard is wasted."""
        if not self._pacer.is_stopped:
            self.wasted_ms += self._pacer.buffered_ms
            if self._heard is not None:
                self.wasted_ms += max(0.0, self._pacer.sent_ms - self._heard.at_ms)
            self.playout.stop()

    # --- interrupted ---

    def interrupt(self, heard_text: str, heard_ms: float) -> None:
        """The present item ends with these words, after this much of its audio."""
        n_before, before_ms = self._item_from
        self._heard = Place(n_before + len(heard_text), before_ms + heard_ms)

    def resume(self) -> None:
        """After a false interruption: say what was not heard, as an item of its own.

        What a client has flushed is sent again: from where it said that it had played to, else
        from where a client without a buffer of its own had.
        """
        assert self._heard is not None
        heard, self._heard = self._heard, None
        sent_ms = self._pacer.sent_ms
        begun = (w for w in self._words if w.text_end > heard.n_chars and w.start_ms < sent_ms)
        self.playout.rewind(heard.at_ms, tuple(begun))
        n_chars = self.text.take_back(heard.n_chars)
        self._item_from = Place(n_chars, self._pacer.sent_ms)
        self.playout.resume()

    def resumable_from_ms(self, heard_ms: float) -> float:
        """Where in the item `resume` can go on: at `heard_ms`, or where kept audio begins."""
        return max(heard_ms, self._pacer.kept_from_ms - self._item_from.at_ms)

    @property
    def unheard(self) -> float:
        """The share of the text that nobody heard: 0 unless it is interrupted."""
        text = self.text.whole.rstrip()
        return 1.0 - min(1.0, self._heard.n_chars / len(text)) if self._heard and text else 0.0

    @property
    def item_heard_ms(self) -> float:
        """Audio that the caller has heard of the present item."""
        return max(0.0, self.playout.heard_ms() - self._item_from.at_ms)

    def in_item(self, words: tuple[SpokenWord, ...]) -> tuple[SpokenWord, ...]:
        """The words in the times and characters of the item that they are said in.

        Of a word that began before the item only the rest sounds there.
        """
        n_chars, from_ms = self._item_from
        return tuple(
            SpokenWord(
                word.text,
                max(0.0, word.start_ms - from_ms),
                word.end_ms - from_ms,
                word.text_end - n_chars,
            )
            for word in words
        )

    # --- the voice ---

    def _clauses_within(self, n_chars: int) -> Place:
        """The end of the last clause that is spoken and within the first `n_chars` characters."""
        text, is_whole = self.text.whole, self.text.end is not TextEnd.NOTHING
        found = Place(0, 0.0)
        for index, word in enumerate(self._words):
            end = word.text_end
            while end < len(text) and text[end] in CLAUSE_MARKS:
                end += 1
            if end > n_chars:
                break
            is_last = is_whole and not text[end:].strip()
            if is_last or text[max(0, end - 1)] in CLAUSE_MARKS:
                follows = self._words[index + 1 : index + 2]
                found = Place(end, follows[0].start_ms if follows else word.end_ms)
        return found

    def _speak_from(self, place: Place) -> None:
        if self._tasks is not None:
            self._speaking = self._tasks.create_task(self._speak(place))

    async def _speak(self, place: Place) -> None:
        """A stream of the voice, and another where more is said after it had been told the end."""
        await self._speaks.wait()
        while True:
            try:
                n_chars = await self._speak_stream(place)
            except Exception:
                self.has_failed = True  # at once: `run` raises it only when its tasks have ended
                raise
            while not self.text.whole[n_chars:].strip():
                if self.text.end is TextEnd.REPLY:
                    self.playout.finish()
                    return
                self._changed.clear()
                await self._changed.wait()
            place = Place(n_chars, self._pacer.sent_ms + self._pacer.buffered_ms)

    async def _speak_stream(self, place: Place) -> int:
        """Speak from there to where a version ends; returns how many characters that is."""
        try:
            async with asyncio.timeout(VOICE_DEADLINE_S):
                stream = await self._voice.open(self._new_stream_id(), self._options)
        except TimeoutError:
            raise BackendTimeout(f"expected a voice in {VOICE_DEADLINE_S:.0f} s") from None
        try:
            async with asyncio.timeout(None) as stall, asyncio.TaskGroup() as tasks:
                feeding = tasks.create_task(self._feed(stream, place.n_chars, stall))
                await self._take_audio(stream, place, stall)
        except TimeoutError:
            raise BackendTimeout(f"expected audio within {VOICE_DEADLINE_S:.0f} s") from None
        finally:
            await stream.close()
        return feeding.result()

    async def _feed(self, stream: VoiceStream, n_fed: int, stall: asyncio.Timeout) -> int:
        while True:
            self._changed.clear()
            text = self.text.whole[n_fed:]
            if text and not self._holds_enough():
                try:
                    stream.feed(text)
                    n_fed += len(text)
                except Overloaded:
                    await asyncio.sleep(FEED_RETRY_S)
                continue
            if self.text.end is not TextEnd.NOTHING and not text:
                break
            await self._changed.wait()
        stream.finish()
        stall.reschedule(asyncio.get_running_loop().time() + VOICE_DEADLINE_S)
        return n_fed

    def _holds_enough(self) -> bool:
        is_held = self._release in (Release.NONE, Release.EARLY)
        return is_held and self._pacer.buffered_ms >= MOST_HELD_MS

    async def _take_audio(self, stream: VoiceStream, place: Place, stall: asyncio.Timeout) -> None:
        resampler = Resampler(self._voice.rate_hz, self._pacer.rate_hz)
        async for event in stream.events():
            if isinstance(event, SpeechEnd):
                await self.playout.push(resampler.flush())
                return
            words = tuple(_moved(word, place) for word in event.words)
            self._mark_audio(words)
            due_s = stall.when()
            stall.reschedule(None)  # a full playout is no fault of the voice
            await self.playout.push(resampler.push(_samples(event)), words)
            self._words += words
            self._raise_limit()
            if due_s is not None:
                stall.reschedule(asyncio.get_running_loop().time() + VOICE_DEADLINE_S)
        raise BackendError("expected the end of speech, found the voice closed")

    def _mark_audio(self, words: tuple[SpokenWord, ...]) -> None:
        n_chars = max((word.text_end for word in words), default=0)
        self._on_first_audio(self.text.written_at_s(n_chars))


def _moved(word: SpokenWord, by: Place) -> SpokenWord:
    """The word of a later stream, in the times and characters of the whole reply."""
    start_ms, end_ms = word.start_ms + by.at_ms, word.end_ms + by.at_ms
    return SpokenWord(word.text, start_ms, end_ms, word.text_end + by.n_chars)


def _samples(speech: Speech) -> np.ndarray[tuple[int], np.dtype[np.int16]]:
    return np.frombuffer(speech.samples, "<i2").astype(np.int16, copy=False)

"""What the agent says in one response: text in as it is written, paced audio out.

Owns the voice's streams and the words they spoke. The text may be revised: audio of the clauses
that still stand is kept, the rest is thrown away and spoken anew. Nothing leaves before
`let_agreed_go` or `let_go`. After the former only whole clauses leave that the newest version of
the text has said too, as far as the voice tells when its words sound; so what was sent stands in
every later version. After the latter all leaves as it comes: no version differs any more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Literal

import numpy as np

from audio.resample import Resampler
from voiceloop.backends import Speech, SpeechEnd, SpokenWord, Voice, VoiceOptions, VoiceStream
from voiceloop.errors import BackendError, BackendTimeout, Overloaded
from voiceloop.reply.playout import Chunk, Pacer, Playout
from voiceloop.reply.spoken_text import SpokenText

VOICE_DEADLINE_S = 10.0  # between two pieces of audio once all text is there
CLAUSE_MARKS = ".,;:?!"
FEED_RETRY_S = 0.02
# Of a reply that may be thrown away no more is spoken than hides the rest's synthesis.
MOST_HELD_MS = 2500.0


class ReplySpeech:
    """Speaks once. `run` ends when all of the text has been said and sent."""

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
        self.playout.send_until(0.0)
        self.text = SpokenText()
        self.is_whole = False  # the newest version of the text has been written to its end
        self._is_settled = False  # and that was the reply: no version follows the newest
        self.wasted_ms = 0.0  # of audio that was made and not heard
        self.held_ms = 0.0  # of audio that was ready when it was let go, and stands
        self._voice, self._options = voice, options
        self._new_stream_id = new_stream_id
        self._clock = clock
        self._on_first_audio = on_first_audio
        self._changed = asyncio.Event()
        self._leaves: Literal["nothing", "agreed", "all"] = "nothing"
        self._speaks = asyncio.Event()
        self._words: list[SpokenWord] = []
        self._n_read = 0  # characters that the newest version of the text agreed to
        # Characters and ms that are said in items before the present one, and where it was cut.
        self._item_from = (0, 0.0)
        self._heard: tuple[int, float] | None = None
        self._tasks: asyncio.TaskGroup | None = None
        self._speaking: asyncio.Task[None] | None = None
        if speaks_ahead:
            self._speaks.set()

    # --- from outside ---

    async def run(self) -> None:
        """Raises: BackendError, BackendTimeout, Overloaded of the voice."""
        async with asyncio.TaskGroup() as self._tasks:
            if self._speaking is None:
                self._speak_from(0, 0.0)
            self._tasks.create_task(self.playout.run())

    def reread(self) -> None:
        """The text comes anew, from its beginning; perhaps it is another."""
        self._n_read = 0

    @property
    def agreed(self) -> str:
        """What the newest version of the text has said so far."""
        return self.text.whole[: self._n_read]

    @property
    def is_agreed(self) -> bool:
        """All that is held stands in the newest version too."""
        return self._n_read == len(self.text.whole)

    def say(self, text: str) -> None:
        """More of the text; what an earlier version said the same way is there already.

        Raises: BackendError where it takes back what was sent: a promised reply that is another.
        """
        known = self.text.whole[self._n_read :]
        n_same = next(
            (i for i, (old, new) in enumerate(zip(known, text, strict=False)) if old != new),
            min(len(known), len(text)),
        )
        self._n_read += n_same
        if n_same == len(text):
            self._raise_limit()
            return
        if n_same < len(known):
            self._revise(self._n_read)
        self.is_whole = False
        self.text.add(text[n_same:], self._clock())
        self._n_read += len(text) - n_same
        if self._leaves == "agreed":
            self.let_go()  # past all that was held: what comes from here on is never taken back
        self._changed.set()

    @property
    def has_words(self) -> bool:
        """Whether the newest version has said anything that a voice could say."""
        return any(map(str.isalnum, self.agreed))

    def say_last(self, text: str) -> None:
        """No more of the reply comes: this is said behind what stands of it.

        Of a whole draft that was let go on a promise nothing is missing.
        """
        if self._leaves == "all":
            self._n_read = len(self.text.whole)
            if self.is_whole and self.has_words:
                return
        follows = bool(self.agreed) and not self.agreed[-1].isspace()
        self.say(" " + text if follows else text)

    def finish(self, *, is_draft: bool = False) -> None:
        """The newest version of the text ends here. Raises: BackendError as `say`.

        is_draft: a version of the text may follow it, and go on where this one ends; so the playout
        stays open until the reply itself is finished. Without a word in it, it is a draft all the
        same: the reply may have some.
        """
        if self._n_read < len(self.text.whole):
            self._revise(self._n_read)
        self.is_whole = True
        self._is_settled = self._is_settled or not is_draft
        self._changed.set()

    def _revise(self, n_agreed: int) -> None:
        """Only the first `n_agreed` characters stand; what follows is said next."""
        if self.playout.pacer.is_stopped:
            return
        n_kept, kept_ms = self._clauses_within(n_agreed)
        if self.playout.pacer.has_sent_beyond(kept_ms):  # only where let go on a promise
            raise BackendError("expected the reply that was promised, found another")
        self.text.cut(n_agreed)
        self.is_whole = False
        self.held_ms = min(self.held_ms, kept_ms)
        self.wasted_ms += self.playout.pacer.cut(kept_ms)
        self._words = [word for word in self._words if word.text_end <= n_kept]
        if self._speaking is not None:
            self._speaking.cancel()
        self._speak_from(n_kept, kept_ms)

    def let_agreed_go(self) -> None:
        """Of what is held each clause leaves when the newest version has come past it."""
        self._note_held()
        self._leaves = "agreed"
        self._raise_limit()
        self._speaks.set()
        self._changed.set()

    def let_go(self) -> None:
        """What is held leaves now, and all that follows as it comes."""
        self._note_held()
        self._leaves = "all"
        self.playout.send_until(None)
        self._speaks.set()
        self._changed.set()

    def _note_held(self) -> None:
        if self._leaves == "nothing":
            self.held_ms = self.playout.pacer.buffered_ms

    def _raise_limit(self) -> None:
        if self._leaves == "agreed":
            self.playout.send_until(self._clauses_within(self._n_read)[1])

    def reachable_ms(self, heard_ms: float) -> float:
        """Where in its item it can go on after so much was heard: no earlier than sound is kept."""
        return max(heard_ms, self.playout.pacer.kept_from_ms - self._item_from[1])

    def cut_short(self, heard: str, heard_ms: float) -> None:
        """Its item ends with these words, after so much sound."""
        n_before, before_ms = self._item_from
        self._heard = n_before + len(heard), before_ms + heard_ms

    def go_on(self) -> None:
        """What was not heard yet is said now, as an item of its own.

        What a client that flushes threw away is sent once more: from the sample it has told of, or
        else from where one that plays at once was.
        """
        assert self._heard is not None
        (n_heard, heard_ms), self._heard = self._heard, None
        sent_ms = self.playout.pacer.sent_ms
        self.playout.step_back(heard_ms)
        self._item_from = self.text.take_back(n_heard), self.playout.pacer.sent_ms
        begun = (w for w in self._words if w.text_end > n_heard and w.start_ms < sent_ms)
        self.playout.pacer.recall(tuple(begun))
        self.playout.resume()

    def stop(self) -> None:
        """Silence, for good; idempotent. What nobody has heard was made for nothing."""
        pacer = self.playout.pacer
        if not pacer.is_stopped:
            self.wasted_ms += pacer.buffered_ms
            if self._heard is not None:
                self.wasted_ms += max(0.0, pacer.sent_ms - self._heard[1])
            self.playout.stop()

    @property
    def unheard(self) -> float:
        """The share of its text that nobody heard of it, where it was cut short."""
        text = self.text.whole.rstrip()
        return 1.0 - min(1.0, self._heard[0] / len(text)) if self._heard and text else 0.0

    def in_item(self, words: tuple[SpokenWord, ...]) -> tuple[SpokenWord, ...]:
        """The words in the times and characters of the item that they are said in.

        Of a word that had begun before the item only the rest sounds there.
        """
        n_chars, from_ms = self._item_from
        starts_ms = (max(0.0, word.start_ms - from_ms) for word in words)
        return tuple(
            SpokenWord(word.text, start_ms, word.end_ms - from_ms, word.text_end - n_chars)
            for word, start_ms in zip(words, starts_ms, strict=True)
        )

    @property
    def item_heard_ms(self) -> float:
        """What the caller has heard of the present item."""
        return max(0.0, self.playout.heard_ms() - self._item_from[1])

    # --- the voice ---

    def _clauses_within(self, n_chars: int) -> tuple[int, float]:
        """Characters and milliseconds of the whole clauses spoken of the first `n_chars`."""
        text = self.text.whole
        kept = (0, 0.0)
        for index, word in enumerate(self._words):
            end = word.text_end
            while end < len(text) and text[end] in CLAUSE_MARKS:
                end += 1
            if end > n_chars:
                break
            is_last = self.is_whole and not text[end:].strip()
            if is_last or text[max(0, end - 1)] in CLAUSE_MARKS:
                follows = self._words[index + 1 : index + 2]
                kept = (end, follows[0].start_ms if follows else word.end_ms)
        return kept

    def _speak_from(self, n_chars: int, at_ms: float) -> None:
        if self._tasks is not None:
            self._speaking = self._tasks.create_task(self._speak(n_chars, at_ms))

    async def _speak(self, n_chars: int, at_ms: float) -> None:
        """A stream of the voice, and another where more is said after it had been told the end."""
        await self._speaks.wait()
        while True:
            n_chars = await self._speak_stream(n_chars, at_ms)
            while not self._is_settled and not self.text.whole[n_chars:].strip():
                self._changed.clear()
                await self._changed.wait()
            if not self.text.whole[n_chars:].strip():
                break
            at_ms = self.playout.pacer.sent_ms + self.playout.pacer.buffered_ms
        self.playout.finish()

    async def _speak_stream(self, n_chars: int, at_ms: float) -> int:
        """The text from there up to where it was whole; returns how far that was."""
        try:
            async with asyncio.timeout(VOICE_DEADLINE_S):
                stream = await self._voice.open(self._new_stream_id(), self._options)
        except TimeoutError:
            raise BackendTimeout(f"expected a voice in {VOICE_DEADLINE_S:.0f} s") from None
        try:
            async with asyncio.timeout(None) as stall, asyncio.TaskGroup() as tasks:
                feeding = tasks.create_task(self._feed(stream, n_chars, stall))
                await self._take_audio(stream, n_chars, at_ms, stall)
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
            if self.is_whole and not text:
                break
            await self._changed.wait()
        stream.finish()
        stall.reschedule(asyncio.get_running_loop().time() + VOICE_DEADLINE_S)
        return n_fed

    def _holds_enough(self) -> bool:
        return self._leaves == "nothing" and self.playout.pacer.buffered_ms >= MOST_HELD_MS

    async def _take_audio(
        self, stream: VoiceStream, n_chars: int, at_ms: float, stall: asyncio.Timeout
    ) -> None:
        resampler = Resampler(self._voice.rate_hz, self.playout.pacer.rate_hz)
        async for event in stream.events():
            if isinstance(event, SpeechEnd):
                await self.playout.push(resampler.flush())
                return
            words = tuple(_moved(word, n_chars, at_ms) for word in event.words)
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
        self._on_first_audio(self.text.fed_at_s(max((word.text_end for word in words), default=0)))


def _moved(word: SpokenWord, n_chars: int, at_ms: float) -> SpokenWord:
    """The word of a later stream, in the times and characters of the whole utterance."""
    if not n_chars and not at_ms:
        return word
    start_ms, end_ms = word.start_ms + at_ms, word.end_ms + at_ms
    return SpokenWord(word.text, start_ms, end_ms, word.text_end + n_chars)


def _samples(speech: Speech) -> np.ndarray[tuple[int], np.dtype[np.int16]]:
    return np.frombuffer(speech.samples, "<i2").astype(np.int16, copy=False)

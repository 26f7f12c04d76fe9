"""The agent's speech in one response: text in as it is written, paced audio out.

Owns the text, which of it is certain, and the voice's streams: one at a time, and another where the
text is written anew, goes on behind an end, or where the voice was lost. Text may be spoken before
it is certain, while it is the text of a reply made ahead. Nothing of it is sent before
`release_confirmed` or `release`: after the former a clause is sent once the newest version of the
text has confirmed it, after the latter all audio as it comes. Where the newest version differs, the
clauses before the difference keep their audio; the rest is thrown away and spoken anew. What was
sent is never revised.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from audio.resample import Resampler
from voiceloop.backends import Speech, SpeechEnd, SpokenWord, Voice, VoiceOptions, VoiceStream
from voiceloop.errors import BackendError, BackendTimeout, Overloaded, WorkerLost, first_error
from voiceloop.reply.bridge import LEAST_LOST_S, LEAST_STALLED_S, Late
from voiceloop.reply.phase import Phase, PhaseEvent, ReplyPhase
from voiceloop.reply.playout import Playout, Samples
from voiceloop.reply.reply_text import CLAUSE_MARKS, ReplyText, TextEnd
from voiceloop.reply.voice import KeptLine

log = logging.getLogger(__name__)

# A reply made ahead may be thrown away, so no more of it is spoken before its release than plays
# while the rest is synthesized: a clause or two. Chosen, not measured.
MOST_HELD_MS = 2500.0
# So little may be lacking at the end of a word that is there whole: two resamplers, the voice's and
# the reply's, withhold 2 ms each at the most (audio/resample.py).
WITHHELD_MS = 5.0
# For a stream to open, and between two pieces of audio once all text is there. Chosen: a voice that
# keeps up with playing needs a fraction of it, and no caller waits longer for the next word.
VOICE_DEADLINE_S = 10.0
FEED_RETRY_S = 0.02  # to a voice with no room for text: one chunk of playout (20 ms) later


class Place(NamedTuple):
    """A place in the text and in its audio."""

    n_chars: int
    at_ms: float


@dataclass(slots=True)
class Utterance:
    """One stream of the voice, from `begins` on to where a version of the text ends.

    n_fed: characters of the text that the voice was given, the last of them at fed_at_s (before
    any: when it was asked for); n_said: that were said, once it is over. has_voice: a stream is
    there, or was to the end.
    """

    begins: Place
    n_fed: int
    n_said: int
    fed_at_s: float
    has_voice: bool = False

    def move(self, n_chars: int, ms: float) -> None:
        """Something else is said before what is still to come of it."""
        self.n_fed += n_chars
        self.n_said += n_chars
        self.begins = Place(self.begins.n_chars + n_chars, self.begins.at_ms + ms)

    def moved(self, word: SpokenWord) -> SpokenWord:
        """The word in the times and characters of the whole reply."""
        n_chars, at_ms = self.begins
        start_ms, end_ms = word.start_ms + at_ms, word.end_ms + at_ms
        return SpokenWord(word.text, start_ms, end_ms, word.text_end + n_chars)


class ReplySpeech:
    """Speaks once. `run` ends when all of the text has been said and sent.

    phase: of the reply, which says what may be sent. on_first_audio: called with every piece of
    audio: when the text of its words was written. speaks_ahead: whether audio is made before it is
    released.
    """

    def __init__(
        self,
        voice: Voice,
        options: VoiceOptions,
        new_stream_id: Callable[[], str],
        playout: Playout,
        clock: Callable[[], float],
        phase: Phase,
        *,
        on_first_audio: Callable[[float], None],
        speaks_ahead: bool = True,
    ) -> None:
        self.playout = playout
        playout.send_until(0.0)
        self.text = ReplyText()
        self.wasted_ms = 0.0  # of audio that was made and not heard
        self.held_ms = 0.0  # of audio that was ready at the release, and was right
        self.has_failed = False
        self._voice, self._options = voice, options
        self._new_stream_id = new_stream_id
        self._clock = clock
        self._on_first_audio = on_first_audio
        self.changed = asyncio.Event()  # of text or sound
        self._phase = phase
        self._speaks = asyncio.Event()
        self._words: list[SpokenWord] = []
        self._item_from = Place(0, 0.0)  # what lies before it was said in earlier items
        self._heard: Place | None = None  # up to where, while it is interrupted
        self._tasks: asyncio.TaskGroup | None = None
        self._speaking: asyncio.Task[None] | None = None
        self._utterance = self._utterance_from(Place(0, 0.0))  # the newest
        if speaks_ahead:
            self._speaks.set()

    # --- text ---

    async def run(self) -> None:
        """Raises: BackendError, BackendTimeout, Overloaded of the voice."""
        async with asyncio.TaskGroup() as self._tasks:
            if self._speaking is None:
                self._speaking = self._tasks.create_task(self._speak())
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
        if self._is_confirming:
            self.release()  # past all that was held: what comes from here on is never revised
        self.changed.set()

    def say_ahead(self, text: str) -> None:
        """Say this before the reply's own words, none of which is there yet."""
        self.say(text)
        self.text.n_ahead = len(self.text.whole)

    def say_last(self, text: str) -> None:
        """The reply breaks off: say this behind what is certain of it.

        Behind a whole version that was released on a promise nothing is missing, and nothing said.
        """
        if not self.playout.is_limited:
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
        self.changed.set()

    def finish(self) -> None:
        """The reply ends here. Raises: BackendError as `say`."""
        self.end_version()
        self.text.end = TextEnd.REPLY

    def _revise(self) -> None:
        """Throw away what the newest version has not confirmed; what follows is said next."""
        if self.playout.is_stopped:
            return
        kept = self._clauses_within(self.text.n_confirmed)
        if self.playout.has_sent_beyond(kept.at_ms):  # only where released on a promise
            raise BackendError("The reply does not continue what the caller has heard.")
        self.text.cut_unconfirmed()
        self._speak_anew(kept)

    def _speak_anew(self, kept: Place) -> None:
        """Throw away what is behind this place, and speak the text from there on again."""
        self.held_ms = min(self.held_ms, kept.at_ms)
        self.wasted_ms += self.playout.cut(kept.at_ms)
        self._words = [word for word in self._words if word.text_end <= kept.n_chars]
        if self._speaking is not None:
            self._speaking.cancel()
        self._utterance = self._utterance_from(kept)
        if self._tasks is not None:
            self._speaking = self._tasks.create_task(self._speak())

    def break_off(self) -> str:
        """Throw away the clause that is not whole.

        What was sent stays; where that ends in a clause, its words up to there. More text may
        follow. Returns the text that stays.
        """
        if self.playout.is_stopped:
            return self.text.confirmed
        text, sent = self.text, self._behind_sent()
        n_kept = max(text.clause_ends(), default=0)
        kept = self._clauses_within(n_kept)
        if self.playout.has_sent_beyond(kept.at_ms):
            if sent is None:  # sound whose words nobody knows
                n_kept = max(n_kept, self._utterance.n_fed)
            elif self._utterance.n_fed > n_kept:
                kept, n_kept = sent, max(n_kept, sent.n_chars)
        text.n_confirmed = n_kept
        text.cut_unconfirmed()
        if self._utterance.n_fed > n_kept:
            self._speak_anew(kept)
        if self._is_confirming:
            self.release()
        self.changed.set()
        return text.whole

    def _behind_sent(self) -> Place | None:
        """Return the place behind the last word of which something was sent; None where none
        was, or unknown.
        """
        sent_ms = self.playout.sent_ms
        n = sum(word.start_ms < sent_ms for word in self._words)
        if n == 0 or self._words[n - 1].end_ms > self._made_ms + WITHHELD_MS:
            return None
        follows = self._words[n : n + 1]
        at_ms = follows[0].start_ms if follows else self._made_ms
        return Place(self.text.behind_marks(self._words[n - 1].text_end), at_ms)

    # --- sent ---

    def release_confirmed(self) -> None:
        """Send each clause that is ready once the newest version has confirmed it."""
        self._let_go(PhaseEvent.CONFIRM)
        self._raise_limit()

    def release(self) -> None:
        """Send all that is ready, and all that follows as it comes."""
        self._let_go(PhaseEvent.RELEASE)
        self.playout.send_until(None)

    @property
    def may_start_early(self) -> bool:
        """Whether a beginning is held, and nobody is writing the text anew."""
        return self.playout.buffered_ms > 0.0 and self.text.is_confirmed

    def start_early(self, unsure_ms: float) -> int:
        """Send what is held, faded in; `take_back` or `release` follows.

        unsure_ms: until the turn will be over for sure. Returns for how many ms it fades in.
        """
        fade_in_ms = self.playout.begin_softly(unsure_ms)
        self._let_go(PhaseEvent.START_EARLY)
        self.playout.send_until(None)
        return fade_in_ms

    def take_back(self) -> None:
        """Take back, after `start_early` and `playout.pause`: hold all of it again, from its
        first sample.
        """
        begun = tuple(word for word in self._words if word.start_ms < self.playout.sent_ms)
        self._phase.change(PhaseEvent.TAKE_BACK)
        self.playout.send_until(0.0)
        self.playout.rewind(0.0, self._clock(), begun)
        self.text.take_back(0)
        self.playout.resume()

    def _let_go(self, event: PhaseEvent) -> None:
        if self._phase.now is ReplyPhase.HELD:
            self.held_ms = self.playout.buffered_ms
        self._phase.change(event)
        self._speaks.set()
        self.changed.set()

    @property
    def _is_confirming(self) -> bool:
        """Whether clauses are held back that the newest version has not confirmed."""
        return self.playout.is_limited and not self._phase.is_ahead

    def _raise_limit(self) -> None:
        if self._is_confirming:
            self.playout.send_until(self._clauses_within(self.text.n_confirmed).at_ms)

    def stop(self) -> None:
        """Silence, for good; idempotent. Audio that nobody has heard is wasted."""
        if not self.playout.is_stopped:
            self.wasted_ms += self.playout.buffered_ms
            if self._heard is not None:
                self.wasted_ms += max(0.0, self.playout.sent_ms - self._heard.at_ms)
            self.playout.stop()

    # --- interrupted ---

    def interrupt(self, heard_text: str, heard_ms: float) -> None:
        """The present item ends with these words, after this much of its audio."""
        self._phase.change(PhaseEvent.INTERRUPT)
        n_before, before_ms = self._item_from
        self._heard = Place(n_before + len(heard_text), before_ms + heard_ms)

    def resume(self) -> None:
        """Resume after a false interruption: say what was not heard, as an item of its own.

        What a client has flushed is sent again: from where it said that it had played to, else
        from where a client without a buffer of its own had.
        """
        assert self._heard is not None
        self._phase.change(PhaseEvent.RESUME)
        if not self.playout.is_limited:
            self._phase.change(PhaseEvent.RELEASE)
        heard, self._heard = self._heard, None
        sent_ms = self.playout.sent_ms
        begun = (w for w in self._words if w.text_end > heard.n_chars and w.start_ms < sent_ms)
        self.playout.rewind(heard.at_ms, self._clock(), tuple(begun))
        n_chars = self.text.take_back(heard.n_chars)
        self._item_from = Place(n_chars, self.playout.sent_ms)
        self.playout.resume()

    def resumable_from_ms(self, heard_ms: float) -> float:
        """Return where in the item `resume` can go on: at `heard_ms`, or where kept audio
        begins.
        """
        return max(heard_ms, self.playout.kept_from_ms - self._item_from.at_ms)

    @property
    def unheard(self) -> float:
        """The share of the text that nobody heard: 0 unless it is interrupted."""
        text = self.text.whole.rstrip()
        return 1.0 - min(1.0, self._heard.n_chars / len(text)) if self._heard and text else 0.0

    @property
    def item_heard_ms(self) -> float:
        """Audio that the caller has heard of the present item."""
        return max(0.0, self.playout.heard_ms(self._clock()) - self._item_from.at_ms)

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
            end = self.text.behind_marks(word.text_end)
            if end > n_chars:
                break
            is_last = is_whole and not text[end:].strip()
            if is_last or text[max(0, end - 1)] in CLAUSE_MARKS:
                follows = self._words[index + 1 : index + 2]
                found = Place(end, follows[0].start_ms if follows else word.end_ms)
        return found

    def _utterance_from(self, place: Place) -> Utterance:
        return Utterance(place, place.n_chars, place.n_chars, self._clock())

    async def _speak(self) -> None:
        """A stream of the voice, and another where more is said after it had been told the end."""
        await self._speaks.wait()
        has_lost = False
        try:
            while True:
                utterance = self._utterance
                stream = await self._open(utterance)
                try:
                    await self._say(utterance, stream)
                    place = Place(utterance.n_fed, self._made_ms)
                except WorkerLost:
                    resumes_at = self._resumes_at
                    if has_lost or resumes_at is None:
                        raise
                    log.warning("a voice was lost in a reply; the rest is spoken anew")
                    has_lost, place = True, resumes_at
                    self._words = [word for word in self._words if word.text_end <= place.n_chars]
                    self.wasted_ms += self.playout.cut(place.at_ms)
                self._utterance = self._utterance_from(place)
                self.changed.set()
                if not await self._has_more():
                    self.playout.finish()
                    return
        except Exception:
            self.has_failed = True  # at once: `run` raises it when its tasks have ended
            raise

    async def _open(self, utterance: Utterance) -> VoiceStream:
        utterance.fed_at_s = self._clock()
        try:
            async with asyncio.timeout(VOICE_DEADLINE_S):
                stream = await self._voice.open(self._new_stream_id(), self._options)
        except TimeoutError:
            raise BackendTimeout(
                f"The voice did not begin within {VOICE_DEADLINE_S:.0f} s."
            ) from None
        utterance.has_voice = True
        return stream

    async def _say(self, utterance: Utterance, stream: VoiceStream) -> None:
        is_over = False
        try:
            async with asyncio.timeout(None) as stall, asyncio.TaskGroup() as tasks:
                tasks.create_task(self._feed(utterance, stream, stall))
                await self._take_audio(utterance, stream, stall)
            is_over, utterance.n_said = True, utterance.n_fed
        except TimeoutError:
            raise BackendTimeout(f"The voice sent no sound for {VOICE_DEADLINE_S:.0f} s.") from None
        except BaseExceptionGroup as errors:
            raise first_error(errors) from None
        finally:
            utterance.has_voice = is_over
            await stream.close()

    async def _feed(
        self, utterance: Utterance, stream: VoiceStream, stall: asyncio.Timeout
    ) -> None:
        while True:
            self.changed.clear()
            text = self.text.whole[utterance.n_fed :]
            may_make = not self._phase.is_ahead or self.playout.buffered_ms < MOST_HELD_MS
            if text and may_make:
                try:
                    stream.feed(text)
                    utterance.n_fed += len(text)
                    utterance.fed_at_s = self._clock()
                except Overloaded:
                    await asyncio.sleep(FEED_RETRY_S)
                continue
            if self.text.end is not TextEnd.NOTHING and not text:
                break
            await self.changed.wait()
        stream.finish()
        stall.reschedule(asyncio.get_running_loop().time() + VOICE_DEADLINE_S)

    async def _take_audio(
        self, utterance: Utterance, stream: VoiceStream, stall: asyncio.Timeout
    ) -> None:
        resampler = Resampler(self._voice.rate_hz, self.playout.rate_hz)
        async for event in stream.events():
            if isinstance(event, SpeechEnd):
                await self._take(resampler.flush(), ())
                return
            due_s = stall.when()
            stall.reschedule(None)  # a full playout is no fault of the voice
            words = tuple(map(utterance.moved, event.words))
            await self._take(resampler.push(_samples(event)), words)
            if due_s is not None:
                stall.reschedule(asyncio.get_running_loop().time() + VOICE_DEADLINE_S)
        raise BackendError("The voice closed before the end of speech.")

    async def _has_more(self) -> bool:
        """Wait for words behind those that were said; False where the reply ends before."""
        while self.text.owed_since_s(self._utterance.begins.n_chars) is None:
            if self.text.end is TextEnd.REPLY:
                return False
            self.changed.clear()
            await self.changed.wait()
        return True

    async def _take(self, samples: Samples, words: tuple[SpokenWord, ...]) -> None:
        if len(samples) or words:
            n_chars = max((word.text_end for word in words), default=0)
            self._on_first_audio(self.text.written_at_s(n_chars))
        await self.playout.take(samples, words)
        self._words += words
        self._raise_limit()
        self.changed.set()

    # --- a voice that is lost, or stands still ---

    @property
    def _made_ms(self) -> float:
        return self.playout.sent_ms + self.playout.buffered_ms

    @property
    def _resumes_at(self) -> Place | None:
        """Return where a lost voice is followed by another: behind the last word that is there
        whole.

        None where sound was sent whose words nobody knows.
        """
        begins = self._utterance.begins
        spoken = [word for word in self._words if word.text_end > begins.n_chars]
        if not spoken:
            return None if self.playout.has_sent_beyond(begins.at_ms) else begins
        made_ms, place = self._made_ms, begins
        for index, word in enumerate(spoken):
            if word.end_ms > made_ms + WITHHELD_MS:
                break
            follows = spoken[index + 1 : index + 2]
            place = Place(
                self.text.behind_marks(word.text_end), follows[0].start_ms if follows else made_ms
            )
        return Place(place.n_chars, max(place.at_ms, self.playout.sent_ms))

    def late(self) -> Late | None:
        """Return where the voice owes the caller sound, since when; None where it owes none."""
        utterance, playout = self._utterance, self.playout
        if playout.is_limited or self._phase.is_ahead or playout.is_stopped:
            return None
        n_spoken = max(utterance.n_said, *(w.text_end for w in self._words[-1:]), 0)
        if (owed_since_s := self.text.owed_since_s(n_spoken)) is None:
            return None
        given_s = max(utterance.fed_at_s, owed_since_s)  # who gives it to the voice may come next
        is_lost, since_s = not utterance.has_voice, playout.silent_from_s(self._clock())
        least_s = LEAST_LOST_S if is_lost else LEAST_STALLED_S
        return Late(since_s, given_s, least_s, is_voice=True, is_lost=is_lost)

    def say_kept(self, line: str, kept: KeptLine) -> None:
        """Let this be heard before what is still to come, whatever the voice does.

        Before the reply's first sound its text goes ahead of the reply's own. In the middle of it
        the line is sound alone: no part of the sentence that it stands in.
        """
        samples, words = kept.sound(self.playout.rate_hz)
        n_chars, at_ms = 0, self._made_ms
        if at_ms == 0.0:
            n_chars = len(line) + 1
            self.text.put_ahead(f"{line} ", self._clock())
            self._words += words
            self._on_first_audio(self._clock())
        else:  # a word that breaks off is whole no more, and said anew by another voice
            self._words = [w for w in self._words if w.end_ms <= at_ms + WITHHELD_MS]
        self._utterance.move(n_chars, 1000.0 * len(samples) / self.playout.rate_hz)
        self.playout.push(samples, words if n_chars else ())
        if self._is_confirming:
            self.release()
        self.changed.set()


def _samples(speech: Speech) -> Samples:
    return np.frombuffer(speech.samples, "<i2").astype(np.int16, copy=False)

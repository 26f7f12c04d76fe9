"""What the agent says in one response: text in as it is written, paced audio out.

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

from voiceloop.backends import SpokenWord, Voice, VoiceOptions
from voiceloop.errors import BackendError, WorkerLost
from voiceloop.reply.bridge import LEAST_LOST_S, LEAST_STALLED_S, Late
from voiceloop.reply.phase import Phase, PhaseEvent, ReplyPhase
from voiceloop.reply.playout import Chunk, Pacer, Playout, Samples
from voiceloop.reply.reply_text import CLAUSE_MARKS, ReplyText, TextEnd
from voiceloop.reply.utterance import Place, Utterance
from voiceloop.reply.voice import KeptLine

log = logging.getLogger(__name__)

# A reply made ahead may be thrown away, so no more of it is spoken before its release than plays
# while the rest is synthesized: a clause or two. Chosen, not measured.
MOST_HELD_MS = 2500.0
# So little may be lacking at the end of a word that is there whole: two resamplers, the voice's and
# the reply's, withhold 2 ms each at the most (audio/resample.py).
WITHHELD_MS = 5.0


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
        pacer: Pacer,
        emit: Callable[[Chunk], None],
        clock: Callable[[], float],
        phase: Phase,
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
        if not self._pacer.is_limited:
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
        if self._pacer.is_stopped:
            return
        kept = self._clauses_within(self.text.n_confirmed)
        if self._pacer.has_sent_beyond(kept.at_ms):  # only where released on a promise
            raise BackendError("The reply does not continue what the caller has heard.")
        self.text.cut_unconfirmed()
        self._speak_anew(kept)

    def _speak_anew(self, kept: Place) -> None:
        """What is behind this place is thrown away, and the text from there on spoken again."""
        self.held_ms = min(self.held_ms, kept.at_ms)
        self.wasted_ms += self._pacer.cut(kept.at_ms)
        self._words = [word for word in self._words if word.text_end <= kept.n_chars]
        if self._speaking is not None:
            self._speaking.cancel()
        self._utterance = self._utterance_from(kept)
        if self._tasks is not None:
            self._speaking = self._tasks.create_task(self._speak())

    def break_off(self, *, is_unheard: bool = False) -> str:
        """Throw away the clause that is not whole (is_unheard: all of which nothing was sent).

        What was sent stays; where that ends in a clause, its words up to there. More text may
        follow. Returns the text that stays.
        """
        if self._pacer.is_stopped:
            return self.text.confirmed
        text, sent = self.text, self._behind_sent()
        begun = sent.n_chars if sent is not None else 0
        n_kept = text.clause_end(begun) if is_unheard else text.last_clause_end()
        kept = self._clauses_within(n_kept)
        if self._pacer.has_sent_beyond(kept.at_ms):
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
        """Behind the last word of which something was sent; None where none was, or unknown."""
        sent_ms = self._pacer.sent_ms
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
        return self._pacer.buffered_ms > 0.0 and self.text.is_confirmed

    def start_early(self, unsure_ms: float) -> int:
        """Send what is held, faded in; `take_back` or `release` follows.

        unsure_ms: until the turn will be over for sure. Returns for how many ms it fades in.
        """
        fade_in_ms = self._pacer.begin_softly(unsure_ms)
        self._let_go(PhaseEvent.START_EARLY)
        self.playout.send_until(None)
        return fade_in_ms

    def take_back(self) -> None:
        """After `start_early` and `playout.pause`: hold all of it again, from its first sample."""
        begun = tuple(word for word in self._words if word.start_ms < self._pacer.sent_ms)
        self._phase.change(PhaseEvent.TAKE_BACK)
        self.playout.send_until(0.0)
        self.playout.rewind(0.0, begun)
        self.text.take_back(0)
        self.playout.resume()

    def _let_go(self, event: PhaseEvent) -> None:
        if self._phase.now is ReplyPhase.HELD:
            self.held_ms = self._pacer.buffered_ms
        self._phase.change(event)
        self._speaks.set()
        self.changed.set()

    @property
    def _is_confirming(self) -> bool:
        """Whether clauses are held back that the newest version has not confirmed."""
        return self._pacer.is_limited and not self._phase.is_ahead

    def _raise_limit(self) -> None:
        if self._is_confirming:
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
        self._phase.change(PhaseEvent.INTERRUPT)
        n_before, before_ms = self._item_from
        self._heard = Place(n_before + len(heard_text), before_ms + heard_ms)

    def resume(self) -> None:
        """After a false interruption: say what was not heard, as an item of its own.

        What a client has flushed is sent again: from where it said that it had played to, else
        from where a client without a buffer of its own had.
        """
        assert self._heard is not None
        self._phase.change(PhaseEvent.RESUME)
        if not self._pacer.is_limited:
            self._phase.change(PhaseEvent.RELEASE)
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
            end = self.text.behind_marks(word.text_end)
            if end > n_chars:
                break
            is_last = is_whole and not text[end:].strip()
            if is_last or text[max(0, end - 1)] in CLAUSE_MARKS:
                follows = self._words[index + 1 : index + 2]
                found = Place(end, follows[0].start_ms if follows else word.end_ms)
        return found

    def _utterance_from(self, place: Place) -> Utterance:
        rate_hz, may_make = self._pacer.rate_hz, self._may_make
        return Utterance(self.text, place, rate_hz, self.changed, may_make, self._take, self._clock)

    async def _speak(self) -> None:
        """A stream of the voice, and another where more is said after it had been told the end."""
        await self._speaks.wait()
        has_lost = False
        try:
            while True:
                utterance, voice = self._utterance, self._voice
                stream = await utterance.open(voice, self._new_stream_id(), self._options)
                try:
                    await utterance.speak(stream, voice.rate_hz)
                    place = Place(utterance.n_fed, self._made_ms)
                except WorkerLost:
                    resumes_at = self._resumes_at
                    if has_lost or resumes_at is None:
                        raise
                    log.warning("a voice was lost in a reply; the rest is spoken anew")
                    has_lost, place = True, resumes_at
                    self._words = [word for word in self._words if word.text_end <= place.n_chars]
                    self.wasted_ms += self._pacer.cut(place.at_ms)
                self._utterance = self._utterance_from(place)
                self.changed.set()
                if not await self._has_more():
                    self.playout.finish()
                    return
        except Exception:
            self.has_failed = True  # at once: `run` raises it when its tasks have ended
            raise

    async def _has_more(self) -> bool:
        """Wait for words behind those that were said; False where the reply ends before."""
        while self.text.owed_since_s(self._utterance.begins.n_chars) is None:
            if self.text.end is TextEnd.REPLY:
                return False
            self.changed.clear()
            await self.changed.wait()
        return True

    def _may_make(self) -> bool:
        return not self._phase.is_ahead or self._pacer.buffered_ms < MOST_HELD_MS

    async def _take(self, samples: Samples, words: tuple[SpokenWord, ...]) -> None:
        if len(samples) or words:
            n_chars = max((word.text_end for word in words), default=0)
            self._on_first_audio(self.text.written_at_s(n_chars))
        await self.playout.push(samples, words)
        self._words += words
        self._raise_limit()
        self.changed.set()

    # --- a voice that is lost, or stands still ---

    @property
    def _made_ms(self) -> float:
        """Of the reply's audio."""
        return self._pacer.sent_ms + self._pacer.buffered_ms

    @property
    def _resumes_at(self) -> Place | None:
        """Where a lost voice is followed by another: behind the last word that is there whole.

        None where sound was sent whose words nobody knows.
        """
        begins = self._utterance.begins
        spoken = [word for word in self._words if word.text_end > begins.n_chars]
        if not spoken:
            return None if self._pacer.has_sent_beyond(begins.at_ms) else begins
        made_ms, place = self._made_ms, begins
        for index, word in enumerate(spoken):
            if word.end_ms > made_ms + WITHHELD_MS:
                break
            follows = spoken[index + 1 : index + 2]
            place = Place(
                self.text.behind_marks(word.text_end), follows[0].start_ms if follows else made_ms
            )
        return Place(place.n_chars, max(place.at_ms, self._pacer.sent_ms))

    def late(self) -> Late | None:
        """Where the voice owes the caller sound, since when; None where it owes none."""
        utterance, pacer = self._utterance, self._pacer
        if pacer.is_limited or self._phase.is_ahead or pacer.is_stopped:
            return None
        n_spoken = max(utterance.n_said, *(w.text_end for w in self._words[-1:]), 0)
        if (owed_since_s := self.text.owed_since_s(n_spoken)) is None:
            return None
        given_s = max(utterance.fed_at_s, owed_since_s)  # who gives it to the voice may come next
        is_lost, since_s = not utterance.has_voice, pacer.silent_from_s(self._clock())
        least_s = LEAST_LOST_S if is_lost else LEAST_STALLED_S
        return Late(since_s, given_s, least_s, is_voice=True, is_lost=is_lost)

    def say_kept(self, line: str, kept: KeptLine) -> None:
        """Let this be heard before what is still to come, whatever the voice does.

        Before the reply's first sound its text goes ahead of the reply's own. In the middle of it
        the line is sound alone: no part of the sentence that it stands in.
        """
        samples, words = kept.sound(self._pacer.rate_hz)
        n_chars, at_ms = 0, self._made_ms
        if at_ms == 0.0:
            n_chars = len(line) + 1
            self.text.put_ahead(f"{line} ", self._clock())
            self._words += words
            self._on_first_audio(self._clock())
        else:  # a word that breaks off is whole no more, and said anew by another voice
            self._words = [w for w in self._words if w.end_ms <= at_ms + WITHHELD_MS]
        self._utterance.move(n_chars, 1000.0 * len(samples) / self._pacer.rate_hz)
        self.playout.push_line(samples, words if n_chars else ())
        if self._is_confirming:
            self.release()
        self.changed.set()

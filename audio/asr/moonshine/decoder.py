"""Moonshine's decoder over one window, whatever computes its network: greedy, under rules.

Owns which token is taken: only what a caller may say, with a push for a session's phrases, and an
end where the text goes round in circles or nobody spoke. A network (`onnx_network`,
`torch_network`) encodes the sound and gives the next token's scores.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...end_in_states import EndInStates
from ...end_of_voice import EndOfVoice
from ...for_agent import ForAgent
from ...frames import RECOGNIZER_HZ, Samples
from ..window_decoder import DecodedWindow, DecodeRequest, max_new_tokens, proportional_spans
from .digits import NATIONAL_PREFIX, PHONE_DIGITS, DigitReader, ReadNumber, log_softmax
from .network import MoonshineNetwork
from .vocabulary import END, START, WORD_MARK, MoonshineVocabulary, PhraseHints

# Words beside the window's end: full attention to a cut word spoils the word before it too (16
# errors in a hundred words of accented read clips with one held back, 13 with two).
HELD_BACK = 2
UPDATE_MS = 320.0  # a window of 4 s takes 60 ms of a core with each update, one of 10 s 130
# Partials an interval in the first second, 30 ms of a core each: a caller who speaks over the agent
# is judged by them.
N_EARLY = 2
# Silence on both sides: beside a window's hard edge words are misheard (13 against 11 errors in a
# hundred words of read clips).
EDGE = RECOGNIZER_HZ // 5
# Of the sound where nobody hears words: the head has learned from 1.5 to 4.5 s before a pause, and
# its weight beside other evidence was fitted to so much.
MOST_READ = 3 * RECOGNIZER_HZ
# Of the sound whose words are read: a number wants as much (LOG.md, 2026-11-28, "the same judge
# beside a service's ears"), and it takes another 60 ms to encode.
MOST_WRITTEN = 6 * RECOGNIZER_HZ
# People say 12 tokens in 3 s, digits twice as many in 6, for 4 ms each. Between three and three
# others are read, who wait for a first judgement.
MOST_TOKENS_READ, TOKENS_AT_ONCE = 32, 3
# Of all streams, 0.7 to 1.4 MB each, the last that were encoded: words are read behind the voice.
KEPT_SOUNDS = 16
TOKENS_PER_S = 10.0  # twice what its authors allow: figures are spelled here
# A decode whose last tokens repeat so often (of one or two tokens; of more) goes round in circles.
MOST_REPEATS, MOST_LONG_REPEATS, LONGEST_CIRCLE = 5, 3, 8
MOST_DIGIT_REPEATS = 11  # set by hand: a telephone number says a digit again and again, a loop more
# A mean log-probability below which nothing was said (what is heard rightly has -0.8 at the worst,
# mostly over -0.3), and one below which another decode may well say something else.
UNLIKELY_LOG_PROBABILITY, SURE_LOG_PROBABILITY = -1.1, -0.25
# A number that was asked for is looked for where one word less to two more were heard. It was said
# where its tokens are likely enough in the mean, and not much less so than those words; than digits
# hardly, for the caller may have got no further. Of 39 people's numbers over G.711 the right ones
# have -0.8 at the worst, and are up to 7 less likely (than digits 1.2); what lacks a digit is so by
# 3 and more, spelled names and addresses by 11 (LOG.md, 2026-11-28, "telephone numbers of ten
# digits over G.711").
OTHER_WORDS = range(-1, 3)
LEAST_OF_NUMBER, MOST_WORSE, MOST_WORSE_THAN_DIGITS = -0.9, 7.0, 2.0
# Nor is its last digit made up in a pause before that is said: what it and the end add to the
# logarithm is -0.8 at the worst where it was said, and -1.5 at the best where it was not.
LEAST_OF_LAST = -1.2


@dataclass(slots=True)
class _Sound:
    """An encoded sound, and what of its words has been written so far."""

    context: Any
    tokens: list[int] = field(default_factory=lambda: [START])
    states: Any = None

    def forget_words(self) -> None:
        """Drop words that have been read: their states are large."""
        self.tokens, self.states = [START], None


class MoonshineDecoder:
    """`WindowDecoder` of a network and the folder of its vocabulary, in English.

    It sees neither what was said before the window nor a prompt. end_of_voice: the head that tells
    of the same encoder's rows whether a voice that fell silent has finished; end_in_states: what
    the words add to that; for_agent: the one that tells of a young sound whether it is words for
    the agent; None for none. hears_words False: that is all it tells, in a third of the time, and
    what the words add where it is asked again.

    Raises: AudioError where the folder has no vocabulary.
    """

    languages = ("en",)
    max_batch = 1

    def __init__(
        self,
        network: MoonshineNetwork,
        vocabulary: Path,
        end_of_voice: EndOfVoice | None = None,
        for_agent: ForAgent | None = None,
        end_in_states: EndInStates | None = None,
        *,
        hears_words: bool = True,
    ) -> None:
        self._network = network
        self._end_of_voice = end_of_voice
        self._for_agent = for_agent
        self._end_in_states = end_in_states
        self._hears_words = hears_words
        self._vocabulary = MoonshineVocabulary(vocabulary)
        self._digits = DigitReader(network, self._vocabulary)
        self._hints = lru_cache(maxsize=64)(self._read_hints)
        self._sounds = OrderedDict[tuple[str, bytes], _Sound]()  # by stream; the oldest first

    def encode_text(self, text: str) -> tuple[int, ...]:
        return ()

    def decode(self, requests: Sequence[DecodeRequest]) -> list[DecodedWindow]:
        return [self._decode(request) for request in requests]

    def _decode(self, request: DecodeRequest) -> DecodedWindow:
        if not self._hears_words:
            return self._read(request)
        context = self._encode(request.samples)
        judged = self._judged(context, request)
        if request.voice_alone:
            return judged
        forced = [token for word in request.prefix for token in word.tokens]
        n_most = max_new_tokens(request, TOKENS_PER_S) - len(forced)
        hints = self._hints(request.hints)
        tokens, log_probability, states = self._greedy(
            context, forced, request.guess, n_most, hints
        )
        prefix, number = request.prefix, None
        if request.n_digits:
            number = self._number(context, request.n_digits, [*forced, *tokens])
        if number is not None:
            tokens, states, forced, prefix = list(number.tokens), number.states, [], ()
            log_probability = number.score / len(tokens)
        by_words = None
        if self._end_in_states and judged.p_voice is not None and (forced or tokens):
            n_tokens = 1 + len(forced) + len(tokens)
            by_words = self._end_in_states.log_odds(self._network.last_states(states, n_tokens))
        if log_probability < UNLIKELY_LOG_PROBABILITY and not forced:
            tokens = []
        tail = self._vocabulary.words(tokens)
        spans_ms: tuple[tuple[float, float], ...] = ()
        if request.with_times:
            spans_ms = proportional_spans((*prefix, *tail), request.samples)
        is_sure = log_probability >= SURE_LOG_PROBABILITY
        is_anew = number is not None
        return replace(
            judged, tail=tail, spans_ms=spans_ms, is_sure=is_sure, is_anew=is_anew,
            by_words=by_words,
        )  # fmt: skip

    def _judged(self, context: Any, request: DecodeRequest) -> DecodedWindow:
        """Return what the heads on the encoder tell, where they are asked."""
        p_voice = for_agent = None
        if self._for_agent is not None and request.is_beginning:
            for_agent = self._for_agent.log_odds(self._network.rows(context))
        if self._end_of_voice is not None and request.is_paused:
            p_voice = self._end_of_voice.log_odds(self._network.rows(context))
        return DecodedWindow((), p_voice=p_voice, for_agent=for_agent)

    def _read(self, request: DecodeRequest) -> DecodedWindow:
        """Judge without telling words; asked again, by the words."""
        if request.end_by_words and (heads := self._end_in_states) is not None:
            n_most = MOST_READ if request.is_shared else MOST_WRITTEN
            return self._read_on(self._sound(request, n_most), heads)
        return self._judged(self._sound(request, MOST_READ).context, request)

    def _encode(self, samples: Samples) -> Any:
        return self._network.encode(np.pad(samples.astype(np.float32) / 32768.0, EDGE))

    def _sound(self, request: DecodeRequest, n_most: int) -> _Sound:
        """The window's last `n_most` samples, encoded once."""
        samples = request.samples[-n_most:]
        key = request.stream_id, samples.tobytes()
        self._sounds[key] = sound = self._sounds.get(key) or _Sound(self._encode(samples))
        self._sounds.move_to_end(key)
        if len(self._sounds) > KEPT_SOUNDS:
            self._sounds.popitem(last=False)
        return sound

    def forget(self, stream_id: str) -> None:
        for key in [key for key in self._sounds if key[0] == stream_id]:
            del self._sounds[key]

    def _read_on(self, sound: _Sound, heads: EndInStates) -> DecodedWindow:
        """Return what the words say of the end, whatever they are.

        Nothing where there are none, or no end of them.
        """
        for _ in range(TOKENS_AT_ONCE):
            new, said = sound.tokens[-1:], sound.tokens[1:]
            rows, sound.states = self._network.step(sound.context, sound.states, new)
            token, _ = self._choose(rows[-1], (), said, self._hints(()))
            if token == END:
                last = self._network.last_states(sound.states, len(sound.tokens))
                sound.forget_words()
                return DecodedWindow((), by_words=heads.log_odds(last) if said else None)
            sound.tokens.append(token)
        if len(sound.tokens) < MOST_TOKENS_READ:
            return DecodedWindow((), has_more=True)
        sound.forget_words()
        return DecodedWindow(())

    def _number(self, context: Any, n_digits: int, heard: Sequence[int]) -> ReadNumber | None:
        """The number of so many digits; None where the words are one already, or nobody said
        one.
        """
        words = " ".join(word.text for word in self._vocabulary.words(heard)).split()
        has_digits, n_more = self._vocabulary.says_digits(heard), len(words) - n_digits
        may_be_one_more = n_digits == PHONE_DIGITS and words[:1] == [NATIONAL_PREFIX]
        is_whole = has_digits and (n_more == 0 or (n_more == 1 and may_be_one_more))
        if is_whole or n_more not in OTHER_WORDS:
            return None
        rows, _ = self._network.step(context, None, [START, *heard])
        found = zip(log_softmax(rows), [*heard, END], strict=True)
        of_words = sum(float(row[token]) for row, token in found)
        most_worse = MOST_WORSE_THAN_DIGITS if has_digits else MOST_WORSE
        number = self._digits.read(context, n_digits, of_words - most_worse)
        if number is None or number.score < LEAST_OF_NUMBER * len(number.tokens):
            return None
        return number if number.score - number.before_last >= LEAST_OF_LAST else None

    def _greedy(
        self,
        context: Any,
        forced: Sequence[int],
        guess: Sequence[int],
        n_most: int,
        hints: PhraseHints,
    ) -> tuple[list[int], float, Any]:
        """The tokens after the forced ones, the mean log-probability of those that were chosen,
        repeats that are dropped included, and the states of all.

        Those of the guess are read in one pass, and kept as far as each would have been chosen.
        """
        fed, tokens, log_probabilities = [START, *forced, *guess], list[int](), list[float]()
        logits, states = self._network.step(context, None, fed)
        rows = logits[-1 - len(guess) :]
        while len(tokens) < n_most:
            if not len(rows):
                rows, states = self._network.step(context, states, tokens[-1:])
            token, log_probability = self._choose(rows[0], forced, tokens, hints)
            if token == END:
                break
            tokens.append(token)
            log_probabilities.append(log_probability)
            if n_circling := self._n_circling(tokens):
                del tokens[-n_circling:]
                break
            rows = rows[1:]
            if len(rows) and token != guess[len(tokens) - 1]:
                rows = rows[:0]
                states = self._network.cut_back(states, len(forced) + len(tokens))
        return tokens, float(np.mean(log_probabilities or 0.0)), states

    def _choose(
        self,
        logits: NDArray[np.float32],
        forced: Sequence[int],
        tokens: Sequence[int],
        hints: PhraseHints,
    ) -> tuple[int, float]:
        """The next token and the logarithm of the model's own probability of it."""
        is_beginning = not forced and not tokens
        vocabulary = self._vocabulary
        penalties = vocabulary.penalties_of_beginning if is_beginning else vocabulary.penalties
        scores = logits - penalties
        hints.push(scores, [*forced, *tokens])
        token = int(scores.argmax())
        largest = logits.max()
        return token, float(logits[token] - largest - np.log(np.exp(logits - largest).sum()))

    def _n_circling(self, tokens: Sequence[int]) -> int:
        """How many of the last tokens only say again what stands before them."""
        for length in range(1, LONGEST_CIRCLE + 1):
            most = MOST_REPEATS if length <= 2 else MOST_LONG_REPEATS
            if _repeats(tokens, length, most) and self._vocabulary.says_digits(tokens[-length:]):
                most = MOST_DIGIT_REPEATS
            if _repeats(tokens, length, most):
                return length * most
        return 0

    def _read_hints(self, phrases: tuple[str, ...]) -> PhraseHints:
        written = (text for phrase in phrases for text in (phrase, phrase.capitalize()))
        encoded = filter(None, map(self._vocabulary.encode, written))
        return PhraseHints(encoded, space=self._vocabulary.piece(WORD_MARK))


def _repeats(tokens: Sequence[int], length: int, n_times: int) -> bool:
    """Whether the last `length` tokens say so many times again what stands before them."""
    circles = tokens[-length * (n_times + 1) :]
    return len(circles) == length * (n_times + 1) and circles[length:] == circles[:-length]

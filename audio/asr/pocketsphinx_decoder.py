"""One pocketsphinx decoder: configuration, segments, hypotheses with word times.

Everything that knows the pocketsphinx binding stands here; `pocketsphinx.py` makes streams of it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import AudioError, MissingExtra
from ..frames import RECOGNIZER_HZ, Samples, duration_ms
from ..pronunciation import pronounce
from ..stream import RecognizerOptions
from .session_words import session_phrases

FRAME_MS = 10.0  # pocketsphinx's frame rate is 100 Hz
# The class token: it stands in the language model where a word may stand that only the session
# knows (a menu item, a name). Such words are added as further pronunciations of it.
CLASS_TOKEN = "xhotword"
# Its own pronunciation: no English word sounds like it.
UNSPOKEN = "ZH OY ZH OY ZH OY"
EMBEDDED = Path(__file__).parents[1] / "embedded" / "recognizer"


# Mean over speech at -24 dBFS and room noise, 12 recordings of each of four voices.
PRIOR = (43.0, 4.0, 0.5, 4.0, -1.0, -0.5, 0.0, -0.5, 0.0, -0.5, 0.0, 0.0, 0.0)
# How many frames of evidence the prior is worth. The first coefficient is the level, which the
# prior cannot know and a few frames tell; the others are the spectrum, which the phones of one
# word would bias.
PRIOR_FRAMES = (5.0,) + (60.0,) * 12
MEMORY_FRAMES = 500.0  # 5 s: an older estimate counts no more than this
_LIVE_FRAMES = 500  # CMN_WIN: the weight pocketsphinx gives to a mean it was set to
_LIVE_LIMIT = 800  # CMN_WIN_HWM: from here on it forgets, and what was observed cannot be told

SEARCH: dict[str, float | int] = {
    # One pass: the second and third would run after the caller has ended, 200 ms of it.
    "fwdflat": False,
    "bestpath": False,
    # No phone look-ahead: it holds every word back by 50 ms.
    "pl_window": 0,
}


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """Paths of an acoustic model, a dictionary and a language model."""

    acoustic: Path
    dictionary: Path
    language: Path
    pronunciations: Path  # a larger dictionary, for words of a session


@dataclass(frozen=True, slots=True)
class HeardWord:
    """Times in ms from the start of the segment."""

    text: str
    start_ms: float
    end_ms: float


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """words of the best path so far; end_ms: how far into the segment it reaches."""

    words: tuple[HeardWord, ...]
    end_ms: float


def find_model() -> ModelFiles:
    """The acoustic model of the wheel, our language model and its words.

    Raises: MissingExtra, AudioError.
    """
    try:
        import pocketsphinx
    except ImportError:
        raise MissingExtra("pocketsphinx", "the embedded recognizer") from None
    wheel = Path(pocketsphinx.get_model_path("en-us"))
    files = ModelFiles(
        wheel / "en-us",
        EMBEDDED / "domain.dict",
        EMBEDDED / "domain.lm.bin",
        wheel / "cmudict-en-us.dict",
    )
    for path in (files.acoustic, files.dictionary, files.language):
        if not path.exists():
            raise AudioError(f"expected a recognizer model file at {path}, found none")
    return files


class CepstralMean:
    """The mean [13] of a speaker's and a line's cepstra, which is subtracted from every frame.

    A live estimate that starts wrong garbles the first turn of a call (24 errors in 22 words on one
    clip). This one starts from a prior, learns fast while it knows little, and is carried on.
    """

    def __init__(self) -> None:
        self.mean: NDArray[np.float64] = np.array(PRIOR)
        self._frames: NDArray[np.float64] = np.array(PRIOR_FRAMES)

    def __str__(self) -> str:
        """As pocketsphinx takes it."""
        return ",".join(f"{value:.3f}" for value in self.mean)

    def observe(self, live: str, n_frames: int) -> None:
        """Learn from a segment that started at this mean.

        live: pocketsphinx's own estimate after n_frames frames.
        """
        if n_frames <= 0:
            return
        updated = np.array([float(value) for value in live.split(",")])
        observed = updated
        if n_frames <= _LIVE_LIMIT - _LIVE_FRAMES:
            observed = updated + (updated - self.mean) * _LIVE_FRAMES / n_frames
        total = self._frames + n_frames
        self.mean = (self._frames * self.mean + n_frames * observed) / total
        self._frames = np.minimum(total, MEMORY_FRAMES)


class SegmentDecoder:
    """Decodes one segment after the other; each starts with the first audio after `finish`.

    mean: the session's cepstral mean, carried from decoder to decoder; it learns here.
    """

    def __init__(self, files: ModelFiles, options: RecognizerOptions, mean: CepstralMean) -> None:
        import pocketsphinx

        self.mean = mean
        self._decoder: Any = pocketsphinx.Decoder(
            hmm=str(files.acoustic),
            dict=str(files.dictionary),
            lm=str(files.language),
            loglevel="FATAL",
            cmn="live",
            **SEARCH,
        )
        self._phrases: dict[str, tuple[str, ...]] = {}
        self._add_phrases(session_phrases(options), files)
        self._started = False
        self._n_samples = 0

    @property
    def n_samples(self) -> int:
        """Decoded of the current segment."""
        return self._n_samples

    def decode(self, samples: Samples) -> None:
        """Advance by samples [n] int16 at 16 kHz."""
        if not self._started:
            self._decoder.set_cmn(str(self.mean))
            self._decoder.start_utt()
            self._started = True
            self._n_samples = 0
        self._n_samples += len(samples)
        self._decoder.process_raw(samples.astype("<i2", copy=False).tobytes(), False, False)

    def restart(self) -> None:
        """Learn the mean of the segment so far, and forget its audio: it is to be fed again."""
        if self._started:
            self._end()

    def hypothesis(self) -> Hypothesis:
        """The best path over what the search has seen (some 50 ms less than was fed)."""
        if not self._started:
            return Hypothesis((), 0.0)
        return Hypothesis(tuple(self._words()), self._decoder.n_frames() * FRAME_MS)

    def finish(self) -> Hypothesis:
        """End the segment: the final words."""
        if not self._started:
            return Hypothesis((), 0.0)
        end_ms = duration_ms(self._n_samples, RECOGNIZER_HZ)
        self._end()
        return Hypothesis(tuple(self._words()), end_ms)

    def _end(self) -> None:
        n_frames = self._decoder.n_frames()
        self._decoder.end_utt()
        self.mean.observe(self._decoder.get_cmn(False), n_frames)
        self._started = False
        self._n_samples = 0

    def _add_phrases(self, phrases: Sequence[tuple[str, ...]], files: ModelFiles) -> None:
        """Each phrase as one more pronunciation of the class token."""
        known = {}
        unknown = []
        for word in sorted({word for phrase in phrases for word in phrase}):
            phones = self._decoder.lookup_word(word)
            if phones:
                known[word] = phones
            else:
                unknown.append(word)
        spelled = _pronounce(tuple(unknown), files.pronunciations)
        known |= {word: alternatives[0] for word, alternatives in spelled.items()}
        for phrase in phrases:
            if all(word in known for word in phrase):
                entry = f"{CLASS_TOKEN}({len(self._phrases) + 2})"
                self._phrases[entry] = phrase
                self._decoder.add_word(entry, " ".join(known[word] for word in phrase), False)
        if self._phrases:
            # The search rebuilds its tree once, with the last word added.
            self._decoder.add_word(f"{CLASS_TOKEN}({len(self._phrases) + 2})", UNSPOKEN, True)

    def _words(self) -> list[HeardWord]:
        words: list[HeardWord] = []
        for segment in self._decoder.seg() or ():
            start_ms = segment.start_frame * FRAME_MS
            end_ms = (segment.end_frame + 1) * FRAME_MS
            text = segment.word.partition("(")[0]
            if text == CLASS_TOKEN:
                words += _share(self._phrases.get(segment.word, ()), start_ms, end_ms)
            elif text and text[0] not in "<[+":  # fillers: silence, breath, noise
                words.append(HeardWord(text.rstrip("."), start_ms, end_ms))
        return words


@lru_cache(maxsize=64)
def _pronounce(words: tuple[str, ...], dictionary: Path) -> dict[str, tuple[str, ...]]:
    """`pronounce`, read from the dictionary once for all calls of an agent (60 ms)."""
    return pronounce(words, dictionary) if words else {}


def _share(phrase: tuple[str, ...], start_ms: float, end_ms: float) -> list[HeardWord]:
    """The words of a phrase, its time shared out by their letters."""
    n_letters = max(1, sum(map(len, phrase)))
    words = []
    for word in phrase:
        word_end_ms = start_ms + (end_ms - start_ms) * len(word) / n_letters
        n_letters -= len(word)
        words.append(HeardWord(word, start_ms, word_end_ms))
        start_ms = word_end_ms
    return words

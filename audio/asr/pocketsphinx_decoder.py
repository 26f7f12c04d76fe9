"""One pocketsphinx decoder: configuration, segments, hypotheses with word times.

Everything that knows the pocketsphinx binding stands here; `pocketsphinx.py` makes streams of it.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import AudioError, MissingExtra
from ..frames import Samples
from ..stream import RecognizerOptions

FRAME_MS = 10.0  # pocketsphinx's frame rate is 100 Hz
# The class token: it stands in the language model where a word may stand that only the session
# knows (a menu item, a name). Such words are added as further pronunciations of it.
CLASS_TOKEN = "xhotword"
EMBEDDED = Path(__file__).parents[1] / "embedded" / "recognizer"

# Mean of the cepstra of speech at conversational level, the start of a stream's live estimate.
CEPSTRAL_MEAN = "40,3,-1"


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """Paths of an acoustic model, a dictionary and language models."""

    acoustic: Path
    dictionary: Path
    language: Path
    digits: Path | None  # the language model while digits are expected


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


def find_model(name: str) -> ModelFiles:
    """The files of "domain" or "generic". Raises: MissingExtra, AudioError."""
    try:
        import pocketsphinx
    except ImportError:
        raise MissingExtra("pocketsphinx", "the embedded recognizer") from None
    wheel = Path(pocketsphinx.get_model_path("en-us"))
    acoustic = wheel / "en-us"
    match name:
        case "generic":
            files = ModelFiles(acoustic, wheel / "cmudict-en-us.dict", wheel / "en-us.lm.bin", None)
        case "domain":
            files = ModelFiles(
                acoustic, EMBEDDED / "domain.dict", EMBEDDED / "domain.lm.bin",
                EMBEDDED / "digits.lm.bin",
            )  # fmt: skip
        case _:
            raise AudioError(f"expected the model 'domain' or 'generic', found {name!r}")
    for path in (files.acoustic, files.dictionary, files.language, files.digits):
        if path is not None and not path.exists():
            raise AudioError(f"expected a recognizer model file at {path}, found none")
    return files


class SegmentDecoder:
    """Decodes one segment after the other; each starts with the first audio after `finish`."""

    def __init__(self, files: ModelFiles, options: RecognizerOptions) -> None:
        import pocketsphinx

        language = files.language
        if options.grammar == "digits" and files.digits is not None:
            language = files.digits
        self._decoder: Any = pocketsphinx.Decoder(
            hmm=str(files.acoustic),
            dict=str(files.dictionary),
            lm=str(language),
            loglevel="FATAL",
            # One pass: the second and third would run after the caller has ended, 200 ms of it.
            fwdflat=False,
            bestpath=False,
            cmn="live",
            cmninit=CEPSTRAL_MEAN,
            **SEARCH,
        )
        self._started = False
        self._n_samples = 0

    @property
    def cepstral_mean(self) -> str:
        mean: str = self._decoder.get_cmn(False)
        return mean

    @cepstral_mean.setter
    def cepstral_mean(self, mean: str) -> None:
        self._decoder.set_cmn(mean)

    def decode(self, samples: Samples) -> None:
        """Advance by samples [n] int16 at 16 kHz."""
        if not self._started:
            self._decoder.start_utt()
            self._started = True
            self._n_samples = 0
        self._n_samples += len(samples)
        self._decoder.process_raw(samples.astype("<i2", copy=False).tobytes(), False, False)

    def hypothesis(self) -> Hypothesis:
        """The best path over what the search has seen (some 80 ms less than was fed)."""
        if not self._started:
            return Hypothesis((), 0.0)
        return Hypothesis(tuple(self._words()), self._decoder.n_frames() * FRAME_MS)

    def flushed_hypothesis(self) -> Hypothesis:
        return self.hypothesis()

    def finish(self) -> Hypothesis:
        """End the segment: the final words."""
        if not self._started:
            return Hypothesis((), 0.0)
        self._decoder.end_utt()
        self._started = False
        return Hypothesis(tuple(self._words()), self._n_samples / 16.0)

    def _words(self) -> list[HeardWord]:
        words = []
        for segment in self._decoder.seg() or ():
            text = segment.word.split("(")[0]
            if text and text[0] not in "<[+":
                words.append(
                    HeardWord(
                        text, segment.start_frame * FRAME_MS, (segment.end_frame + 1) * FRAME_MS
                    )
                )
        return words


SEARCH: dict[str, float | int] = {}

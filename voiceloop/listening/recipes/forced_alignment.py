"""The times of the words of a known sentence: pocketsphinx is forced to say that sentence.

Owns the acoustic model and dictionary of the pocketsphinx wheel as an aligner. A word that the
dictionary lacks makes the sentence unusable; the caller leaves such a clip out.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from clients.recording import Samples
from voiceloop.listening.recipes.disk_cache import cached, digest

FRAME_MS = 10.0


@dataclass(frozen=True, slots=True)
class SpokenWord:
    """A word and when it sounds, in ms from the start of the clip."""

    text: str
    start_ms: float
    end_ms: float

    def moved(self, by_ms: float) -> SpokenWord:
        return SpokenWord(self.text, self.start_ms + by_ms, self.end_ms + by_ms)


@lru_cache(maxsize=1)
def _decoder() -> Any:
    import pocketsphinx

    wheel = Path(pocketsphinx.get_model_path("en-us"))
    return pocketsphinx.Decoder(
        hmm=str(wheel / "en-us"),
        dict=str(wheel / "cmudict-en-us.dict"),
        lm=None,
        loglevel="FATAL",
        bestpath=False,
    )


def knows(words: tuple[str, ...]) -> bool:
    """Whether the dictionary has them all."""
    return all(_decoder().lookup_word(word) is not None for word in words)


def align(samples: Samples, words: tuple[str, ...]) -> tuple[SpokenWord, ...] | None:
    """Times of lower-case ``words`` in int16 ``samples`` [n] at 16 kHz; None where it fails."""
    key = digest(samples.tobytes(), " ".join(words))
    found = cached("alignment", key, lambda: _align(samples, words))
    return None if found is None else tuple(SpokenWord(*word) for word in found)


def _align(samples: Samples, words: tuple[str, ...]) -> list[tuple[str, float, float]] | None:
    if not words or not knows(words):
        return None
    decoder = _decoder()
    decoder.set_align_text(" ".join(words))
    decoder.start_utt()
    decoder.process_raw(samples.tobytes(), False, True)
    decoder.end_utt()
    if decoder.hyp() is None:
        return None
    found = [
        (
            segment.word.partition("(")[0],
            segment.start_frame * FRAME_MS,
            (segment.end_frame + 1) * FRAME_MS,
        )
        for segment in decoder.seg()
        if segment.word[0] not in "<[+("
    ]
    return found if tuple(word for word, _, _ in found) == words else None

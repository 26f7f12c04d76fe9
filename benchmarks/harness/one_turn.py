"""What a recognizer hears of one turn that is there at once."""

from __future__ import annotations

from audio.errors import AudioError
from audio.frames import RECOGNIZER_HZ, Samples
from audio.stream import RecognizerModel, RecognizerOptions, StreamFailed, Transcript

CHUNK = RECOGNIZER_HZ // 50


def recognize(
    recognizer: RecognizerModel, samples: Samples, options: RecognizerOptions
) -> tuple[str, ...]:
    """The words of one turn in a stream of its own. Raises: AudioError if the stream fails."""
    recognizer.open("turn", options)
    for start in range(0, len(samples), CHUNK):
        recognizer.feed("turn", samples[start : start + CHUNK])
    recognizer.finalize("turn")
    words: tuple[str, ...] = ()
    while recognizer.has_work():
        for event in recognizer.step():
            if isinstance(event, StreamFailed):
                raise AudioError(event.message)
            if isinstance(event, Transcript):
                words = tuple(word.text for word in event.words)
    recognizer.close("turn")
    return words

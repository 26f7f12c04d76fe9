"""People's recordings, streamed to a recognizer as a caller's are, and the words it gets wrong."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from audio.errors import AudioError
from audio.frames import RECOGNIZER_HZ, Samples
from audio.normalize import number_words, spoken_words
from audio.stream import RecognizerModel, RecognizerOptions, StreamFailed, Transcript
from benchmarks.recognizer_bench import edit_distance, read_audio
from tests.stepping import drain

FRAME = RECOGNIZER_HZ // 50  # 20 ms, as the gateway feeds
EDGE_S = 0.2  # of silence before and after a clip, as the listener gives


@dataclass(frozen=True, slots=True)
class Clip:
    samples: Samples
    words: tuple[str, ...]


def clips_of(speech: Path, source: str, most: int) -> Iterator[Clip]:
    """At most so many clips of a source, spread over its list."""
    records = [json.loads(line) for line in (speech / "manifest.jsonl").read_text().splitlines()]
    records = [record for record in records if record["source"] == source]
    for record in records[:: max(1, len(records) // most)][:most]:
        samples = np.pad(read_audio(speech / record["file"]), round(EDGE_S * RECOGNIZER_HZ))
        yield Clip(samples, tuple(spoken_words(record["text"])))


def heard_streaming(recognizer: RecognizerModel, samples: Samples) -> tuple[str, ...]:
    """The words of a turn that is fed frame by frame. Raises: AudioError if the stream fails."""
    events = []
    recognizer.open("turn", RecognizerOptions())
    for start in range(0, len(samples), FRAME):
        recognizer.feed("turn", samples[start : start + FRAME])
        events += drain(recognizer)
    recognizer.finalize("turn")
    events += drain(recognizer)
    recognizer.close("turn")
    for event in events:
        if isinstance(event, StreamFailed):
            raise AudioError(event.message)
    return tuple(w.text for event in events if isinstance(event, Transcript) for w in event.words)


def word_error_rate(
    recognizer: RecognizerModel, clips: Sequence[Clip], *, are_digits: bool = False
) -> float:
    """Wrong words for each word said. are_digits: "5154" was heard as four words."""
    n_wrong = n_words = 0
    for clip in clips:
        heard = " ".join(heard_streaming(recognizer, clip.samples))
        if are_digits:
            heard = re.sub(r"\d", lambda digit: f" {number_words(int(digit[0]))} ", heard)
        n_wrong += edit_distance(clip.words, spoken_words(heard))
        n_words += len(clip.words)
    return n_wrong / n_words

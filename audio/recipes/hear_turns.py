"""What the embedded recognizer hears: `python -m audio.recipes.hear_turns --turns FILE --out FILE`.

Each line of the file is spoken by one of flite's voices, half of them over soft noise, and
recognized with the domain model as in a call. The pairs, one JSON line `{"said", "heard"}` each,
are appended: a run that was stopped goes on where it was. Language models learn from them what
misrecognized callers look like.
"""

import argparse
import json
import random
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import soundfile

from ..asr.pocketsphinx import PocketsphinxRecognizer
from ..errors import AudioError
from ..frames import RECOGNIZER_HZ, Samples, rms_dbfs
from ..stream import RecognizerOptions, StreamFailed, Transcript

VOICES = ("slt", "rms", "awb", "kal16")
SPEECH_DBFS = -24.0
SNR_DB = (12.0, 25.0)  # of the half with noise
EDGE_S = 0.2
CHUNK = RECOGNIZER_HZ // 50


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--turns", type=Path, required=True, help="one spoken turn a line")
    parser.add_argument("--out", type=Path, required=True, help="JSON lines, appended to")
    parser.add_argument("--most", type=int, default=10**9, help="turns at most, in all")
    options = parser.parse_args(arguments)
    turns = options.turns.read_text().splitlines()[: options.most]
    n_done = len(options.out.read_text().splitlines()) if options.out.exists() else 0
    recognizer = PocketsphinxRecognizer("domain")
    with options.out.open("a") as out:
        for index, said in enumerate(turns[n_done:], start=n_done):
            generator = random.Random(index)
            samples = speak(said, VOICES[index % len(VOICES)], generator)
            heard = " ".join(recognize(recognizer, samples, RecognizerOptions()))
            out.write(json.dumps({"said": said, "heard": heard}) + "\n")
            out.flush()
            if sys.stderr.isatty():
                print(f"\r{index + 1}/{len(turns)}", end="", file=sys.stderr)


def speak(text: str, voice: str, generator: random.Random) -> Samples:
    """text in a voice of flite at SPEECH_DBFS, with edges, over soft noise."""
    with tempfile.NamedTemporaryFile(suffix=".wav") as file:
        command = ["flite", "-voice", voice, "-t", text, "-o", file.name]
        try:
            subprocess.run(command, check=True, capture_output=True)
        except FileNotFoundError:
            raise AudioError("expected the program flite, found none on PATH") from None
        spoken, rate_hz = soundfile.read(file.name, dtype="int16")
    if rate_hz != RECOGNIZER_HZ:
        raise AudioError(f"expected flite's {voice} at {RECOGNIZER_HZ} Hz, found {rate_hz}")
    speech = np.pad(spoken.astype(np.float64), round(EDGE_S * RECOGNIZER_HZ))
    speech *= 10 ** ((SPEECH_DBFS - rms_dbfs(spoken)) / 20)
    noise = np.random.default_rng(generator.getrandbits(32)).normal(0.0, 1.0, len(speech))
    noise = np.convolve(noise, np.ones(8) / 8, mode="same")  # most of it low, as in rooms
    level = 3.0  # digital silence exists on no line
    if generator.random() < 0.5:
        full = 32768 * 10 ** ((SPEECH_DBFS - generator.uniform(*SNR_DB)) / 20)
        level = full / float(np.sqrt((noise**2).mean()))
    return np.clip(speech + level * noise, -32768, 32767).astype(np.int16)


def recognize(
    recognizer: PocketsphinxRecognizer, samples: Samples, options: RecognizerOptions
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


if __name__ == "__main__":
    main()

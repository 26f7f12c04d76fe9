"""What each recognizer and voice costs, alone and batched over streams.

    python -m benchmarks.speech_bench [--models NAME ...] [--streams 1 2 4]
                                      [--score [RECOGNIZER ...]]

The callers are recordings of the shared data; where that is not here, bursts of noise, and the
results say which. A run that is interrupted writes the models that were done.

Without ``--folder NAME=PATH`` a model that must be downloaded runs with random weights of its
true size. What the figures are then: the time of the same arithmetic. What they are not: Whisper
and Moonshine write to their token limit (more than in speech, so their times are upper bounds),
and no random model's words or retractions mean anything ("-" in the table).

Streams are fed in steps of 20 ms as fast as the model takes them; a time is that of the calls
into the model. rtf: seconds of computing a second of audio, all streams together. A model keeps
up with so many calls where rtf < 1.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from audio.errors import AudioError
from audio.frames import RECOGNIZER_HZ, VOICE_HZ, Samples
from audio.stream import (
    Partial,
    RecognizerModel,
    RecognizerOptions,
    Speech,
    SpeechEnd,
    StreamFailed,
    Transcript,
    VoiceModel,
    VoiceOptions,
)
from benchmarks.harness.command_line import Benchmark, run
from benchmarks.harness.data_folder import data_folder
from benchmarks.harness.speech_models import DEFAULT_MODELS, RECOGNIZERS, VOICES, load
from benchmarks.harness.voice_score import SENTENCES, Dnsmos, read_back_wer, speak
from clients.arguments import whole_number

CHUNK = RECOGNIZER_HZ // 50  # 20 ms, as the gateway feeds
SECONDS = 6.0  # of each caller's speech
SILENCE_S = 0.3  # between the caller's last sound and the end of the turn
REPLY = (
    "Good evening, and thank you for calling. I have a table for four tomorrow at seven. "
    "May I have your name and a number, please?"
)
DELTA_CHARACTERS = 4  # of a language model's token
MAX_STEPS = 100_000  # a model that is never done must not hang the benchmark


@dataclass(frozen=True, slots=True)
class RecognizerFigures:
    """One recognizer at one number of streams; None: means nothing with random weights."""

    model: str
    n_streams: int
    n_retracted_stable: int | None  # stable words that a later partial took back
    revised_per_word: float | None  # unstable words that changed, per word of the transcript
    update_ms: float  # of audio between two partials of a stream
    flush_ms: float  # from the caller's last sound to the full hypothesis, worst stream
    final_ms: float  # from the end of the turn, SILENCE_S later, to the transcript, worst stream
    rtf: float


@dataclass(frozen=True, slots=True)
class VoiceFigures:
    """One voice at one number of streams."""

    model: str
    n_streams: int
    first_audio_ms: float  # from the text to the first samples, worst stream
    rtf: float
    dnsmos: float | None = None  # P.808, 1 to 5; None: not scored, or random weights
    read_back_wer: dict[str, float] | None = None  # by the recognizer that reads it back


class Stopwatch:
    """Sums the time of the calls it wraps."""

    def __init__(self) -> None:
        self.total_s = 0.0

    @contextmanager
    def running(self) -> Iterator[None]:
        started = time.perf_counter()
        try:
            yield
        finally:
            self.total_s += time.perf_counter() - started


def recordings() -> list[Path]:
    """The clips that callers say; none where the shared data is not here."""
    return sorted((data_folder() / "speech" / "ljspeech").glob("*.flac"))


def speech(n_streams: int) -> list[Samples]:
    """A clip for each stream: recorded where the data is, else bursts of noise."""
    files = recordings()
    clips = []
    for i in range(n_streams):
        n_samples = round(SECONDS * RECOGNIZER_HZ)
        if files:
            import soundfile

            samples, _ = soundfile.read(files[i % len(files)], dtype="int16")
        else:
            rng = np.random.default_rng(i)
            is_loud = np.sin(np.arange(n_samples) * (2 * np.pi * 3 / RECOGNIZER_HZ)) > -0.8
            samples = (rng.normal(0.0, 3_000.0, n_samples) * is_loud).astype(np.int16)
        clips.append(np.resize(samples, n_samples).astype(np.int16))
    return clips


def measure_recognizer(
    name: str, model: RecognizerModel, n_streams: int, is_random: bool
) -> RecognizerFigures:
    """One utterance a stream, all streams at once."""
    clips = speech(n_streams)
    watch = Stopwatch()
    events: list[Any] = []
    names = [f"s{i}" for i in range(n_streams)]
    for stream_id in names:
        model.open(stream_id, RecognizerOptions())
    for at in range(0, len(clips[0]), CHUNK):
        for stream_id, clip in zip(names, clips, strict=True):
            model.feed(stream_id, clip[at : at + CHUNK])
        with watch.running():
            events += _drain(model)
    flush_ms = _time_requests(model, model.flush, names, Partial, watch, events)
    quiet = np.zeros(CHUNK, np.int16)
    for _ in range(round(SILENCE_S * RECOGNIZER_HZ / CHUNK)):
        for stream_id in names:
            model.feed(stream_id, quiet)
        with watch.running():
            events += _drain(model)
    final_ms = _time_requests(model, model.finalize, names, Transcript, watch, events)
    for stream_id in names:
        model.close(stream_id)
    retracted, revised = _stability(events)
    n_partials = sum(isinstance(event, Partial) for event in events)
    return RecognizerFigures(
        model=name,
        n_streams=n_streams,
        n_retracted_stable=None if is_random else retracted,
        revised_per_word=None if is_random else revised,
        update_ms=1000.0 * SECONDS * n_streams / max(1, n_partials),
        flush_ms=flush_ms,
        final_ms=final_ms,
        rtf=watch.total_s / (SECONDS + SILENCE_S),
    )


def measure_voice(name: str, model: VoiceModel, n_streams: int) -> VoiceFigures:
    """The same reply in every stream, all text there at once after the first clause."""
    names = [f"s{i}" for i in range(n_streams)]
    for stream_id in names:
        model.open(stream_id, VoiceOptions())
        for at in range(0, len(REPLY), DELTA_CHARACTERS):
            model.feed(stream_id, REPLY[at : at + DELTA_CHARACTERS])
        model.finish(stream_id)
    started = time.perf_counter()
    first_ms: dict[str, float] = {}
    n_samples = 0
    for _ in range(MAX_STEPS):
        if not model.has_work():
            break
        for event in model.step():
            if isinstance(event, StreamFailed):
                raise AudioError(f"{name} failed: {event.message}")
            if isinstance(event, Speech) and len(event.samples):
                elapsed_ms = 1000.0 * (time.perf_counter() - started)
                first_ms.setdefault(event.stream_id, elapsed_ms)
            if isinstance(event, SpeechEnd):
                n_samples += event.n_samples
    total_s = time.perf_counter() - started
    rtf = total_s / max(1e-9, n_samples / VOICE_HZ)
    return VoiceFigures(name, n_streams, max(first_ms.values(), default=0.0), rtf * n_streams)


def _drain(model: RecognizerModel) -> list[Any]:
    events: list[Any] = []
    for _ in range(MAX_STEPS):
        if not model.has_work():
            return events
        events += model.step()
    raise AudioError(f"expected a model that comes to an end, found work after {MAX_STEPS} steps")


def _time_requests(
    model: RecognizerModel,
    request: Callable[[str], None],
    names: Sequence[str],
    answer: type,
    watch: Stopwatch,
    events: list[Any],
) -> float:
    """Milliseconds until the last stream's answer, all asking at once."""
    before = watch.total_s
    for stream_id in names:
        request(stream_id)
    waiting = set(names)
    with watch.running():
        for _ in range(MAX_STEPS):
            if not waiting:
                break
            for event in model.step():
                events.append(event)
                if isinstance(event, StreamFailed):
                    raise AudioError(f"stream {event.stream_id} failed: {event.message}")
                if isinstance(event, answer):
                    waiting.discard(event.stream_id)
    return 1000.0 * (watch.total_s - before)


def _stability(events: Sequence[Any]) -> tuple[int, float]:
    """Stable words taken back, and unstable words changed per word of the transcripts."""
    n_retracted = n_revised = n_words = 0
    stable: dict[str, tuple[str, ...]] = {}
    shown: dict[str, tuple[str, ...]] = {}
    for event in events:
        if isinstance(event, Partial):
            before = stable.get(event.stream_id, ())
            words = (*event.stable_words, *event.unstable_words)
            n_retracted += sum(a != b for a, b in zip(before, words, strict=False))
            n_retracted += max(0, len(before) - len(words))
            last = shown.get(event.stream_id, ())
            n_revised += sum(a != b for a, b in zip(last, words, strict=False))
            stable[event.stream_id], shown[event.stream_id] = event.stable_words, words
        elif isinstance(event, Transcript):
            n_words += len(event.words)
    return n_retracted, n_revised / max(1, n_words)


def print_table(rows: Sequence[Any]) -> None:
    if not rows:
        return
    header = list(asdict(rows[0]))
    cells = [[_cell(value) for value in asdict(row).values()] for row in rows]
    widths = [max(len(c) for c in column) for column in zip(header, *cells, strict=True)]
    for line in (header, *cells):
        print("  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)))
    print()


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, dict):
        return ", ".join(f"{name} {_cell(inner)}" for name, inner in value.items())
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _folder(text: str) -> tuple[str, Path]:
    name, equals, path = text.partition("=")
    with_folders = [name for name, (_, needs) in (RECOGNIZERS | VOICES).items() if needs]
    if not equals or name not in with_folders:
        raise argparse.ArgumentTypeError(
            f"expected NAME=PATH with a name of {', '.join(with_folders)}, found {text!r}"
        )
    if not Path(path).is_dir():
        raise argparse.ArgumentTypeError(f"expected a folder of {name}'s weights, found {path!r}")
    return name, Path(path)


def parsed(arguments: Sequence[str] | None) -> tuple[Benchmark, argparse.Namespace]:
    command = Benchmark(
        "speech_bench",
        "What each recognizer and voice costs, alone and batched over streams. A model that is "
        "given no folder runs with random weights of its true size: times are right, words are "
        "not. A run that is interrupted writes the models that were done.",
        check=False,
    )
    names = (*RECOGNIZERS, *VOICES)
    add = command.parser.add_argument
    add("--models", nargs="+", choices=names, metavar="NAME", default=DEFAULT_MODELS,
        help=f"of {', '.join(names)} (default: {', '.join(DEFAULT_MODELS)})")  # fmt: skip
    add("--streams", nargs="+", type=whole_number(1), default=[1, 2, 4], metavar="N",
        help="numbers of streams at once, one after the other (default: 1 2 4)")  # fmt: skip
    add("--folder", action="append", default=[], type=_folder, metavar="NAME=PATH",
        help="a model's own weights instead of random ones; repeatable")  # fmt: skip
    add("--score", nargs="*", choices=tuple(RECOGNIZERS), metavar="RECOGNIZER",
        help="score each voice by DNSMOS (package speechmos), and by what each of these reads "
        "back: two, as one may mishear what is said well")  # fmt: skip
    return command, command.parse(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    command, options = parsed(arguments)
    is_recorded = bool(recordings())
    if not is_recorded:
        print(
            f"no recordings in {data_folder().absolute()}/speech/ljspeech (set VOICELOOP_DATA): "
            "the callers are bursts of noise",
            file=sys.stderr,
        )
    recognizers: list[RecognizerFigures] = []
    voices: list[VoiceFigures] = []
    random: list[str] = []
    with tempfile.TemporaryDirectory(prefix="speech_bench") as scratch:
        try:
            for name in options.models:
                try:
                    rows, is_random = measure(name, options, Path(scratch))
                except AudioError as error:
                    print(f"{name}: {error}", file=sys.stderr)
                    continue
                random += [name] * is_random
                (recognizers if name in RECOGNIZERS else voices).extend(rows)
        except KeyboardInterrupt:
            command.interrupt()
    if not recognizers and not voices:
        return command.without_results()
    print_table(recognizers)
    print_table(voices)
    settings = {
        "callers": "recorded" if is_recorded else "bursts of noise",
        "random": random,
    }
    figures = {
        "recognizers": [asdict(row) for row in recognizers],
        "voices": [asdict(row) for row in voices],
    }
    return command.finish(settings, **figures)


def measure(name: str, options: argparse.Namespace, scratch: Path) -> tuple[list[Any], bool]:
    """One model's rows, one for each number of streams; whether its weights are random.

    Raises:
        AudioError: it cannot be loaded, or fails.
    """
    model, is_random = load(name, dict(options.folder), scratch)
    rows: list[Any] = []
    # The first pass pays for caches and kernels; nobody calls into a cold model.
    for n_streams in (1, *options.streams):
        if name in RECOGNIZERS:
            rows.append(measure_recognizer(name, model, n_streams, is_random))
        else:
            rows.append(measure_voice(name, model, n_streams))
    if name in VOICES and options.score is not None and not is_random:
        scores = score_voice(model, options, scratch)
        rows = [replace(row, **scores) for row in rows]
    return rows[1:], is_random


def score_voice(model: VoiceModel, options: argparse.Namespace, scratch: Path) -> dict[str, Any]:
    """How a voice sounds and is understood. Raises: AudioError if something it needs is absent."""
    mark = Dnsmos()
    clips = [speak(model, text) for text in SENTENCES]
    wrong: dict[str, float] = {}
    for name in options.score:
        recognizer, is_random = load(name, dict(options.folder), scratch)
        if is_random:
            raise AudioError(f"expected --folder {name}=PATH to read back with it, found none")
        wrong[name] = read_back_wer(clips, recognizer)
    return {
        "dnsmos": float(np.mean([mark(clip) for clip in clips])),
        "read_back_wer": wrong or None,
    }


if __name__ == "__main__":
    sys.exit(run(main))

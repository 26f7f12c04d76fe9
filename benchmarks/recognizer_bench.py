"""What recognizers hear: words, words in what holds none, and how long the last ones take.

    python -m benchmarks.recognizer_bench [--models NAME ...] [--folder NAME=PATH] [--most N]
                                          [--sources NAME ...] [--noise-reduction]
                                          [--no-waits] [--check]

Word errors: every clip is a call of its own (a fresh stream, nothing known of the speaker, audio
streamed in 20 ms frames), as it is, through a telephone (8 kHz, u-law), and with a recorded noise
or the voices of six others 10 dB below it; with `--noise-reduction` these two also as a session
that asks for it hears them. Slot recall: share of a spoken order's slots whose words were all
heard. Inventions: clips without speech (216, besides 24 of babble) in which a word was heard. The
wait: in real time, from the end of a sound to the full hypothesis, of one call and of four at once;
it wants a quiet machine.

Where flite is installed, `flite` is benchmarks/cafe_sentences.txt in four of its voices. A run that
is interrupted writes the table of the clips it has heard.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from audio.frames import RECOGNIZER_HZ, Samples
from audio.noise_reduction import LEVELS
from audio.stream import RecognizerModel, RecognizerOptions
from benchmarks.harness.command_line import Benchmark, run
from benchmarks.harness.data_folder import data_with
from benchmarks.harness.harness import Bar
from benchmarks.harness.one_turn import CHUNK, recognize
from benchmarks.harness.speech_models import RECOGNIZERS, load
from benchmarks.recognizers.clips import (
    SNR_DB,
    Clip,
    conditions,
    read_audio,
    read_clip,
    read_clips,
)
from benchmarks.recognizers.flush_wait import flush_waits_ms
from benchmarks.recognizers.wordless import wordless
from clients.errors import ClientError
from clients.report.percentiles import percentile

DEFAULT_MODELS = ("moonshine-tiny",)
N_WAITS = 32  # clips of each measure of the wait
WAITED_FOR = "speechocean762"  # two to five seconds each, as turns are
# Of the embedded recognizer; clean read clips are those of speechocean762 and ljspeech.
MOST_WRONG = {
    "speechocean762, clean": 22.0,
    "ljspeech, clean": 22.0,
    "telephone numbers, clean": 15.0,
    "speechocean762, 8 kHz u-law": 30.0,
    "speechocean762, babble 10 dB": 40.0,
}
MOST_INVENTED = 2.0
MOST_WAIT_MS = {1: (90.0, 160.0), 4: (160.0, 300.0)}  # calls: p50, p95

Key = tuple[str, str, str]  # row of the table, model, clip


@dataclass(slots=True)
class Score:
    """errors over n: word errors, or slots not heard."""

    n_clips: int = 0
    errors: int = 0
    n: int = 0
    audio_s: float = 0.0
    cpu_s: float = 0.0


def parsed(arguments: Sequence[str] | None) -> tuple[Benchmark, argparse.Namespace]:
    command = Benchmark(
        "recognizer_bench",
        "Word error rates, inventions and waits of recognizers on the shared data "
        "(VOICELOOP_DATA). A run that is interrupted writes the table of what it has heard.",
    )
    add = command.parser.add_argument
    add("--models", nargs="+", metavar="NAME", choices=RECOGNIZERS, default=DEFAULT_MODELS,
        help=f"of {', '.join(RECOGNIZERS)} (default: {' '.join(DEFAULT_MODELS)})")  # fmt: skip
    add("--folder", action="append", default=[], type=_folder, metavar="NAME=PATH",
        help="the weights of a model that lies in no package; repeat for each")  # fmt: skip
    add("--sources", nargs="+", metavar="NAME",
        help="only these (fsdd, flite, commands, ...; default: all)")  # fmt: skip
    command.count("--most", 10**6, "clips of one source at most")
    command.switch("--noise-reduction", "hear the noisy clips with noise reduction too")
    command.switch("--no-waits", "leave out what needs a quiet machine")
    return command, command.parse(arguments)


def _folder(text: str) -> tuple[str, Path]:
    name, _, path = text.partition("=")
    if name not in RECOGNIZERS or not Path(path).is_dir():
        raise argparse.ArgumentTypeError(
            f"expected NAME=PATH, a recognizer and a folder, found {text!r}"
        )
    return name, Path(path)


def main(arguments: Sequence[str] | None = None) -> int:
    command, options = parsed(arguments)
    data = data_with(
        "speech/manifest.jsonl", "speech/commands.jsonl", "speech/slots.jsonl", "speech/noise"
    )
    known: dict[Key, Score] = {}
    waits: dict[str, dict[str, float | None]] = {}
    try:
        with tempfile.TemporaryDirectory() as scratch:
            for name in options.models:
                model = built(name, dict(options.folder), Path(scratch))
                measure(model, name, data / "speech", options, known)
                if not options.no_waits:
                    waits[name] = waits_of(model, data / "speech")
    except KeyboardInterrupt:
        command.interrupt()
        if not known:
            return command.without_results()
    table = as_table(known)
    print_table(table, waits)
    settings = {"snr_db": SNR_DB, "most": options.most, "chunk_ms": 1000 * CHUNK / RECOGNIZER_HZ}
    return command.finish(settings, bars_of(table, waits), rows=as_rows(table), waits=waits)


def built(name: str, folders: dict[str, Path], scratch: Path) -> RecognizerModel:
    """The model on the CPU. Raises: ClientError where its weights lie in no package."""
    if RECOGNIZERS[name][1] and name not in folders:
        raise ClientError(f"--models {name}: expected --folder {name}=PATH with it, found none")
    model: RecognizerModel = load(name, folders, scratch)[0]
    return model


def measure(
    model: RecognizerModel,
    name: str,
    speech: Path,
    options: argparse.Namespace,
    known: dict[Key, Score],
) -> None:
    """Score every clip and every wordless sound that ``known`` lacks; it is filled one by one.

    Raises:
        ClientError: a source is none of the data's.
    """
    clips = list(read_clips(speech, options.most))
    named = {clip.source.split()[0] for clip in clips}
    for source in options.sources or ():
        if source not in {*named, "wordless"}:
            known_ones = ", ".join(sorted(named))
            raise ClientError(f"--sources: expected of {known_ones}, wordless, found {source}")
    if "flite" not in named:
        print("flite is not installed: its sentences are left out", file=sys.stderr)
    fields = tuple(LEVELS) if options.noise_reduction else ()
    is_wanted = options.sources or [*named, "wordless"]
    noises = {path.name: read_audio(path) for path in sorted((speech / "noise").glob("*.flac"))}
    clips = [clip for clip in clips if clip.source.split()[0] in is_wanted]
    for index, clip in enumerate(clips):
        for condition, samples in conditions(read_clip(clip), noises, index, fields):
            key = (f"{clip.source}, {condition}", name, clip.name)
            if key not in known:
                known[key] = score_clip(model, clip, samples)
        if sys.stderr.isatty():
            print(f"\r{name} {index + 1}/{len(clips)}", end="", file=sys.stderr)
    if "wordless" in is_wanted:
        for index, (kind, samples) in enumerate(wordless(noises)):
            key = ("babble alone" if kind == "babble" else "no speech", name, f"{kind} {index}")
            if key not in known:
                heard, cpu_s = hear(model, samples)
                known[key] = Score(1, int(bool(heard)), 1, len(samples) / RECOGNIZER_HZ, cpu_s)


def hear(model: RecognizerModel, samples: Samples) -> tuple[list[str], float]:
    """The words, and the seconds of a core they took."""
    started_s = time.process_time()
    heard = recognize(model, samples, RecognizerOptions())
    words = [word for text in heard for word in text.split()]
    return words, time.process_time() - started_s


def score_clip(model: RecognizerModel, clip: Clip, samples: Samples) -> Score:
    heard, cpu_s = hear(model, samples)
    score = Score(1, audio_s=len(samples) / RECOGNIZER_HZ, cpu_s=cpu_s)
    if clip.slots:
        score.n = len(clip.slots)
        score.errors = sum(not set(slot) <= set(heard) for slot in clip.slots)
    else:
        score.n = len(clip.words)
        score.errors = edit_distance(as_zero(clip.words), as_zero(heard))
    return score


def as_zero(words: Iterable[str]) -> list[str]:
    """Both names of the digit are right."""
    return ["zero" if word == "oh" else word for word in words]


def waits_of(model: RecognizerModel, speech: Path) -> dict[str, float | None]:
    """Percentiles of the wait, in ms, by the number of calls."""
    chosen = [clip for clip in read_clips(speech, N_WAITS) if clip.source == WAITED_FOR]
    clips = [read_clip(clip) for clip in chosen]
    found: dict[str, float | None] = {}
    for n_calls in MOST_WAIT_MS:
        waited = flush_waits_ms(model, clips, n_calls)
        found |= {f"{n_calls} calls, p{p}": percentile(waited, p) for p in (50, 95)}
    return found


def as_table(scores: dict[Key, Score]) -> dict[str, dict[str, Score]]:
    """Sums of the clips: row -> model -> score."""
    table: dict[str, dict[str, Score]] = {}
    for (row, model, _), score in scores.items():
        total = table.setdefault(row, {}).setdefault(model, Score())
        for name, value in asdict(score).items():
            setattr(total, name, getattr(total, name) + value)
    return table


def edit_distance(reference: Sequence[str], heard: Sequence[str]) -> int:
    """Substitutions, deletions and insertions between two word sequences."""
    row = list(range(len(heard) + 1))
    for i, expected in enumerate(reference, start=1):
        diagonal, row[0] = row[0], i
        for j, found in enumerate(heard, start=1):
            change = diagonal + (expected != found)
            diagonal, row[j] = row[j], min(change, row[j] + 1, row[j - 1] + 1)
    return row[-1]


def rate_of(score: Score) -> float:
    return 100.0 * score.errors / max(1, score.n)


def bars_of(
    table: dict[str, dict[str, Score]], waits: dict[str, dict[str, float | None]]
) -> list[Bar]:
    """What the embedded recognizer must reach, of what was measured of it."""
    (embedded,) = DEFAULT_MODELS
    most = {**MOST_WRONG, "no speech": MOST_INVENTED}
    bars = [
        Bar(f"{row}, wrong", rate_of(table[row][embedded]), limit, "%", n=table[row][embedded].n)
        for row, limit in most.items()
        if embedded in table.get(row, {})
    ]
    for n_calls, limits in MOST_WAIT_MS.items():
        for p, limit in zip((50, 95), limits, strict=True):
            waited = waits.get(embedded, {}).get(f"{n_calls} calls, p{p}")
            if waited is not None:
                bars.append(Bar(f"wait of {n_calls} calls, p{p}", waited, limit, "ms"))
    return bars


def as_rows(table: dict[str, dict[str, Score]]) -> list[dict[str, Any]]:
    rows = []
    for name, scores in table.items():
        for model, score in scores.items():
            is_recall = "slots" in name
            measure = "slot_recall_percent" if is_recall else "wrong_percent"
            rows.append({
                "set": name, "model": model,
                measure: 100 - rate_of(score) if is_recall else rate_of(score),
                "n_clips": score.n_clips, "n": score.n,
                "rtf": round(score.cpu_s / max(1e-9, score.audio_s), 3),
            })  # fmt: skip
    return rows


def print_table(
    table: dict[str, dict[str, Score]], waits: dict[str, dict[str, float | None]]
) -> None:
    """Percent wrong (of slots: heard), a line for each source and condition; then the waits."""
    models = list(dict.fromkeys(model for scores in table.values() for model in scores))
    print(f"\n{'set':<36}{'clips':>6}" + "".join(f"{model:>20}" for model in models))
    for name, scores in table.items():
        cells = []
        for model in models:
            rate = rate_of(scores[model]) if model in scores else None
            if rate is not None and "slots" in name:
                rate = 100 - rate
            cells.append(f"{'-' if rate is None else f'{rate:.1f}':>20}")
        print(f"{name:<36}{next(iter(scores.values())).n_clips:>6}" + "".join(cells))
    for model, row in waits.items():
        print(f"wait, {model}: " + ", ".join(f"{k} {v:.0f} ms" for k, v in row.items() if v))


if __name__ == "__main__":
    sys.exit(run(main))

"""Word error rate of the embedded recognizer, generic against domain language model.

    python -m benchmarks.recognizer_bench [--data DIR] [--sources NAME ...] [--most N] [--out DIR]
                                          [--scores FILE] [--noise-reduction]

Every clip is a call of its own: a fresh stream, nothing known of the speaker, audio streamed in
20 ms frames. At 10 dB a recorded noise is mixed in, a different one for each clip; with
`--noise-reduction` it is also heard as a session with near_field and far_field hears it. Slot
recall: share of a spoken order's slots whose words were all heard.

Where flite is installed, `flite` is benchmarks/cafe_sentences.txt in four of its voices: a clean
voice saying what the model is made for. The model's settings were chosen on these sentences.

With `--scores` each clip's score is appended to a file and what stands there is not measured again:
a stopped run goes on, and sources measured one by one make one table. A run that is interrupted
writes the table of the clips it has heard.

The recognizer is a fallback that needs no download; these figures say how far it carries.
"""

import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import soundfile

from audio.asr.pocketsphinx import PocketsphinxRecognizer
from audio.errors import AudioError
from audio.frames import RECOGNIZER_HZ, Samples, rms_dbfs
from audio.noise_reduction import LEVELS, Field, NoiseReduction
from audio.recipes.hear_turns import CHUNK, recognize
from audio.stream import RecognizerOptions
from benchmarks.harness.command_line import (
    INTERRUPTED,
    benchmark_parser,
    exit_code,
    run,
    without_results,
)
from benchmarks.harness.data_folder import data_folder, data_with
from benchmarks.harness.harness import results, write_results
from clients.arguments import whole_number
from clients.errors import ClientError
from clients.outputs import check_file, prepare_folder

SNR_DB = 10.0
LEAD_S = 0.2  # of silence or noise before and after a clip, as the listener gives
SEED = 0
VARIANTS = ("generic", "domain")
FLITE_VOICES = ("slt", "rms", "awb", "kal16")
FLITE_RMS_DBFS = -24.0
SENTENCES = Path(__file__).parent / "cafe_sentences.txt"


@dataclass(frozen=True, slots=True)
class Clip:
    """A recording with either its words or, of a spoken order, its slots.

    path: a FLAC file; of `flite` the file of the sentence, and voice who says it.
    """

    source: str
    path: Path
    voice: str = ""
    words: tuple[str, ...] = ()
    slots: tuple[tuple[str, ...], ...] = ()

    @property
    def name(self) -> str:
        return f"{self.voice}: {' '.join(self.words)}" if self.voice else self.path.name


Key = tuple[str, str, str]  # row of the table, variant, clip


@dataclass(slots=True)
class Score:
    """errors over n: word errors, or slots not heard."""

    n_clips: int = 0
    errors: int = 0
    n: int = 0
    audio_s: float = 0.0
    cpu_s: float = 0.0


def main(arguments: Sequence[str] | None = None) -> int:
    parser = benchmark_parser(
        "recognizer_bench",
        "Word error rate of the embedded recognizer, generic against domain language model, on "
        "the shared data. A run that is interrupted writes the table of what it has heard.",
        folder="--out",
    )
    parser.add_argument(
        "--data", type=Path, metavar="DIR",
        help=f"the shared data (default: VOICELOOP_DATA, here {data_folder()})",
    )  # fmt: skip
    parser.add_argument(
        "--sources", nargs="+", metavar="NAME",
        help="only these (fsdd, flite, commands, ...; default: all)",
    )  # fmt: skip
    parser.add_argument(
        "--most", type=whole_number(1), default=10**6, metavar="N",
        help="clips of one source at most (default: all)",
    )  # fmt: skip
    parser.add_argument(
        "--out", type=Path, metavar="DIR", default=Path("benchmarks/results"),
        help="folder of the results (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--scores", type=Path, metavar="FILE",
        help="keep the scores of single clips here, and measure none again that it holds "
        "(default: none are kept)",
    )  # fmt: skip
    parser.add_argument(
        "--noise-reduction", action="store_true",
        help="hear the noisy clips with noise reduction too (extra noise)",
    )  # fmt: skip
    options = parser.parse_args(arguments)
    fields = tuple(LEVELS) if options.noise_reduction else ()
    data = data_with(
        "speech/manifest.jsonl", "speech/commands.jsonl", "speech/noise", folder=options.data
    )
    prepare_folder(options.out)
    if options.scores is not None:
        check_file(options.scores)
    known = read_scores(options.scores)
    partial = None
    try:
        measure(data / "speech", options.sources, options.most, options.scores, known, fields)
    except KeyboardInterrupt:
        partial = INTERRUPTED
        if not known:
            return without_results(partial)
    table = as_table(known)
    settings = {"snr_db": SNR_DB, "most": options.most, "chunk_ms": 1000 * CHUNK / RECOGNIZER_HZ}
    rows = as_rows(table)
    path = write_results(
        results("recognizer", SEED, settings, [], partial=partial, rows=rows), options.out
    )
    print_table(table)
    print(path)
    return exit_code((), partial, is_checked=False)


def measure(
    speech: Path,
    sources: Sequence[str] | None,
    most: int,
    path: Path | None,
    known: dict[Key, Score],
    fields: Sequence[Field],
) -> None:
    """Score every clip of these sources that ``known`` lacks, which is filled one by one.

    Raises:
        ClientError: a source is none of the data's.
    """
    clips = list(read_clips(speech, most))
    named = {clip.source.split()[0] for clip in clips}
    for source in sources or ():
        if source not in named:
            raise ClientError(f"--sources: expected of {', '.join(sorted(named))}, found {source}")
    if "flite" not in named:
        print("flite is not installed: its sentences are left out", file=sys.stderr)
    clips = [clip for clip in clips if not sources or clip.source.split()[0] in sources]
    noises = [read_audio(path) for path in sorted((speech / "noise").glob("*.flac"))]
    for variant in VARIANTS:
        recognizer = PocketsphinxRecognizer(variant)
        for index, clip in enumerate(clips):
            noise = noises[index % len(noises)]
            for condition, samples in conditions(read_clip(clip), noise, index, fields):
                key = (f"{clip.source}, {condition}", variant, clip.name)
                if key not in known:
                    known[key] = score_clip(recognizer, clip, samples)
                    keep_score(path, key, known[key])
            if sys.stderr.isatty():
                print(f"\r{variant} {index + 1}/{len(clips)}", end="", file=sys.stderr)


def read_clips(speech: Path, most: int) -> Iterator[Clip]:
    """At most `most` clips of each source, spread over its list."""
    by_source: dict[str, list[Clip]] = {}
    for line in (speech / "manifest.jsonl").read_text().splitlines():
        record = json.loads(line)
        words = tuple(record["text"].split())
        clip = Clip(record["source"], speech / record["file"], words=words)
        by_source.setdefault(clip.source, []).append(clip)
    for line in (speech / "commands.jsonl").read_text().splitlines():
        record = json.loads(line)
        slots = tuple(tuple(value.split()) for value in record["slots"].values())
        clip = Clip("commands (slots)", speech / record["file"], slots=slots)
        by_source.setdefault(clip.source, []).append(clip)
    if shutil.which("flite"):
        by_source["flite"] = [
            Clip("flite", SENTENCES, voice, tuple(sentence.split()))
            for sentence in SENTENCES.read_text().splitlines()
            for voice in FLITE_VOICES
        ]
    for clips in by_source.values():
        yield from clips[:: max(1, -(-len(clips) // most))]


def read_clip(clip: Clip) -> Samples:
    return synthesize(" ".join(clip.words), clip.voice) if clip.voice else read_audio(clip.path)


def synthesize(text: str, voice: str) -> Samples:
    """text in a voice of flite, at FLITE_RMS_DBFS."""
    with tempfile.NamedTemporaryFile(suffix=".wav") as file:
        command = ["flite", "-voice", voice, "-t", text, "-o", file.name]
        subprocess.run(command, check=True, capture_output=True)
        speech = read_audio(Path(file.name)).astype(np.float64)
    gain = 10 ** ((FLITE_RMS_DBFS - rms_dbfs(speech.astype(np.int16))) / 20)
    return np.clip(speech * gain, -32768, 32767).astype(np.int16)


def read_audio(path: Path) -> Samples:
    samples, rate_hz = soundfile.read(path, dtype="int16")
    if rate_hz != RECOGNIZER_HZ:
        raise AudioError(f"expected {path} at {RECOGNIZER_HZ} Hz, found {rate_hz}")
    return np.asarray(samples, np.int16)


def conditions(
    speech: Samples, noise: Samples, index: int, fields: Sequence[Field] = ()
) -> Iterator[tuple[str, Samples]]:
    """The clip with a silent edge, with noise at SNR_DB below its level, and with that reduced."""
    edge = round(LEAD_S * RECOGNIZER_HZ)
    padded = np.pad(speech, edge).astype(np.float64)
    generator = np.random.default_rng(SEED + index)
    hiss = generator.normal(0.0, 3.0, len(padded))  # digital silence exists on no line
    yield "clean", np.clip(padded + hiss, -32768, 32767).astype(np.int16)
    start = int(generator.integers(0, len(noise)))
    repeated = np.resize(np.roll(noise, -start), len(padded))
    gain = 10 ** ((rms_dbfs(speech) - SNR_DB - rms_dbfs(repeated)) / 20)
    noisy = np.clip(padded + gain * repeated, -32768, 32767).astype(np.int16)
    yield f"{SNR_DB:.0f} dB", noisy
    for field in fields:
        reduction = NoiseReduction(field)
        cleaned = np.concatenate((reduction.push(noisy), reduction.flush()))
        yield f"{SNR_DB:.0f} dB, {field}", cleaned


def score_clip(recognizer: PocketsphinxRecognizer, clip: Clip, samples: Samples) -> Score:
    started = time.process_time()
    heard = recognize(recognizer, samples, RecognizerOptions())
    score = Score(1, audio_s=len(samples) / RECOGNIZER_HZ, cpu_s=time.process_time() - started)
    if clip.slots:
        score.n = len(clip.slots)
        score.errors = sum(not set(slot) <= set(heard) for slot in clip.slots)
    else:
        score.n = len(clip.words)
        score.errors = edit_distance(clip.words, heard)
    return score


def read_scores(path: Path | None) -> dict[Key, Score]:
    """(row, variant, clip) -> score of the clips that `keep_score` has written.

    Raises:
        ClientError: the file holds something else.
    """
    if path is None or not path.exists():
        return {}
    try:
        records = [json.loads(line) for line in path.read_text().splitlines()]
        return {tuple(record["key"]): Score(**record["score"]) for record in records}
    except (ValueError, KeyError, TypeError) as error:
        raise ClientError(f"expected scores of single clips in {path}, found: {error}") from error


def keep_score(path: Path | None, key: Key, score: Score) -> None:
    if path is not None:
        with path.open("a") as file:
            file.write(json.dumps({"key": key, "score": asdict(score)}) + "\n")


def as_table(scores: dict[Key, Score]) -> dict[str, dict[str, Score]]:
    """Sums of the clips: row -> variant -> score."""
    table: dict[str, dict[str, Score]] = {}
    for (row, variant, _), score in scores.items():
        total = table.setdefault(row, {}).setdefault(variant, Score())
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


def as_rows(table: dict[str, dict[str, Score]]) -> list[dict[str, Any]]:
    rows = []
    for name, scores in table.items():
        for variant, score in scores.items():
            rate = 100 * score.errors / max(1, score.n)
            is_recall = "slots" in name
            measure = "slot_recall_percent" if is_recall else "wer_percent"
            rows.append({
                "set": name, "model": variant, measure: 100 - rate if is_recall else rate,
                "n_clips": score.n_clips, "n": score.n,
                "rtf": round(score.cpu_s / max(1e-9, score.audio_s), 3),
            })  # fmt: skip
    return rows


def print_table(table: dict[str, dict[str, Score]]) -> None:
    """WER (or slot recall) in percent, a line for each source and condition."""
    print(f"\n{'set':<28}{'clips':>6}" + "".join(f"{variant:>10}" for variant in VARIANTS))
    for name, scores in table.items():
        cells = []
        for variant in VARIANTS:
            score = scores.get(variant)
            rate = 100 * score.errors / max(1, score.n) if score else None
            if rate is not None and "slots" in name:
                rate = 100 - rate
            cells.append(f"{'-' if rate is None else f'{rate:.1f}':>10}")
        print(f"{name:<28}{next(iter(scores.values())).n_clips:>6}" + "".join(cells))


if __name__ == "__main__":
    sys.exit(run(main))

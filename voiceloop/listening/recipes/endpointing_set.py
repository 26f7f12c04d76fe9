"""The turns on which endpointing is measured and fitted: audio, words with times, true pauses.

Owns the set: human clips of the shared data and synthesized callers, each plain and with
hesitations of 300-1200 ms spliced in as room tone, and copies in noise and over a telephone's
u-law. Every silence of at least 100 ms is known and is a hold, except the last, which is the end.
Speakers of the fit and of the test are disjoint. Deterministic.

Source: the protocol of eot-bench (Apache-2.0), applied to another set; figures do not compare.
"""

from __future__ import annotations

import json
import pickle
import random
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy.signal import butter, sosfiltfilt

from audio.codec import decode, encode
from audio.frames import RECOGNIZER_HZ
from audio.resample import Resampler
from clients.recording import Samples, read_flac, to_int16
from clients.report.waveform import FULL_SCALE, pauses, room_noise, speech_end
from voiceloop.listening.recipes.disk_cache import cache_folder
from voiceloop.listening.recipes.forced_alignment import SpokenWord, align, knows
from voiceloop.listening.recipes.synthetic_callers import (
    Part,
    ScriptedTurn,
    scripted_turns,
    short_answers,
    speak,
    words_of,
)

MS = RECOGNIZER_HZ // 1000
SET_VERSION = 4  # to be raised with every change of what follows, and where a kept class moves
LEAD_MS = 500.0  # of the room before the caller speaks
TRAIL_MS = 2600.0  # and after: past the longest wait of 2 s
SPEECH_DBFS = -23.0
FLOOR_DBFS = -68.0  # of the room under everything
HESITATION_MS = (300.0, 1200.0)
ROOM_TONE_DBFS = (-72.0, -52.0)  # of a hesitation: it is never the clip's own floor
HOLD_MS = 100.0
FADE = 8 * MS
COPIES = frozenset({"noise 10 dB", "u-law 8 kHz"})  # slices that repeat other turns
# Turns whose words no caller of the train split says: the agent has learned from the others' words.
UNSEEN = "words unseen"
COPIES_EVERY = 5  # known test turns, about one is copied into noise and over u-law
NOISE_DB = 10.0  # below the speech
# The waveform's end may be a breath or the floor of an old recording: the aligned last word says.
LATEST_AFTER_WORD_MS = 150.0
GREETING = (("assistant", "Hi, how can I help you?"),)


@dataclass(frozen=True, slots=True)
class CallerTurn:
    """One turn in a quiet room. Times in ms from its first sample, int16 at 16 kHz.

    words: None where no exact transcript is known. holds: true pauses inside the turn.
    slices: what it counts under, e.g. "human", "hesitation", "digits".
    """

    name: str
    speaker: str
    part: Part
    samples: Samples
    words: tuple[SpokenWord, ...] | None
    holds: tuple[tuple[float, float], ...]
    end_ms: float
    history: tuple[tuple[str, str], ...]
    slices: frozenset[str]


def part_of(speaker: str) -> Part:
    """Half of the human speakers, by their name."""
    return "fit" if zlib.crc32(speaker.encode()) % 2 else "test"


def caller_turns(data: Path, part: Part) -> list[CallerTurn]:
    """All turns of a part; of the test part also the copies in noise and over u-law.

    Kept in the cache folder: making them takes a minute.
    """
    path = cache_folder() / "turns" / f"{part}-{SET_VERSION}.pickle"
    if path.is_file():
        kept: list[CallerTurn] = pickle.loads(path.read_bytes())
        return kept
    turns = _make(data, part)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pickle.dumps(turns))
    return turns


def marked(turns: Sequence[CallerTurn], said: frozenset[tuple[str, ...]]) -> list[CallerTurn]:
    """The turns; those whose words are known and none of these sayings count as unseen too."""
    return [
        turn
        if turn.words is None or tuple(word.text for word in turn.words) in said
        else replace(turn, slices=turn.slices | {UNSEEN})
        for turn in turns
    ]


def _make(data: Path, part: Part) -> list[CallerTurn]:
    found: list[CallerTurn] = []
    for clip in _clips(data, part):
        chance = random.Random(clip.name)
        found.append(_in_room(clip))
        hesitant = _hesitating(clip, chance)
        if hesitant is not None:
            found.append(_in_room(hesitant))
    if part == "test":
        noises = [read_flac(path).samples for path in sorted((data / "speech/noise").glob("*"))]
        # By the name: every nth would fall in step with the plain and hesitating copies of a clip.
        known = [turn for turn in found if turn.words is not None and _is_copied(turn)]
        found += [in_noise(turn, noises[i % len(noises)]) for i, turn in enumerate(known)]
        found += [over_u_law(turn) for turn in known]
    for scripted in short_answers(part):
        found += [_in_room(clip) for clip in _synthetic(scripted, part)]
    return found


def _clips(data: Path, part: Part) -> Iterator[CallerTurn]:
    for row in _rows(data / "speech" / "manifest.jsonl"):
        if part_of(row["speaker"]) == part:
            yield from _human(data, row, part)
    if part == "test":
        for row in _rows(data / "speech" / "commands.jsonl")[::2]:
            yield from _order(data, row)
    for scripted in scripted_turns(data / "dialogues", part):
        yield from _synthetic(scripted, part)


def _rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def _human(data: Path, row: dict[str, Any], part: Part) -> Iterator[CallerTurn]:
    samples = levelled(read_flac(data / "speech" / row["file"]).samples)
    slices = {"human"} | ({"digits"} if row["source"] == "fsdd" else set())
    yield from _labelled(
        row["file"], row["speaker"], part, samples, words_of(row["text"]), GREETING, slices
    )


def _order(data: Path, row: dict[str, Any]) -> Iterator[CallerTurn]:
    """A spontaneous order: no exact transcript, so only its end and its own pauses are known."""
    samples = levelled(read_flac(data / "speech" / row["file"]).samples)
    end = speech_end(samples, RECOGNIZER_HZ) or len(samples)
    yield CallerTurn(
        row["file"], row["file"], "test", samples, None, _holds(samples, 0.0, end / MS),
        end / MS, GREETING, frozenset({"orders"}),
    )  # fmt: skip


def _synthetic(scripted: ScriptedTurn, part: Part) -> Iterator[CallerTurn]:
    words = words_of(scripted.text)
    if knows(words):
        slices = {"synthetic"} | ({scripted.kind} - {"turn"})
        yield from _labelled(
            scripted.name, scripted.speaker, part, levelled(speak(scripted)), words,
            scripted.history or GREETING, slices,
        )  # fmt: skip


def _labelled(
    name: str,
    speaker: str,
    part: Part,
    samples: Samples,
    words: tuple[str, ...],
    history: tuple[tuple[str, str], ...],
    slices: set[str],
) -> Iterator[CallerTurn]:
    """The clip with its labels; none where the aligner could not follow."""
    aligned = align(samples, words)
    end = speech_end(samples, RECOGNIZER_HZ)
    if not aligned or end is None:
        return
    end_ms = end / MS
    if end_ms > aligned[-1].end_ms + LATEST_AFTER_WORD_MS:
        end_ms = aligned[-1].end_ms
    holds = _holds(samples, aligned[0].end_ms, end_ms)
    yield CallerTurn(
        name, speaker, part, samples, aligned, holds, end_ms, history, frozenset(slices)
    )


def _holds(samples: Samples, after_ms: float, before_ms: float) -> tuple[tuple[float, float], ...]:
    found = [(start / MS, end / MS) for start, end in pauses(samples, RECOGNIZER_HZ, HOLD_MS)]
    return tuple((start, end) for start, end in found if start > after_ms and end < before_ms)


def levelled(samples: Samples) -> Samples:
    """Rumble out, speech at -23 dBFS."""
    rumble = butter(2, 50, "high", fs=RECOGNIZER_HZ, output="sos")
    centred = sosfiltfilt(rumble, samples.astype(np.float64))
    loud = np.abs(centred) > np.abs(centred).max() / 30
    rms = float(np.sqrt(np.mean(np.square(centred[loud])))) if loud.any() else 1.0
    return to_int16(centred * FULL_SCALE * 10.0 ** (SPEECH_DBFS / 20.0) / max(rms, 1.0))


def _seed(name: str) -> int:
    return zlib.crc32(name.encode())


def _in_room(clip: CallerTurn) -> CallerTurn:
    """The room before, under and after the clip."""
    n_lead, n_trail = int(LEAD_MS * MS), int(TRAIL_MS * MS)
    end = min(len(clip.samples), int((clip.end_ms + 60.0) * MS))  # not the recording's own silence
    kept = clip.samples[:end].astype(np.float64)
    kept[-FADE:] *= np.linspace(1.0, 0.0, FADE)
    whole = room_noise(
        n_lead + len(kept) + n_trail, RECOGNIZER_HZ, _seed(clip.name), FLOOR_DBFS
    ).astype(np.float64)
    whole[n_lead : n_lead + len(kept)] += kept
    return replace(
        clip,
        samples=to_int16(whole),
        words=None if clip.words is None else tuple(word.moved(LEAD_MS) for word in clip.words),
        holds=tuple((start + LEAD_MS, end + LEAD_MS) for start, end in clip.holds),
        end_ms=clip.end_ms + LEAD_MS,
    )


def _hesitating(clip: CallerTurn, chance: random.Random) -> CallerTurn | None:
    """One hesitation, or now and then two, between words; None where there is no such place."""
    if clip.words is None or len(clip.words) < 3:
        return None
    n_gaps = 2 if len(clip.words) >= 6 and chance.random() < 0.3 else 1
    places = sorted(chance.sample(range(len(clip.words) - 1), n_gaps), reverse=True)
    hesitant = clip
    for place in places:
        hesitant = _spliced(hesitant, place, chance)
    return replace(hesitant, name=clip.name + "+hesitation", slices=clip.slices | {"hesitation"})


def _spliced(clip: CallerTurn, place: int, chance: random.Random) -> CallerTurn:
    """Room tone after the word at ``place``, at the quietest point near the boundary."""
    assert clip.words is not None
    cut_ms = _quietest_ms(clip.samples, clip.words[place].end_ms)
    gap_ms = chance.uniform(*HESITATION_MS)
    cut, n_gap = int(cut_ms * MS), int(gap_ms * MS)
    tone = room_noise(
        n_gap, RECOGNIZER_HZ, chance.randrange(2**31), chance.uniform(*ROOM_TONE_DBFS)
    )
    before, after = clip.samples[:cut].astype(np.float64), clip.samples[cut:].astype(np.float64)
    before[-FADE:] *= np.linspace(1.0, 0.0, len(before[-FADE:]))
    after[:FADE] *= np.linspace(0.0, 1.0, len(after[:FADE]))
    samples = to_int16(np.concatenate([before, tone.astype(np.float64), after]))
    words = tuple(
        word.moved(gap_ms) if index > place else word for index, word in enumerate(clip.words)
    )
    holds = [(cut_ms, cut_ms + gap_ms)]
    for start, end in clip.holds:
        if start <= cut_ms <= end:  # the clip's own pause has grown
            holds[0] = (start, end + gap_ms)
        else:
            holds.append((start, end) if end < cut_ms else (start + gap_ms, end + gap_ms))
    return replace(
        clip, samples=samples, words=words, holds=tuple(sorted(holds)),
        end_ms=clip.end_ms + gap_ms,
    )  # fmt: skip


def _quietest_ms(samples: Samples, near_ms: float) -> float:
    """The quietest 10 ms within 40 ms of a word boundary."""
    centres = np.arange(near_ms - 40.0, near_ms + 41.0, 5.0)
    levels = []
    for centre in centres:
        piece = samples[max(0, int((centre - 5) * MS)) : int((centre + 5) * MS)].astype(np.float64)
        levels.append(float(np.mean(np.square(piece))) if len(piece) else np.inf)
    return float(centres[int(np.argmin(levels))])


def _is_copied(turn: CallerTurn) -> bool:
    return _seed(f"copy {turn.name}") % COPIES_EVERY == 0


def in_noise(turn: CallerTurn, noise: Samples) -> CallerTurn:
    long_enough = np.resize(noise, len(turn.samples)).astype(np.float64)
    wanted = FULL_SCALE * 10.0 ** ((SPEECH_DBFS - NOISE_DB) / 20.0)
    long_enough *= wanted / float(np.sqrt(np.mean(np.square(long_enough))))
    noisy = to_int16(turn.samples + long_enough)
    return replace(
        turn, name=turn.name + "+noise", samples=noisy, slices=turn.slices | {"noise 10 dB"}
    )


def over_u_law(turn: CallerTurn) -> CallerTurn:
    """To 8 kHz u-law and back, as the server hears a telephone."""
    down, up = Resampler(RECOGNIZER_HZ, 8_000), Resampler(8_000, RECOGNIZER_HZ)
    narrow = np.concatenate([down.push(turn.samples), down.flush()])
    heard = decode(encode(narrow, "pcmu"), "pcmu")
    wide = np.concatenate([up.push(heard), up.flush()])[: len(turn.samples)]
    return replace(
        turn, name=turn.name + "+u-law", samples=wide, slices=turn.slices | {"u-law 8 kHz"}
    )

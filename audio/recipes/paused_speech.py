"""Turns of real people with the pauses they made: orders, dictation, a call, read sentences.

Owns the reading of `speech/` of the shared data as turns of one form: where speech begins and ends,
every silence within it, and the room it was said in, which goes on after the end for as long as
somebody may wait there. The times come from energy alone, as the data's own README tells.
"""

import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import soundfile
from numpy.typing import NDArray

from ..frames import RECOGNIZER_HZ, Samples
from ..resample import Resampler

Kind = Literal["number", "address", "name", "order", "call", "read"]
Spans = tuple[tuple[float, float], ...]  # ms

MS = RECOGNIZER_HZ // 1000
KINDS_OF_SLOTS: dict[str, Kind] = {"phone": "number", "address": "address", "spelling": "name"}
READERS = frozenset({"speechocean762", "ljspeech", "librispeech", "jfk"})
LEAST_PAUSE_MS = 100.0
# Of the recording behind the turn's end: a breath belongs to the turn, the click of a button may
# come later. Then the same room goes on, made from the clip's own quiet parts.
OWN_TAIL_MS = 300.0
JOIN_MS = 20.0
# A silence of the other side's words at least so long hands the turn over; less is an "mm-hm".
HANDED_OVER_MS = 300.0
LEAST_TURN_MS = 300.0
# Where a gate leaves digital silence the room is this: a line is never silent.
FLOOR_DBFS = -72.0
SPECTRUM = 512

# The rule of the data's README, for clips whose pauses it does not list.
FRAME, HOP = 20 * MS, 10 * MS
LOW_HZ, HIGH_HZ = 120.0, 7000.0
BELOW_LOUD_DB, ABOVE_QUIET = 38.0, 0.3
SHORTEST_SOUND_MS = 40.0


@dataclass(frozen=True, slots=True)
class PausedTurn:
    """One turn, int16 [n] at 16 kHz; times in ms from its first sample.

    pauses: every silence of at least 100 ms between start_ms and end_ms. text: what was to be said,
    None where nobody wrote it down.
    """

    name: str
    kind: Kind
    speaker: str
    samples: Samples
    start_ms: float
    end_ms: float
    pauses: Spans
    text: str | None = None


def paused_turns(data: Path) -> Iterator[PausedTurn]:
    """All of them; `data` is the folder that holds speech/."""
    speech = data / "speech"
    for row in _rows(speech / "slots.jsonl"):
        yield _listed(speech, row, KINDS_OF_SLOTS[row["kind"]], row["text"])
    for row in _rows(speech / "orders.jsonl"):
        yield _listed(speech, row, "order", None)
    for row in _rows(speech / "calls.jsonl"):
        yield from _turns_of_call(speech, row)
    for row in _rows(speech / "manifest.jsonl"):
        if row["source"] in READERS:
            yield _read(speech, row)


def _rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def _listed(speech: Path, row: dict[str, Any], kind: Kind, text: str | None) -> PausedTurn:
    pauses = tuple((float(start), float(end)) for start, end in row["pauses"])
    start_ms, end_ms = float(row["start_of_speech_ms"]), float(row["end_of_speech_ms"])
    samples = _mono(speech / row["file"])
    return PausedTurn(row["file"], kind, row["speaker"], samples, start_ms, end_ms, pauses, text)


def _read(speech: Path, row: dict[str, Any]) -> PausedTurn:
    samples = _mono(speech / row["file"])
    sounds = sounding(samples)
    pauses = tuple((a[1], b[0]) for a, b in zip(sounds, sounds[1:], strict=False))
    start_ms, end_ms = sounds[0][0], sounds[-1][1]
    return PausedTurn(
        row["file"], "read", row["speaker"], samples, start_ms, end_ms, pauses, row["text"]
    )


def _mono(path: Path) -> Samples:
    samples, rate_hz = soundfile.read(path, dtype="int16")
    return _at_recognizer_rate(samples, rate_hz)


def _at_recognizer_rate(samples: Samples, rate_hz: int) -> Samples:
    if rate_hz == RECOGNIZER_HZ:
        return samples
    resampler = Resampler(rate_hz, RECOGNIZER_HZ)
    return np.concatenate([resampler.push(samples), resampler.flush()])


# -- a call of two channels ----------------------------------------------------------------------


def _turns_of_call(speech: Path, row: dict[str, Any]) -> Iterator[PausedTurn]:
    """The turns of both sides: each ends where the other one takes over."""
    both, rate_hz = soundfile.read(speech / row["file"], dtype="int16")
    spans = {
        channel: [
            (float(one["start_ms"]), float(one["end_ms"]))
            for one in row["segments"]
            if one["channel"] == channel
        ]
        for channel in row["channels"]
    }
    for index, channel in enumerate(row["channels"]):
        samples = _at_recognizer_rate(np.ascontiguousarray(both[:, index]), rate_hz)
        others = [span for name in row["channels"] if name != channel for span in spans[name]]
        for number, sounds in enumerate(_turns(spans[channel], others)):
            start_ms, end_ms = sounds[0][0], sounds[-1][1]
            if end_ms - start_ms < LEAST_TURN_MS:
                continue
            later = [begin for begin, _ in spans[channel] if begin > end_ms]
            first_ms = max(0.0, start_ms - OWN_TAIL_MS)
            last_ms = min([end_ms + OWN_TAIL_MS, *later[:1]])
            yield PausedTurn(
                f"{row['file']}#{channel}{number}",
                "call",
                row["speakers"][index],
                samples[int(first_ms * MS) : int(last_ms * MS)],
                start_ms - first_ms,
                end_ms - first_ms,
                tuple(
                    (a[1] - first_ms, b[0] - first_ms)
                    for a, b in zip(sounds, sounds[1:], strict=False)
                    if b[0] - a[1] >= LEAST_PAUSE_MS
                ),
            )


def _turns(own: list[tuple[float, float]], other: list[tuple[float, float]]) -> Iterator[Any]:
    """Runs of own sounds with no word of the other side between them; the last has no end."""
    turn = [own[0]]
    for before, after in zip(own, own[1:], strict=False):
        between = sum(max(0.0, min(b, after[0]) - max(a, before[1])) for a, b in other)
        if between >= HANDED_OVER_MS:
            yield turn
            turn = []
        turn.append(after)


# -- silence -------------------------------------------------------------------------------------


def sounding(samples: Samples) -> list[tuple[float, float]]:
    """Runs of sound in ms, at least 100 ms apart: the rule of the data's README.

    Its rules for clicks at the ends are left out: the clips this is for have none.
    """
    n_frames = max(1, (len(samples) - FRAME) // HOP + 1)
    frames = np.lib.stride_tricks.sliding_window_view(
        np.pad(samples.astype(np.float64), (0, FRAME)), FRAME
    )[::HOP][:n_frames]
    spectrum = np.abs(np.fft.rfft(frames, axis=1)) ** 2
    hz = np.fft.rfftfreq(FRAME, 1.0 / RECOGNIZER_HZ)
    power = spectrum[:, (hz >= LOW_HZ) & (hz <= HIGH_HZ)].sum(axis=1) / FRAME**2
    levels = 10.0 * np.log10(power + 1e-3)
    loud, quiet = np.percentile(levels, 95), np.percentile(levels, 5)
    is_loud = levels > max(loud - BELOW_LOUD_DB, quiet + ABOVE_QUIET * (loud - quiet))
    edges = np.flatnonzero(np.diff(np.concatenate(([0], is_loud.astype(int), [0]))))
    hop_ms = HOP / MS
    runs = [(a * hop_ms, b * hop_ms) for a, b in edges.reshape(-1, 2)]
    runs = [run for run in runs if run[1] - run[0] >= SHORTEST_SOUND_MS]
    joined: list[tuple[float, float]] = []
    for run in runs:
        if joined and run[0] - joined[-1][1] < LEAST_PAUSE_MS:
            joined[-1] = (joined[-1][0], run[1])
        else:
            joined.append(run)
    return joined or [(0.0, len(samples) / MS)]


def own_room(turn: PausedTurn, n_samples: int) -> NDArray[np.float64]:
    """The turn's own room without anybody in it: noise of its quiet parts' spectrum [n]."""
    rng = np.random.default_rng(zlib.crc32(turn.name.encode()))
    white = rng.standard_normal(n_samples + SPECTRUM)
    spectrum = np.fft.rfft(white)
    place = np.linspace(0.0, 1.0, len(spectrum))
    shape = _room_spectrum(turn)
    spectrum *= np.interp(place, np.linspace(0.0, 1.0, len(shape)), shape)
    noise = np.fft.irfft(spectrum, n_samples + SPECTRUM)[:n_samples]
    return np.asarray(noise, np.float64)


def _room_spectrum(turn: PausedTurn) -> NDArray[np.float64]:
    """Amplitude of white noise of variance 1 that sounds as the clip's quiet parts do."""
    spans = [(0.0, turn.start_ms), *turn.pauses, (turn.end_ms, len(turn.samples) / MS)]
    frames = [
        turn.samples[at : at + SPECTRUM].astype(np.float64)
        for start_ms, end_ms in spans
        for at in range(int(start_ms * MS), int(end_ms * MS) - SPECTRUM, SPECTRUM // 2)
    ]
    floor = np.full(SPECTRUM // 2 + 1, 32768.0 * 10.0 ** (FLOOR_DBFS / 20.0))
    if not frames:
        return floor
    window = np.hanning(SPECTRUM)
    power = np.abs(np.fft.rfft(np.stack(frames) * window, axis=1)) ** 2 / np.sum(window**2)
    # The quieter half: the decay of a word lies in the louder one.
    quieter = power[np.argsort(power.sum(axis=1))[: max(1, len(power) // 2)]]
    return np.maximum(np.sqrt(quieter.mean(axis=0)), floor)


def with_room(turn: PausedTurn, lead_ms: float, trail_ms: float) -> PausedTurn:
    """The turn with exactly so much of its own room before the first and after the last sound."""
    n_lead = int(min(turn.start_ms, lead_ms) * MS)
    first = int(turn.start_ms * MS) - n_lead
    last = min(len(turn.samples), int((turn.end_ms + min(trail_ms, OWN_TAIL_MS)) * MS))
    kept = turn.samples[first:last].astype(np.float64)
    n_before = int(lead_ms * MS) - n_lead
    n_all = int((lead_ms + turn.end_ms - turn.start_ms + trail_ms) * MS)
    n_after = max(0, n_all - n_before - len(kept))
    n_join = min(int(JOIN_MS * MS), len(kept) // 4)
    room = own_room(turn, n_before + n_after + 2 * n_join)
    rise = np.sqrt(np.linspace(0.0, 1.0, n_join))
    whole = np.concatenate([room[:n_before], kept, room[n_before : n_before + n_after]])
    joins = room[n_before + n_after :].reshape(2, n_join)
    if n_before:
        at = slice(n_before, n_before + n_join)
        whole[at] = whole[at] * rise + joins[0] * rise[::-1]
    if n_after:
        at = slice(n_before + len(kept) - n_join, n_before + len(kept))
        whole[at] = whole[at] * rise[::-1] + joins[1] * rise
    moved_ms = lead_ms - turn.start_ms
    return PausedTurn(
        turn.name,
        turn.kind,
        turn.speaker,
        np.clip(np.rint(whole[:n_all]), -32768, 32767).astype(np.int16),
        lead_ms,
        turn.end_ms + moved_ms,
        tuple((start + moved_ms, end + moved_ms) for start, end in turn.pauses),
        turn.text,
    )

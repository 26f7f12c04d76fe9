"""Fits the voice print: `python -m voiceloop.listening.recipes.train_voice_print`.

Each person of the shared data makes one call: the turns come through one room and one line, and
another person beside the microphone through a room of his own. The projection is linear
discriminant analysis; distances are judged by five folds of speakers, and from those the log-odds
are fitted. Prints what is left out of strangers where so many callers are kept out.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from audio.recipes.offset_windows import over_u_law
from audio.recipes.overlapping_sounds import FULL_SCALE, as_bystander, as_caller
from audio.recipes.paused_speech import MS, paused_turns
from audio.recipes.train_end_of_voice import DATA
from voiceloop.listening import voice_print
from voiceloop.listening.voice_print import N_CEPSTRA, SOUND_DB, Wave, statistics

N_FOLDS, N_PLACES, SHRINK = 5, 8, 0.3
MOST_TURNS, LEAST_TURNS, SHORTEST_S = 8, 3, 0.9
LENGTHS_S = (0.5, 0.8, 1.2, 2.0)
N_KNOWN = 2  # turns of the caller's
Stats = list[tuple[Wave, int]]  # of each sound, and how many of its frames sounded
ByLength = dict[float, dict[str, Stats]]  # in seconds


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, default=DATA, help="the folder that holds speech/")
    parser.add_argument("--out", type=Path, default=voice_print.WEIGHTS, help="file of the weights")
    chosen = parser.parse_args()
    whole, parts, strangers = _heard(chosen.data)
    rows: list[tuple[float, float, float, bool]] = []  # length, distance, frames, is the caller
    for fold in range(N_FOLDS):
        kept = {s for s in whole if zlib.crc32(s.encode()) % N_FOLDS == fold}
        fitted = _fit({s: [*whole[s], *parts[1.2][s]] for s in whole if s not in kept})
        for length in LENGTHS_S:
            rows += _distances(
                fitted, whole, parts[length], strangers[length], sorted(kept), length
            )
    table = np.array([row[1:] for row in rows])
    fit = _logistic(table)
    log_odds = _design(table) @ fit
    for length in LENGTHS_S:
        at = np.array([row[0] == length for row in rows])
        same, other = log_odds[at & (table[:, 2] > 0)], log_odds[at & (table[:, 2] == 0)]
        lost = {f"{100 * q:g} %": round(float((other < np.quantile(same, q)).mean()), 3)
                for q in (0.01, 0.02, 0.05)}  # fmt: skip
        area = float((same[:, None] > other[None]).mean())
        print(json.dumps({"s": length, "area": round(area, 3), "others out": lost,
                          "callers below -2": round(float((same < -2).mean()), 3),
                          "others below -2": round(float((other < -2).mean()), 3)}))  # fmt: skip
    mean, scale, project = _fit({s: [*whole[s], *parts[1.2][s]] for s in whole})
    np.savez(chosen.out, mean=mean, scale=scale, project=project, fit=fit)
    return 0


def _heard(data: Path) -> tuple[dict[str, Stats], ByLength, ByLength]:
    """Each person's whole turns, their beginnings, and those of the same from across a room."""
    said: dict[str, list[Wave]] = {}
    for turn in paused_turns(data):
        wave = turn.samples[int(turn.start_ms * MS) : int(turn.end_ms * MS)].astype(float)
        if len(wave) > SHORTEST_S * 1000 * MS:
            said.setdefault(turn.speaker, []).append(wave)
    said = {s: waves[:MOST_TURNS] for s, waves in said.items() if len(waves) >= LEAST_TURNS}
    whole: dict[str, Stats] = {}
    parts: ByLength = {length: {} for length in LENGTHS_S}
    strangers: ByLength = {length: {} for length in LENGTHS_S}
    for index, (speaker, waves) in enumerate(said.items()):
        line = [_over_line(as_caller(wave, random.Random(speaker)), speaker) for wave in waves]
        away = [_over_line(as_bystander(w, random.Random(f"far {speaker} {i}")), f"{i} {speaker}")
                for i, w in enumerate(waves[:4])]  # fmt: skip
        whole[speaker] = [_stats(wave) for wave in line]
        for length in LENGTHS_S:
            n = int(length * 1000 * MS)
            parts[length][speaker] = [_stats(wave[:n]) for wave in line]
            strangers[length][speaker] = [_stats(wave[:n]) for wave in away]
        if index % 20 == 0:
            print(f"{index} of {len(said)} people heard", file=sys.stderr, flush=True)
    return whole, parts, strangers


def _over_line(wave: Wave, name: str) -> Wave:
    chance = random.Random(f"line {name}")
    level = FULL_SCALE * 10.0 ** (chance.uniform(-42.0, -20.0) / 20.0)
    wave = wave * level / max(float(np.sqrt(np.mean(wave**2))), 1.0)
    noise = np.random.default_rng(chance.randrange(2**31)).standard_normal(len(wave))
    wave = wave + noise * FULL_SCALE * 10.0 ** (chance.uniform(-75.0, -60.0) / 20.0)
    if chance.random() < 0.4:
        return over_u_law(np.clip(wave, -32768, 32767).astype(np.int16)).astype(float)
    return wave


def _stats(wave: Wave) -> tuple[Wave, int]:
    printer = voice_print.VoicePrinter()
    printer.feed(np.clip(wave, -32768, 32767).astype(np.int16))
    rows = np.stack(printer._frames)
    loud = rows[:, N_CEPSTRA] > np.quantile(rows[:, N_CEPSTRA], 0.9) - SOUND_DB
    return statistics(rows[loud]), int(loud.sum())


def _fit(people: Mapping[str, Stats]) -> tuple[Wave, Wave, Wave]:
    everything = np.stack([one for stats in people.values() for one, _ in stats])
    mean, scale = everything.mean(0), 1.0 / (everything.std(0) + 1e-6)
    width, n = everything.shape[1], len(everything)
    within, between = np.zeros((width, width)), np.zeros((width, width))
    for stats in people.values():
        placed = (np.stack([one for one, _ in stats]) - mean) * scale
        middle = placed.mean(0)
        within += (placed - middle).T @ (placed - middle) / n
        between += len(placed) * np.outer(middle, middle) / n
    within = (1 - SHRINK) * within + SHRINK * np.trace(within) / width * np.eye(width)
    lower = np.linalg.cholesky(within)
    _, turned = np.linalg.eigh(np.linalg.solve(lower, np.linalg.solve(lower, between).T))
    return mean, scale, np.linalg.solve(lower.T, turned[:, ::-1][:, :N_PLACES])


def _distances(
    fitted: tuple[Wave, Wave, Wave], whole: Mapping[str, Stats], parts: Mapping[str, Stats],
    strangers: Mapping[str, Stats], people: Sequence[str], length: float,
) -> Iterator[tuple[float, float, float, bool]]:  # fmt: skip
    mean, scale, project = fitted

    def place(one: Wave) -> Wave:
        return np.asarray(((one - mean) * scale) @ project)

    for caller in people:
        turns = whole[caller]
        for index, (part, n) in enumerate(parts[caller]):
            others = [i for i in range(len(turns)) if i != index]
            known = random.Random(f"{caller} {index}").sample(others, N_KNOWN)
            places = [place(turns[i][0]) for i in known]

            def nearest(one: Wave, places: list[Wave] = places) -> float:
                return float(min(np.sum((place(one) - p) ** 2) for p in places))

            yield length, nearest(part), float(n), True
            for other in people:
                if other != caller:
                    for of_other in (parts[other], strangers[other]):
                        stranger, m = of_other[index % len(of_other)]
                        yield length, nearest(stranger), float(m), False


def _design(table: Wave) -> Wave:
    apart, length = table[:, 0], np.log(table[:, 1] / 100.0)
    return np.column_stack((np.ones(len(table)), apart, length, apart * length))


def _logistic(table: Wave) -> Wave:
    """By Newton's steps; both kinds weigh alike."""
    inputs, is_same = _design(table), table[:, 2] > 0
    weight = np.where(is_same, 0.5 / is_same.sum(), 0.5 / (~is_same).sum())
    fit = np.zeros(inputs.shape[1])
    for _ in range(30):
        chance = 1.0 / (1.0 + np.exp(-np.clip(inputs @ fit, -30, 30)))
        slope = inputs.T @ (weight * (is_same - chance)) - 1e-6 * fit
        curve = (inputs * (weight * chance * (1 - chance))[:, None]).T @ inputs
        fit = fit + np.linalg.solve(curve + 1e-6 * np.eye(len(fit)), slope)
    return fit


if __name__ == "__main__":
    sys.exit(main())

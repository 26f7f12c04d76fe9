"""Trains the heads on the decoder's states.

Run as `python -m voiceloop.listening.recipes.train_end_in_states`. Every pause and end of the real
turns (`$VOICELOOP_DATA`) is read as the served recognizer reads it; what the decoder made of its
words is kept on disk. A head is ridge logistic regression beside the voice's log-odds, of which a
share stands: it learns what that lacks. Five heads, each without a fifth of the speakers; in every
kind of turn ends weigh as much as holds.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

from audio.end_in_states import LARGEST_ADDED, STATES_WEIGHTS, VOICE_SHARE
from audio.end_of_voice import fold_of
from audio.recipes.train_end_of_voice import DATA, N_FOLDS, auc
from voiceloop.listening.recipes.endpointing_set import COPIES
from voiceloop.listening.recipes.heard_turn import pauses_of
from voiceloop.listening.recipes.real_turns import real_turns
from voiceloop.listening.recipes.voice_reading import VoiceReading, readings_of

END_TOLERANCE_MS = 130.0  # as `benchmarks.endpointing` takes a pause for the end
# Chosen as VOICE_SHARE was: 0.03, 0.1, 0.15, 0.3, 1, 3, 10 and 30 were tried.
RIDGE = 0.3
N_STEPS = 6  # of Newton's
LEAST_SPREAD = 0.05

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Read:
    """states [n, width], voice [n] (log-odds), is_over [n], and whose turns of which kind."""

    states: Array
    voice: Array
    is_over: NDArray[np.bool_]
    speakers: list[str]
    kinds: NDArray[np.str_]


def read_all(data: Path) -> Read:
    reader = VoiceReading(by_words=False)
    states, voice, is_over, speakers, kinds = [], [], [], [], []
    turns = [turn for part in ("fit", "test") for turn in real_turns(data, part)]
    for turn in turns:
        if turn.slices & COPIES:
            continue
        readings = readings_of(turn)
        for pause in pauses_of(turn):
            until_ms = pause.resumed_ms if pause.resumed_ms is not None else np.inf
            here = [r for r in readings if pause.detected_ms <= r.asked_ms < until_ms]
            found = reader.states(turn, here[0]) if here else None
            if found is None:
                continue
            states.append(found)
            voice.append(reader.p_voice(turn, here[0], here[0]))
            is_over.append(pause.since_ms + END_TOLERANCE_MS >= turn.end_ms)
            speakers.append(turn.speaker)
            kinds.append(min(turn.slices))
    return Read(
        np.array(states, float), np.array(voice), np.array(is_over), speakers, np.array(kinds)
    )


def balanced(kinds: NDArray[np.str_], is_over: NDArray[np.bool_]) -> Array:
    """A weight a row: in every kind ends and holds weigh alike."""
    weights = np.zeros(len(kinds))
    for kind in set(kinds):
        for label in (False, True):
            members = (kinds == kind) & (is_over == label)
            weights[members] = 0.5 * (kinds == kind).sum() / max(members.sum(), 1)
    return weights


def head_of(read: Read, chosen: NDArray[np.bool_]) -> tuple[Array, float]:
    """Weights [width] and bias of one head: Newton's method in the space of the rows."""
    rows, over = read.states[chosen], read.is_over[chosen]
    voice = VOICE_SHARE * read.voice[chosen]
    weights = balanced(read.kinds[chosen], over)
    mean, spread = rows.mean(axis=0), rows.std(axis=0) + LEAST_SPREAD
    known = (rows - mean) / spread
    kernel = known @ known.T / known.shape[1]
    dual, bias = np.zeros(len(rows)), 0.0
    for _ in range(N_STEPS):
        added = kernel @ dual + bias
        p_over = 1.0 / (1.0 + np.exp(-voice - added))
        bend = weights * p_over * (1.0 - p_over) + 1e-6
        target = added + weights * (over - p_over) / bend
        columns = np.column_stack((target, np.ones(len(rows))))
        solved = np.linalg.solve(kernel + np.diag(RIDGE / bend), columns)
        bias = solved[:, 0].sum() / solved[:, 1].sum()
        dual = solved[:, 0] - bias * solved[:, 1]
    head = known.T @ dual / known.shape[1] / spread
    return head, float(bias - head @ mean)


def main() -> None:
    read = read_all(Path(os.environ.get("VOICELOOP_DATA", DATA)))
    folds = np.array([fold_of(speaker, N_FOLDS) for speaker in read.speakers])
    heads = [head_of(read, folds != fold) for fold in range(N_FOLDS)]
    weights, bias = np.array([w for w, _ in heads]), np.array([b for _, b in heads])
    tensors = {"w": weights.astype(np.float16), "b": bias.astype(np.float32)}
    save_file(tensors, STATES_WEIGHTS)
    STATES_WEIGHTS.chmod(0o644)  # safetensors writes files only their owner can read
    added = np.einsum("nw,nw->n", read.states, weights[folds]) + bias[folds]
    both = VOICE_SHARE * read.voice + np.clip(added, -LARGEST_ADDED, LARGEST_ADDED)
    print("| | ends | pauses | voice | both |")
    for kind in ("all", *sorted(set(read.kinds))):
        here = (read.kinds == kind) | (kind == "all")
        over = read.is_over[here]
        areas = f"{auc(read.voice[here], over):.3f} | {auc(both[here], over):.3f}"
        print(f"| {kind} | {over.sum()} | {(~over).sum()} | {areas} |")


if __name__ == "__main__":
    main()

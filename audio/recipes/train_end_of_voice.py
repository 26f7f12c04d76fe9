"""Trains the end-of-turn head: `python -m audio.recipes.train_end_of_voice [--data DIR] [--out F]`.

Every pause and every end of the real turns is heard by Moonshine tiny's frozen encoder in several
ways (`offset_windows`); what it makes of them is kept outside the repository, so that a second run
takes minutes. Five heads are trained, each without a fifth of the speakers, and judged on those
alone. In every kind of turn ends weigh as much as holds: which kind it is must tell nothing.
"""

import argparse
import hashlib
import json
import os
import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
from numpy.typing import NDArray

from ..asr.moonshine.decoder import EDGE
from ..asr.moonshine.onnx_network import SHA256, OnnxNetwork, checked_folder
from ..end_of_voice import N_ROWS, WEIGHTS, EndOfVoice, fold_of
from ..frames import Samples
from .offset_windows import WINDOWS_VERSION, levelled, offsets_of, varied
from .paused_speech import PausedTurn, paused_turns

N_FOLDS = 5
N_VARIATIONS = 1  # in which each last sound is heard
KEPT_ROWS = 64  # of the encoder: more than the head reads, should it be tried with more
HIDDEN, LOOKS, MIXED = 40, 3, 32
EPOCHS, BATCH, RATE, DECAY, DROPOUT = 10, 128, 1e-3, 0.05, 0.3
SMOOTHING = 0.05  # of the labels: energy alone says when a sound ended
DATA = Path(os.environ.get("VOICELOOP_DATA", Path(__file__).parents[3] / "shared" / "data"))
CACHE = Path(os.environ.get("VOICELOOP_CACHE", Path.home() / ".cache" / "voiceloop"))


@dataclass(frozen=True, slots=True)
class Heard:
    """Rows of the encoder, one array element a window."""

    rows: NDArray[np.float16]  # [n, N_ROWS, width], zeros where a window is shorter
    n_rows: NDArray[np.int16]
    is_over: NDArray[np.bool_]
    speakers: list[str]
    kinds: list[str]


# -- what the encoder hears ----------------------------------------------------------------------


def hear(turns: Sequence[PausedTurn], noises: Sequence[Samples], cache: Path) -> Heard:
    """Every last sound of all turns, in every variation."""
    network: list[OnnxNetwork] = []

    def encode(samples: Samples) -> NDArray[np.float32]:
        if not network:
            network.append(OnnxNetwork(checked_folder()))
        wave = np.pad(samples.astype(np.float32) / 32768.0, EDGE)
        return network[0].rows(network[0].encode(wave))[-KEPT_ROWS:]

    parts = (WINDOWS_VERSION, KEPT_ROWS, EDGE, SHA256["encoder_model.ort"])
    recipe = hashlib.sha1(repr(parts).encode())
    found: list[dict[str, NDArray[Any]]] = []
    heard: list[PausedTurn] = []
    for variation in range(N_VARIATIONS):
        for index, turn in enumerate(turns):
            name = recipe.copy()
            name.update(f"{turn.name} {variation}".encode() + turn.samples.tobytes())
            path = cache / "end_of_voice" / f"{name.hexdigest()}.npz"
            if not path.is_file():
                path.parent.mkdir(parents=True, exist_ok=True)
                arrays: dict[str, Any] = _encoded(turn, variation, noises, encode)
                np.savez(path, **arrays)
            found.append(dict(np.load(path)))
            heard.append(turn)
            if index % 100 == 0:
                print(f"variation {variation}: {index} turns heard", file=sys.stderr, flush=True)
    counts = [len(one["is_over"]) for one in found]
    return Heard(
        np.concatenate([one["rows"][:, -N_ROWS:] for one in found]),
        np.minimum(np.concatenate([one["n_rows"] for one in found]), N_ROWS),
        np.concatenate([one["is_over"] for one in found]),
        [turn.speaker for turn, n in zip(heard, counts, strict=True) for _ in range(n)],
        [turn.kind for turn, n in zip(heard, counts, strict=True) for _ in range(n)],
    )


def _encoded(
    turn: PausedTurn,
    variation: int,
    noises: Sequence[Samples],
    encode: Callable[[Samples], NDArray[np.float32]],
) -> dict[str, NDArray[Any]]:
    """Every last sound of the turn, once."""
    offsets = offsets_of(levelled(turn))
    encoded = []
    for offset in offsets:
        chance = random.Random(f"{turn.name} {offset.at_ms} {variation}")
        encoded.append(encode(varied(offset, noises, chance).samples))
    rows = np.zeros((len(encoded), KEPT_ROWS, encoded[0].shape[1]), np.float16)
    for place, one in zip(rows, encoded, strict=True):
        place[KEPT_ROWS - len(one) :] = one
    return {
        "rows": rows,
        "n_rows": np.array([len(one) for one in encoded], np.int16),
        "is_over": np.array([offset.is_over for offset in offsets]),
    }


# -- the heads -----------------------------------------------------------------------------------


def balanced(heard: Heard, chosen: NDArray[np.bool_]) -> NDArray[np.float32]:
    """A weight a window: in every kind of turn ends and holds weigh alike."""
    weights = np.zeros(len(chosen), np.float32)
    kinds = np.array(heard.kinds)
    for kind in sorted(set(heard.kinds)):
        share = float((chosen & (kinds == kind)).sum())
        for is_over in (False, True):
            members = chosen & (kinds == kind) & (heard.is_over == is_over)
            if members.any():
                weights[members] = 0.5 * share / members.sum()
    return weights


Weigh = Callable[[Heard, NDArray[np.bool_]], NDArray[np.float32]]


def trained(
    heard: Heard, speakers: Callable[[str], bool], seed: int, weigh: Weigh
) -> dict[str, Any]:
    """One head on the speakers that are chosen; its tensors by name."""
    import torch

    chosen = np.array([speakers(name) for name in heard.speakers])
    torch.manual_seed(seed)
    rows = torch.from_numpy(heard.rows[chosen])
    n_rows = torch.from_numpy(heard.n_rows[chosen].astype(np.int64))
    over = torch.from_numpy(heard.is_over[chosen].astype(np.float32))
    weights = torch.from_numpy(weigh(heard, chosen)[chosen])
    mean, scale = _statistics(heard)
    width = len(mean)

    def start(*shape: int) -> Any:
        return torch.nn.Parameter(torch.randn(*shape) / np.sqrt(shape[-2] if shape[1:] else 1))

    tensors = {
        "place": torch.nn.Parameter(torch.zeros(N_ROWS, HIDDEN)),
        "project": start(width, HIDDEN),
        "project_bias": torch.nn.Parameter(torch.zeros(HIDDEN)),
        "query": start(HIDDEN, LOOKS),
        "mix": start(LOOKS * HIDDEN, MIXED),
        "mix_bias": torch.nn.Parameter(torch.zeros(MIXED)),
        "out": torch.nn.Parameter(torch.randn(MIXED) / np.sqrt(MIXED)),
        "out_bias": torch.nn.Parameter(torch.zeros(())),
    }
    optimizer = torch.optim.AdamW(tensors.values(), lr=RATE, weight_decay=DECAY)
    n_steps = EPOCHS * -(-len(over) // BATCH)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE * 3, total_steps=n_steps)
    centre, spread = torch.from_numpy(mean), torch.from_numpy(scale)
    for _ in range(EPOCHS):
        for batch in torch.randperm(len(over)).split(BATCH):
            known = (rows[batch].float() - centre) * spread
            log_odds = forward(tensors, known, n_rows[batch], DROPOUT)
            target = over[batch] * (1 - 2 * SMOOTHING) + SMOOTHING
            loss = torch.nn.functional.binary_cross_entropy_with_logits(
                log_odds, target, weights[batch]
            )
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    return {name: tensor.detach().numpy() for name, tensor in tensors.items()}


def forward(tensors: dict[str, Any], known: Any, n_rows: Any, dropout: float) -> Any:
    """`EndOfVoice.of_folds` of one head for a batch of whole windows, filled from the left."""
    import torch

    drop = torch.nn.functional.dropout
    hidden = torch.tanh(
        drop(known, dropout / 3) @ tensors["project"] + tensors["project_bias"] + tensors["place"]
    )
    looks = hidden @ tensors["query"]
    is_absent = torch.arange(N_ROWS)[None] < N_ROWS - n_rows[:, None]
    looks = looks.masked_fill(is_absent[..., None], -1e9).softmax(1)
    pooled = torch.einsum("bnk,bnh->bkh", looks, hidden).flatten(1)
    mixed = torch.tanh(drop(pooled, dropout) @ tensors["mix"] + tensors["mix_bias"])
    return drop(mixed, dropout) @ tensors["out"] + tensors["out_bias"]


def _statistics(heard: Heard) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Mean and inverse deviation of the encoder's rows, one a column: nothing of the labels."""
    some = heard.rows[::7].astype(np.float32).reshape(-1, heard.rows.shape[-1])
    some = some[np.abs(some).sum(axis=1) > 0]
    return some.mean(axis=0), 1.0 / (some.std(axis=0) + 1e-3)


def _is_other(fold: int, speaker: str) -> bool:
    return fold_of(speaker, N_FOLDS) != fold


def train(heard: Heard, weigh: Weigh = balanced) -> dict[str, NDArray[np.float32]]:
    """The tensors of the file: those of all folds in one array each. weigh: of each window."""
    heads = []
    for fold in range(N_FOLDS):
        others = partial(_is_other, fold)
        heads.append(trained(heard, others, fold, weigh))
        print(f"fold {fold} trained", file=sys.stderr, flush=True)
    mean, scale = _statistics(heard)
    together = {name: np.stack([head[name] for head in heads]) for name in heads[0]}
    return {"mean": mean, "scale": scale, **{k: v.astype(np.float32) for k, v in together.items()}}


# -- figures -------------------------------------------------------------------------------------


def auc(scores: NDArray[Any], is_over: NDArray[np.bool_]) -> float:
    """How often an end has more than a hold; equal scores count half."""
    order = np.argsort(scores, kind="stable")
    _, inverse, counts = np.unique(scores[order], return_inverse=True, return_counts=True)
    ranks_of_value = np.cumsum(counts) - (counts - 1) / 2.0
    ranks = np.empty(len(scores))
    ranks[order] = ranks_of_value[inverse]
    n_over = int(is_over.sum())
    n_not = len(is_over) - n_over
    if not n_over or not n_not:
        return float("nan")
    return float((ranks[is_over].sum() - n_over * (n_over + 1) / 2) / (n_over * n_not))


def figures(heard: Heard, path: Path) -> dict[str, Any]:
    """AUC of the head that has not heard the speaker, of all windows and by kind."""
    heads = EndOfVoice(path)
    scores = np.array([
        heads.unheard_log_odds(rows[N_ROWS - n :].astype(np.float32), speaker)
        for rows, n, speaker in zip(heard.rows, heard.n_rows, heard.speakers, strict=True)
    ])  # fmt: skip
    kinds = np.array(heard.kinds)
    found = {"all": _figure(scores, heard.is_over)}
    for kind in sorted(set(heard.kinds)):
        found[kind] = _figure(scores[kinds == kind], heard.is_over[kinds == kind])
    return found


def _figure(scores: NDArray[Any], is_over: NDArray[np.bool_]) -> dict[str, float]:
    n_over = int(is_over.sum())
    return {"auc": round(auc(scores, is_over), 4), "ends": n_over, "holds": len(is_over) - n_over}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, default=DATA, help="the folder that holds speech/")
    parser.add_argument("--cache", type=Path, default=CACHE, help="for what the encoder made")
    parser.add_argument("--out", type=Path, default=WEIGHTS, help="the file of the heads")
    chosen = parser.parse_args()
    from safetensors.numpy import save_file

    noises = [
        soundfile.read(path, dtype="int16")[0]
        for path in sorted((chosen.data / "speech" / "noise").glob("*.flac"))
    ]
    heard = hear(list(paused_turns(chosen.data)), noises, chosen.cache)
    chosen.out.parent.mkdir(parents=True, exist_ok=True)
    save_file(train(heard), chosen.out)
    chosen.out.chmod(0o644)  # safetensors writes files only their owner can read
    print(json.dumps(figures(heard, chosen.out), indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())

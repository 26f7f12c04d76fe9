"""Trains the head of sounds over the agent: `python -m audio.recipes.train_for_agent`.

Every sound of `overlapping_sounds` is heard by Moonshine tiny's frozen encoder at two moments of
its first second; what it makes of them is kept outside the repository. Five heads are trained, each
without a fifth of the speakers, and judged on those alone. Half of all weight is callers', and in
both halves people and made voices weigh alike: who speaks must tell nothing.
"""

import argparse
import hashlib
import json
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
from numpy.typing import NDArray

from ..asr.moonshine.decoder import EDGE
from ..asr.moonshine.onnx_network import SHA256, OnnxNetwork, checked_folder
from ..end_of_voice import N_ROWS
from ..for_agent import FOR_AGENT_WEIGHTS, ForAgent
from .overlapping_sounds import LEAD_MS, SOUNDS_VERSION, Overlap, made_voices, overlaps, people
from .paused_speech import MS
from .train_end_of_voice import CACHE, DATA, Heard, auc, train

# When a sound is read, ms behind its onset: a call's recognizer decodes its first second at every
# 160 ms, some 100 of them before the onset of speech, and then every 320.
AT_MS = (160.0, 320.0, 480.0, 640.0, 960.0)
N_READINGS, JITTER_MS = 2, 40.0
INTERRUPTION = "interruption"
# Of the half that is no caller's: people say no backchannel in the data, so they say the more of
# the rest, which makes as many of both.
SHARES = {
    ("interruption", True): 4, ("interruption", False): 4,
    ("backchannel", False): 2, ("noise", True): 1, ("noise", False): 1,
    ("echo", True): 1.5, ("echo", False): 0.5, ("bystander", True): 1.5, ("bystander", False): 0.5,
}  # fmt: skip


def hear(sounds: Sequence[Overlap], path: Path) -> tuple[Heard, NDArray[np.float64]]:
    """Every sound at N_READINGS moments, and those in ms; kinds are "kind, people or made"."""
    moments = [(s, at) for s in sounds for at in random.Random(s.name).sample(AT_MS, N_READINGS)]
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        np.save(path, _rows(moments))
    rows = np.load(path)
    heard = Heard(
        rows,
        np.array([int((np.abs(one).sum(axis=1) > 0).sum()) for one in rows], np.int16),
        np.array([sound.kind == INTERRUPTION for sound, _ in moments]),
        [sound.speaker for sound, _ in moments],
        [f"{s.kind}, {'people' if s.is_person else 'made'}" for s, _ in moments],
    )
    # What a sound that was over by then says of it is its length, which no figure is to flatter.
    at_ms = np.array([at if sound.lasts_ms >= at else -at for sound, at in moments])
    return heard, at_ms


def _rows(moments: Sequence[tuple[Overlap, float]]) -> NDArray[np.float16]:
    network = OnnxNetwork(checked_folder())
    found: list[NDArray[np.float16]] = []
    for index, (sound, at_ms) in enumerate(moments):
        chance = random.Random(f"{sound.name} {at_ms}")
        n = int((LEAD_MS + at_ms + chance.uniform(-JITTER_MS, JITTER_MS)) * MS)
        wave = np.pad(sound.samples[:n].astype(np.float32) / 32768.0, EDGE)
        rows = network.rows(network.encode(wave))[-N_ROWS:].astype(np.float16)
        found.append(np.pad(rows, ((N_ROWS - len(rows), 0), (0, 0))))
        if index % 1000 == 0:
            print(f"{index} of {len(moments)} moments heard", file=sys.stderr, flush=True)
    return np.stack(found)


def balanced(heard: Heard, chosen: NDArray[np.bool_]) -> NDArray[np.float32]:
    """A weight a window by SHARES, 1 in the mean."""
    weights, kinds = np.zeros(len(chosen), np.float32), np.array(heard.kinds)
    for (kind, is_person), share in SHARES.items():
        members = chosen & (kinds == f"{kind}, {'people' if is_person else 'made'}")
        if members.any():
            weights[members] = share / sum(SHARES.values()) * chosen.sum() / members.sum()
    return weights


def unheard(heard: Heard, heads: ForAgent) -> NDArray[np.float64]:
    """The log-odds of each window, by the head that has not heard its speaker."""
    return np.array([
        heads.unheard_log_odds(rows[N_ROWS - n :].astype(np.float32), speaker)
        for rows, n, speaker in zip(heard.rows, heard.n_rows, heard.speakers, strict=True)
    ])  # fmt: skip


def figures(
    heard: Heard, at_ms: NDArray[np.float64], log_odds: NDArray[np.float64]
) -> dict[str, Any]:
    """AUC of callers against each kind, of sounds that go on at that moment; and how many of each
    kind lie below the quantiles of callers."""
    kinds = np.array(heard.kinds)
    found: dict[str, Any] = {}
    for who in ("people", "made"):
        callers = kinds == f"{INTERRUPTION}, {who}"
        for at in AT_MS:
            row: dict[str, Any] = {}
            is_at = at_ms == at
            below = np.quantile(log_odds[callers & is_at], (0.02, 0.05, 0.5))
            row["2, 5, 50 % of callers below"] = below.round(2).tolist()
            for kind in ("backchannel", "noise", "echo", "bystander"):
                both = is_at & (callers | (kinds == f"{kind}, {who}"))
                if not (both & ~callers).any():
                    continue
                row[kind] = round(auc(log_odds[both], callers[both]), 3)
                row[f"{kind}, n"] = int((both & ~callers).sum())
            found[f"{who} at {at:.0f} ms"] = row | {"callers, n": int((callers & is_at).sum())}
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, default=DATA, help="the folder that holds speech/")
    parser.add_argument("--cache", type=Path, default=CACHE, help="for what the encoder made")
    parser.add_argument("--out", type=Path, default=FOR_AGENT_WEIGHTS, help="file of the heads")
    chosen = parser.parse_args()
    from safetensors.numpy import save_file

    noises = [
        (path.stem, soundfile.read(path, dtype="int16")[0])
        for path in sorted((chosen.data / "speech" / "noise").glob("*.flac"))
    ]
    sounds = list(overlaps([*people(chosen.data), *made_voices()], noises))
    recipe = hashlib.sha1(repr((SOUNDS_VERSION, EDGE, AT_MS, SHA256["encoder_model.ort"])).encode())
    for sound in sounds:
        recipe.update(sound.name.encode() + sound.samples.tobytes())
    heard, at_ms = hear(sounds, chosen.cache / "for_agent" / f"{recipe.hexdigest()}.npy")
    chosen.out.parent.mkdir(parents=True, exist_ok=True)
    save_file(train(heard, balanced), chosen.out)
    chosen.out.chmod(0o644)  # safetensors writes files only their owner can read
    print(json.dumps(figures(heard, at_ms, unheard(heard, ForAgent(chosen.out))), indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())

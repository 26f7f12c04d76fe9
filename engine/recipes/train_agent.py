"""Trains the embedded agent: `python -m engine.recipes.train_agent --data DIR --out DIR`.

Owns the command. `--size draft` distils the draft from the target that lies in OUT/target. A run
that is stopped saves a checkpoint and goes on when it is started again.
"""

from __future__ import annotations

import argparse
import os
import signal
from pathlib import Path

from .model.agent_model import SIZES
from .training.distillation import Distiller
from .training.train_options import TrainOptions, short_run
from .training.trainer import Trainer


def main() -> None:
    parser = argparse.ArgumentParser(description="Train the embedded agent.")
    parser.add_argument("--data", type=Path, help="folder with dialogues/ (else $VOICELOOP_DATA)")
    parser.add_argument("--out", type=Path, required=True, help="checkpoints, logs and the model")
    parser.add_argument("--size", choices=sorted(SIZES), default="target")
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda")
    parser.add_argument("--tokens", type=float, default=24e6, help="tokens to train on, in all")
    parser.add_argument(
        "--drill-until", type=float, default=1e6, help="nothing but drills until then"
    )
    parser.add_argument(
        "--grow-at",
        type=float,
        nargs="*",
        default=[4e6, 9e6],
        help="insert two layers after each of these tokens",
    )
    parser.add_argument(
        "--start",
        type=Path,
        help="go on from the weights of this exported model: no drills, no growth",
    )
    parser.add_argument("--rate", type=float, default=1.0, help="share of the full learning rates")
    parser.add_argument("--rows-per-step", type=int, default=8, help="rows of 512 tokens")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 2)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    trainer_of = Distiller if given.size.endswith("draft") else Trainer
    options = TrainOptions(
        given.data,
        given.out,
        given.size,
        given.device,
        int(given.tokens),
        given.rows_per_step,
        start=given.start,
        rate=given.rate,
        drill_until=int(given.drill_until),
        grow_at=tuple(int(at) for at in given.grow_at),
        seed=given.seed,
        threads=given.threads,
    )
    trainer = trainer_of(short_run(options) if given.start else options)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: trainer.stop())
    trainer.run()
    print()


if __name__ == "__main__":
    main()

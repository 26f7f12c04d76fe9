"""Trains an adapter for a published model: `python -m engine.recipes.train_adapter --base FILE`.

Owns the command. It teaches the model of a GGUF file (SmolLM2-135M-Instruct) the embedded agent's
calls; OUT/adapter is what `llm_adapter` takes. A run that is stopped goes on when started again.
"""

from __future__ import annotations

import argparse
import signal
from pathlib import Path

from .training.adapter_trainer import AdapterOptions, AdapterTrainer


def main() -> None:
    parser = argparse.ArgumentParser(description="Train an adapter on the embedded agent's data.")
    parser.add_argument("--base", type=Path, required=True, help="the model, a GGUF file")
    parser.add_argument("--out", type=Path, required=True, help="checkpoint, log and adapter/")
    parser.add_argument("--data", type=Path, help="folder with dialogues/ (else $VOICELOOP_DATA)")
    parser.add_argument("--start", type=Path, help="an exported adapter to go on from")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--tokens", type=float, default=3e6, help="to train on, in all")
    parser.add_argument("--minutes", type=float, help="of the whole run, instead of --tokens")
    parser.add_argument(
        "--step-tokens", type=int, default=2048, help="of a step; some 32768 on a GPU"
    )
    parser.add_argument("--rate", type=float, default=1e-3, help="of learning")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    if given.minutes is not None and given.minutes <= 0.0:
        parser.error(f"--minutes: expected more than 0, found {given.minutes:g}")
    trainer = AdapterTrainer(
        AdapterOptions(
            given.base,
            given.out,
            given.data,
            start=given.start,
            device=given.device,
            n_tokens=int(given.tokens),
            minutes=given.minutes,
            step_tokens=given.step_tokens,
            learning_rate=given.rate,
            threads=given.threads,
            seed=given.seed,
        )
    )
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: trainer.stop())
    trainer.run()
    print()


if __name__ == "__main__":
    main()

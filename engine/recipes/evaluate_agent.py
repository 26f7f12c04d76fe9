"""Measures the embedded agent: `python -m engine.recipes.evaluate_agent [--check]`.

Owns the command and the order of the model card's table.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..types import EngineError
from .measuring.evaluation import Evaluation, Figure
from .measuring.likelihoods import compression, draft_acceptance, end_of_turn
from .measuring.served_agent import ServedAgent
from .model.chat_format import OWN_FORMAT
from .model.decoding import load_agent

EMBEDDED_DRAFT = Path(__file__).resolve().parents[1] / "embedded" / "draft"
EMBEDDED_AGENT = Path(__file__).resolve().parents[1] / "embedded" / "agent"


def evaluate(
    evaluation: Evaluation, draft: Path, quick: bool, *, is_served: bool
) -> Iterator[Figure]:
    """All figures of the card, in the order of its table, each as soon as it is known; as served,
    those of replies.
    """
    size = 25 if quick else 100
    yield from evaluation.obedience()
    yield from evaluation.tools()
    yield from evaluation.repetition(size)
    yield from evaluation.refusals()
    if is_served:
        yield from evaluation.scripted_call()
        yield from evaluation.plain_questions()
        yield from evaluation.degenerate()
        return
    yield from end_of_turn(evaluation, size)
    yield from compression(evaluation, size // 2 if quick else 60, 2000 if quick else 12000)
    yield from evaluation.scripted_call()
    yield from evaluation.plain_questions()
    yield from evaluation.degenerate()
    is_of_draft = evaluation.encoder.format == OWN_FORMAT  # a draft has its target's tokenizer
    if is_of_draft and (draft / "config.json").exists():
        yield from draft_acceptance(evaluation, load_agent(draft)[0])


def told(figure: Figure) -> str:
    """The figure's line on the terminal."""
    line = f"{figure.name:<52} {figure.value:7.3f}  {figure.cases:6d}"
    if figure.bar is None:
        return line
    side = "<=" if figure.at_most else ">="
    return f"{line}  {side} {figure.bar:.2f} {'holds' if figure.holds else 'MISSED'}"


def kept(figures: list[Figure], evaluation: Evaluation) -> dict[str, list[dict[str, Any]]]:
    """What a file of results holds: the figures, and each reply."""
    return {
        "figures": [dataclasses.asdict(figure) | {"holds": figure.holds} for figure in figures],
        "replies": [
            {
                "kind": case.kind,
                "caller": case.messages[-1]["content"],
                "reply": case.reply,
                "gold": case.gold,
                "words": case.words,
                "tool": case.tool,
                "prompt": case.messages[0]["content"],
            }
            for case in evaluation.replies
        ],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the embedded agent.")
    parser.add_argument("--model", type=Path, default=EMBEDDED_AGENT)
    parser.add_argument("--adapter", type=Path, help="merged into a --model that is a GGUF file")
    parser.add_argument("--draft", type=Path, default=EMBEDDED_DRAFT)
    parser.add_argument("--data", type=Path, help="folder with dialogues/ (else $VOICELOOP_DATA)")
    parser.add_argument("--check", action="store_true", help="exit 1 when a bar is missed")
    parser.add_argument("--quick", action="store_true", help="a fifth of the cases")
    parser.add_argument("--calls", type=int, help="generated, of each kind (200; 40 with --quick)")
    parser.add_argument(
        "--served",
        action="store_true",
        help="let the engine reply as served: in int8, drafted, calls bound, lists counted",
    )
    parser.add_argument("--json", type=Path, help="write the figures and the replies here")
    parser.add_argument("--seed", type=int, default=7)
    given = parser.parse_args()
    if given.calls is not None and given.calls < 1:
        parser.error(f"--calls: expected 1 or more, found {given.calls}")
    try:
        n_calls = given.calls or (40 if given.quick else 200)
        served = None
        if given.served:
            served = ServedAgent(given.model, given.draft, given.adapter).reply
        evaluation = Evaluation(given.model, given.data, n_calls, given.seed, given.adapter, served)
    except (FileNotFoundError, EngineError) as error:
        sys.exit(f"evaluate_agent: {error}")
    figures = []
    # A model of 135M parameters takes an hour for all of them: each is told when it is known.
    for figure in evaluate(evaluation, given.draft, given.quick, is_served=given.served):
        figures.append(figure)
        print(told(figure), flush=True)
    if given.json:
        given.json.write_text(json.dumps(kept(figures, evaluation), indent=1))
    if given.check and not all(figure.holds for figure in figures):
        sys.exit(1)


if __name__ == "__main__":
    main()

"""The arguments of ``voiceloop evaluate``. Imports nothing heavy: ``--help`` reads it."""

from __future__ import annotations

import argparse
from pathlib import Path

DESCRIPTION = (
    "Plays a file of scenarios to an agent, typed or spoken, and judges what it says and does: by "
    "rules, latency budgets, and a model if you name one. The agent is a file or the name of a "
    "shipped one, which it serves, or a running server (ws://...). Exits with 1 if a scenario "
    "fails or a budget is missed."
)


# What a session asks for so that one part answers: the wire's own effort.
EFFORTS = {"small": "low", "large": "high", "cascade": None}


def compared(text: str) -> tuple[str, ...]:
    """Parts with commas between them, for ``type=`` of argparse."""
    parts = tuple(part.strip() for part in text.split(","))
    unknown = next((part for part in parts if part not in EFFORTS), None)
    if unknown is not None:
        raise argparse.ArgumentTypeError(f"expected {', '.join(EFFORTS)}, found {unknown!r}")
    return parts


def add_evaluate_arguments(evaluate: argparse.ArgumentParser) -> None:
    evaluate.add_argument(
        "agent",
        metavar="AGENT",
        help="Judge this agent file, shipped agent, or ws://HOST:PORT",
    )
    evaluate.add_argument(
        "--scenarios", type=Path, required=True, metavar="FILE", help="Play this TOML file"
    )
    evaluate.add_argument(
        "--spoken",
        action="store_true",
        help="Have callers speak, in real time, with the server's voice (default: they type)",
    )
    evaluate.add_argument(
        "--voice", default="default", metavar="NAME", help="Give callers who speak this voice"
    )
    evaluate.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="NAME",
        help="Play this scenario; repeat it for several",
    )
    evaluate.add_argument(
        "--compare",
        type=compared,
        default=(),
        metavar="PART,PART",
        help="Play it to each of these, at a server with two models: small, large, cascade",
    )
    evaluate.add_argument(
        "--config", type=Path, metavar="FILE", help="Serve the agent with these settings"
    )
    evaluate.add_argument(
        "--preset",
        metavar="NAME",
        help="Serve these models: embedded, cpu, gpu, remote (default: auto)",
    )
    evaluate.add_argument(
        "--key", help="Send this key to a running server (default: VOICELOOP_KEYS, to this machine)"
    )
    judge = evaluate.add_argument_group("a model that judges")
    judge.add_argument(
        "--judge",
        metavar="URL",
        help="Ask this chat endpoint to judge, http://HOST:PORT/v1 (default: none)",
    )
    judge.add_argument("--judge-model", default="", metavar="NAME", help="Ask for this model there")
    judge.add_argument("--judge-key", metavar="KEY", help="Send it this key")
    evaluate.add_argument(
        "--json", type=Path, metavar="FILE", help="Also write the report into this file"
    )

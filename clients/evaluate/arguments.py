"""The arguments of ``voiceloop evaluate``. Imports nothing heavy: ``--help`` reads it."""

from __future__ import annotations

import argparse
from pathlib import Path

DESCRIPTION = (
    "Play a file of scenarios to an agent, typed or spoken, and judge what it says and does: by "
    "rules, latency budgets, and a model where one is named. The agent is a file or the name of "
    "one that ships, which is served for it, or a running server (ws://...). Exits with 1 where a "
    "scenario fails or a budget is missed."
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
        help="an agent file, the name of one that ships, or ws://HOST:PORT",
    )
    evaluate.add_argument(
        "--scenarios", type=Path, required=True, metavar="FILE", help="what is played: a TOML file"
    )
    evaluate.add_argument(
        "--spoken",
        action="store_true",
        help="callers speak, in real time, with the server's own voice (default: they type)",
    )
    evaluate.add_argument(
        "--voice", default="default", metavar="NAME", help="of a caller who speaks"
    )
    evaluate.add_argument(
        "--only", action="append", default=[], metavar="NAME", help="this scenario; may be repeated"
    )
    evaluate.add_argument(
        "--compare",
        type=compared,
        default=(),
        metavar="PART,PART",
        help="play all of it to each of these of a server with two models: small, large, cascade",
    )
    evaluate.add_argument(
        "--config", type=Path, metavar="FILE", help="the settings of the server that is started"
    )
    evaluate.add_argument(
        "--preset", metavar="NAME", help="its models: embedded, cpu, gpu, remote (default: auto)"
    )
    evaluate.add_argument(
        "--key", help="of a running server (default: of one on this machine, VOICELOOP_KEYS)"
    )
    judge = evaluate.add_argument_group("a model that judges")
    judge.add_argument(
        "--judge", metavar="URL", help="a chat endpoint, http://HOST:PORT/v1 (default: none)"
    )
    judge.add_argument("--judge-model", default="", metavar="NAME", help="its name there")
    judge.add_argument("--judge-key", metavar="KEY", help="sent to it as a bearer token")
    evaluate.add_argument("--json", type=Path, metavar="FILE", help="also write the report there")

"""The arguments of ``voiceloop replay``. Imports nothing heavy: ``voiceloop --help`` reads it."""

from __future__ import annotations

import argparse
from pathlib import Path

DESCRIPTION = (
    "Plays the caller of kept calls again, into the models and settings of --config, and "
    "prints what differs from the recording. The replay skips time in which nothing computes."
    " If a service on another machine computes, the replay of a call takes as long as the "
    "call did. The replay calls no tools: they answer as in the recording. With --aa it plays"
    " each call twice and compares the runs: their difference is noise."
)


def add_replay_arguments(replay: argparse.ArgumentParser) -> None:
    replay.add_argument(
        "calls", nargs="+", type=Path, metavar="CALL",
        help="Play this kept call (ID.json or its sound), or a folder of them",
    )  # fmt: skip
    replay.add_argument("--config", type=Path, metavar="FILE", help="Play it with these settings")
    replay.add_argument(
        "--agent", metavar="FILE", help="Play it to this agent (default: the one of the settings)"
    )
    replay.add_argument("--preset", metavar="NAME", help="Play it to the models of this preset")
    replay.add_argument(
        "--aa", action="store_true", help="Play each call twice, and compare the two"
    )
    replay.add_argument("--out", type=Path, metavar="DIR", help="Keep the new calls in this folder")
    replay.add_argument("--json", action="store_true", help="Print the result as JSON")

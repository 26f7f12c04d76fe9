"""The arguments of ``voiceloop replay``. Imports nothing heavy: ``voiceloop --help`` reads it."""

from __future__ import annotations

import argparse
from pathlib import Path

DESCRIPTION = (
    "Play the caller of kept calls again, into the models and settings of --config, and print what "
    "differs from the recording. Time in which nothing is computed is skipped; where a service "
    "elsewhere computes, a call takes as long as it took. Tools are not called: they answer as in "
    "the recording. With --aa each call is played twice, and the two runs are compared: so much "
    "is noise."
)


def add_replay_arguments(replay: argparse.ArgumentParser) -> None:
    replay.add_argument(
        "calls", nargs="+", type=Path, metavar="CALL",
        help="a kept call: ID.json or its sound; or a folder of them",
    )  # fmt: skip
    replay.add_argument("--config", type=Path, metavar="FILE", help="the settings to play it with")
    replay.add_argument("--agent", metavar="FILE", help="and the agent (default: the settings')")
    replay.add_argument("--preset", metavar="NAME", help="and the models")
    replay.add_argument("--aa", action="store_true", help="play each twice, and compare those")
    replay.add_argument("--out", type=Path, metavar="DIR", help="keep what was played there")
    replay.add_argument("--json", action="store_true", help="print it as JSON")

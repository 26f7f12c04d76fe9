"""The arguments of ``voiceloop talk``. Imports nothing heavy: ``voiceloop --help`` reads it."""

from __future__ import annotations

import argparse
from pathlib import Path

DESCRIPTION = (
    "Talk to a running server. With loudspeakers echo cancellation keeps the agent from hearing "
    "itself, where the extra talk is installed; else wear headphones. The first key of "
    "VOICELOOP_KEYS is sent to this machine alone. With --wav it exits with 1 where the recording "
    "got no answer."
)


def add_talk_arguments(talk: argparse.ArgumentParser) -> None:
    talk.add_argument(
        "--wav",
        type=Path,
        metavar="FILE",
        help="say this recording instead of a microphone: WAV, FLAC, Ogg, MP3, of any rate",
    )
    talk.add_argument(
        "--out",
        type=Path,
        metavar="OUT.wav",
        help="with --wav: record the call, caller left, agent right; after ctrl-C up to there",
    )
    talk.add_argument(
        "--voice",
        default="",
        metavar="NAME",
        help="the agent's voice, of those that voiceloop doctor lists (default: its own)",
    )
    talk.add_argument(
        "--push-to-talk",
        action="store_true",
        help="the space bar begins what you say, and ends it (default: speak when you like)",
    )
    talk.add_argument(
        "--no-echo-cancellation",
        action="store_true",
        help="leave the microphone as it is, for headphones (default: on where it is installed)",
    )

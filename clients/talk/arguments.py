"""The arguments of ``voiceloop talk``. Imports nothing heavy: ``voiceloop --help`` reads it."""

from __future__ import annotations

import argparse
from pathlib import Path

DESCRIPTION = (
    "Talks to a running server. With the extra talk, echo cancellation keeps the agent from "
    "hearing itself; without it wear headphones. The command sends the first key of "
    "VOICELOOP_KEYS only to a server on this machine. With --wav the command exits with 1 if "
    "the recording got no answer."
)


def add_talk_arguments(talk: argparse.ArgumentParser) -> None:
    talk.add_argument(
        "--wav",
        type=Path,
        metavar="FILE",
        help="Say this recording instead of a microphone: WAV, FLAC, Ogg, MP3, at any rate",
    )
    talk.add_argument(
        "--out",
        type=Path,
        metavar="OUT.wav",
        help="With --wav: record the call, caller left, agent right. Ctrl-C keeps it up to there",
    )
    talk.add_argument(
        "--voice",
        default="",
        metavar="NAME",
        help="Give the agent this voice; voiceloop doctor lists them (default: its own)",
    )
    talk.add_argument(
        "--push-to-talk",
        action="store_true",
        help="Press the space bar to begin and to end each turn (default: speak when you like)",
    )
    talk.add_argument(
        "--no-echo-cancellation",
        action="store_true",
        help="Leave the microphone as it is, for headphones (default: on if installed)",
    )

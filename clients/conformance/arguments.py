"""The arguments of ``voiceloop conformance``. Light: ``voiceloop --help`` reads it."""

from __future__ import annotations

import argparse

from clients.arguments import number, whole_number


def add_conformance_arguments(conformance: argparse.ArgumentParser) -> None:
    conformance.add_argument(
        "--api-key",
        metavar="KEY",
        help="Send this key (default: the first of VOICELOOP_KEYS, to this machine alone)",
    )
    conformance.add_argument(
        "--model",
        metavar="NAME",
        default="gpt-realtime",
        help="Ask for this model (default: %(default)s)",
    )
    conformance.add_argument(
        "--only",
        metavar="NAME",
        action="append",
        default=[],
        help="Run this check or topic of --list; repeat it for several (default: all)",
    )
    conformance.add_argument("--list", action="store_true", help="Print the checks and their rules")
    conformance.add_argument("--json", action="store_true", help="Print the results as JSON")
    conformance.add_argument(
        "--jobs",
        type=whole_number(1),
        default=4,
        metavar="N",
        help="Run so many checks at a time (default: %(default)s)",
    )
    conformance.add_argument(
        "--timeout",
        type=number("seconds", above=0.0),
        default=15.0,
        metavar="S",
        help="Wait so many seconds for an event (default: %(default)g)",
    )

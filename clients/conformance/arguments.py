"""The arguments of ``voiceloop conformance``. Light: ``voiceloop --help`` reads it."""

from __future__ import annotations

import argparse

from clients.arguments import number, whole_number


def add_conformance_arguments(conformance: argparse.ArgumentParser) -> None:
    conformance.add_argument(
        "--api-key",
        metavar="KEY",
        help="sent as a bearer token (default: to this machine the first of VOICELOOP_KEYS)",
    )
    conformance.add_argument(
        "--model",
        metavar="NAME",
        default="gpt-realtime",
        help="the model to ask for (default: %(default)s)",
    )
    conformance.add_argument(
        "--only",
        metavar="NAME",
        action="append",
        default=[],
        help="a check or topic of --list; repeatable (default: all)",
    )
    conformance.add_argument("--list", action="store_true", help="print the checks and their rules")
    conformance.add_argument("--json", action="store_true", help="print the results as JSON")
    conformance.add_argument(
        "--jobs",
        type=whole_number(1),
        default=4,
        metavar="N",
        help="checks at a time (default: %(default)s)",
    )
    conformance.add_argument(
        "--timeout",
        type=number("seconds", above=0.0),
        default=15.0,
        metavar="S",
        help="seconds to wait for an event (default: %(default)g)",
    )

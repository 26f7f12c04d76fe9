"""The arguments of ``voiceloop call``. Imports nothing heavy: ``voiceloop --help`` reads it."""

from __future__ import annotations

import argparse
from pathlib import Path

from clients.arguments import DEFAULT_URL, number

DESCRIPTION = (
    "Drives a call turn by turn, by hand or from a program. `start` opens a call in the "
    "background. `say` says one turn and prints the answer. `events` prints what the server "
    "sent. `stop` hangs up. Each command prints JSON, one object a line. A call ends after 15"
    " minutes without a turn."
)


def add_call_arguments(call: argparse.ArgumentParser) -> None:
    verbs = call.add_subparsers(title="verbs", metavar="VERB", dest="verb", required=True)
    start = verbs.add_parser(
        "start",
        help="Opens a call to an agent file, or to a running server.",
        examples=("voiceloop call start my-agent.toml",),
    )
    start.add_argument(
        "agent",
        metavar="AGENT",
        nargs="?",
        default=DEFAULT_URL,
        help="Call this agent file or shipped agent, which it serves, or ws://HOST:PORT "
        "(default: %(default)s)",
    )
    start.add_argument("--config", type=Path, metavar="FILE", help="Serve with these settings")
    start.add_argument(
        "--preset", metavar="NAME", help="Serve these models: embedded, cpu, gpu, remote"
    )
    start.add_argument(
        "--voice", default="default", metavar="NAME", help="Give the caller this voice"
    )
    start.add_argument(
        "--result",
        action="append",
        default=[],
        metavar="TOOL=TEXT",
        help="Answer this tool, which the agent leaves to its client; repeat it for several",
    )
    start.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help="Write conversation.wav and turns.json there at the end",
    )
    start.add_argument(
        "--key", help="Send this key to a running server (default: VOICELOOP_KEYS, on this host)"
    )
    say = verbs.add_parser(
        "say",
        help="Says one turn, and prints what was heard and answered.",
        examples=('voiceloop call say "Are you open on Sunday?"',),
    )
    say.add_argument("text", nargs="?", default="", help="Say these words, with the server's voice")
    say.add_argument("--wav", type=Path, metavar="FILE", help="Say this recording instead")
    say.add_argument("--typed", action="store_true", help="Type the words; the answer is text")
    say.add_argument(
        "--after",
        type=number("seconds", at_least=0.0),
        metavar="SECONDS",
        help="Interrupt: speak this long after the agent's last answer has begun",
    )
    say.add_argument(
        "--no-wait",
        action="store_true",
        help="Return when the turn was said, so that --after can interrupt",
    )
    events = verbs.add_parser(
        "events",
        help="Prints the server's events so far, without sound.",
        examples=("voiceloop call events --since 40",),
    )
    events.add_argument("--since", type=int, default=0, metavar="N", help="Begin at this number")
    stop = verbs.add_parser(
        "stop",
        help="Hangs up, and prints the figures of the call.",
        examples=("voiceloop call stop",),
    )
    for verb in (start, say, events, stop):
        verb.add_argument("--name", default="call", help="Name the call, if there are several")

"""The arguments of ``voiceloop call``. Imports nothing heavy: ``voiceloop --help`` reads it."""

from __future__ import annotations

import argparse
from pathlib import Path

from clients.arguments import DEFAULT_URL, number

DESCRIPTION = (
    "Drive a call turn by turn, by hand or from a program. `start` opens a call and holds it in "
    "the background, `say` says one turn and prints what became of it, `events` prints what the "
    "server sent, `stop` hangs up. Each prints JSON, one object a line. A call that nobody drives "
    "for 15 minutes ends."
)


def add_call_arguments(call: argparse.ArgumentParser) -> None:
    verbs = call.add_subparsers(title="verbs", metavar="VERB", dest="verb", required=True)
    start = verbs.add_parser("start", help="open a call, of an agent file or a running server")
    start.add_argument(
        "agent",
        metavar="AGENT",
        nargs="?",
        default=DEFAULT_URL,
        help="an agent file or the name of one that ships, which is served for it, or "
        "ws://HOST:PORT (default: %(default)s)",
    )
    start.add_argument("--config", type=Path, metavar="FILE", help="the settings of that server")
    start.add_argument("--preset", metavar="NAME", help="its models: embedded, cpu, gpu, remote")
    start.add_argument("--voice", default="default", metavar="NAME", help="the caller's voice")
    start.add_argument(
        "--result",
        action="append",
        default=[],
        metavar="TOOL=TEXT",
        help="answer this tool, which the agent leaves to its client; may be repeated",
    )
    start.add_argument(
        "--out", type=Path, metavar="DIR", help="at the end leave conversation.wav and turns.json"
    )
    start.add_argument("--key", help="of a running server (default: VOICELOOP_KEYS, on this host)")
    say = verbs.add_parser("say", help="say one turn, and print what was heard and answered")
    say.add_argument("text", nargs="?", default="", help="the words; the server's voice says them")
    say.add_argument("--wav", type=Path, metavar="FILE", help="say this recording instead")
    say.add_argument("--typed", action="store_true", help="type the words; the answer is text")
    say.add_argument(
        "--after",
        type=number("seconds", at_least=0.0),
        metavar="SECONDS",
        help="interrupt: speak so long after the agent's last answer has begun",
    )
    say.add_argument(
        "--no-wait",
        action="store_true",
        help="return when it was said; --after can interrupt",
    )
    events = verbs.add_parser("events", help="print the server's events so far, without sound")
    events.add_argument("--since", type=int, default=0, metavar="N", help="from this number on")
    stop = verbs.add_parser("stop", help="hang up, and print the figures of the call")
    for verb in (start, say, events, stop):
        verb.add_argument("--name", default="call", help="of the call, where there are several")

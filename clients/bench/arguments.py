"""The arguments of ``voiceloop bench``. Imports nothing heavy: ``voiceloop --help`` reads it."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from clients.arguments import number, whole_number

MAX_REQUESTS = 10_000
MAX_AT_ONCE = 256
MAX_PROMPT_TOKENS = 131_072
MAX_REPLY_TOKENS = 16_384
MAX_CALLS = 1_000
MAX_SETTINGS = 16  # of prompt lengths times concurrencies: each is measured by itself
DESCRIPTION = (
    "Measures any endpoint. At a chat endpoint (http://HOST:PORT/v1): the time to the first token "
    "and the time per token. At a Realtime endpoint (ws://HOST:PORT): the response latency, from a "
    "recorded caller's last sound to the agent's first, in whole calls in real time. Exits with 1 "
    "if a request failed, a call broke off or a turn got no answer."
)


def add_bench_arguments(bench: argparse.ArgumentParser) -> None:
    bench.add_argument(
        "url",
        metavar="URL",
        help="Measure a chat service (http://, https://) or calls (ws://, wss://)",
    )
    bench.add_argument(
        "--model",
        metavar="NAME",
        help="Ask for this model (default: a chat service's only one, a call's own)",
    )
    bench.add_argument(
        "--api-key",
        metavar="KEY",
        help="Send this key (default: the first of VOICELOOP_KEYS, to this machine alone)",
    )
    bench.add_argument(
        "--at-once",
        type=numbers(MAX_AT_ONCE),
        default=(1,),
        metavar="N[,N...]",
        help="Send so many requests or calls at a time (default: 1)",
    )
    bench.add_argument(
        "--json", type=Path, metavar="FILE", help="Also write the figures into this file"
    )
    chat = bench.add_argument_group("of a chat endpoint")
    chat.add_argument(
        "--requests",
        type=whole_number(1, MAX_REQUESTS),
        metavar="N",
        help="Send so many of each setting, after one that does not count (default: 20)",
    )
    chat.add_argument(
        "--prompt-tokens",
        type=numbers(MAX_PROMPT_TOKENS),
        metavar="N[,N...]",
        help="Make prompts about so long; the report has the service's own count (default: 200)",
    )
    chat.add_argument(
        "--max-tokens",
        type=whole_number(1, MAX_REPLY_TOKENS),
        metavar="N",
        help="Allow replies of so many tokens (default: 64)",
    )
    chat.add_argument(
        "--same-prompt",
        action="store_true",
        help="Send the same prompt each time: what a prefix cache gains (default: all differ)",
    )
    chat.add_argument(
        "--timeout",
        type=number("seconds", above=0.0),
        metavar="S",
        help="Wait so many seconds for the next piece of a reply (default: 60)",
    )
    calls = bench.add_argument_group("of a Realtime endpoint")
    calls.add_argument(
        "--calls",
        type=whole_number(1, MAX_CALLS),
        metavar="N",
        help="Make so many calls, each about a minute (default: as many as at once)",
    )
    calls.add_argument(
        "--script",
        type=Path,
        metavar="FILE",
        help="Play a call of your own: TOML with [[turns]], as BENCH.md shows (default: bundled)",
    )
    calls.add_argument(
        "--turns",
        type=whole_number(1),
        metavar="N",
        help="Play only the first turns of each call (default: all)",
    )
    calls.add_argument(
        "--within",
        type=number("ms", above=0.0),
        metavar="MS",
        help="Count an answer within so many ms as a good one (default: 800)",
    )


def numbers(at_most: int) -> Callable[[str], tuple[int, ...]]:
    """Whole numbers from 1 up, separated by commas."""
    read_one = whole_number(1, at_most)

    def read(text: str) -> tuple[int, ...]:
        found = tuple(read_one(part) for part in text.split(","))
        if len(found) > MAX_SETTINGS:
            raise argparse.ArgumentTypeError(
                f"expected at most {MAX_SETTINGS} numbers, found {len(found)}"
            )
        return tuple(dict.fromkeys(found))

    return read

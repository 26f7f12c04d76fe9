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
    "Measure any endpoint. Of an OpenAI chat endpoint (http://HOST:PORT/v1, https://...) the time "
    "to the first token, the time per token and their percentiles, for each prompt length with "
    "each number of requests at once. Of an OpenAI Realtime endpoint (ws://HOST:PORT, wss://...) "
    "the gap between a recorded caller's last sound and the agent's first, in whole calls in real "
    "time. Exits with 1 where a request failed, a call broke off or a turn got no answer."
)


def add_bench_arguments(bench: argparse.ArgumentParser) -> None:
    bench.add_argument(
        "url", metavar="URL", help="http:// or https:// of a chat service, ws:// or wss:// of calls"
    )
    bench.add_argument(
        "--model",
        metavar="NAME",
        help="asked for by this name (default: a chat service's only model, a call's own)",
    )
    bench.add_argument(
        "--api-key",
        metavar="KEY",
        help="sent as a bearer token (default: to this machine the first of VOICELOOP_KEYS)",
    )
    bench.add_argument(
        "--at-once",
        type=numbers(MAX_AT_ONCE),
        default=(1,),
        metavar="N[,N...]",
        help="requests or calls at a time (default: 1)",
    )
    bench.add_argument("--json", type=Path, metavar="FILE", help="also write the figures there")
    chat = bench.add_argument_group("of a chat endpoint")
    chat.add_argument(
        "--requests",
        type=whole_number(1, MAX_REQUESTS),
        metavar="N",
        help="how many of each setting, after one that does not count (default: 20)",
    )
    chat.add_argument(
        "--prompt-tokens",
        type=numbers(MAX_PROMPT_TOKENS),
        metavar="N[,N...]",
        help="about how long the prompts are; the service's own count is reported (default: 200)",
    )
    chat.add_argument(
        "--max-tokens",
        type=whole_number(1, MAX_REPLY_TOKENS),
        metavar="N",
        help="how long the replies may be (default: 64)",
    )
    chat.add_argument(
        "--same-prompt",
        action="store_true",
        help="all prompts of a length alike: what a prefix cache gains (default: all differ)",
    )
    chat.add_argument(
        "--timeout",
        type=number("seconds", above=0.0),
        metavar="S",
        help="seconds to wait for the next piece of a reply (default: 60)",
    )
    calls = bench.add_argument_group("of a Realtime endpoint")
    calls.add_argument(
        "--calls",
        type=whole_number(1, MAX_CALLS),
        metavar="N",
        help="how many calls, each about a minute (default: as many as at once)",
    )
    calls.add_argument(
        "--script",
        type=Path,
        metavar="FILE",
        help="a call of your own: TOML with [[turns]], each name, text, after and file, a mono "
        "16-bit WAV or FLAC in the same folder (default: the bundled call)",
    )
    calls.add_argument(
        "--turns",
        type=whole_number(1),
        metavar="N",
        help="only the first turns of each call (default: all)",
    )
    calls.add_argument(
        "--within",
        type=number("ms", above=0.0),
        metavar="MS",
        help="ms within which an answer is a good one (default: 800)",
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

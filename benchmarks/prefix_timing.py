"""What the time of an answer tells of a neighbour: ``python -m benchmarks.prefix_timing``.

Two keys ask one ``voiceloop serve`` over HTTP for one token each. The neighbour has asked with a
prompt of its own; then the other key asks with that very prompt, and with one that nobody has ever
sent, in an order drawn for each pair. Told is how well its time tells the two apart: the area under
the ROC curve (AUC), 0.5 where it tells nothing and 1 where it always does. Beside it stands what
the same times show of the key's own prompts, sent once more: that is to be seen, or the benchmark
sees nothing.

Source of the AUC as a rank statistic: Mann and Whitney 1947.
"""

from __future__ import annotations

import random
import sys
import time
from dataclasses import asdict, dataclass, field

import httpx

from benchmarks.harness.command_line import (
    add_check,
    add_seed,
    benchmark_parser,
    early_end,
    judged,
    run,
    without_results,
)
from benchmarks.harness.harness import RESULTS, Bar
from clients.arguments import whole_number
from clients.outputs import prepare_folder
from clients.report.percentiles import Distribution
from clients.server_process import ServerProcess, running_server

NEIGHBOUR, ASKER = "neighbours-key-1", "askers-own-key-2"
KEYS = {"VOICELOOP_KEYS": f"{NEIGHBOUR},{ASKER}"}
N_WORDS = 120  # of a prompt: long enough for a cache to spare most of the time
LEAST_PAIRS = 50
MOST_AUC, LEAST_AUC, LEAST_OWN_AUC = 0.55, 0.45, 0.8
WORDS = (
    "table order coffee window garden letter number morning evening street bridge station paper "
    "answer question kitchen doctor ticket market village river summer winter"
).split()


@dataclass(slots=True)
class Times:
    """Of the asker's answers, in ms. cached: tokens that the server said it had cached of them.

    neighbours: to prompts that the neighbour has sent; new: that nobody has; own: its own again.
    """

    neighbours: list[float] = field(default_factory=list)
    new: list[float] = field(default_factory=list)
    own: list[float] = field(default_factory=list)
    cached: list[int] = field(default_factory=list)


async def ask(http: httpx.AsyncClient, key: str, prompt: str) -> tuple[float, int]:
    """Milliseconds to the whole answer, and tokens of the prompt that were in the cache."""
    body = {
        "model": "any",
        "max_tokens": 1,
        "temperature": 0,
        "messages": [{"role": "user", "content": prompt}],
    }
    began_s = time.perf_counter()
    told = {"Authorization": f"Bearer {key}"}
    response = await http.post("/v1/chat/completions", json=body, headers=told)
    took_ms = 1000.0 * (time.perf_counter() - began_s)
    response.raise_for_status()
    details = response.json()["usage"].get("prompt_tokens_details") or {}
    return took_ms, int(details.get("cached_tokens", 0))


async def measure(times: Times, n_pairs: int, seed: int) -> None:
    """Fill `times`. Raises: ClientError where the server does not start; httpx.HTTPError."""
    rng = random.Random(seed)
    log = RESULTS / "prefix_timing.log"
    async with running_server(("--preset", "embedded"), log=log, environment=KEYS) as server:
        async with httpx.AsyncClient(base_url=base_url(server), timeout=60.0) as http:
            for number in range(LEAST_PAIRS):  # buffers are made, memory is touched
                await ask(http, ASKER, prompt_of(rng, -1 - number))
            for number in range(n_pairs):
                await measure_pair(http, times, rng, number)
                if (number + 1) % 100 == 0:
                    auc_now = auc(times.neighbours, times.new)
                    print(f"{number + 1} pairs: AUC {auc_now:.3f}", flush=True)


async def measure_pair(
    http: httpx.AsyncClient, times: Times, rng: random.Random, number: int
) -> None:
    shared, new = prompt_of(rng, 2 * number), prompt_of(rng, 2 * number + 1)
    await ask(http, NEIGHBOUR, shared)
    asked = [(shared, times.neighbours), (new, times.new)]
    rng.shuffle(asked)
    for prompt, found in asked:
        took_ms, n_cached = await ask(http, ASKER, prompt)
        found.append(took_ms)
        times.cached.append(n_cached)
    times.own.append((await ask(http, ASKER, new))[0])


def base_url(server: ServerProcess) -> str:
    return f"http://127.0.0.1:{server.port}"


def prompt_of(rng: random.Random, number: int) -> str:
    """No two begin alike: a number, then words."""
    return f"{number}: " + " ".join(rng.choices(WORDS, k=N_WORDS))


def auc(quick: list[float], slow: list[float]) -> float:
    """How often one of the first took less time than one of the second, ties as a half."""
    ranked = sorted([(ms, 0) for ms in quick] + [(ms, 1) for ms in slow])
    n_quicker, pairs = 0.0, len(quick) * len(slow)
    n_quick, at = 0, 0
    while at < len(ranked):
        end = at
        while end < len(ranked) and ranked[end][0] == ranked[at][0]:
            end += 1
        alike = ranked[at:end]
        n_alike = sum(kind == 0 for _, kind in alike)
        n_quicker += (len(alike) - n_alike) * (n_quick + n_alike / 2)
        n_quick, at = n_quick + n_alike, end
    return n_quicker / pairs


def bars_of(times: Times) -> list[Bar]:
    told, own = auc(times.neighbours, times.new), auc(times.own, times.new)
    n = len(times.new)
    return [
        Bar("a neighbour's prompt told by its time: AUC", told, MOST_AUC, "", n=n),
        Bar("the same, at least", told, LEAST_AUC, "", at_least=True),
        Bar("one's own prompt: AUC", own, LEAST_OWN_AUC, "", at_least=True),
        Bar("cached tokens told of a prompt never sent", float(max(times.cached)), 0, ""),
    ]


def main() -> int:
    parser = benchmark_parser("prefix_timing", "What the time of an answer tells of a neighbour.")
    parser.add_argument(
        "--pairs", type=whole_number(LEAST_PAIRS), default=2000, metavar="N",
        help="of prompts, one the neighbour's, one nobody's (default: %(default)s)",
    )  # fmt: skip
    add_seed(parser, "of the prompts and their order")
    add_check(parser)
    chosen = parser.parse_args()
    prepare_folder(RESULTS)
    times = Times()
    partial = early_end(measure(times, chosen.pairs, chosen.seed))
    if not times.own:
        return without_results(partial or "no pair was measured")
    for name, ms in asdict(times).items():
        if name != "cached":
            spread = Distribution.of(ms)
            print(f"{name:>10}: p50 {spread.p50}, p95 {spread.p95} ms of {spread.n}")
    settings = {"preset": "embedded", "pairs": chosen.pairs, "words": N_WORDS}
    return judged(
        "prefix_timing", chosen, settings, bars_of(times), partial, times_ms=asdict(times)
    )


if __name__ == "__main__":
    sys.exit(run(main))

"""``voiceloop bench URL``: what is asked of which endpoint, what is printed and written."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from rich.table import Table

from clients.bench.arguments import MAX_SETTINGS
from clients.bench.chat_endpoint import open_endpoint
from clients.bench.chat_load import ChatLoad, ChatResult, chat_figures, run_chat_load
from clients.bench.plot import range_plot
from clients.call.script import load_call
from clients.command import EXIT_BAD_INPUT, EXIT_FAILED, EXIT_INTERRUPTED
from clients.connection import own_key, realtime_url
from clients.errors import BenchError
from clients.loadgen import Load, LoadResult, figures, print_figures, run_load
from clients.outputs import check_file, writing
from clients.progress import progress_bar
from clients.provenance import provenance
from clients.terminal import Terminal

CHAT_OPTIONS = ("requests", "prompt_tokens", "max_tokens", "same_prompt", "timeout")
CALL_OPTIONS = ("calls", "script", "turns", "within")
PERCENTILES = ("p50", "p90", "p95", "p99")


def run_bench(chosen: argparse.Namespace) -> int:
    """Returns the exit code.

    Raises:
        ClientError: the URL is none, options do not belong together, nobody answers there.
    """
    is_realtime, url = is_of_calls(chosen.url), _shown(chosen.url)
    others, kind = (CHAT_OPTIONS, "Realtime") if is_realtime else (CALL_OPTIONS, "chat")
    for name in others:
        if getattr(chosen, name):
            option = f"--{name.replace('_', '-')}"
            raise BenchError(f"expected options for the {kind} endpoint at {url}, found {option}")
    if chosen.json is not None:
        check_file(chosen.json)
    return _bench_calls(chosen) if is_realtime else _bench_chat(chosen)


def is_of_calls(url: str) -> bool:
    """Whether it is a Realtime endpoint: by its scheme, or a path that ends in ``/realtime``.

    Raises:
        BenchError: it is no address.
    """
    try:
        parts = urlsplit(url)
    except ValueError:
        parts = urlsplit("")
    if parts.scheme in ("ws", "wss"):
        return True
    if parts.scheme not in ("http", "https"):
        raise BenchError(
            "expected http://host:port/v1 of a chat endpoint or ws://host:port of a Realtime "
            f"endpoint, found {url!r}"
        )
    return parts.path.rstrip("/").endswith("/realtime")


# --- a chat endpoint -----------------------------------------------------------------------------


def _bench_chat(chosen: argparse.Namespace) -> int:
    settings = [
        ChatLoad(
            chosen.requests or 20, at_once, n_tokens, chosen.max_tokens or 64, chosen.same_prompt
        )
        for n_tokens, at_once in product(chosen.prompt_tokens or (200,), chosen.at_once)
    ]
    if len(settings) > MAX_SETTINGS:
        raise BenchError(
            f"expected at most {MAX_SETTINGS} settings (prompt lengths times requests at once), "
            f"found {len(settings)}"
        )
    results = [ChatResult(load) for load in settings]
    n_all = sum(load.n_requests for load in settings)
    asked: dict[str, str] = {}
    try:
        with progress_bar("replies", n_all) as progress:
            asyncio.run(_ask_all(chosen, results, progress, asked))
    except KeyboardInterrupt:
        if not any(result.samples for result in results):
            raise
        n_ended = sum(len(one.samples) + len(one.failed) for one in results)
        print(f"interrupted: {n_ended} of {n_all} replies had ended", file=sys.stderr)
        asked["partial"] = "interrupted"
    rows = [chat_figures(result) for result in results]
    data = {
        **provenance(), "kind": "chat", "url": _shown(chosen.url), "partial": None, **asked,
        "settings": rows,
    }  # fmt: skip
    _write(chosen.json, data)
    print_chat(data, results)
    if data["partial"]:
        return EXIT_INTERRUPTED
    if not any(row["answered"] for row in rows):
        return EXIT_BAD_INPUT
    return EXIT_FAILED if any(row["failed"] for row in rows) else 0


async def _ask_all(
    chosen: argparse.Namespace,
    results: Sequence[ChatResult],
    progress: Callable[[int], None],
    asked: dict[str, str],
) -> None:
    n_ended = 0

    def told() -> None:
        nonlocal n_ended
        n_ended += 1
        progress(n_ended)

    key = chosen.api_key or own_key(chosen.url)
    timeout_s = chosen.timeout or 60.0
    async with open_endpoint(
        chosen.url, model=chosen.model, key=key, timeout_s=timeout_s
    ) as endpoint:
        asked["model"] = endpoint.model
        for number, result in enumerate(results):
            # Seeds of its own: a prompt of the setting before would be in the service's cache.
            await run_chat_load(endpoint, result, first_seed=1_000_003 * number, told=told)


def print_chat(data: dict[str, Any], results: Sequence[ChatResult]) -> None:
    """One row a setting, and the plot of the times to the first token."""
    table = Table(box=None, pad_edge=False, header_style="dim", title_justify="left")
    heads = ("prompt", "at once", "answered", *(f"ttft {p}" for p in PERCENTILES))
    for name in (*heads, "ms/token p50", "p95", "tokens/s each", "all"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in data["settings"]:
        n_prompt = row["prompt_tokens_counted"]["p50"] or row["prompt_tokens"]
        table.add_row(
            f"{n_prompt:.0f}",
            str(row["at_once"]),
            f"{row['answered']} of {row['answered'] + row['failed']}",
            *(_ms(row["ttft_ms"][p]) for p in PERCENTILES),
            _ms(row["ms_per_token"]["p50"], 2),
            _ms(row["ms_per_token"]["p95"], 2),
            _ms(row["tokens_per_s"]["p50"]),
            _ms(row["all_tokens_per_s"]),
        )
    # Not on a terminal there is no width to keep to: a row stays one line that can be searched.
    console = Terminal(highlight=False, width=None if sys.stdout.isatty() else 160)
    console.print(f"{data['model']} at {data['url']}, times in ms", markup=False)
    console.print(table)
    lines = [(one.label, [sample.ttft_ms for sample in one.samples]) for one in results]
    _print_plot("time to the first token", lines)
    for error, n_times in Counter(e for one in results for e in one.failed).most_common():
        print(f"failed, {n_times} times: {error}")


def _ms(value: float | None, n_digits: int = 1) -> str:
    return "–" if value is None else f"{value:.{n_digits}f}"


# --- a Realtime endpoint -------------------------------------------------------------------------


def _bench_calls(chosen: argparse.Namespace) -> int:
    if len(chosen.at_once) > 1:
        raise BenchError("expected one number of calls at once, found several")
    realtime_url(chosen.url)  # before a script is read
    at_once = chosen.at_once[0]
    load = Load(
        chosen.url,
        chosen.calls or at_once,
        at_once,
        key=chosen.api_key or own_key(chosen.url),
        n_turns=chosen.turns,
        within_ms=chosen.within or 800.0,
        extras={"model": chosen.model} if chosen.model else {},
        script=load_call(chosen.script) if chosen.script is not None else None,
    )
    result = LoadResult()
    try:
        with progress_bar("calls", load.n_calls) as progress:
            asyncio.run(run_load(load, progress, result))
    except KeyboardInterrupt:
        if not result.calls:
            raise
        print(f"interrupted: {result.n_ended} of {load.n_calls} calls had ended", file=sys.stderr)
    if not result.calls:
        reasons = "; ".join(dict.fromkeys(result.broken))
        raise BenchError(f"no call went through: {reasons}")
    data = {"kind": "realtime", "url": _shown(chosen.url), **figures(load, result)}
    _write(chosen.json, data)
    print_figures(data)
    turns = [turn for call in result.calls for turn in call.turns]
    names = dict.fromkeys(turn.name for turn in turns)
    gaps = {name: [t.gap_ms for t in turns if t.name == name and t.gap_ms is not None]
            for name in names}  # fmt: skip
    _print_plot("gap", [("all turns", sum(gaps.values(), [])), *gaps.items()])
    if data["partial"]:
        return EXIT_INTERRUPTED
    return EXIT_FAILED if result.broken or data["unanswered"] else 0


# --- both ----------------------------------------------------------------------------------------


def _print_plot(title: str, rows: Sequence[tuple[str, Sequence[float]]]) -> None:
    lines = range_plot(rows)
    if lines:
        print(f"\n{title}")
        print("\n".join(lines))


def _shown(url: str) -> str:
    """Return it without a name and password that may stand in it."""
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="").geturl()


def _write(path: Path | None, data: dict[str, Any]) -> None:
    if path is not None:
        with writing(path):
            path.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")

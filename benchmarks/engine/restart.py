"""What the operator's prompt costs that was read before a restart: it comes from disk."""

from __future__ import annotations

import time
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.engine.setting import Setting, median, paired, reply_of
from benchmarks.harness.harness import Bar
from engine.engine import Engine
from engine.public_prefix import PrefixFiles, PublicPrefix

N_OPERATOR = 1000
SETTLE_S = 120.0


def restarted(setting: Setting) -> list[Bar]:
    """TTFT of the first call after a restart, over that of a call to an engine which has run."""
    warm_ms, first_ms, cold_ms = list[float](), list[float](), list[float]()
    operator = setting.words(N_OPERATOR, 400)
    with TemporaryDirectory() as folder:
        files = PrefixFiles(Path(folder), 512 << 20, lambda: "benchmark")
        for i in range(setting.repeats + 1):
            engine = _started(setting)
            if not i:
                cold_ms.append(_ttft_ms(engine, "cold", operator + setting.words(24, i)))
            started = time.perf_counter()
            is_read = _read_ahead(engine, operator, files)
            told_ms = (time.perf_counter() - started) * 1e3
            ttft = [
                _ttft_ms(engine, name, operator + setting.words(24, 500 + 2 * i + k))
                for k, name in enumerate(("first", "second"))
            ]
            if is_read:
                first_ms.append(ttft[0])
                warm_ms.append(ttft[1])
                setting.tell(f"restart {i}: the prefix was in its place after {told_ms:.0f} ms")
    setting.tell(
        f"{N_OPERATOR} tokens of instructions: TTFT {median(cold_ms):.1f} ms without them, "
        f"{median(first_ms):.1f} ms first after a restart, {median(warm_ms):.1f} ms warm"
    )
    ratio = paired(first_ms, warm_ms)
    return [Bar("first call after a restart over a warm one: TTFT", ratio, 1.2, "x")]


def _started(setting: Setting) -> Engine:
    """An engine as a worker hands it over: it has answered one short turn."""
    engine = setting.engine()
    _ttft_ms(engine, "warm_up", setting.words(40, 1))
    return engine


def _read_ahead(engine: Engine, tokens: list[int], files: PrefixFiles) -> bool:
    """Bring the operator's prefix in; whether it came from its file."""
    prefix = PublicPrefix(engine, "operator", tokens, files)
    deadline = time.monotonic() + SETTLE_S
    while engine.has_work() and time.monotonic() < deadline:
        for event in engine.step():
            prefix.observe(event)
    if prefix.writing is not None:
        prefix.writing.join(SETTLE_S)
    return prefix.writing is None


def _ttft_ms(engine: Engine, name: str, prompt: list[int]) -> float:
    branch = engine.branch(name)
    ttft_ms = reply_of(engine, branch, prompt, 2).timings.ttft_ms
    branch.close()
    return ttft_ms

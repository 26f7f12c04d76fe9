"""What prompts cost that were read before: from the host tier, and from disk after a restart."""

from __future__ import annotations

import time
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.engine.models import Shape, write_random_model
from benchmarks.engine.setting import Setting, median, paired, reply_of
from benchmarks.harness.harness import Bar
from engine.engine import Engine
from engine.tiers.prefix_file import PrefixFiles
from engine.tiers.public_prefix import Phase, PublicPrefix
from engine.types import EngineConfig

# 28 layers of 1024 with 8 KV heads of 128: the keys and values of Qwen3-0.6B, 112 KiB a token. It
# has half of its query heads and few of its words, so that computing is a little cheaper here.
SHAPE_06B = Shape(1024, 3072, 28, 8, 8)
N_LONG = 4000
N_OPERATOR = 1000
SETTLE_S = 120.0


def restored(setting: Setting) -> list[Bar]:
    """TTFT of 4,000 tokens that had left the pool, over that of computing them."""
    with TemporaryDirectory() as folder:
        model = write_random_model(Path(folder), SHAPE_06B)
        config = EngineConfig(
            quant="int8", threads=setting.threads, kv_tokens=N_LONG + 256, host_tier_bytes=512 << 20
        )
        engine = Engine.load(model, config)
    prompts = [setting.words(N_LONG, 300 + i) for i in range(2)]
    computed_ms = [_ttft_ms(engine, f"computed{i}", prompt) for i, prompt in enumerate(prompts)]
    # Each pushes the other out of the pool.
    restored_ms = [_ttft_ms(engine, f"restored{i}", prompt) for i, prompt in enumerate(prompts)]
    computed, came_back = median(computed_ms), median(restored_ms)
    n_blocks = engine.metrics()["kv_blocks_restored"]
    setting.tell(
        f"{N_LONG} tokens: computed in {computed:.0f} ms, back from memory in {came_back:.0f} ms "
        f"({n_blocks:.0f} blocks in two rounds)"
    )
    return [Bar("4,000 tokens (0.6B): restored over computed", came_back / computed, 0.1, "x")]


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
    while prefix.phase is not Phase.OVER and time.monotonic() < deadline:
        prefix.advance()
        for event in engine.step():
            prefix.observe(event)
    if prefix.written is not None:
        prefix.written.result(SETTLE_S)
    return prefix.written is None


def _ttft_ms(engine: Engine, name: str, prompt: list[int]) -> float:
    branch = engine.branch(name)
    ttft_ms = reply_of(engine, branch, prompt, 2).timings.ttft_ms
    branch.close()
    return ttft_ms

"""The quality gate of a model's format, run in this process: whoever asks waits minutes for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.gate import KV_TOKENS, run
from engine.quality import Format
from engine.types import EngineConfig, EngineError
from voiceloop.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Measured:
    """As ``engine.gate.Verdict``, in plain values. layers: as ``served_by`` names them."""

    layers: str
    agreement: float
    kl_nats: float
    n_places: int
    n_calls: int
    n_same: int
    of_fp32: float | None


def run_gate(options: Mapping[str, Any], *, exact: bool, tell: Callable[[str], None]) -> Measured:
    """Compare what a worker would be loaded with to bf16 of the same checkpoint.

    options: the engine role's. exact: fp32 beside it. Raises: ConfigError.
    """
    adapter = options.get("adapter_dir")
    base = EngineConfig(
        kv_tokens=KV_TOKENS, threads=options.get("threads", 1), max_draft_tokens=0,
        device=options.get("device", "cpu"), adapter_dir=Path(adapter) if adapter else None,
    )  # fmt: skip
    one = Format(options.get("quant"), options.get("kv_format", "plain"))
    try:
        found = run(Path(options["model_dir"]), one, base, exact=exact, tell=tell)
    except EngineError as error:
        raise ConfigError(f"the gate could not be run: {error}") from error
    return Measured(
        found.layers, found.quality.top1_agreement, found.quality.kl_nats, found.quality.n_tokens,
        found.n_calls, found.n_same, found.of_fp32,
    )  # fmt: skip

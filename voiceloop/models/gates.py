"""Which formats of weights, keys and values still are their model: what was measured of them.

`python -m engine.recipes.quality` runs a format as it is served, beside bf16; what it found stands
in ``gates.toml`` with the bar. A gate stands for the layers that it was run by: others multiply in
another order and round otherwise. A format without a passing gate is served where it is asked for,
and told of in the start's lines and by the doctor.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from typing import Any, Literal

FILE = "gates.toml"
DENSE = "bf16"  # what the others are held against, and the engine's own default
Layers = Literal["native", "torch", "cuda"]
Verdict = Literal["dense", "passed", "missed", "none"]  # dense: what others are held against
RUN_BY: Mapping[str, Layers] = {"native": "native", "torch": "torch", "triton": "cuda"}
NATIVE_WEIGHTS = ("int8", "int4")  # torch runs all others on a CPU
COMMAND = "python -m engine.recipes.quality"


@dataclass(frozen=True, slots=True)
class Bar:
    """agreement: least share of places whose likeliest token is bf16's; kl_nats: at most."""

    agreement: float
    kl_nats: float

    @property
    def told(self) -> str:
        return f"{self.agreement:.1%} agreement with bf16 and KL {self.kl_nats:g} nats"


@dataclass(frozen=True, slots=True)
class Gate:
    """What was found of one model, by its name in the catalog, on so many tokens."""

    model: str
    weights: str
    kv: str
    layers: Layers
    agreement: float
    kl_nats: float
    n_places: int
    of_fp32: float  # agreement of fp32 with bf16 there: beyond it lie only ties

    def passes(self, bar: Bar) -> bool:
        return self.agreement >= bar.agreement and self.kl_nats <= bar.kl_nats


@dataclass(frozen=True, slots=True)
class Formats:
    """How a server keeps its language model; "bf16": as the checkpoint has it.

    layers: what is asked to run it; where the native library cannot be had torch does, and the
    start's lines say so.
    """

    model: str
    weights: str
    kv: str
    layers: Layers

    @classmethod
    def of(cls, model: str, options: Mapping[str, Any]) -> Formats:
        """By the options that the engine's worker is loaded with, and what its weights are of."""
        kv = options.get("kv_format", "plain")
        weights = options.get("quant") or DENSE
        is_native = options.get("native", True) and weights in NATIVE_WEIGHTS
        layers: Layers = "native" if is_native else "torch"
        if str(options.get("device", "cpu")).startswith("cuda"):
            layers = "cuda"
        return cls(model, weights, DENSE if kv == "plain" else kv, layers)

    @property
    def is_dense(self) -> bool:
        return (self.weights, self.kv) == (DENSE, DENSE)

    @property
    def told(self) -> str:
        return f"{self.weights} weights and {self.kv} keys and values by {self.layers} layers"


@cache
def _table() -> tuple[Bar, Mapping[Formats, Gate]]:
    found = tomllib.loads((files(__package__) / FILE).read_text(encoding="utf-8"))
    gates = [Gate(**row) for row in found["gate"]]
    formats = (Formats(one.model, one.weights, one.kv, one.layers) for one in gates)
    return Bar(**found["bar"]), dict(zip(formats, gates, strict=True))


def bar() -> Bar:
    """Of every format."""
    return _table()[0]


def gates() -> tuple[Gate, ...]:
    """All that were run."""
    return tuple(_table()[1].values())


def gate_of(formats: Formats) -> Gate | None:
    return _table()[1].get(formats)


def verdicts(formats: Formats) -> dict[str, Verdict]:
    """Of these formats by what runs the layers in the end, as an engine names it."""
    return {told: _verdict(replace(formats, layers=layers)) for told, layers in RUN_BY.items()}


def _verdict(formats: Formats) -> Verdict:
    if formats.is_dense:
        return "dense"
    gate = gate_of(formats)
    if gate is None:
        return "none"
    return "passed" if gate.passes(bar()) else "missed"


def doubt_of(formats: Formats) -> str | None:
    """What is to be said of formats that no passing gate stands for; None where one does."""
    if formats.is_dense:
        return None
    gate, expected = gate_of(formats), bar()
    if gate is not None and gate.passes(expected):
        return None
    found = "none was run"
    if gate is not None:
        found = f"{gate.agreement:.2%} and {gate.kl_nats:.4f} nats"
        if gate.of_fp32 < expected.agreement:
            found += f" (fp32 itself: {gate.of_fp32:.2%})"
    return f"{formats.model} in {formats.told}: expected {expected.told}, found {found}"

"""The formats of weights, keys and values that still are their model: what was measured of them.

`voiceloop models gate` runs a format as it is served, beside bf16. What was found of models that
people are told of stands in ``gates.toml`` with the bar; what somebody found here, of any model, in
the user's cache. A gate stands for the layers that it was run by: others multiply in another order
and round otherwise. A format without a passing gate is served where it is asked for, and told of in
the start's lines and by the doctor.
"""

from __future__ import annotations

import json
import logging
import os
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

log = logging.getLogger(__name__)

FILE = "gates.toml"  # what ships, and in the cache what was found here
MOST_OWN = 64  # that are kept; the oldest goes
DENSE = "bf16"  # what the others are held against, and the engine's own default
Layers = Literal["native", "torch", "cuda"]
Verdict = Literal["dense", "passed", "missed", "none"]  # dense: what others are held against
RUN_BY: Mapping[str, Layers] = {"native": "native", "torch": "torch", "triton": "cuda"}
NATIVE_WEIGHTS = ("int8", "int4")  # torch runs all others on a CPU
COMMAND = "voiceloop models gate"


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
    """The measurement of one model, by its name in the catalog, on so many tokens."""

    model: str
    weights: str
    kv: str
    layers: Layers
    agreement: float
    kl_nats: float
    n_places: int
    of_fp32: float | None = None  # agreement of fp32 with bf16 there: beyond it lie only ties
    n_calls: int = 0  # of tools that were made
    n_same: int = 0  # of those the same as bf16's

    @property
    def told(self) -> str:
        calls = f", {self.n_same} of {self.n_calls} calls as bf16's" if self.n_calls else ""
        return (
            f"{self.agreement:.2%} agreement and KL {self.kl_nats:.5f} nats in {self.n_places} "
            f"places{calls}"
        )

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
        """Return the gate by the options that the engine's worker is loaded with, and what its
        weights are of.
        """
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
    gates = [Gate(**row) for row in found["gate"]] + own_gates()
    formats = (Formats(one.model, one.weights, one.kv, one.layers) for one in gates)
    return Bar(**found["bar"]), dict(zip(formats, gates, strict=True))


def own_file() -> Path:
    """Return where the gates lie that were run here; it may not exist."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "voiceloop" / FILE


def own_gates() -> list[Gate]:
    """Return the gates that were run here, and of models that have not changed since."""
    path = own_file()
    try:
        rows = tomllib.loads(path.read_text(encoding="utf-8")).get("gate", [])
        found = [Gate(**row) for row in rows]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except (OSError, ValueError, TypeError, AttributeError) as error:
        log.warning("%s: expected gates that were run here, found %s", path, error)
        return []
    return [one for one in found if not _is_older(path, Path(one.model))]


def _is_older(path: Path, model: Path) -> bool:
    """Whether a model, named by its place, has changed since its gate was run."""
    files = [model] if model.is_file() else list(model.glob("*.safetensors"))
    return any(one.stat().st_mtime > path.stat().st_mtime for one in files)


def keep(gate: Gate) -> None:
    """Note a gate that was run here, in place of one of the same formats. Raises: OSError."""
    path, key = own_file(), _key(gate)
    rows = [one for one in own_gates() if _key(one) != key] + [gate]
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    lines = [f"# Found by `{COMMAND}`."]
    for one in rows[-MOST_OWN:]:
        lines.append("[[gate]]")
        values = {k: v for k, v in asdict(one).items() if v is not None}
        lines += [f"{name} = {json.dumps(value)}" for name, value in values.items()]
    fresh = path.with_suffix(".new")
    fresh.write_text("\n".join(lines) + "\n", encoding="utf-8")
    fresh.replace(path)
    _table.cache_clear()


def _key(gate: Gate) -> tuple[str, ...]:
    return gate.model, gate.weights, gate.kv, gate.layers


def bar() -> Bar:
    """Return the bar of every format."""
    return _table()[0]


def gates() -> tuple[Gate, ...]:
    """All that were run, here or for the table that ships."""
    return tuple(_table()[1].values())


def gate_of(formats: Formats) -> Gate | None:
    return _table()[1].get(formats)


def verdicts(formats: Formats) -> dict[str, Verdict]:
    """Return the verdicts on these formats by what runs the layers in the end, as an engine names
    it.
    """
    return {told: _verdict(replace(formats, layers=layers)) for told, layers in RUN_BY.items()}


def _verdict(formats: Formats) -> Verdict:
    if formats.is_dense:
        return "dense"
    gate = gate_of(formats)
    if gate is None:
        return "none"
    return "passed" if gate.passes(bar()) else "missed"


def doubt_of(formats: Formats) -> str | None:
    """Return what is to be said of formats that no passing gate stands for; None where one does."""
    if formats.is_dense:
        return None
    gate, expected = gate_of(formats), bar()
    if gate is not None and gate.passes(expected):
        return None
    found = "none was run"
    if gate is not None:
        found = f"{gate.agreement:.2%} and {gate.kl_nats:.4f} nats"
        if gate.of_fp32 is not None and gate.of_fp32 < expected.agreement:
            found += f" (fp32 itself: {gate.of_fp32:.2%})"
    return f"{formats.model} in {formats.told}: expected {expected.told}, found {found}"

"""Owns what is read of the caller's staged turn besides its end: what its answer will need.

A small network reads the state that the end of the turn is read from. `engine.recipes.train_route`
makes it, for one checkpoint as that is served.
"""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import gelu, linear

from .load.adapter import fingerprint
from .load.loader import FolderCheckpoint
from .types import CheckpointError, RouteSigns, WrongShape

ROUTE_FILE = "route.safetensors"
N_SIGNS = 3  # of `RouteSigns`, in its order
MAX_RANKS = 10_000


@dataclass(frozen=True, slots=True, eq=False)
class RouteHead:
    """Two layers, fp32: inner_weight [n, hidden], inner_bias [n], outer_weight [3, n], bias [3].

    ranks: P(large) of turns that it was calibrated on, sorted.
    """

    inner_weight: Tensor
    inner_bias: Tensor
    outer_weight: Tensor
    outer_bias: Tensor
    ranks: Tensor

    def __call__(self, states: Tensor) -> Tensor:
        """fp32 [rows, 3] of the states [rows, hidden] after the final norm, as `RouteSigns`."""
        inner = gelu(linear(states.float(), self.inner_weight, self.inner_bias))
        signs = linear(inner, self.outer_weight, self.outer_bias).sigmoid()
        signs[:, 0] = torch.searchsorted(self.ranks, signs[:, 0].contiguous()) / len(self.ranks)
        return signs


def signs_of(row: Tensor) -> RouteSigns:
    """Return the signs in one row of what the head reads."""
    return RouteSigns(*row.tolist())


def base_of(norm: Tensor) -> Tensor:
    """Tells models of one width apart, by the scale of the final norm: uint8 [32]."""
    return torch.tensor(list(bytes.fromhex(fingerprint(norm))), dtype=torch.uint8)


def read_route_head(path: Path, norm: Tensor, device: str) -> RouteHead:
    """norm: the scale of the model's final norm. Raises: CheckpointError."""
    if not path.is_file():
        raise CheckpointError(f"expected a route head, found no file {path}")
    stored = FolderCheckpoint(path.parent, path.name)
    if "base" in stored and not torch.equal(stored.tensor("base"), base_of(norm)):
        raise CheckpointError(f"{path}: expected a head of this model, found another's")
    inner, hidden_size = stored.tensor("inner.weight"), len(norm)
    if inner.dim() != 2 or len(inner) == 0 or inner.shape[1] != hidden_size:
        raise WrongShape(
            f"{path}: expected inner.weight of shape [1 or more, {hidden_size}], as wide as the "
            f"model's states, found {list(inner.shape)}"
        )
    n = len(inner)
    shapes = {"inner.bias": (n,), "outer.weight": (N_SIGNS, n), "outer.bias": (N_SIGNS,)}
    tensors = [inner, *(stored.tensor(name, shape) for name, shape in shapes.items())]
    ranks = stored.tensor("ranks")
    if ranks.dim() != 1 or not 1 <= len(ranks) <= MAX_RANKS:
        wanted = f"expected 1 to {MAX_RANKS} ranks"
        raise WrongShape(f"{path}: {wanted}, found {list(ranks.shape)}")
    if not all(tensor.isfinite().all() for tensor in (*tensors, ranks)):
        raise CheckpointError(f"{path}: expected finite numbers, found others")
    placed = (tensor.to(device, torch.float32) for tensor in (*tensors, ranks.sort().values))
    return RouteHead(*placed)

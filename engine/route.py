"""Owns what is read of the caller's staged turn besides its end: what its answer will need.

A small network reads the state that the end of the turn is read from. `engine.recipes.train_route`
makes it, for one checkpoint as that is served.
"""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import gelu, linear

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
    """Of one row of what the head reads."""
    return RouteSigns(*row.tolist())


def read_route_head(path: Path, hidden_size: int, device: str) -> RouteHead:
    """Raises: CheckpointError."""
    if not path.is_file():
        raise CheckpointError(f"expected a route head, found no file {path}")
    stored = FolderCheckpoint(path.parent, path.name)
    inner = stored.tensor("inner.weight")
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

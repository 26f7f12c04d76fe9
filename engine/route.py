"""Owns what is read of the caller's staged turn besides its end: what its answer will need.

A small network reads the state that the end of the turn is read from. `engine.recipes.train_route`
makes it, for one checkpoint as that is served.
"""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from .end_of_turn import TwoLayers
from .load.adapter import fingerprint
from .load.loader import FolderCheckpoint
from .types import CheckpointError, WrongShape

ROUTE_FILE = "route.safetensors"
N_SIGNS = 3  # of `RouteSigns`, in its order
MAX_RANKS = 10_000


@dataclass(frozen=True, slots=True, eq=False)
class RouteHead:
    """ranks: P(large) of turns that it was calibrated on, fp32, sorted."""

    layers: TwoLayers
    ranks: Tensor

    def __call__(self, states: Tensor) -> Tensor:
        """fp32 [rows, 3] of the states [rows, hidden] after the final norm, as `RouteSigns`."""
        signs = self.layers(states)
        signs[:, 0] = torch.searchsorted(self.ranks, signs[:, 0].contiguous()) / len(self.ranks)
        return signs


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
    layers, ranks = TwoLayers.read(stored, path, N_SIGNS, len(norm), device), stored.tensor("ranks")
    if ranks.dim() != 1 or not 1 <= len(ranks) <= MAX_RANKS:
        wanted = f"expected 1 to {MAX_RANKS} ranks"
        raise WrongShape(f"{path}: {wanted}, found {list(ranks.shape)}")
    if not ranks.isfinite().all():
        raise CheckpointError(f"{path}: expected finite ranks, found others")
    return RouteHead(layers, ranks.sort().values.to(device, torch.float32))

"""Owns adapters (LoRA) that are served beside each other on one base, its weights untouched.

Each that is in use has a slot; what it adds to a product lies there, and every row of a step names
its slot. Of more adapters than slots the longest unused makes room. Keys and values depend on the
adapter, so what is shared of prompts is shared under its key alone.
Source: Chen et al., Punica, arXiv:2310.18547: one step for rows of many adapters.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import linear

from .layer import PRODUCTS, Layer, Recipe
from .linear import Linear
from .load.adapter import CONFIG_FILE, WEIGHTS_FILE, LowRank, scale_of
from .load.json_file import read_json
from .load.loader import Checkpoint
from .load.quant import with_rows
from .types import CheckpointError, InvalidRequest, OutOfMemory

MOST_SLOTS = 8  # adapters in memory: of 4B and rank 16 each takes 100 MB
MOST_RANK = 256  # of one that is served beside others


@dataclass(frozen=True, slots=True, eq=False)
class Adapter:
    """One that is in memory. key: tells what was computed with it from all else."""

    key: str
    slot: int


class Change:
    """The change that adapters make to one product: y += up (down x), each slot with its own.

    down: [slots, rank, inputs], up: [slots, rank, outputs]; ranks: int32 [slots], how much of that
    its adapter fills, 0 where it leaves this product alone. The rest is zeros.
    """

    def __init__(
        self, n_slots: int, rank: int, n_in: int, n_out: int, dtype: torch.dtype, device: str
    ) -> None:
        self.down = torch.zeros(n_slots, rank, n_in, dtype=dtype, device=device)
        self.up = torch.zeros(n_slots, rank, n_out, dtype=dtype, device=device)
        self.ranks = torch.zeros(n_slots, dtype=torch.int32)

    def put(self, slot: int, down: Tensor, up: Tensor) -> None:
        """down: [rank, in]; up: [out, rank]; of any rank up to the own one."""
        self.ranks[slot] = n = len(down)
        for whole, part in ((self.down[slot], down), (self.up[slot], up.T)):
            whole.zero_()
            whole[:n, : part.shape[1]] = part.to(whole.dtype)


class RowSlots:
    """The slot of each row of the step under way: int64 [rows]; None where all have none."""

    slots: Tensor | None = None


class AdaptedLinear:
    """A product with what the rows' adapters add to it, in torch on any device.

    All slots are multiplied at once and the others' sums masked: the same launches for any rows,
    so that a graph can hold them.
    """

    def __init__(self, product: Linear, change: Change, rows: RowSlots) -> None:
        self.product, self.change, self._rows = product, change, rows
        self.out_features, self.kept = product.out_features, product.kept
        self._numbers = torch.arange(len(change.ranks), device=change.down.device)

    def __call__(self, x: Tensor) -> Tensor:
        y, slots = self.product(x), self._rows.slots
        if slots is None:
            return y
        change, n_rows = self.change, len(x)
        inner = linear(x, change.down.flatten(0, 1)).view(n_rows, len(change.ranks), -1)
        inner = inner * (slots[:n_rows, None] == self._numbers)[:, :, None]
        added = inner.flatten(1) @ change.up.flatten(0, 1)
        # Kernels give partial sums: to one of them.
        (y if y.dim() == 2 else y[0]).add_(added)
        return y


class Adapters:
    """The adapters that a server's branches may name, by their folders."""

    def __init__(
        self, base: Checkpoint, layers: Sequence[Layer], folders: Sequence[Path],
        *, dtype: torch.dtype, device: str, padded: Callable[[int], int] = int,
    ) -> None:  # fmt: skip
        """base: the checkpoint of `layers`. padded: entries that a row of so many takes.

        Raises: CheckpointError.
        """
        self._base, self._layers = base, layers
        self._folders = {str(folder): folder for folder in folders}
        self.n_slots = min(len(self._folders), MOST_SLOTS)
        self.rank = max(_rank_of(folder) for folder in folders)
        self.rows = RowSlots()
        self.changes = [
            [
                Change(
                    self.n_slots, self.rank * len(recipe.names), padded(recipe.n_in),
                    padded(sum(recipe.sizes)), dtype, device,
                )
                for recipe in map(layer.recipes.__getitem__, PRODUCTS)
            ]
            for layer in layers
        ]  # fmt: skip
        self._held: OrderedDict[str, Adapter] = OrderedDict()  # the longest unused first
        self._uses = Counter[str]()
        for folder in list(self._folders.values())[: self.n_slots]:
            self.give_back(self._hold(folder))

    @property
    def n_bytes(self) -> int:
        each = (change for layer in self.changes for change in layer)
        return sum(change.down.nbytes + change.up.nbytes for change in each)

    def wrap(self) -> None:
        """Have torch's products, or the kernels', add what the rows' adapters ask for."""
        for layer, changes in zip(self._layers, self.changes, strict=True):
            for name, change in zip(PRODUCTS, changes, strict=True):
                setattr(layer, name, AdaptedLinear(getattr(layer, name), change, self.rows))

    def take(self, name: str) -> Adapter:
        """The adapter of a folder, for one branch more. Raises: InvalidRequest, OutOfMemory."""
        folder = self._folders.get(name)
        if folder is None:
            raise InvalidRequest(f"adapter: expected one that the start named, found {name!r}")
        try:
            return self._hold(folder)
        except CheckpointError as error:
            raise InvalidRequest(f"adapter: {error}") from error

    def give_back(self, adapter: Adapter) -> None:
        """One branch less."""
        self._uses[adapter.key] -= 1

    def _hold(self, folder: Path) -> Adapter:
        """Raises: CheckpointError, OutOfMemory."""
        key = _key_of(folder)
        before = [held for held in self._held if held.rpartition("@")[0] == str(folder)]
        if key not in self._held:
            try:
                slot = self._free_slot()
            except OutOfMemory:
                if not before:
                    raise
                key = before[-1]  # its file was written anew, and calls still use this one
            else:
                self._read(folder, slot)
                self._held[key] = Adapter(key, slot)
        self._held.move_to_end(key)
        self._uses[key] += 1
        return self._held[key]

    def _free_slot(self) -> int:
        """Raises: OutOfMemory."""
        taken = {adapter.slot for adapter in self._held.values()}
        if len(taken) < self.n_slots:
            return min(set(range(self.n_slots)) - taken)
        for key, adapter in self._held.items():
            if self._uses[key] <= 0:
                del self._held[key]
                return adapter.slot
        raise OutOfMemory(f"expected at most {self.n_slots} adapters in calls at once, found more")

    def _read(self, folder: Path, slot: int) -> None:
        """Raises: CheckpointError, which leaves the slot to nobody."""
        change, known = LowRank(self._base, folder), set[str]()
        if change.rank > self.rank:
            raise CheckpointError(
                f"{folder}: expected a rank of at most {self.rank}, as at the start, "
                f"found {change.rank}"
            )
        for layer, changes in zip(self._layers, self.changes, strict=True):
            for name, own in zip(PRODUCTS, changes, strict=True):
                own.put(slot, *_joined(change, layer.recipes[name]))
                known |= set(layer.recipes[name].names)
        for weight, parts in change.names.items():
            if weight not in known:
                raise change.refused(
                    f"changes of the layers' products of {self._base.source}", parts
                )


def _joined(change: LowRank, recipe: Recipe) -> tuple[Tensor, Tensor]:
    """down [ranks, in] and up [out, ranks] of a whole product, outputs as the product has them."""
    downs, ups, first = [torch.zeros(0, recipe.n_in)], [torch.zeros(sum(recipe.sizes), 0)], 0
    for name, size in zip(recipe.names, recipe.sizes, strict=True):
        if name in change.names:
            down, up = change.parts(name, (size, recipe.n_in))
            whole = torch.zeros(sum(recipe.sizes), change.rank)
            whole[first : first + size] = up * change.scale
            downs.append(down)
            ups.append(whole)
        first += size
    up = with_rows(torch.cat(ups, 1), recipe.order, recipe.scale)
    assert isinstance(up, Tensor)
    return torch.cat(downs), up


def _rank_of(folder: Path) -> int:
    """Raises: CheckpointError."""
    path = folder / CONFIG_FILE
    return scale_of(path, read_json(path), MOST_RANK)[0]


def _key_of(folder: Path) -> str:
    """Another one where its file was written anew. Raises: CheckpointError."""
    try:
        return f"{folder}@{(folder / WEIGHTS_FILE).stat().st_mtime_ns}"
    except OSError as error:
        raise CheckpointError(f"expected {WEIGHTS_FILE} in {folder}, found: {error}") from None

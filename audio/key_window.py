"""The last keys and values of a sliding-window attention, for streams that share a batch.

transformers' caches belong to one batch that grows as one. Here each stream brings its own window
of fixed length, the newest last and zeros where nothing was yet (the caller's mask hides those),
and takes a new one away; the tensors given are never written to.
"""

from collections.abc import Sequence
from typing import Any


class KeyWindow:
    """transformers' cache interface over windows of one length.

    keys, values: one a stream, [n_layers, heads, n_window, head_dim].
    """

    def __init__(self, torch: Any, keys: Sequence[Any], values: Sequence[Any]) -> None:
        self._torch = torch
        self._keys, self._values = torch.stack(list(keys)), torch.stack(list(values))
        self._new: list[tuple[Any, Any]] = []

    def update(self, keys: Any, values: Any, layer: int) -> tuple[Any, Any]:
        """Keys and values [batch, heads, n_window + n_new, head_dim] of one layer."""
        keys = self._torch.cat((self._keys[:, layer], keys), dim=2)
        values = self._torch.cat((self._values[:, layer], values), dim=2)
        start = keys.shape[2] - self._keys.shape[3]
        self._new.append((keys[:, :, start:], values[:, :, start:]))
        return keys, values

    def windows(self) -> tuple[Any, Any]:
        """The windows after every layer's update: keys and values, each [batch, n_layers, ...]."""
        keys = self._torch.stack([keys for keys, _ in self._new], dim=1)
        values = self._torch.stack([values for _, values in self._new], dim=1)
        return keys, values

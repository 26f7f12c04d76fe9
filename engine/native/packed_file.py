"""Owns a model's weights on disk as the library reads them: a start reads, and packs nothing.

A file is named by a digest of the model's own files, its adapter's, the formats, and the code that
reads and packs, and holds every product and the embedding. One that is torn or of other sizes is
passed over, and the weights are made anew.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import logging
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from ..kept_files import SUFFIX, KeptFiles, code_files, digest, model_files
from ..linear import huge_pages
from ..own_files import cache_folder
from ..types import EngineConfig
from .linear import NativeLinear

log = logging.getLogger(__name__)

# Of a model's files: a smaller one is packed in a second or two, a start would save nothing.
LEAST_BYTES = 256 << 20
EMBEDDING = "embedding"
FACTS = "products"  # the key of the metadata
# What decides the bytes: a change of any other file of the engine packs nothing anew.
CODE = ("device.py", "layer.py", "linear.py", "load", "model.py", "native")


def in_background(work: Callable[[], None]) -> None:
    """The start goes on meanwhile; a process that ends leaves a part, which is removed later."""
    threading.Thread(target=work, name="packed weights", daemon=True).start()


class PackedWeights:
    """The kept weights of one model; ``products`` is empty where there are none yet."""

    @classmethod
    def of(cls, model: Path, config: EngineConfig, library: ctypes.CDLL) -> PackedWeights | None:
        """Open them in the user's cache; None where none are to be kept."""
        n_bytes = sum(path.stat().st_size for path in model_files(model))
        if config.packed_file_bytes == 0 or config.quant is None or n_bytes < LEAST_BYTES:
            return None
        try:
            return cls(model, config, library)
        except OSError as error:
            log.warning("packed weights are not kept: %s", error)
            return None

    def __init__(self, model: Path, config: EngineConfig, library: ctypes.CDLL) -> None:
        """Raises: OSError."""
        adapter = config.adapter_dir
        facts = [
            digest(model_files(model)), digest(model_files(adapter) if adapter else []),
            digest(code_files(*CODE)), config.quant, config.dtype, str(library.level),
        ]  # fmt: skip
        self._name = hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:40] + SUFFIX
        self._files = KeptFiles(cache_folder("weights"), config.packed_file_bytes)
        self._library = library
        self.products, self.embedding = self._read()
        self._copying = self._lay_together() if self.products else None

    def _read(self) -> tuple[dict[str, NativeLinear], Tensor | None]:
        try:
            with self._files.opened(self._name) as path, safe_open(path, "pt") as file:
                facts = json.loads((file.metadata() or {})[FACTS])
                found = {name: self._product(name, one, file) for name, one in facts.items()}
                # Mapped, and by itself: of its rows few are ever read, and the mapping of products
                # goes once these are copied.
                with safe_open(path, "pt") as beside:
                    return found, beside.get_tensor(EMBEDDING)
        except FileNotFoundError:
            pass
        except (OSError, SafetensorError, ValueError, KeyError, TypeError) as error:
            log.warning("packed weights in %s are passed over: %s", self._files.folder, error)
        return {}, None

    def _product(self, name: str, facts: dict[str, Any], file: Any) -> NativeLinear:
        """Raises: ValueError, KeyError, SafetensorError."""
        parts = {part: file.get_tensor(f"{name}.{part}") for part in facts["parts"]}
        # A view of the mapping keeps all of it, and whatever was read through it.
        small = {part: parts[part].clone() for part in ("scale", "bias") if part in parts}
        return NativeLinear.restored(
            self._library, facts["layout"], facts["kept"], parts.get("weight"),
            small.get("scale"), small.get("bias"),
        )  # fmt: skip

    def _lay_together(self) -> threading.Thread:
        """As `engine.linear.lay_together`, by a thread: it takes a second or two for 1.5B, of which
        the interpreter has none.
        """
        mapped = [product.weight for product in self.products.values()]
        memory = huge_pages(sum(map(len, mapped)))  # each is whole cache lines
        places = memory.split([len(part) for part in mapped])
        for product, place in zip(self.products.values(), places, strict=True):
            product.weight = place
        copying = threading.Thread(target=lambda: torch.cat(mapped, out=memory), daemon=True)
        copying.start()
        return copying

    def settle(self) -> None:
        """Return once the products may be used."""
        if self._copying is not None:
            self._copying.join()

    @property
    def is_here(self) -> bool:
        return bool(self.products) and self.embedding is not None

    def keep(self, products: Iterator[tuple[str, object]], embedding: Tensor) -> None:
        """Write all products and the embedding, by a thread of its own.

        Writes nothing where some are not the library's.
        """
        named = dict(products)
        tensors, facts = {EMBEDDING: embedding}, dict[str, Any]()
        for name, product in named.items():
            if not isinstance(product, NativeLinear):
                return
            parts = product.parts()
            tensors |= {f"{name}.{part}": tensor for part, tensor in parts.items()}
            facts[name] = {
                "layout": product.facts(), "kept": product.kept, "parts": list(parts),
            }  # fmt: skip
        told = {FACTS: json.dumps(facts)}
        in_background(lambda: self._files.keep(self._name, tensors, told))

"""Owns the walk over a GGUF file: its metadata, where its tensors lie, and their numbers.

Every count, size, type and offset that the file names is held against the bytes that are there: the
gguf package's own reader takes them as they come, and loops as often as a file tells it to. Of the
package come the block formats and their dequantization.
Source: ggml's docs/gguf.md, versions 2 and 3.
"""

from __future__ import annotations

import math
import mmap
import re
import reprlib
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..types import CheckpointError, MissingTensor, UnsupportedQuantization

MAGIC = b"GGUF"
VERSIONS = (2, 3)  # the first counted in 32 bits and is no longer written
MAX_KEYS = 4096  # of metadata; published models have some forty
MAX_TENSORS = 65_536
MAX_NAME_BYTES = 65_535  # the format's own limit of a key
MAX_TEXT_BYTES = 1 << 20  # the longest chat templates have some 20 kB
MAX_ITEMS = 4_000_000  # in all arrays together: the largest vocabularies and merges have a million
MAX_DIMENSIONS = 4
DEFAULT_ALIGNMENT = 32
MAX_ALIGNMENT = 1 << 16
CHUNK_BLOCKS = 1 << 14  # at once; the package would take 16 rows at a time, and thrice as long

# The format's number of a type -> how one value lies in the file.
NUMBERS = {
    0: "<u1", 1: "<i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4", 7: "?", 10: "<u8",
    11: "<i8", 12: "<f8",
}  # fmt: skip
STRING, ARRAY = 8, 9

# What is dequantized, by ggml's names; all have their bit layouts in the gguf package.
FORMATS = (
    "F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q2_K", "Q3_K", "Q4_K", "Q5_K",
    "Q6_K", "IQ4_NL", "IQ4_XS",
)  # fmt: skip
MAX_PARTS = 512  # of a model in several files
PART = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$")  # as llama.cpp's gguf-split names them


@dataclass(frozen=True, slots=True)
class TensorPlace:
    """The place of a tensor. shape: outermost first, as torch has it; start and size in bytes.

    part: which of the model's files has it.
    """

    format: str
    shape: tuple[int, ...]
    start: int
    size: int
    part: int = 0


class _Cursor:
    """Reads values one after the other; none lies beyond the end of the file."""

    def __init__(self, data: mmap.mmap, path: Path) -> None:
        self._data, self._path = data, path
        self.place = 0
        self._n_items = 0

    def fail(self, expected: str, found: object) -> CheckpointError:
        return CheckpointError(f"{self._path}: expected {expected}, found {found}")

    def take(self, n_bytes: int) -> bytes:
        left = len(self._data) - self.place
        if n_bytes > left:
            raise self.fail(f"{n_bytes} bytes at {self.place}", f"the end of the file after {left}")
        self.place += n_bytes
        return self._data[self.place - n_bytes : self.place]

    def integer(self, form: str) -> int:
        value: int = struct.unpack(form, self.take(struct.calcsize(form)))[0]
        return value

    def count(self, what: str, most: int) -> int:
        found = self.integer("<Q")
        if found > most:
            raise self.fail(f"at most {most} {what}", found)
        return found

    def text(self, most: int) -> str:
        raw = self.take(self.count("bytes of text", most))
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise self.fail(f"UTF-8 before {self.place}", error) from None

    def value(self, kind: int) -> Any:
        """A number, a text, or an array: numbers as numpy's, texts as a list."""
        if kind == STRING:
            return self.text(MAX_TEXT_BYTES)
        if kind == ARRAY:
            return self._array()
        if kind not in NUMBERS:
            raise self.fail("a type of metadata among 0 to 12", kind)
        return self._numbers(kind, 1)[0].item()

    def _array(self) -> Any:
        kind = self.integer("<I")
        n_items = self.count("items of arrays", MAX_ITEMS - self._n_items)
        self._n_items += n_items
        if kind == STRING:
            return [self.text(MAX_TEXT_BYTES) for _ in range(n_items)]
        if kind not in NUMBERS:
            raise self.fail("an array of numbers or texts", f"type {kind}")
        return self._numbers(kind, n_items)

    def _numbers(self, kind: int, n_items: int) -> np.ndarray:
        form = np.dtype(NUMBERS[kind])
        return np.frombuffer(self.take(n_items * form.itemsize), form)


class GgufFile:
    """A model in one file or several, mapped into memory.

    metadata: values by key, of the first file; tensors: places by name.
    """

    def __init__(self, path: Path) -> None:
        """path: of the file, or the first of several. Raises: CheckpointError, as a type of it
        UnsupportedQuantization.
        """
        self.path = path
        self._parts = [self._map(path)]
        self.metadata, self.tensors = self._read(path, 0)
        n_parts = self.integer("split.count") or 1
        if n_parts == 1:
            return
        if (self.integer("split.no") or 0) != 0 or not 1 < n_parts <= MAX_PARTS:
            raise CheckpointError(
                f"{path}: expected the first of at most {MAX_PARTS} parts, found "
                f"{self.metadata.get('split.no')} of {n_parts}"
            )
        for number, part in enumerate(_parts_of(path, n_parts), 1):
            self._parts.append(self._map(part))
            metadata, tensors = self._read(part, number)
            if metadata.get("split.no") != number or tensors.keys() & self.tensors.keys():
                raise CheckpointError(
                    f"{part}: expected part {number} with tensors of its own, found part "
                    f"{reprlib.repr(metadata.get('split.no'))}"
                )
            self.tensors |= tensors
        n_tensors = self.integer("split.tensors.count")
        if n_tensors not in (None, len(self.tensors)):
            raise CheckpointError(
                f"{path}: expected {n_tensors} tensors in {n_parts} parts, "
                f"found {len(self.tensors)}"
            )

    def _map(self, path: Path) -> mmap.mmap:
        try:
            with path.open("rb") as file:
                return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:  # ValueError: an empty file cannot be mapped
            raise CheckpointError(f"expected a GGUF file at {path}, found {error}") from None

    def _read(self, path: Path, part: int) -> tuple[dict[str, Any], dict[str, TensorPlace]]:
        """Metadata and places of the file that was mapped as `part`."""
        cursor = _Cursor(self._parts[part], path)
        if cursor.take(len(MAGIC)) != MAGIC:
            raise cursor.fail("a GGUF file", "other first bytes")
        version = cursor.integer("<I")
        if version not in VERSIONS:  # also what was written on a big-endian machine
            raise cursor.fail("GGUF of version 2 or 3, little-endian", f"version {version}")
        n_tensors = cursor.count("tensors", MAX_TENSORS)
        n_keys = cursor.count("keys of metadata", MAX_KEYS)
        metadata: dict[str, Any] = {}
        for _ in range(n_keys):
            key = cursor.text(MAX_NAME_BYTES)
            metadata[key] = cursor.value(cursor.integer("<I"))
        return metadata, self._places(cursor, n_tensors, metadata, part)

    def text(self, key: str) -> str | None:
        """A text of the metadata; None where there is none. Raises: CheckpointError."""
        found: str | None = _of_type(self.metadata, key, str, "a text", self.path)
        return found

    def integer(self, key: str) -> int | None:
        """An integer of the metadata; None where there is none. Raises: CheckpointError."""
        found: int | None = _of_type(self.metadata, key, int, "an integer", self.path)
        return found

    def number(self, key: str) -> float | None:
        """A number of the metadata; None where there is none. Raises: CheckpointError."""
        found: float | None = _of_type(self.metadata, key, (int, float), "a number", self.path)
        return found

    def _places(
        self, cursor: _Cursor, n_tensors: int, metadata: dict[str, Any], part: int
    ) -> dict[str, TensorPlace]:
        found = [self._place(cursor) for _ in range(n_tensors)]
        alignment = _of_type(metadata, "general.alignment", int, "an integer", self.path)
        if alignment is None:
            alignment = DEFAULT_ALIGNMENT
        if not 0 < alignment <= MAX_ALIGNMENT:
            raise cursor.fail(f"an alignment of 1 to {MAX_ALIGNMENT}", alignment)
        first = -(-cursor.place // alignment) * alignment
        places = {}
        for name, place in found:
            start = first + place.start
            n_bytes = len(self._parts[part])
            if start + place.size > n_bytes:
                raise cursor.fail(
                    f"{name} of {place.size} bytes at {start}", f"a file of {n_bytes}"
                )
            places[name] = TensorPlace(place.format, place.shape, start, place.size, part)
        return places

    def _place(self, cursor: _Cursor) -> tuple[str, TensorPlace]:
        """One entry of the directory; its start is still counted from the first tensor."""
        name = cursor.text(MAX_NAME_BYTES)
        n_dimensions = cursor.integer("<I")
        if not 0 < n_dimensions <= MAX_DIMENSIONS:
            raise cursor.fail(f"{name} of 1 to {MAX_DIMENSIONS} dimensions", n_dimensions)
        shape = tuple(cursor.integer("<Q") for _ in range(n_dimensions))[::-1]
        format_name, block, n_bytes = _format(cursor, name, cursor.integer("<I"))
        start = cursor.integer("<Q")
        n_values = math.prod(shape)
        if n_values == 0 or shape[-1] % block:
            raise cursor.fail(f"{name} of rows in blocks of {block}", f"shape {list(shape)}")
        return name, TensorPlace(format_name, shape, start, n_values // block * n_bytes)

    def read(self, name: str) -> np.ndarray:
        """A tensor's numbers, fp32, in its shape. Raises: MissingTensor."""
        constants, quants = _package()
        place, blocks = self._placed(name), self.blocks(name)
        kind = constants.GGMLQuantizationType[place.format]
        starts = range(0, len(blocks), CHUNK_BLOCKS)
        chunks = (blocks[at : at + CHUNK_BLOCKS].reshape(1, -1) for at in starts)
        with np.errstate(all="ignore"):  # a hostile scale makes numbers, not warnings
            parts = [quants.dequantize(chunk, kind)[0] for chunk in chunks]
        return np.concatenate(parts).reshape(place.shape)

    def blocks(self, name: str) -> np.ndarray:
        """A tensor as it lies in the file: uint8 [blocks, bytes of one], not to be
        written to. Raises: MissingTensor.
        """
        constants, _ = _package()
        place = self._placed(name)
        kind = constants.GGMLQuantizationType[place.format]
        raw = np.frombuffer(self._parts[place.part], np.uint8, place.size, place.start)
        return raw.reshape(-1, constants.GGML_QUANT_SIZES[kind][1])

    def _placed(self, name: str) -> TensorPlace:
        place = self.tensors.get(name)
        if place is None:
            raise MissingTensor(f"{self.path}: expected a tensor {name}, found none")
        return place


def _of_type(metadata: dict[str, Any], key: str, kind: Any, expected: str, path: Path) -> Any:
    """A value of the metadata; None where there is none. Raises: CheckpointError."""
    found = metadata.get(key)
    if found is not None and (isinstance(found, bool) or not isinstance(found, kind)):
        raise CheckpointError(f"{path}: expected {expected} at {key}, found {reprlib.repr(found)}")
    return found


def files_of(path: Path) -> list[Path]:
    """A file, or by its name all that there are of a model in several."""
    found = PART.search(path.name)
    if found is None:
        return [path]
    names = f"{path.name[: found.start()]}-*-of-{found[2]}.gguf"
    return sorted(one for one in path.parent.glob(names) if PART.search(one.name))


def _parts_of(path: Path, n_parts: int) -> list[Path]:
    """The files behind the first. Raises: CheckpointError."""
    found = PART.search(path.name)
    if found is None or int(found[2]) != n_parts or int(found[1]) != 1:
        raise CheckpointError(
            f"expected the first part to be named ...-00001-of-{n_parts:05}.gguf, found {path.name}"
        )
    stem = path.name[: found.start()]
    names = [f"{stem}-{number:05}-of-{n_parts:05}.gguf" for number in range(2, n_parts + 1)]
    return [path.with_name(name) for name in names]


def _format(cursor: _Cursor, name: str, number: int) -> tuple[str, int, int]:
    """Name, values a block and bytes a block. Raises: UnsupportedQuantization."""
    constants, _ = _package()
    try:
        kind = constants.GGMLQuantizationType(number)
    except ValueError:
        raise cursor.fail(f"{name} in a format of ggml", f"number {number}") from None
    if kind.name not in FORMATS:
        raise UnsupportedQuantization(
            f"expected {name} in a format among {', '.join(FORMATS)}, found {kind.name}"
        )
    return kind.name, *constants.GGML_QUANT_SIZES[kind]


def _package() -> tuple[Any, Any]:
    """The package's formats, imported for GGUF alone: that takes a quarter of a second.

    Raises: CheckpointError.
    """
    try:
        from gguf import constants, quants
    except ImportError:
        raise CheckpointError(
            "expected the package gguf for a GGUF file (pip install 'voiceloop[gguf]'), found none"
        ) from None
    return constants, quants

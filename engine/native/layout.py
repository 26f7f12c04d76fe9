"""Owns the border to the C library: its structs and its functions. Free of torch."""

import ctypes
from ctypes import POINTER, Structure, c_float, c_int32, c_size_t, c_void_p

from ..types import IntegrityError

PANEL = 64  # outputs whose codes lie together, and what every row is padded to
GROUP = 32  # inputs of a row that share a scale; those of weights are multiples of it
BY_OUTPUT, GROUPED8, GROUPED4, SYMMETRIC4 = range(4)  # the library's Format
MOST_INPUTS = 65536  # of a product: its sums fit 32 bits
MOST_THREADS = 64
MOST_HEAD = 256  # entries of a head
MOST_REFINED = 64  # logits of a row that are computed again


class ProductLayout(Structure):
    _fields_ = [
        ("weights", c_void_p), ("scale", c_void_p), ("bias", c_void_p),
        ("n_in", c_int32), ("n_out", c_int32), ("group", c_int32), ("format", c_int32),
    ]  # fmt: skip


class LayerLayout(Structure):
    _fields_ = [
        ("qkv", ProductLayout), ("output", ProductLayout), ("gate_up", ProductLayout),
        ("down", ProductLayout), ("input_norm", c_void_p), ("post_norm", c_void_p),
        ("q_norm", c_void_p), ("k_norm", c_void_p), ("output_norm", c_void_p),
        ("down_norm", c_void_p), ("cos", c_void_p), ("sin", c_void_p), ("kv_codes", c_void_p),
        ("kv_scales", c_void_p), ("window", c_int32),
    ]  # fmt: skip


class ChangeLayout(Structure):
    _fields_ = [
        ("down", c_void_p), ("up", c_void_p), ("ranks", c_void_p), ("rank", c_int32),
    ]  # fmt: skip


class ModelLayout(Structure):
    _fields_ = [
        ("layers", POINTER(LayerLayout)), ("head", ProductLayout), ("embedding", c_void_p),
        ("norm", c_void_p), ("workspace", c_void_p), ("crew", c_void_p),
        ("changes", POINTER(ChangeLayout)),
        *((name, c_int32) for name in (
            "n_layers", "hidden", "inner", "n_heads", "n_kv_heads", "head_dim", "vocab",
            "n_positions", "n_blocks", "kv_format", "n_refined", "is_gelu", "n_slots",
        )),
        ("eps", c_float), ("embedding_scale", c_float),
    ]  # fmt: skip


class StepLayout(Structure):
    _fields_ = [
        ("tokens", c_void_p), ("positions", c_void_p), ("sequences", c_void_p),
        ("tables", c_void_p), ("table_starts", c_void_p), ("slots", c_void_p), ("x", c_void_p),
        ("n_rows", c_int32), ("n_sequences", c_int32),
    ]  # fmt: skip


LAYOUTS = (ProductLayout, LayerLayout, ModelLayout, StepLayout, ChangeLayout)


def declare(library: ctypes.CDLL, level: str) -> None:
    """Say what the library's functions take; of one that does not run here, nothing else is called.

    Raises: IntegrityError, if its structs are others.
    """
    model, step, product = POINTER(ModelLayout), POINTER(StepLayout), POINTER(ProductLayout)
    functions = {
        "runs_here": (c_int32, ()),
        "sizes": (None, (c_void_p,)),
        "open_crew": (c_void_p, (c_int32,)),
        "close_crew": (None, (c_void_p,)),
        "workspace_bytes": (c_size_t, (model,)),
        "packed_bytes": (c_size_t, (product,)),
        "rows_bytes": (c_size_t, (c_int32,)),
        "pack": (None, (product, c_void_p, c_void_p, c_void_p, c_void_p)),
        "multiply": (None, (product, c_void_p, c_int32, c_void_p, c_void_p)),
        "forward": (c_int32, (model, step, c_int32, c_int32)),
        "states": (c_int32, (model, step, c_void_p, c_int32, c_void_p)),
        "logits": (None, (model, c_void_p, c_int32, c_void_p)),
        "guess": (c_int32, (model, step, c_int32, c_void_p, c_void_p, c_void_p)),
    }
    for name, (result, arguments) in functions.items():
        function = getattr(library, f"native_{name}")
        function.restype, function.argtypes = result, arguments
    library.level = level  # type: ignore[attr-defined]
    if not library.native_runs_here():
        return
    found = (c_int32 * len(LAYOUTS))()
    library.native_sizes(found)
    expected = [ctypes.sizeof(layout) for layout in LAYOUTS]
    if list(found) != expected:
        raise IntegrityError(f"expected structs of {expected} bytes, found {list(found)}")


def padded(n: int) -> int:
    """Entries that a row of so many takes in the library."""
    return -(-n // PANEL) * PANEL

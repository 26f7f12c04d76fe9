"""Owns the reading of quantized checkpoints: AWQ, GPTQ, compressed-tensors, FP8 by blocks.

Whatever the layout on disk, a weight comes out in one of three canonical forms: `Int4Weight`,
`ScaledWeight`, or a dense tensor where neither holds the same numbers (`FinerWeight`: one that four
bits may not hold). A format the engine does not know is refused by name.
"""

from dataclasses import dataclass, fields
from typing import Any, Protocol, TypeAlias, runtime_checkable

import torch
from torch import Tensor

from ..types import UnsupportedQuantization, WrongShape
from .loader import Checkpoint

DENSE_DTYPES = (torch.bfloat16, torch.float16, torch.float32, torch.float64)
AWQ_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)  # which 4 bits of an AWQ word hold each of 8 outputs


@dataclass(frozen=True, slots=True)
class Int4Weight:
    """w = (codes - 8) * scale + zero; codes int32 [out, in] in 0..15, others [out, in / group]."""

    codes: Tensor
    scale: Tensor
    zero: Tensor

    def dense(self) -> Tensor:
        n_out, n_in = self.codes.shape
        codes = self.codes.view(n_out, self.scale.shape[1], -1) - 8
        weight = codes * self.scale[..., None] + self.zero[..., None]
        return weight.view(n_out, n_in)


@dataclass(frozen=True, slots=True)
class ScaledWeight:
    """w = codes * scale; codes int8 or float8_e4m3fn [out, in], scale [out] or [out, groups]."""

    codes: Tensor
    scale: Tensor

    def dense(self) -> Tensor:
        n_out, n_in = self.codes.shape
        codes = self.codes.float().view(n_out, self.scale[0].numel(), -1)
        return (codes * self.scale.view(n_out, -1, 1)).view(n_out, n_in)


@dataclass(frozen=True, slots=True)
class FinerWeight:
    """Numbers that have more bits than four already: where int4 is asked for they become int8.

    numbers: floats [out, in]. The device rounds them, with the groups that its products have.
    """

    numbers: Tensor

    def dense(self) -> Tensor:
        return self.numbers


Weight: TypeAlias = Tensor | Int4Weight | ScaledWeight  # what a product is made of
Stored: TypeAlias = Weight | FinerWeight  # what is read


def dense(weight: Stored) -> Tensor:
    return weight if isinstance(weight, Tensor) else weight.dense()


def parts_of(weight: Int4Weight | ScaledWeight | FinerWeight) -> list[Tensor]:
    """List its tensors, in order; the first dimension of each is the outputs."""
    return [getattr(weight, field.name) for field in fields(weight)]


def format_of(weight: Weight) -> str:
    """Return the form in which a product keeps it: "int4", "int8", "fp8"; "dense" for plain
    floats.
    """
    match weight:
        case Int4Weight():
            return "int4"
        case ScaledWeight(codes, _):
            return "int8" if codes.dtype == torch.int8 else "fp8"
    return "dense"


@runtime_checkable
class HoldsInt4(Protocol):
    """A checkpoint whose matrices may lie in it in four bits."""

    def is_quantized(self, name: str) -> bool:
        """Whether a matrix lies there in eight bits or fewer. Raises: MissingTensor."""
        ...

    def int4(self, name: str, shape: tuple[int, int]) -> Int4Weight | FinerWeight | None:
        """None where its numbers are not quantized. Raises: MissingTensor, WrongShape."""
        ...


def read_weight(
    checkpoint: Checkpoint, name: str, shape: tuple[int, int], quantization: dict[str, Any],
    quant: str | None = None,
) -> Stored:  # fmt: skip
    """The weight of the linear layer `name`, [out, in], in whatever format it is stored.

    quant: as `EngineConfig`; where it is int4, or int8, what lies there in four bits stays as it
    is: eight would round anew what is a few numbers already, and move more bytes.
    Raises: MissingTensor, WrongShape, UnsupportedQuantization.
    """
    if quant in ("int4", "int8") and isinstance(checkpoint, HoldsInt4):
        packed = checkpoint.int4(f"{name}.weight", shape)
        if packed is not None:
            return packed
    method = quantization.get("quant_method")
    if method is None or f"{name}.weight" in checkpoint:
        weight = checkpoint.tensor(f"{name}.weight", shape)
        if weight.dtype in DENSE_DTYPES:  # quantizers leave some layers as they were
            return weight
    match method:
        case "awq":
            return _read_awq(checkpoint, name, shape, quantization)
        case "gptq":
            return _read_gptq(checkpoint, name, shape, quantization)
        case "compressed-tensors":
            return _read_compressed(checkpoint, name, shape, quantization)
        case "fp8":
            return _read_fp8(checkpoint, name, shape, quantization)
    raise UnsupportedQuantization(
        f"{checkpoint.source}: expected quantization awq, gptq, compressed-tensors or fp8, "
        f"found {method or weight.dtype}"
    )


def _unpack(words: Tensor, bits: int, dim: int) -> Tensor:
    """Split int32 words along `dim` into values of `bits`, lowest first: int32."""
    shifts = torch.arange(0, 32, bits, dtype=torch.int32)
    values = (words.unsqueeze(dim + 1) >> shifts.view(-1, *[1] * (words.dim() - dim - 1))) & (
        (1 << bits) - 1
    )
    return values.flatten(dim, dim + 1)


def _grouped(
    codes: Tensor, scale: Tensor, zero_code: Tensor, bits: int = 4, index: Tensor | None = None
) -> Int4Weight | FinerWeight:
    """Return the groups of w = (codes - zero_code) * scale. index: the group of each input,
    where quantizers sorted them ("act-order"): neighbours then have no scale together, as in
    every format here.
    """
    scale, (n_in, n_groups) = scale.float(), (codes.shape[1], scale.shape[1])
    if not 1 <= n_groups <= n_in:
        raise WrongShape(f"expected 1 to {n_in} groups of inputs, found {n_groups}")
    in_order = torch.arange(n_in) // (n_in // n_groups)
    index = in_order if index is None else index.long()
    if index.shape != (n_in,) or index.min() < 0 or index.max() >= n_groups:
        raise WrongShape(f"expected {n_in} groups of inputs from 0 to {n_groups - 1}, found others")
    if bits != 4 or not torch.equal(index, in_order):
        zero_codes = zero_code.expand(scale.shape)[:, index]
        return FinerWeight((codes - zero_codes) * scale[:, index])
    return Int4Weight(
        codes.contiguous(), scale.contiguous(), ((8 - zero_code) * scale).contiguous()
    )


def _expect(checkpoint: Checkpoint, name: str, tensor: Tensor, shape: tuple[int, ...]) -> None:
    if tuple(tensor.shape) != shape:
        raise WrongShape(
            f"{checkpoint.source}: expected {name} unpacked to {list(shape)}, "
            f"found {list(tensor.shape)}"
        )


def _read_awq(
    checkpoint: Checkpoint, name: str, shape: tuple[int, int], quantization: dict[str, Any]
) -> Stored:
    """qweight int32 [in, out / 8] with the outputs of a word in `AWQ_ORDER`; scales [groups, out].

    Source: the GEMM layout of AutoAWQ.
    """
    version, bits = quantization.get("version", "gemm"), quantization.get("bits")
    if version != "gemm" or bits != 4:
        raise UnsupportedQuantization(
            f"{checkpoint.source}: expected AWQ gemm of 4 bits, found {version} of {bits}"
        )

    def unpack(tensor: Tensor) -> Tensor:
        values = _unpack(tensor, 4, 1).view(tensor.shape[0], -1, 8)
        return values[..., torch.tensor(AWQ_ORDER)].flatten(1).T

    codes = unpack(checkpoint.tensor(f"{name}.qweight"))
    _expect(checkpoint, f"{name}.qweight", codes, shape)
    zeros = unpack(checkpoint.tensor(f"{name}.qzeros"))
    return _grouped(codes, checkpoint.tensor(f"{name}.scales").T, zeros)


def _read_gptq(
    checkpoint: Checkpoint, name: str, shape: tuple[int, int], quantization: dict[str, Any]
) -> Stored:
    """qweight int32 [in * bits / 32, out], inputs in order; zeros are stored less one.

    Source: AutoGPTQ's layout; "gptq_v2" stores the zeros as they are.
    """
    bits = quantization.get("bits")
    if bits not in (4, 8):
        raise UnsupportedQuantization(
            f"{checkpoint.source}: expected GPTQ of 4 or 8 bits, found {bits}"
        )
    codes = _unpack(checkpoint.tensor(f"{name}.qweight"), bits, 0).T
    _expect(checkpoint, f"{name}.qweight", codes, shape)
    zeros = _unpack(checkpoint.tensor(f"{name}.qzeros"), bits, 1).T
    if quantization.get("checkpoint_format", "gptq") != "gptq_v2":
        zeros = (zeros + 1) & ((1 << bits) - 1)
    index = checkpoint.tensor(f"{name}.g_idx") if f"{name}.g_idx" in checkpoint else None
    return _grouped(codes, checkpoint.tensor(f"{name}.scales").T, zeros, bits, index)


def _read_compressed(
    checkpoint: Checkpoint, name: str, shape: tuple[int, int], quantization: dict[str, Any]
) -> Stored:
    """Formats "pack-quantized" (int4), "int-quantized" (int8) and "float-quantized" (fp8).

    Source: the compressed-tensors package's compressors.
    """
    scale = checkpoint.tensor(f"{name}.weight_scale").float()
    if f"{name}.weight_packed" in checkpoint:
        packed = checkpoint.tensor(f"{name}.weight_packed")
        if packed.shape[1] * 8 != shape[1]:
            raise UnsupportedQuantization(
                f"{checkpoint.source}: expected {name}.weight_packed of 4 bits and shape "
                f"{[shape[0], shape[1] // 8]}, found {list(packed.shape)}"
            )
        codes, zero_code = _unpack(packed, 4, 1), torch.tensor(8)
        if f"{name}.weight_zero_point" in checkpoint:
            zero_code = _unpack(checkpoint.tensor(f"{name}.weight_zero_point"), 4, 0)
        index = f"{name}.weight_g_idx"
        in_groups = checkpoint.tensor(index) if index in checkpoint else None
        return _grouped(codes, scale, zero_code, index=in_groups)
    weight = checkpoint.tensor(f"{name}.weight", shape)
    is_by_output = scale.numel() == 1 or scale.shape in ((shape[0],), (shape[0], 1))
    if weight.dtype in (torch.int8, torch.float8_e4m3fn) and is_by_output:
        return ScaledWeight(weight, scale.flatten().expand(shape[0]).contiguous())
    try:
        groups = iter(quantization["config_groups"].values())
        block = next(groups)["weights"].get("block_structure")
    except (AttributeError, KeyError, StopIteration, TypeError):
        block = None
    if weight.dtype == torch.float8_e4m3fn and block is not None:
        return _by_blocks(checkpoint, name, weight, scale, block)
    raise UnsupportedQuantization(
        f"{checkpoint.source}: expected {name} as int4, int8 or fp8 with a scale per channel, or "
        f"fp8 with one per block, found {weight.dtype} with {list(scale.shape)} scales "
        f"({quantization.get('format')})"
    )


def _read_fp8(
    checkpoint: Checkpoint, name: str, shape: tuple[int, int], quantization: dict[str, Any]
) -> FinerWeight | ScaledWeight:
    """weight e4m3 [out, in], weight_scale_inv [out / block, in / block], or one: w = code * scale.

    Source: DeepSeek-V3's layout, as Qwen and Mistral publish their "FP8" checkpoints.
    """
    weight = checkpoint.tensor(f"{name}.weight", shape)
    if weight.dtype != torch.float8_e4m3fn:
        raise UnsupportedQuantization(
            f"{checkpoint.source}: expected {name} in fp8 e4m3, found {weight.dtype}"
        )
    scale = checkpoint.tensor(f"{name}.weight_scale_inv").float()
    if (block := quantization.get("weight_block_size")) is None and scale.numel() == 1:
        return ScaledWeight(weight, scale.flatten().expand(shape[0]).contiguous())
    return _by_blocks(checkpoint, name, weight, scale, block)


def _by_blocks(
    checkpoint: Checkpoint, name: str, weight: Tensor, scale: Tensor, block: Any
) -> FinerWeight:
    """A scale for each block of outputs and inputs; the last ones may be smaller."""
    if not isinstance(block, list) or len(block) != 2 or not all(
        type(n) is int and n > 0 for n in block
    ):  # fmt: skip
        raise UnsupportedQuantization(
            f"{checkpoint.source}: expected fp8 by blocks of two sizes, found {block}"
        )
    n_out, n_in = weight.shape
    wanted = (-(-n_out // block[0]), -(-n_in // block[1]))
    _expect(checkpoint, f"the scales of {name}", scale, wanted)
    scale = scale.repeat_interleave(block[0], 0)[:n_out].repeat_interleave(block[1], 1)[:, :n_in]
    return FinerWeight(weight.float() * scale)

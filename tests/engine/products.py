"""Products of torch whose numbers are rounded, as a device's that reads codes are."""

from typing import Any

from torch import Tensor

from engine.linear import INT4_GROUP, Linear, make_linear
from engine.load.packed import Stored, format_of
from engine.load.quant import quantize


def rounded(weight: Stored, bias: Tensor | None, *, quant: str | None, **given: Any) -> Linear:
    """`make_linear` of what `quant` makes of the weight."""
    coded = quantize(weight, quant, INT4_GROUP)
    product = make_linear(coded, bias, quant=None, **given)
    product.kept = format_of(coded)
    return product

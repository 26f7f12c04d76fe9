"""Owns the rows of one step as the C library reads them. Free of torch."""

import ctypes
from collections.abc import Sequence

from .layout import StepLayout


class StepRows:
    """The rows of a step, as lists; keeps the arrays that its layout points into."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.positions: list[int] = []
        self.sequences: list[int] = []
        self.tables: list[int] = []
        self.table_starts = [0]
        self.slots: list[int] = []  # of each sequence's adapter
        self.wanted: list[int] = []

    def add(
        self, tokens: Sequence[int], first: int, table: Sequence[int], n_wanted: int, slot: int = -1
    ) -> None:
        """Rows of one more sequence, from the position ``first`` on.

        n_wanted: of its last rows the states are asked for. slot: of its adapter; -1: none.
        """
        self.slots.append(slot)
        self.sequences += [len(self.table_starts) - 1] * len(tokens)
        self.tokens += tokens
        self.positions += range(first, first + len(tokens))
        self.tables += table
        self.table_starts.append(len(self.tables))
        self.wanted += range(len(self.tokens) - n_wanted, len(self.tokens))

    def lay_out(self, x: int) -> StepLayout:
        """x: where the residuals lie, fp32 [rows, padded hidden]."""
        names = ["tokens", "positions", "sequences", "tables", "table_starts"]
        if max(self.slots) >= 0:
            names.append("slots")
        self._arrays = {name: integers(getattr(self, name)) for name in names}
        return StepLayout(
            x=x, n_rows=len(self.tokens), n_sequences=len(self.table_starts) - 1,
            **{name: ctypes.addressof(array) for name, array in self._arrays.items()},
        )  # fmt: skip


def integers(values: list[int]) -> "ctypes.Array[ctypes.c_int32]":
    return (ctypes.c_int32 * len(values))(*values)

"""What a part of `benchmarks.phone` is: something measured, its figures, its bars."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from typing import Any, Protocol

from benchmarks.harness.harness import Bar


class Part(Protocol):
    """One part. measure, then figures and bars of what was measured."""

    async def measure(self, chosen: Namespace) -> None:
        """Raises: ClientError."""

    def figures(self) -> dict[str, Any]:
        """As the results' file keeps them; empty where nothing was measured."""

    def bars(self) -> Sequence[Bar]: ...

    def show(self) -> None:
        """Print the figures."""

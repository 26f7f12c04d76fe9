"""Moonshine's network without its rules: what `decoder` and `digits` ask, whatever computes it."""

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ...end_in_states import States


class MoonshineNetwork(Protocol):
    """A network; others pass on as it is what `encode` and `step` return."""

    def encode(self, wave: NDArray[np.float32]) -> Any:
        """Return what the decoder is given of the sound, a wave float32 [n] at 16 kHz."""

    def rows(self, context: Any) -> NDArray[np.float32]:
        """The encoder's rows [n, width] in it, 24 ms of sound each."""

    def step(
        self, context: Any, states: Any, tokens: Sequence[int]
    ) -> tuple[NDArray[np.float32], Any]:
        """Scores [n, n_logits] of what follows each of these tokens, and the states behind them.

        states: of the step before, None at the first.
        """

    def cut_back(self, states: Any, n_tokens: int) -> Any:
        """The states of the first tokens alone."""

    def last_states(self, states: Any, n_tokens: int) -> States:
        """Return the states of the last of so many tokens, as `EndInStates` reads them."""

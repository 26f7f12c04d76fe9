"""How loud the microphone is, as a line of the terminal: a person sees that they are heard."""

from __future__ import annotations

import numpy as np
from rich.text import Text

from clients.recording import Samples

CELLS = 24
EMPTY_DBFS, FULL_DBFS = -60.0, -6.0
FALL_DB = 1.5  # a block of 20 ms: from full to empty in 0.7 s, so that a syllable can be seen


class LevelMeter:
    """Fed with every block, drawn when the terminal is: `__rich__` reads the latest value."""

    def __init__(self) -> None:
        self._dbfs = EMPTY_DBFS
        self.is_open = True  # False: what is said goes nowhere, as between two pushes to talk

    def feed(self, samples: Samples) -> None:
        """A block of the microphone, int16."""
        rms = float(np.sqrt(np.mean(np.square(samples.astype(np.float64))))) if len(samples) else 0
        level = 20 * np.log10(max(rms, 1e-3) / 32768)
        self._dbfs = float(max(level, self._dbfs - FALL_DB, EMPTY_DBFS))

    @property
    def n_lit(self) -> int:
        """Cells that are lit, 0 to CELLS."""
        share = (self._dbfs - EMPTY_DBFS) / (FULL_DBFS - EMPTY_DBFS)
        return round(CELLS * min(max(share, 0.0), 1.0))

    def __rich__(self) -> Text:
        bar = Text("mic  ", style="dim")
        bar.append("▮" * self.n_lit, style="#d9913f" if self.is_open else "dim")
        bar.append("▯" * (CELLS - self.n_lit), style="dim")
        if not self.is_open:
            bar.append("  space to talk", style="dim")
        return bar

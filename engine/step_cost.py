"""Owns what a step is known to cost: a fixed part, and a part for each row, learnt as steps run.

The fixed part is the reading of the weights, which on a GPU is most of a small step; without it a
prompt would be fed in pieces that each read all weights again.
"""

MEMORY = 0.8  # weight of the past in what a size of step costs


class StepCost:
    """milliseconds = fixed + ms_per_row * rows, fitted to the sizes of steps that were seen."""

    def __init__(self) -> None:
        self.fixed_ms = self.ms_per_row = 0.0  # 0 until measured
        # By size, as a power of two: rows and milliseconds, running means.
        self._seen: dict[int, tuple[float, float]] = {}

    def observe(self, n_rows: int, elapsed_ms: float) -> None:
        """Learn from a step."""
        size = n_rows.bit_length()
        rows, ms = self._seen.get(size, (n_rows, elapsed_ms))
        self._seen[size] = (
            MEMORY * rows + (1 - MEMORY) * n_rows, MEMORY * ms + (1 - MEMORY) * elapsed_ms
        )  # fmt: skip
        self._fit()

    def _fit(self) -> None:
        """Least squares over the sizes; where they tell no line, rows alone cost."""
        n = len(self._seen)
        mean_rows = sum(rows for rows, _ in self._seen.values()) / n
        mean_ms = sum(ms for _, ms in self._seen.values()) / n
        spread = sum((rows - mean_rows) ** 2 for rows, _ in self._seen.values())
        covered = sum((rows - mean_rows) * (ms - mean_ms) for rows, ms in self._seen.values())
        slope = covered / spread if spread else 0.0
        fixed = mean_ms - slope * mean_rows
        if slope <= 0 or fixed < 0:
            rows, ms = self._seen[max(self._seen)]
            slope, fixed = ms / rows, 0.0
        self.fixed_ms, self.ms_per_row = fixed, slope

    def rows_within(self, budget_ms: float) -> int | None:
        """How many rows a step of this time has; None until measured."""
        if not self.ms_per_row:
            return None
        return max(0, int((budget_ms - self.fixed_ms) / self.ms_per_row))

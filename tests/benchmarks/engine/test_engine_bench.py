"""The engine's benchmark: which parts a resumed run may take from the run before it."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import engine_bench
from benchmarks.engine import real_weights as part
from benchmarks.engine.llama_cpp_peer import ENVIRONMENT
from benchmarks.engine.models import Shape, write_random_model
from benchmarks.engine.real_weights import SERVED, real_weights
from benchmarks.engine.setting import Setting
from benchmarks.harness.harness import Bar
from engine.recipes import passages


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


def test_words_formats_and_times_are_rows_of_one_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without llama.cpp its rows are missed; all else is measured on the file."""
    path = write_random_model(tmp_path / "tiny", Shape(64, 128, 2, 4, 2, 320, 2048))
    monkeypatch.setattr(part, "is_gguf", lambda path: True)
    said = [{"role": role, "content": "a table"} for role in ("user", "assistant")]
    monkeypatch.setattr(passages, "_dialogues", lambda n: [said])
    monkeypatch.setattr(part, "callers_lines", lambda: ["hi", "bye"])
    monkeypatch.setattr(part, "N_WORDS", 3)
    monkeypatch.delenv(ENVIRONMENT, raising=False)

    def theirs(of: Path, prompts: list[list[int]], n_tokens: int) -> list[list[int]]:
        assert of == path
        return [[0] * n_tokens for _ in prompts]

    monkeypatch.setattr(part, "transformers_replies", theirs)
    bars = real_weights(Setting(path, True, 1, 1, 0))
    assert bars[0].value == 2.0 and not bars[0].holds  # nobody says zeros
    assert len(bars) == 1 + 2 * len(SERVED) + 1 + 1  # words, formats, first clause, time
    assert all(bar.value is not None for bar in bars[:-1])
    assert bars[-1].value is None and len({bar.name for bar in bars}) == len(bars)

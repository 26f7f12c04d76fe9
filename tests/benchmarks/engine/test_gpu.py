"""The GPU benchmark's parts where there is no GPU: tiny shapes, kernels by their references."""

import json
import os
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # read by the first who imports triton, for all
pytest.importorskip("triton", reason="the GPU path needs triton")

from benchmarks.engine import gpu as engine_gpu
from benchmarks.engine import gpu_serving as engine_gpu_serving
from benchmarks.engine.models import SHAPES, Shape  # noqa: E402

TINY = Shape(128, 128, 1, 2, 1, vocab_size=300, max_position_embeddings=1500)


@pytest.fixture(autouse=True)
def on_references(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_gpu, "DEVICE", "reference")
    monkeypatch.setitem(SHAPES, "1b", TINY)
    monkeypatch.setitem(SHAPES, "8b", TINY)


@pytest.mark.parametrize("quant", [None, "int4"])
def test_a_row_of_the_matrix_tells_steps_and_ttft(quant: str | None, monkeypatch) -> None:
    monkeypatch.setattr(engine_gpu, "N_COMMITS", 3)
    monkeypatch.setattr(engine_gpu, "N_TOKENS", 6)
    engine = engine_gpu.build("8b", quant=quant, kv_format="int8", kv_tokens=2048, max_branches=4)
    row = engine_gpu.decode(engine, 2, 64)
    assert set(row["ms_per_step"]) == set(row["ttft_ms"]) == {"p50", "p90", "p99"}
    assert row["tokens_s"] > 0
    engine.check_integrity()


def test_a_busy_engine_of_drafts_stagings_and_replies_comes_to_rest(monkeypatch) -> None:
    engine = engine_gpu.build("1b", kv_tokens=16384, ngram_draft=True, max_branches=24)
    monkeypatch.setattr(engine_gpu_serving, "range", lambda n: range(min(n, 2)), raising=False)
    engine_gpu_serving._be_busy(engine)
    assert not engine.has_work()
    engine.check_integrity()


def test_the_sweep_accepts_what_its_oracle_knows(monkeypatch) -> None:
    monkeypatch.setattr(engine_gpu_serving, "N_TOKENS", 12)
    parts = dict(islice(engine_gpu_serving.speculation(engine_gpu.build), 8))
    row = parts["8b int4, acceptance 0.9, 3 drafted"]()
    assert row["drafted"] >= row["accepted"] > 0


def test_callers_are_answered_while_others_speak(monkeypatch) -> None:
    clock = iter(range(10**6))
    monkeypatch.setattr(engine_gpu_serving, "N_CONVERSATIONS", 2)
    monkeypatch.setattr(engine_gpu_serving, "CONVERSATION_SECONDS", 15.0)
    monkeypatch.setattr(engine_gpu_serving.time, "monotonic", lambda: next(clock) / 4)

    def build(shape: str, **changes: object):
        return engine_gpu.build(shape, **changes | {"kv_tokens": 4096, "max_branches": 4})

    ((_, measure),) = engine_gpu_serving.conversations(build)
    assert measure()["replies"] >= 1


def _rows(*results: object) -> Iterator[engine_gpu.Row]:
    for i, result in enumerate(results):

        def measure(result: object = result) -> dict[str, object]:
            if isinstance(result, Exception):
                raise result
            return {"ms": result}

        yield f"row {i}", measure


def test_rows_that_failed_are_tried_again_and_others_are_kept(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(engine_gpu.torch.cuda, "get_device_name", lambda: "a GPU")
    monkeypatch.setattr(engine_gpu.gpu_kernels, "copy_bandwidth", lambda: 4000.0)
    path = tmp_path / "rows.json"
    assert engine_gpu.Rows(path).run("part", _rows(1, ValueError("expected this"), 3))
    found = json.loads(path.read_text())["rows"]
    assert found["part/row 1"] == {"error": "ValueError: expected this"}
    assert engine_gpu.Rows(path).run("part", _rows(5, 6, 7))
    assert json.loads(path.read_text())["rows"] == {
        "part/row 0": {"ms": 1},
        "part/row 1": {"ms": 6},
        "part/row 2": {"ms": 3},
    }


def test_a_lost_device_ends_the_part(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(engine_gpu.torch.cuda, "get_device_name", lambda: "a GPU")
    monkeypatch.setattr(engine_gpu.gpu_kernels, "copy_bandwidth", lambda: 4000.0)
    lost = RuntimeError("CUDA error: an illegal memory access was encountered")
    rows = engine_gpu.Rows(tmp_path / "rows.json")
    assert not rows.run("part", _rows(1, lost, 3))
    assert len(rows.data["rows"]) == 2

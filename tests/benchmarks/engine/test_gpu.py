"""The GPU benchmark's parts where there is no GPU: tiny shapes, kernels by their references."""

import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest

from benchmarks import gpu_first_run, host_steps
from benchmarks.engine import gpu as engine_gpu
from benchmarks.engine import gpu_kernels, gpu_model, gpu_truth
from benchmarks.engine import gpu_serving as engine_gpu_serving
from benchmarks.engine.gpu_faults import FAULTS
from benchmarks.engine.models import SHAPES, Shape
from engine.kernels import kv_write

pytest.importorskip("triton", reason="the GPU path needs triton")


TINY = Shape(128, 128, 2, 2, 1, vocab_size=300, max_position_embeddings=1500)


@pytest.fixture(autouse=True)
def on_references(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (engine_gpu, gpu_truth):
        monkeypatch.setattr(module, "DEVICE", "reference")
    monkeypatch.setattr(gpu_kernels, "DEVICE", "cpu")
    monkeypatch.setattr(gpu_kernels, "copy_bandwidth", lambda: 4000.0)
    for name in ("1b", "4b", "8b", "qwen3-8b"):
        monkeypatch.setitem(SHAPES, name, TINY)


def _rows(*results: object) -> Iterator[engine_gpu.Row]:
    for i, result in enumerate(results):

        def measure(result: object = result) -> dict[str, object]:
            if isinstance(result, Exception):
                raise result
            return {"ms": result}

        yield f"row {i}", measure


def _rows_file(path: Path, **times: float) -> engine_gpu.Rows:
    return engine_gpu.Rows(path, **{"command_s": 60.0, "total_s": 60.0} | times)


def test_rows_that_failed_are_tried_again_and_others_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    assert _rows_file(path).run("part", _rows(1, ValueError("expected this"), 3))
    found = json.loads(path.read_text())["rows"]
    assert found["part/row 1"] == {"error": "ValueError: expected this"}
    assert _rows_file(path).run("part", _rows(5, 6, 7))
    assert json.loads(path.read_text())["rows"] == {
        "part/row 0": {"ms": 1},
        "part/row 1": {"ms": 6},
        "part/row 2": {"ms": 3},
    }


def test_a_lost_device_ends_the_part(tmp_path: Path) -> None:
    lost = RuntimeError("CUDA error: an illegal memory access was encountered")
    rows = _rows_file(tmp_path / "rows.json")
    assert not rows.run("part", _rows(1, lost, 3))
    assert len(rows.data["rows"]) == 2


@pytest.mark.parametrize("times", [{"command_s": 0.5}, {"total_s": 0.5}])
def test_no_row_is_begun_once_the_time_of_a_command_or_of_all_is_over(
    times: dict[str, float], tmp_path: Path, monkeypatch
) -> None:
    clock = iter(range(100))
    monkeypatch.setattr(engine_gpu.time, "monotonic", lambda: next(clock) / 10)
    rows = _rows_file(tmp_path / "rows.json", **times)
    assert not rows.run("part", _rows(*range(20)))
    assert 1 < len(rows.data["rows"]) < 20
    goes_on = _rows_file(tmp_path / "rows.json", **times)
    assert goes_on.is_over == ("total_s" in times)  # what others have spent counts


@pytest.mark.timeout(300)  # a process with torch of its own, where the machine is busy
def test_every_part_of_the_first_run_runs_where_there_is_no_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One row of each part, of a tiny model; a part that needs CUDA itself is named here."""
    monkeypatch.setattr(engine_gpu, "MATRIX", ((2, 64),))
    monkeypatch.setattr(engine_gpu, "N_COMMITS", 3)
    monkeypatch.setattr(engine_gpu, "N_TOKENS", 5)
    monkeypatch.setattr(engine_gpu_serving, "N_TOKENS", 6)
    monkeypatch.setattr(engine_gpu_serving, "N_COLD", 96)
    monkeypatch.setattr(engine_gpu_serving, "N_CONVERSATIONS", 2)
    monkeypatch.setattr(engine_gpu_serving, "CONVERSATION_SECONDS", 15.0)
    for name, size in {"HIDDEN": 128, "MAX_COPIES": 1, "N_CALLS": 1}.items():
        monkeypatch.setattr(gpu_kernels, name, size)
    needs_cuda = {"breakdown", "sealed"}  # CUPTI, the allocator's count, a compiler
    parts = {
        name: (lambda rows=rows: islice(rows(), 1))
        for name, rows in engine_gpu.PARTS.items()
        if name not in needs_cuda
    }
    monkeypatch.setattr(engine_gpu, "PARTS", parts)
    monkeypatch.setattr(gpu_first_run, "apart", None)  # here, where shapes are tiny
    clock = iter(range(10**6))
    monkeypatch.setattr(engine_gpu_serving.time, "monotonic", lambda: next(clock) / 4)
    long = ["--minutes", "9999999", "--command-minutes", "9999999"]
    for name in parts:
        long += ["--part", name]
    assert gpu_first_run.main(long, tmp_path) == 0
    data = json.loads((tmp_path / "gpu_first_run.json").read_text())
    assert {key.partition("/")[0] for key in data["rows"]} == set(parts)
    told = (tmp_path / "gpu_first_run.txt").read_text()
    assert told.count("matrix/") == told.count("cold/") == told.count("mixed/") == 1
    n_spent = data["spent_s"]
    assert gpu_first_run.main(long, tmp_path) == 0  # nothing is due
    assert json.loads((tmp_path / "gpu_first_run.json").read_text())["spent_s"] == n_spent


def test_a_first_run_without_a_gpu_says_so_and_tells_what_the_model_expects(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(engine_gpu, "DEVICE", "cuda")
    monkeypatch.setattr(gpu_first_run.torch.cuda, "is_available", lambda: False)
    assert gpu_first_run.main([], tmp_path) == 2
    told = capsys.readouterr()
    assert "expected a CUDA GPU" in told.err and "64 replies" in told.out


def test_the_model_of_a_step_counts_weights_keys_and_row_tiles() -> None:
    shape = replace(TINY, hidden_size=4096, intermediate_size=12288, num_hidden_layers=36,
                    num_attention_heads=32, num_key_value_heads=8, head_dim=128,
                    vocab_size=151936)  # fmt: skip

    def ms(quant: str | None, kv: str, n: int, context: int) -> float:
        return gpu_model.decode_ms(shape, quant, kv, n, context)

    weights = sum(n_out * n_in for n_out, n_in in gpu_model.products(shape).values()) * 36
    assert weights == pytest.approx(6.95e9, rel=0.01)
    int8_ms, int4_ms = weights / (4300e6 * 0.85), weights * 0.53125 / (4300e6 * 0.78)
    assert ms("int8", "int8", 1, 64) - ms("int4", "int8", 1, 64) == pytest.approx(int8_ms - int4_ms)
    assert ms("int4", "plain", 32, 4096) > 1.3 * ms("int4", "int8", 32, 4096)  # half of the bytes
    assert ms("int4", "int8", 64, 64) > 1.2 * ms("int4", "int8", 32, 64)  # unpacked twice
    assert ms("int4", "int8", 8, 64) == pytest.approx(ms("int4", "int8", 1, 64), rel=0.01)


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few replies, of few tokens."""
    sizes = {"N_REPLIES": 6, "COMPANIES": (2, 6), "N_TOKENS": 10, "N_DRAFTED": 4, "N_POOLED": 8}
    for name, size in sizes.items():
        monkeypatch.setattr(gpu_truth, name, size)


@pytest.mark.parametrize("check", [name for name, _ in gpu_truth.checks()])
def test_the_references_say_what_the_model_says(check: str, short: None) -> None:
    assert dict(gpu_truth.checks())[check]()


# Of the other rows each would have to be asked first.
FOUND_BY = {
    "the wrong row sampled": "drafted",
    "a draft accepted wrongly": "drafted",
    "a grammar's mask ignored": "grammar",
    "the end of a turn misread": "staged",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_every_planted_wrong_kernel_is_found(fault: str, short: None, monkeypatch) -> None:
    row = FOUND_BY.get(fault, "logits and codes")
    asked = [one for one in gpu_truth.of_served() if one[0] == row]
    monkeypatch.setattr(gpu_truth, "of_served", lambda: asked)
    assert gpu_truth.found_by(fault)["found_by"] == row


def test_a_kernel_without_a_fault_is_not_found_wrong(short: None, monkeypatch) -> None:
    module, kernel, _ = FAULTS["a wrong scale"]
    monkeypatch.setitem(FAULTS, "none", (module, kernel, lambda right: right))
    rows = list(islice(gpu_truth.of_served(), 1))  # each of the others is asked above
    monkeypatch.setattr(gpu_truth, "of_served", lambda: rows)
    with pytest.raises(gpu_truth.Wrong, match="found none"):
        gpu_truth.found_by("none")


def test_one_wrong_code_where_a_kernel_writes_few_fails_its_row(monkeypatch) -> None:
    """As torch's reference in the kernel's place: right as it is, wrong with one code of 2,048."""
    monkeypatch.setattr(gpu_kernels, "_time_us", lambda make, case: (1.0, True))
    write = kv_write.kv_write_reference

    def one_code_wrong(*given: object) -> None:
        write(*given)  # type: ignore[arg-type]
        blocks, slots = given[9], given[2]
        blocks.flatten(0, 1)[int(slots[0]), 0, 0, 0] += 2  # type: ignore[attr-defined, index]

    monkeypatch.setattr(kv_write, "kv_write", write)
    assert gpu_kernels._measure(lambda: gpu_kernels._kv_write("int8", 32))["worst"] == 0
    monkeypatch.setattr(kv_write, "kv_write", one_code_wrong)
    with pytest.raises(RuntimeError, match="expected an error of at most"):
        gpu_kernels._measure(lambda: gpu_kernels._kv_write("int8", 32))


PROGRAM = """
import json, os, sys, time
what = sys.argv[-1]
if what == "part/crashes": os.abort()
if what == "part/hangs": time.sleep(600)
print("on the way"); print(json.dumps({"ms": 1}))
"""


def test_a_row_that_crashes_or_hangs_costs_itself_alone_and_is_left_alone_after_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "row_program.py").write_text(PROGRAM)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    tried: list[str] = []

    def apart(key: str) -> dict[str, object]:
        tried.append(key)
        return engine_gpu.measure_apart("row_program", key, 2.0)

    names = ("crashes", "hangs", "measures")
    for _ in range(3):
        rows = _rows_file(tmp_path / "rows.json")
        assert rows.run("part", iter([(name, dict) for name in names]), apart)
    assert tried == [f"part/{name}" for name in (*names, "crashes", "hangs")]
    found = json.loads((tmp_path / "rows.json").read_text())["rows"]
    assert found["part/measures"] == {"ms": 1}
    assert found["part/crashes"]["lost"] == found["part/hangs"]["lost"] == 2
    assert "exit code -6" in found["part/crashes"]["error"]
    assert "within 2 s" in found["part/hangs"]["error"]


def test_callers_are_answered_and_heard_with_a_full_pool_and_no_device(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(host_steps, "HISTORY", 64)
    engine = host_steps.build(4)
    callers = host_steps.Callers(engine, 4)
    assert engine.tree.n_evictable > engine.pool.n_blocks // 4
    assert all(callers.step(number) >= 0.0 for number in range(120))
    told = engine.metrics()
    assert told["replies_length"] > 2 and told["staged_tokens"] > 100
    engine.check_integrity()

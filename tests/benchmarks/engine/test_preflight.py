"""The preflight of the GPU's kernels: what it sees of a kernel, and what it makes of that."""

import json
import os
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("triton", reason="the kernels need triton")

from benchmarks import gpu_preflight  # noqa: E402
from benchmarks.engine.preflight import SHARED_KIB, Variant, servings  # noqa: E402

ROOT = Path(gpu_preflight.__file__).parents[1]
GOOD = Variant("_gemm", "a model", "rows=16", 90, 0, 4096, True, True, 1.0)

# Two kernels that need no more than a moment each: one of ours, and one that has to spill.
LAUNCHES = """
import json, sys, torch, triton, triton.language as tl
from dataclasses import asdict
from benchmarks.engine.preflight import compile_launches
from engine.kernels.silu_mul import silu_mul

@triton.jit
def greedy(x, y, N: tl.constexpr):
    at = tl.arange(0, N)
    tl.store(y + at, tl.sort(tl.load(x + at)))

found = {}
compile_launches(found, ["a test"])
silu_mul(torch.empty(2, 3, 64, device="meta"), torch.empty(3, 32, device="meta"))
silu_mul(torch.empty(2, 7, 64, device="meta"), torch.empty(7, 32, device="meta"))
x = torch.empty(2048, device="meta")
greedy[(1,)](x, x, N=2048, num_warps=1, num_stages=2, maxnreg=24)
print(json.dumps([asdict(variant) for variant in found.values()]))
"""


def test_a_launch_is_compiled_for_the_gpu_with_its_own_types_and_told_once(tmp_path: Path) -> None:
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    script = tmp_path / "launches.py"  # a file: Triton reads the source of what it compiles
    script.write_text(LAUNCHES)
    ran = subprocess.run(
        [sys.executable, str(script)], env=environment, capture_output=True, text=True, check=True
    )
    ours, greedy = (Variant(**row) for row in json.loads(ran.stdout.splitlines()[-1]))
    assert ours.kernel == "_silu_mul"
    assert ours.sizes == "size=32 block=1024 n_splits=2"
    assert 0 < ours.registers < 255 and not ours.faults()
    assert greedy.stack_bytes > 0
    assert len(greedy.faults()) == 2  # it spills, and asks for stages that it has no use for


def test_spills_and_copies_that_wait_are_told_with_the_kernel_and_its_triton() -> None:
    bad = replace(GOOD, stack_bytes=16, is_asynchronous=False)
    rows = [asdict(GOOD), asdict(bad)]
    found = {
        "triton 3.6.0": {"error": "", "variants": rows},
        "triton 3.9.0": {"error": "boom", "variants": []},
    }
    faults = gpu_preflight.faults_of(found)
    assert len(faults) == 3
    assert all(fault.startswith("triton 3.6.0, _gemm (a model; rows=16)") for fault in faults[:2])
    assert "boom" in faults[2]


def test_a_run_is_kept_for_the_same_sources_and_a_failed_one_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = iter([gpu_preflight.NotCompiled("boom"), [GOOD]])

    def finish(process: object) -> list[Variant]:
        found = next(runs)
        if isinstance(found, Exception):
            raise found
        return found

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(gpu_preflight, "start", lambda *_: None)
    monkeypatch.setattr(gpu_preflight, "finish", finish)
    wanted = [gpu_preflight.Wanted("3.6.0", None, 90)]

    def compiled(*, is_fresh: bool = False) -> Any:
        return gpu_preflight.compiled(wanted, is_fresh=is_fresh)["triton 3.6.0 for 9.0"]

    assert compiled()["error"] == "boom"
    assert compiled()["variants"]
    assert compiled()["variants"] == [asdict(GOOD)]  # a third run there is not
    with pytest.raises((StopIteration, RuntimeError)):
        compiled(is_fresh=True)


def test_every_card_has_its_shapes_and_one_without_bf16_none() -> None:
    served = {one: servings(one) for one in SHARED_KIB}
    assert served.pop(75) == ()
    assert all(len(shapes) >= 7 for shapes in served.values())
    assert {one for one, shapes in served.items() if any(s.quant == "fp8" for s in shapes)} == {
        89, 90, 100, 120,
    }  # fmt: skip


def test_a_wheel_that_cannot_be_had_is_skipped_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise subprocess.CalledProcessError(1, "pip")

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(gpu_preflight.subprocess, "run", refuse)
    assert gpu_preflight.wheel_of("3.6.0") is None
    assert "triton 3.6.0: skipped" in capsys.readouterr().err

"""The preflight of the GPU's kernels: what it sees of a kernel, and what it makes of that."""

import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("triton", reason="the kernels need triton")

from benchmarks import gpu_preflight  # noqa: E402
from benchmarks.engine.preflight import Variant  # noqa: E402

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

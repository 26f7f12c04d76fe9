"""A device that fails, at load or in service: the worker goes on one step lower and answers.

Real worker processes with real engines, on the device "reference".
"""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("triton", reason="the GPU path needs triton")

from msgspec.structs import replace
from safetensors.torch import save_file

from tests.engine.conftest import SIZES, random_tensors, write_tokenizer
from voiceloop.backends import ChatMessage, Generated, GenerateParams
from voiceloop.errors import BackendError, BackendRefused
from voiceloop.workers.messages import RoleSpec, WorkerSpec
from voiceloop.workers.supervisor import Supervisor

pytestmark = [pytest.mark.call, pytest.mark.timeout(120)]

HERE = Path(__file__).parent
ENVIRON = {"PYTHONPATH": f"{HERE}{os.pathsep}{HERE.parents[1]}", "OMP_NUM_THREADS": "1"}
# of each planted fault its kind, and what the start's lines and /readyz have of it
FAULTS = {
    "load": ("launch", "found RuntimeError: out of resource: shared memory"),
    "capture": ("launch", "found RuntimeError: CUDA error: an illegal memory access"),
    "step 1000": ("launch", "found RuntimeError: CUDA error: an illegal memory access"),
    "memory": ("memory", "found OutOfMemoryError: CUDA out of memory"),
    "nan": ("nan", "expected numbers of reference, found NaN or infinity in 3 replies"),
    "crash": ("crash", "expected the process to live, found it ended by SIGABRT"),
}
MOST_REPLIES = 20  # of 200 tokens: the fifth has the thousandth step


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    config = {**SIZES, "vocab_size": write_tokenizer(folder), "eos_token_id": 2}
    (folder / "config.json").write_text(json.dumps(config))
    save_file(random_tensors(config, 0), folder / "model.safetensors")
    return folder


def spec(model_dir: Path, fault: str, *, torch_fails: bool = False) -> WorkerSpec:
    """As `models.presets` plans it for a GPU: its kernels, plain torch on it, a CPU."""
    options: dict[str, Any] = {
        "fault": fault, "torch_fails": torch_fails, "model_dir": str(model_dir), "dtype": "fp32",
        "device": "reference", "kv_tokens": 1024, "max_draft_tokens": 0,
    }  # fmt: skip
    kernels = RoleSpec("engine", options, "faulty_device:load")
    plain = RoleSpec("engine", {**options, "kernels": False}, "faulty_device:load")
    cpu = RoleSpec("engine", {**options, "device": "cpu"}, "faulty_device:load")
    return WorkerSpec("engine", (replace(kernels, lower=(plain, cpu)),))


async def is_answered(supervisor: Supervisor, number: int) -> bool:
    try:
        model, turn = supervisor.language_model(), ChatMessage("user", "Good morning")
        branch = await model.branch(f"sess_1/turn_{number}", (turn,))
        branch.commit((turn,), GenerateParams(max_tokens=200, temperature=1.0, seed=number))
        async for event in branch.events():
            if isinstance(event, Generated):
                return True
    except BackendError:
        pass
    return False


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_server_whose_device_fails_answers_one_step_lower(
    model_dir: Path, fault: str
) -> None:
    kind, found = FAULTS[fault]
    is_early = fault in ("load", "capture")
    async with Supervisor([spec(model_dir, fault)], environ=ENVIRON) as supervisor:
        for number in range(MOST_REPLIES):
            if supervisor.workers[0].spec.roles[0].after is not None:
                break
            await is_answered(supervisor, number)
            await asyncio.sleep(0.05)  # for a process that ends to be seen ending
        while not supervisor.ready():  # noqa: ASYNC110
            await asyncio.sleep(0.1)
        assert await is_answered(supervisor, MOST_REPLIES)
        [state], [load] = supervisor.states(), supervisor.loads()
        assert state.state == load.state == "ready"
        assert "layers by torch" in state.detail
        assert "it serves one step lower since the device failed: " in state.detail
        assert found in state.detail and found in load.trouble
        assert load.served["fault"] == kind and load.served["layers"] == "torch"
        assert load.restarts == ({} if is_early else {"fault": 1})


async def test_where_torch_fails_on_it_too_the_last_step_serves(model_dir: Path) -> None:
    planned = spec(model_dir, "capture", torch_fails=True)
    async with Supervisor([planned], environ=ENVIRON) as supervisor:
        assert await is_answered(supervisor, 1)
        assert supervisor.workers[0].spec.roles[0].options["device"] == "cpu"
        assert "found RuntimeError: no device" in supervisor.loads()[0].trouble


async def test_with_no_step_left_the_start_fails_with_what_the_last_one_met(
    model_dir: Path,
) -> None:
    planned = spec(model_dir, "load", torch_fails=True)
    [role] = planned.roles
    with pytest.raises(BackendRefused, match="expected reference to run the model, found Runtime"):
        await Supervisor(
            [replace(planned, roles=(replace(role, lower=role.lower[:1]),))], environ=ENVIRON
        ).start()

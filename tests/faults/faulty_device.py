"""The language model's role on a device that fails, for worker processes in tests.

A worker finds this module by ``PYTHONPATH``. The engine is real, on the device "reference": the
GPU's path without a GPU.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch

from engine.graphs.graph_runner import GraphRunner
from engine.kernels.decoder import KernelSet
from engine.runner import Runner
from voiceloop.workers.roles import language

SOON = 10  # steps: behind the first turn, which warms the role up


def _raises(error: Exception) -> Callable[..., Any]:
    def raising(*_: Any, **__: Any) -> None:
        raise error

    return raising


def _at_step(n: int, act: Callable[[GraphRunner], None]) -> None:
    """Have a runner do this in its n-th step, and in each behind it."""
    step, taken = GraphRunner.step, [0]

    def counted(self: GraphRunner, *arguments: Any) -> Any:
        taken[0] += 1
        if taken[0] >= n:
            act(self)
        return step(self, *arguments)

    GraphRunner.step = counted  # type: ignore[method-assign]


def _spoil(runner: GraphRunner) -> None:
    runner.decoder.embedding.fill_(torch.nan)


def _plant(fault: str) -> None:
    illegal = RuntimeError("CUDA error: an illegal memory access was encountered\nmore")
    match fault:
        case "load":
            KernelSet.make_linear = _raises(RuntimeError("out of resource: shared memory"))  # type: ignore[method-assign]
        case "capture":
            GraphRunner._capture = _raises(illegal)  # type: ignore[method-assign]
        case "step 1000":
            _at_step(1000, _raises(illegal))
        case "memory":
            _at_step(SOON, _raises(torch.OutOfMemoryError("CUDA out of memory")))
        case "nan":
            _at_step(SOON, _spoil)
        case "crash":
            _at_step(SOON, lambda runner: os.abort())


def load(fault: str, torch_fails: bool = False, **options: Any) -> language.LanguageRole:
    """A role whose kernels fail; torch_fails: what stands in for them on that device, too."""
    if options["device"] != "cpu":
        if options.get("kernels", True):
            _plant(fault)
        elif torch_fails:
            Runner.__init__ = _raises(RuntimeError("no device"))  # type: ignore[method-assign]
    return language.load(**options)

"""A device that does nothing before it is waited for, as a GPU may: replies are the same.

What the host writes or reads too early (inputs of a step that has not begun, results of one that
has not ended) shows up as other tokens, and in what the device has read.
"""

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode

from engine.engine import Engine
from engine.text.tool_calls import notation_of
from engine.types import EngineConfig, SamplingParams, Staged, TextDelta
from tests.engine.eagle_heads import random_head_of

pytest.importorskip("triton", reason="the GPU path needs triton")


class LateDevice(TorchFunctionMode):
    """Queues an engine's asynchronous copies and its replays, in the order they were asked for.

    A queued copy reads its source when it is run. `Event.synchronize` runs the queue up to where
    the event was recorded, and nothing behind that.
    """

    def __init__(self) -> None:
        super().__init__()
        self._queue: list[Callable[[], object]] = []
        self._n_done, self._is_running = 0, False
        self.n_most_waiting = 0

    def enter(self, what: Callable[[], object]) -> None:
        self._queue.append(what)
        self.n_most_waiting = max(self.n_most_waiting, len(self._queue) - self._n_done)

    def run_to(self, place: int) -> None:
        self._is_running = True
        while self._n_done < place:
            self._queue[self._n_done]()
            self._n_done += 1
        self._is_running = False

    def event(self) -> "Event":
        return Event(self)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.Tensor.copy_ and kwargs.get("non_blocking") and not self._is_running:
            self.enter(lambda: func(*args, **kwargs))
            return args[0]
        return func(*args, **kwargs)

    def drive(self, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
        """Have the engine work on this device from now on; it must be entered around its steps."""
        runner: Any = engine.runner
        places = runner._shared.places
        runner._is_cuda = True
        monkeypatch.setattr(torch.cuda, "Event", self.event)
        places._uploaded = [self.event() for _ in places._uploaded]
        for n_rows, replay in runner._replays.items():
            runner._replays[n_rows] = lambda replay=replay: self.enter(replay)
        runner._late.replay = partial(self.enter, runner._late.replay)
        for n_rows, chain in runner._chains.items():
            runner._chains[n_rows] = tuple(partial(self.enter, replay) for replay in chain)
        copy = engine.pool.copy
        monkeypatch.setattr(engine.pool, "copy", lambda *blocks: self.enter(lambda: copy(*blocks)))


class Event:
    def __init__(self, device: LateDevice) -> None:
        self._device, self._place = device, 0

    def record(self) -> None:
        self._place = len(self._device._queue)

    def synchronize(self) -> None:
        self._device.run_to(self._place)


class OnTime:
    """The CPU's path: nothing to enter."""

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        pass


def mixture(engine: Engine, around: LateDevice | OnTime) -> dict[str, object]:
    """Who speaks, who is answered, drafts, salvage, log probabilities, a call, one who hangs up."""
    engine.notation = notation_of(engine.text.template_source)
    tools = json.dumps(
        [{"name": "hours", "parameters": {"properties": {"day": {"enum": ["Friday", "Sunday"]}}}}]
    )
    warm = {"temperature": 0.8, "seed": 4}
    params = {
        "plain": SamplingParams(max_tokens=40, ignore_eos=True),
        "penalized": SamplingParams(max_tokens=40, ignore_eos=True, presence_penalty=0.6, **warm),
        "told": SamplingParams(max_tokens=30, ignore_eos=True, logprobs=2, **warm),
        "calling": SamplingParams(max_tokens=60, temperature=1.0, seed=15, offered_tools=tools),
    }
    seen: dict[str, object] = {}
    logprobs: list[float] = []

    def step(n_steps: int) -> None:
        for _ in range(n_steps):
            if not engine.has_work():
                return
            with around:
                events = engine.step()
            for event in events:
                if isinstance(event, Staged):
                    seen[f"{event.branch_id} {event.n_resident}"] = round(event.p_end_of_turn, 4)
                if isinstance(event, TextDelta):
                    logprobs.extend(round(one.logprob, 3) for one in event.logprobs)

    branches = {name: engine.branch(name) for name in (*params, "salvaged", "gone", "late")}
    words = {
        name: [first + i % 40 for i in range(50)]
        for name, first in {"salvaged": 5, "late": 9}.items()
    }
    for name, heard in words.items():
        branches[name].stage(heard)
    step(100)
    attempt = branches["salvaged"].begin_preemptive([9], params["penalized"])
    for i, (name, asked) in enumerate(params.items()):
        branches[name].commit([5, 6, 7 + i] * (1 + 6 * i), asked)
        step(2)
    branches["gone"].commit([8, 9] * 20, params["plain"])
    step(12)
    branches["late"].stage([*words["late"][:47], 3])
    step(3)
    branches["salvaged"].commit([*words["salvaged"][:45], 3, 9], params["penalized"], attempt)
    branches["late"].commit([*words["late"][:45], 4], params["plain"])
    step(3)
    branches.pop("gone").close()  # its blocks go to others while a step may still write to them
    branches["next"] = engine.branch("next")
    branches["next"].commit([10, 11, 12] * 9, params["penalized"])
    step(400)
    assert not engine.has_work()
    said = {name: branch.sequence.tokens for name, branch in branches.items()}
    return {**seen, **said, "logprobs": logprobs}


@pytest.mark.parametrize("drafter", ["none", "n-grams", "head"])
def test_a_device_that_is_late_says_what_the_cpu_says(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, drafter: str
) -> None:
    pytest.importorskip("llguidance", reason="the optional package llguidance is not installed")
    said = []
    for kind in ("cpu", "reference"):
        config = EngineConfig(
            device=kind, dtype="fp32", kv_tokens=2048, max_branches=8, step_tokens=64,
            background_tokens=32, share_steps=True, ngram_draft=drafter == "n-grams",
        )  # fmt: skip
        if drafter == "head" and kind == "reference":
            config = replace(config, eagle_dir=random_head_of(tiny_model, tmp_path / "head"))
        engine = Engine.load(tiny_model, config)
        around: LateDevice | OnTime = OnTime()
        if kind == "reference":
            around = LateDevice()
            around.drive(engine, monkeypatch)
            if drafter == "head":
                runner: Any = engine.runner
                runner.length.choose = lambda n_replies: 2  # whatever it costs
        said.append(mixture(engine, around))
        engine.check_integrity()
    assert said[1] == said[0]
    assert isinstance(around, LateDevice) and around.n_most_waiting > 4
    around.run_to(len(around._queue))
    runner = engine.runner
    places = runner._shared.places
    for place, known in places._places.values():
        assert places.history[place, : len(known)].tolist() == known

"""Nothing of one caller reaches another: tagged calls through the same worker processes.

75 of them here; `VOICELOOP_TAGGED_CALLS=10000` asks for more.
"""

from __future__ import annotations

import asyncio
import os
import random
import time

import pytest

from clients.connection import typed
from tests.callers import Caller
from voiceloop.backends import Backends
from voiceloop.workers.supervisor import Supervisor

N_CALLS = int(os.environ.get("VOICELOOP_TAGGED_CALLS", "75"))
AT_ONCE = 25
TURNS = 3


async def tagged_call(backends: Backends, number: int) -> list[str]:
    """What a call was told that says its own number in each turn, and leaves in the middle of one
    now and then."""
    rng = random.Random(number)
    async with Caller(time.monotonic, backends) as caller:
        for turn in range(TURNS):
            caller.send("conversation.item.create", item=typed(f"<call {number} turn {turn}>"))
            caller.send("response.create", response={"output_modalities": ["text"]})
            if rng.random() < 0.1:
                break
            await caller.wait_for("response.done", count=turn + 1)
        return [told.event["delta"] for told in caller.of("response.output_text.delta")]


@pytest.mark.timeout(120 + N_CALLS // 10)
async def test_no_byte_of_one_call_is_heard_in_another(supervisor: Supervisor) -> None:
    backends = Backends(supervisor.recognizer(), supervisor.language_model(), supervisor.voice())
    room = asyncio.Semaphore(AT_ONCE)
    n_told = 0

    async def place(number: int) -> None:
        nonlocal n_told
        async with room:
            told = await tagged_call(backends, number)
        assert all(text.startswith(f"<call {number} turn ") for text in told), (number, told)
        n_told += len(told)

    async with asyncio.TaskGroup() as calls:
        for number in range(N_CALLS):
            calls.create_task(place(number))
    assert n_told > 2 * N_CALLS
    assert [worker.n_restarts for worker in supervisor.workers] == [0, 0]

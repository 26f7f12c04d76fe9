"""Workers of scripted roles, as a server starts them."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from voiceloop.workers.messages import RoleSpec, WorkerSpec
from voiceloop.workers.supervisor import Supervisor

PLACE = "scripted_roles:load"
HERE = Path(__file__).parent
ENVIRON = {"PYTHONPATH": f"{HERE}{os.pathsep}{HERE.parents[1]}"}


@pytest.fixture
async def supervisor() -> AsyncIterator[Supervisor]:
    specs = [
        WorkerSpec("engine", (RoleSpec("engine", {}, PLACE),)),
        WorkerSpec("speech", (RoleSpec("recognizer", {}, PLACE), RoleSpec("voice", {}, PLACE))),
    ]
    async with Supervisor(specs, environ=ENVIRON) as running:
        yield running

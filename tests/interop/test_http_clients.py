"""The stock openai package over HTTP, in its own environment, against our server on fakes."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.interop.make_envs import interpreter
from tests.interop.test_clients import CLIENTS, ENVIRONMENTS, require, speech, starting

__all__ = ["speech"]  # the fixture

pytestmark = [pytest.mark.call, pytest.mark.timeout(300)]


def test_the_openai_package_works_over_http(speech: Path, tmp_path: Path) -> None:
    require("openai")
    program = interpreter(ENVIRONMENTS, "openai")
    script = CLIENTS / "openai_http_client.py"
    with starting(("-m", "tests.interop.scripted_server"), tmp_path / "server.log") as ready:
        result = subprocess.run(
            [program, "-W", "error", script, f"http://{ready()}", speech],
            text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=240,
        )  # fmt: skip
    assert result.returncode == 0, result.stdout[-4000:]

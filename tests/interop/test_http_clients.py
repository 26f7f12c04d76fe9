"""The stock openai package over HTTP, in its own environment, against our server on fakes."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.interop.test_clients import ENVIRONMENTS, ROOT, server, speech_24k

pytestmark = [pytest.mark.call, pytest.mark.timeout(120)]


async def test_the_openai_package_works_over_http(tmp_path: Path) -> None:
    python = ENVIRONMENTS / "openai" / "bin" / "python"
    if not python.exists():
        pytest.skip(f"no {python}; make it with: python tests/interop/make_envs.py")
    script = ROOT / "tests" / "interop" / "clients" / "openai_http_client.py"
    speech = str(speech_24k(tmp_path / "speech.raw"))
    async with server() as url:
        process = await asyncio.create_subprocess_exec(
            str(python), "-W", "error", str(script), url, speech,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        )  # fmt: skip
        output, _ = await process.communicate()
    assert process.returncode == 0, output.decode()[-4000:]

"""Stock clients, and all checks of conformance, through a model that hears and an upstream.

    OTHER_BRAINS=1 pytest -m call tests/interop/test_other_brains.py

The brain of each is another VoiceLoop in processes of its own (`other_brains.py`), so this takes
twice the memory and some minutes.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from clients.conformance.check import Target
from clients.conformance.suite import recorded_speech, run_suite
from clients.server_process import running_server
from tests.interop.test_clients import (
    NOT_EMBEDDED,
    SCRIPTS,
    Kind,
    Run,
    all_runs,
    certificate,
    passed,
    require,
    speech,
)

pytestmark = [
    pytest.mark.call,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not os.environ.get("OTHER_BRAINS"), reason="OTHER_BRAINS is not set"),
]
BRAINS = ("heard", "upstream")
MODULE = "tests.interop.other_brains"
__all__ = ["certificate", "speech"]  # fixtures


@pytest.fixture(scope="module", params=BRAINS)
def runs(
    request: pytest.FixtureRequest,
    certificate: tuple[Path, Path],
    speech: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[dict[str, Run]]:
    brain: str = request.param
    kinds = {brain: Kind(("-m", MODULE, brain), NOT_EMBEDDED)}
    folder = tmp_path_factory.mktemp("servers")
    with all_runs(kinds, folder, certificate, speech) as found:
        yield {client: run for (_, client), run in found.items()}


@pytest.mark.parametrize("client", SCRIPTS)
def test_a_real_client_works_through_another_brain(client: str, runs: dict[str, Run]) -> None:
    require(client)
    passed(runs[client])


@pytest.mark.parametrize("brain", BRAINS)
async def test_conformance_holds_through_another_brain(
    brain: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    key = "conformance-key"
    monkeypatch.setenv("VOICELOOP_KEYS", key)
    command = (sys.executable, "-m", MODULE, brain)
    async with running_server((), command=command, log=tmp_path / "log") as server:
        target = Target(server.url, recorded_speech(), key, timeout_s=30.0, idle_timeout_ms=2000)
        results = await run_suite(target, jobs=4)
    assert {r.check.name: r.sentence for r in results if r.outcome != "pass"} == {}

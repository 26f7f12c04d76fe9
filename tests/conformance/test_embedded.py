"""The whole suite against the real server with its own models, as a person would run it."""

from __future__ import annotations

import pytest

from clients.conformance.check import Target
from clients.conformance.suite import recorded_speech, run_suite
from clients.server_process import running_server

pytestmark = [pytest.mark.call(seconds=90), pytest.mark.timeout(300)]

KEY = "conformance-key"


async def test_the_embedded_server_passes_every_check(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VOICELOOP_KEYS", KEY)
    monkeypatch.setenv("VOICELOOP_LIMITS_ADMIT_BY_LOAD", "false")  # five at once beside others
    async with running_server(["--preset", "embedded"]) as server:
        target = Target(server.url, recorded_speech(), KEY, timeout_s=30.0, idle_timeout_ms=2000)
        results = await run_suite(target, jobs=5)
    assert {r.check.name: r.sentence for r in results if r.outcome != "pass"} == {}

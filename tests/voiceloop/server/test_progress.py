"""What a person reads on standard error when the server is ready."""

from __future__ import annotations

import msgspec
import pytest

from voiceloop.server.progress import ServeProgress
from voiceloop.workers.status import RoleState

LOADING = RoleState("engine", "loading")
READY = msgspec.structs.replace(
    LOADING, state="ready", load_ms=1200.0, detail="embedded: int8 weights"
)


@pytest.mark.parametrize(
    ("url", "calls", "page"),
    [
        ("http://127.0.0.1:8080", "ws://127.0.0.1:8080/v1/realtime", "http://127.0.0.1:8080/"),
        ("https://0.0.0.0:8443", "wss://0.0.0.0:8443/v1/realtime", "https://localhost:8443/"),
        ("http://[::]:80", "ws://[::]:80/v1/realtime", "http://localhost:80/"),
    ],
)
def test_the_address_of_calls_and_of_the_page_are_told(
    url: str, calls: str, page: str, capsys: pytest.CaptureFixture[str]
) -> None:
    ServeProgress(["a note"]).ready(url)
    note, ready, browser = capsys.readouterr().err.splitlines()
    assert note == "a note"
    assert ready == f"voiceloop is ready: {calls}"
    assert browser == f"talk to it: open {page} in a browser"


def test_a_log_tells_what_runs_the_language_model(capsys: pytest.CaptureFixture[str]) -> None:
    progress = ServeProgress()
    progress.role_changed(LOADING)
    progress.role_changed(READY)
    progress.role_changed(READY)  # told once
    progress.ready("http://127.0.0.1:8080")
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "engine: ready after 1.2 s; embedded: int8 weights"
    assert len(lines) == 3

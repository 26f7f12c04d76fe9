"""What a person reads on standard error when the server is ready."""

from __future__ import annotations

import pytest

from voiceloop.server.progress import ServeProgress


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
    with ServeProgress("embedded", ["a note"]) as progress:
        progress.ready(url)
    note, ready, browser = capsys.readouterr().err.splitlines()
    assert note == "a note"
    assert ready == f"voiceloop is ready: {calls}"
    assert browser == f"talk to it: open {page} in a browser"

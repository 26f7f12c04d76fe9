"""What a service answers is bounded, whoever it is."""

from __future__ import annotations

import pytest

from tests.remote_service import Answer, scripted_remote
from voiceloop.errors import BackendError


@pytest.mark.parametrize(("path", "answer"), [
    ("/models", Answer([b"x" * 1000] * 20)),
    ("/audio/transcriptions", Answer([b"x" * 1000] * 20)),
    ("/audio/transcriptions", Answer([b"x" * 1000] * 20, status=400)),
    ("/chat/completions", Answer([b"data: " + b"x" * 1000] * 20, content_type="text/event-stream")),
])  # fmt: skip
async def test_an_answer_longer_than_any_is_not_kept(
    monkeypatch: pytest.MonkeyPatch, path: str, answer: Answer
) -> None:
    monkeypatch.setattr("voiceloop.remote.service.MAX_ANSWER_BYTES", 10_000)
    monkeypatch.setattr("voiceloop.remote.service.MAX_LINE_CHARACTERS", 10_000)
    async with scripted_remote() as running:
        running.service.say(path, answer)
        service = running.connect()
        with pytest.raises(BackendError, match="at most 10000"):
            if path == "/models":
                await service.warm_up()
            elif path == "/chat/completions":
                async with service.stream(path) as response:
                    async for _ in service.lines(response):
                        pass
            else:
                await service.post(path)

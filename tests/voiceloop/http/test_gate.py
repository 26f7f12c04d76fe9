"""The door of the HTTP routes: what one client does there leaves the others theirs."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response

from tests.fakes import FakeLanguageModel, FakeRecognizer, FakeVoice
from tests.voiceloop.http_client import http_client
from voiceloop.access import quotas
from voiceloop.backends import Backends
from voiceloop.config import Config
from voiceloop.http.gate import unless_left
from voiceloop.operation import KeyQuota

URL = "/v1/chat/completions"
HELLO: dict[str, Any] = {"model": "any", "messages": [{"role": "user", "content": "hello"}]}


async def test_a_key_that_sends_more_than_it_may_is_refused_and_another_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(quotas, "BODY_BYTES_AT_ONCE", 2_000.0)
    monkeypatch.setattr(quotas, "BODY_BYTES_PER_S", 1.0)
    monkeypatch.setattr(quotas, "SECRETS_AT_ONCE", 3.0)
    monkeypatch.setattr(quotas, "SECRETS_PER_S", 1e-3)
    fakes = Backends(FakeRecognizer(), FakeLanguageModel(["Hello."]), FakeVoice())
    config = Config(keys=("first-key-1", "second-key-2"))
    long = {"model": "any", "messages": [{"role": "user", "content": "hello " * 500}]}
    async with http_client(fakes, config) as http:

        async def answers(key: str, url: str, body: Any, n: int) -> list[int]:
            told = {"Authorization": f"Bearer {key}"}
            return [(await http.post(url, json=body, headers=told)).status_code for _ in range(n)]

        assert await answers("first-key-1", URL, long, 2) == [200, 429]
        assert await answers("second-key-2", URL, HELLO, 1) == [200]
        secrets = "/v1/realtime/client_secrets"
        assert await answers("first-key-1", secrets, {}, 4) == [200, 200, 200, 429]
        assert await answers("second-key-2", secrets, {}, 1) == [200]


async def test_a_key_with_all_its_requests_under_way_is_refused_and_another_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(KeyQuota, "requests", 2)
    model = FakeLanguageModel(["Good morning."], ttft_ms=60_000)
    fakes = Backends(FakeRecognizer(), model, FakeVoice())
    config = Config(keys=("first-key-1", "second-key-2"))
    async with http_client(fakes, config) as http, asyncio.TaskGroup() as waiting:

        def ask(key: str) -> asyncio.Task[Any]:
            told = {"Authorization": f"Bearer {key}"}
            return waiting.create_task(http.post(URL, json=HELLO, headers=told))

        first = [ask("first-key-1") for _ in range(2)]
        while len(model.open_branches) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0)
        refused = await ask("first-key-1")
        assert refused.status_code == 429
        assert refused.json()["error"]["code"] == "quota_exceeded"
        other = ask("second-key-2")
        while len(model.open_branches) < 3:  # noqa: ASYNC110
            await asyncio.sleep(0)
        for each in (*first, other):
            each.cancel()


@pytest.mark.virtual_time
@pytest.mark.parametrize("leaves", [True, False])
async def test_work_for_a_client_that_has_left_ends(leaves: bool) -> None:
    ended: list[str] = []
    messages = [{"type": "http.request", "body": b"", "more_body": False}]

    async def receive() -> Any:
        if messages:
            return messages.pop()
        await asyncio.sleep(1.0 if leaves else 60.0)
        return {"type": "http.disconnect"}

    async def work() -> Response:
        try:
            await asyncio.sleep(5.0)
            return PlainTextResponse("done")
        finally:
            ended.append("work")

    loop = asyncio.get_running_loop()
    request, began_s = Request({"type": "http"}, receive), loop.time()
    if leaves:
        with pytest.raises(ClientDisconnect):
            await unless_left(request, work())
    else:
        assert (await unless_left(request, work())).body == b"done"
    assert loop.time() - began_s == pytest.approx(1.0 if leaves else 5.0) and ended == ["work"]

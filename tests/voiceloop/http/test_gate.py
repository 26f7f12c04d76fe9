"""The door of the HTTP routes: what one client does there leaves the others theirs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import contextmanager
from typing import Any

import pytest
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response

from tests.fakes import FakeLanguageModel, FakeRecognizer, FakeVoice
from tests.voiceloop.http_client import http_client
from voiceloop.backends import Backends
from voiceloop.config import Config
from voiceloop.http.gate import UNREAD_S, Stream, unless_left
from voiceloop.operation import KeyQuota

URL = "/v1/chat/completions"
HELLO: dict[str, Any] = {"model": "any", "messages": [{"role": "user", "content": "hello"}]}


class Connection:
    was_aborted = False

    def abort(self) -> None:
        self.was_aborted = True


@pytest.mark.virtual_time
@pytest.mark.parametrize("spec_version", ["2.3", "2.4"])
async def test_an_answer_that_nobody_reads_gives_its_slot_and_its_source_back(
    spec_version: str,
) -> None:
    events: list[str] = []
    loop, connection = asyncio.get_running_loop(), Connection()

    async def pieces() -> AsyncGenerator[bytes, None]:
        try:
            while True:
                yield b"more"
        finally:
            events.append("source closed")

    @contextmanager
    def place() -> Any:
        yield
        events.append("slot free")

    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)
        if len(sent) > 3:
            await asyncio.Event().wait()  # the client reads no more of it

    async def receive() -> Any:
        await asyncio.Event().wait()  # nor does it hang up

    stream = Stream(pieces(), "text/plain")
    stream.place.enter_context(place())
    began_s = loop.time()
    asgi, state = {"spec_version": spec_version}, {"connection": connection}
    scope = {"type": "http", "asgi": asgi, "state": state}
    await stream(scope, receive, send)
    assert loop.time() - began_s == pytest.approx(UNREAD_S)
    assert events == ["source closed", "slot free"] and connection.was_aborted


@pytest.mark.virtual_time
async def test_a_client_that_reads_slowly_but_reads_is_served_to_the_end() -> None:
    async def pieces() -> AsyncGenerator[bytes, None]:
        for _ in range(5):
            yield b"more"

    sent: list[Any] = []

    async def send(message: Any) -> None:
        await asyncio.sleep(0.9 * UNREAD_S)
        sent.append(message)

    async def receive() -> Any:
        await asyncio.Event().wait()

    scope = {"type": "http", "asgi": {"spec_version": "2.4"}, "state": {}}
    await Stream(pieces(), "text/plain")(scope, receive, send)
    assert b"".join(message.get("body", b"") for message in sent) == b"more" * 5


async def test_a_key_with_all_its_requests_under_way_is_refused_and_another_is_not() -> None:
    model = FakeLanguageModel(["Good morning."], ttft_ms=60_000)
    fakes = Backends(FakeRecognizer(), model, FakeVoice())
    config = Config(keys=("first-key-1", "second-key-2"), quota=KeyQuota(requests=2))
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

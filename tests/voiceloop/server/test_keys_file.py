"""The file of API keys, changed while calls are on: over real sockets."""

import asyncio
import json
import logging
from pathlib import Path
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus

from tests.voiceloop.server.test_app import running, until
from tests.voiceloop.server.test_resume import keyed, remembering, say
from voiceloop.config import Config, read_keys_file
from voiceloop.server.keys_file import KeysFile

pytestmark = pytest.mark.virtual_time

OLD, OTHER, NEW = "the-old-key", "another-key", "the-new-key"


def written(path: Path, *keys: str) -> Config:
    path.write_text("# who may call\n" + "\n".join(keys))
    return Config(keys_file=path, keys=("own-key-of-config", *read_keys_file(path)))


def resuming(held: dict[str, Any]) -> str:
    return json.dumps({"type": "voiceloop.resume", "ticket": held["ticket"]})


async def test_a_call_of_a_removed_key_ends_with_the_reason_and_others_go_on(
    tmp_path: Path,
) -> None:
    config = written(tmp_path / "keys", OLD, OTHER)
    async with running(config, remembering()) as server:
        gateway = server.gateway
        file = KeysFile(config, gateway.keys, gateway.revoke)
        async with (
            server.connect("", **keyed(OLD)) as removed,
            server.connect("", **keyed(OTHER)) as stays,
            server.connect("", **keyed("own-key-of-config")) as own,
        ):
            for client in (removed, stays, own):
                assert await say(client, "hello") == "hello"
            written(tmp_path / "keys", OTHER, NEW)
            await file.read(tmp_path / "keys")
            error = (await until(removed, "error"))["error"]
            assert error["code"] == "invalid_api_key" and "removed" in error["message"]
            with pytest.raises(ConnectionClosed) as closed:
                await removed.recv()
            assert closed.value.rcvd is not None and closed.value.rcvd.code == 1008
            for client in (stays, own):
                assert await say(client, "still here") == "hello and still here"
        with pytest.raises(InvalidStatus) as refused:
            async with server.connect("", **keyed(OLD)):
                pass
        assert refused.value.response.status_code == 401
        async with server.connect("", **keyed(NEW)) as client:
            assert await say(client, "hello") == "hello"


async def test_a_ticket_and_a_client_secret_outlive_the_change_of_another_key(
    tmp_path: Path,
) -> None:
    """Also at a server that has read the file already, or has not yet."""
    config = written(tmp_path / "keys", OTHER, OLD)
    later = written(tmp_path / "later", OTHER, NEW)
    async with running(config, remembering()) as one, running(later, remembering()) as there:
        secret = one.gateway.keys.issue(OTHER, 60, {})
        async with one.connect("?voiceloop.resume=1", **keyed(OTHER)) as client:
            await say(client, "two lattes")
            held = await until(client, "voiceloop.resume_ticket")
        written(tmp_path / "keys", OTHER, NEW)
        await KeysFile(config, one.gateway.keys, one.gateway.revoke).read(tmp_path / "keys")
        for server in (there, one):
            async with server.connect("", **keyed(secret.value)) as client:
                await client.send(
                    json.dumps({"type": "voiceloop.resume", "ticket": held["ticket"]})
                )
                assert (await until(client, "voiceloop.resumed"))["items"] >= 1


async def test_of_two_shared_secrets_the_first_signs_and_both_are_read() -> None:
    before = Config(secret_key=("the secret of before",))
    after = Config(secret_key=("the secret of now", "the secret of before"))
    only = Config(secret_key=("the secret of now",))
    async with (
        running(before, remembering()) as one,
        running(after, remembering()) as two,
        running(only, remembering()) as three,
    ):
        for first, then, goes_on in ((one, two, True), (two, three, True), (one, three, False)):
            async with first.connect("?voiceloop.resume=1") as client:
                await say(client, "two lattes")
                held = await until(client, "voiceloop.resume_ticket")
            async with then.connect() as client:
                await client.send(
                    json.dumps({"type": "voiceloop.resume", "ticket": held["ticket"]})
                )
                await until(client, "voiceloop.resumed" if goes_on else "error")


@pytest.mark.parametrize("content", [None, "", "# none\n", "short\n", "ek_client-secret\n"])
async def test_a_file_that_cannot_be_taken_changes_nothing_and_is_told_once(
    tmp_path: Path, content: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "keys"
    config = written(path, OLD)
    async with running(config, remembering()) as server:
        file = KeysFile(config, server.gateway.keys, server.gateway.revoke)
        path.unlink()
        if content is not None:
            path.write_text(content)
        with caplog.at_level(logging.ERROR):
            for _ in range(3):
                await file.read(path)
        assert len([one for one in caplog.records if "stay as they were" in one.message]) == 1
        assert not server.gateway.keys.is_open
        async with server.connect("", **keyed(OLD)) as client:
            assert await say(client, "hello") == "hello"


async def test_the_file_is_read_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("voiceloop.server.keys_file.READ_EVERY_S", 0.01)
    config = written(tmp_path / "keys", OLD)
    async with running(config, remembering()) as server:
        file = KeysFile(config, server.gateway.keys, server.gateway.revoke)
        watching = asyncio.create_task(file.watch())
        async with server.connect("", **keyed(OLD)) as client:
            written(tmp_path / "keys", NEW)
            assert (await until(client, "error"))["error"]["code"] == "invalid_api_key"
        watching.cancel()

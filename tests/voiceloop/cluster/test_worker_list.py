"""The file that names workers: what it may say, and that it is read again."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from voiceloop.cluster import worker_list
from voiceloop.cluster.worker_list import (
    WorkerList,
    addresses_of,
    read_worker_list,
    watch_worker_list,
)
from voiceloop.errors import ConfigError


def write(path: Path, **said: object) -> None:
    """As whoever writes one must: whole, then renamed."""
    beside = path.with_suffix(".new")
    beside.write_text(json.dumps(said))
    beside.rename(path)


def test_a_list_names_workers_and_the_shares_of_new_calls(tmp_path: Path) -> None:
    path = tmp_path / "workers.json"
    write(path, engine=["10.0.0.5:9001"], shares={"engine": {"v1": 0.9, "v2": 0.1}})
    found = read_worker_list(path)
    assert addresses_of(found) == {"engine": ("10.0.0.5:9001",)}
    assert found.shares["engine"]["v2"] == 0.1


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "expected a list of workers in"),
        ('{"engines": []}', "expected a list of workers in .*unknown field `engines`"),
        ('{"engine": ["nowhere"]}', "engine: expected HOST:PORT, found 'nowhere'"),
        ('{"shares": {"engine": {"v1": 2}}}', "shares.engine: expected 0 to 1 each"),
        ('{"engine": [' + '"h:1",' * 4096 + '"h:2"]}', "expected at most 4096, found 4097"),
        (" " * (worker_list.MAX_BYTES + 1), "expected at most 1048576 bytes"),
    ],
)
def test_what_is_no_list_is_refused(tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / "workers.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=f"workers.list: .*{told}"):
        read_worker_list(path)


def test_a_missing_list_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="workers.list: expected a file, found none"):
        read_worker_list(tmp_path / "nothing.json")


async def test_each_new_list_is_told_once_and_a_broken_one_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(worker_list, "LOOK_EVERY_S", 0.0)
    path, told = tmp_path / "workers.json", asyncio.Queue[WorkerList](10)
    write(path, voice=["h:1"])
    watching = asyncio.create_task(watch_worker_list(path, told.put_nowait))
    try:
        async with asyncio.timeout(20):
            assert (await told.get()).voice == ("h:1",)
            (tmp_path / "broken").write_text("{")
            (tmp_path / "broken").rename(path)
            while "the list before it stands" not in caplog.text:  # noqa: ASYNC110
                await asyncio.sleep(0)
            path.unlink()
            write(path, voice=["h:2", "h:3"])
            assert (await told.get()).voice == ("h:2", "h:3")
            assert told.empty()
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)


async def test_a_list_that_could_not_be_read_for_a_moment_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_list, "LOOK_EVERY_S", 0.0)
    path, told, n_failures = tmp_path / "workers.json", asyncio.Queue[WorkerList](10), 3

    def read(path: Path) -> WorkerList:
        nonlocal n_failures
        n_failures -= 1
        if n_failures >= 0:
            raise ConfigError("workers.list: expected a file, found too many open files")
        return read_worker_list(path)

    monkeypatch.setattr(worker_list, "read_worker_list", read)
    write(path, voice=["h:1"])
    watching = asyncio.create_task(watch_worker_list(path, told.put_nowait))
    try:
        async with asyncio.timeout(5):
            assert (await told.get()).voice == ("h:1",)
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)

"""The keeper of one process: it starts it, starts it anew, tells of it, drains it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.waiting import until
from voiceloop import child
from voiceloop.cluster.control import keeper as keepers
from voiceloop.cluster.control.keeper import LIST_FILE, Keeper
from voiceloop.cluster.control.plan import Launch
from voiceloop.cluster.control.reports import HostReport, HostState, Orders
from voiceloop.cluster.worker_list import WorkerList
from voiceloop.errors import BackendError

SCRIPT = str(Path(__file__).with_name("scripted_process.py"))


class ScriptedDirectory:
    """Hears reports, and answers as it is set to."""

    def __init__(self) -> None:
        self.reports: list[HostReport] = []
        self.orders = Orders()
        self.is_lost = False

    async def ask(self, report: HostReport) -> Orders:
        if self.is_lost:
            raise BackendError("expected a directory, found none")
        self.reports.append(report)
        return self.orders

    async def until(self, holds: Callable[[HostReport], bool]) -> HostReport:
        await until(lambda: bool(self.reports) and holds(self.reports[-1]))
        return self.reports[-1]


class Kept:
    """A keeper that runs, its directory and its folder."""

    def __init__(self, tmp_path: Path, command: str = "gateway") -> None:
        self.folder = tmp_path
        self.directory = ScriptedDirectory()
        arguments = (command, "--config={folder}/server.toml", "--version={version}")
        launch = Launch(arguments, {"server.toml": "port = 1"})
        self.keeper = Keeper(
            "gateways-1",
            "one",
            launch,
            folder=tmp_path,
            node="a",
            address="127.0.0.1",
            ask=self.directory.ask,
            environ={"VOICELOOP_PORT": "1"},
            key_names=("VOICELOOP_WORKERS_KEY", "VOICELOOP_SECRET_KEY"),
            command=(sys.executable, SCRIPT, str(tmp_path)),
        )
        self.task = asyncio.create_task(self.keeper.run())

    def started(self) -> list[list[object]]:
        lines = (self.folder / "started").read_text().splitlines()
        return [json.loads(line) for line in lines]

    async def ended(self) -> None:
        async with asyncio.timeout(30):
            await self.task


@pytest.fixture
async def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(keepers, "REPORT_EVERY_S", 0.02)
    monkeypatch.setattr(child, "RESTART_PAUSES_S", (0.0, 0.02))
    monkeypatch.setenv("VOICELOOP_LOG_LEVEL", "of this machine")
    monkeypatch.setenv("VOICELOOP_WORKERS_KEY", "of this machine")
    found = Kept(tmp_path)
    yield found
    found.task.cancel()
    await asyncio.gather(found.task, return_exceptions=True)


def is_ready(report: HostReport) -> bool:
    return report.state is HostState.READY


async def test_a_process_has_its_files_its_list_the_clusters_settings_and_its_machines_keys(
    kept: Kept,
) -> None:
    report = await kept.directory.until(is_ready)
    assert report.process.address == f"127.0.0.1:{report.pid}"
    [(_, arguments, settings)] = kept.started()
    assert arguments == ["gateway", f"--config={kept.folder}/server.toml", "--version=one"]
    assert settings == {
        "VOICELOOP_PORT": "1",
        "VOICELOOP_WORKERS_KEY": "of this machine",
        "VOICELOOP_WORKERS_LIST": str(kept.folder / LIST_FILE),
    }
    assert (kept.folder / "server.toml").read_text() == "port = 1"
    assert (kept.folder / "server.toml").stat().st_mode & 0o077 == 0


async def test_one_that_is_killed_is_started_anew(kept: Kept) -> None:
    first = await kept.directory.until(is_ready)
    os.kill(first.pid, signal.SIGKILL)
    second = await kept.directory.until(lambda report: report.n_restarts == 1 and is_ready(report))
    assert second.pid != first.pid


async def test_one_that_does_not_start_is_told_of(kept: Kept) -> None:
    (kept.folder / "crash").touch()
    first = await kept.directory.until(lambda report: bool(report.pid))
    with contextlib.suppress(
        ProcessLookupError
    ):  # it may have seen the file, and crashed, by itself
        os.kill(first.pid, signal.SIGKILL)
    report = await kept.directory.until(lambda report: report.n_restarts > 2)
    assert report.state is HostState.STARTING
    assert "ended with exit code" in report.process.trouble


async def test_a_drained_one_ends_its_calls_and_then_the_keeper_ends(kept: Kept) -> None:
    (kept.folder / "hold").touch()
    await kept.directory.until(is_ready)
    kept.directory.orders = Orders(drains=True)
    report = await kept.directory.until(lambda report: report.process.state == "draining")
    assert report.state is HostState.DRAINING and not kept.task.done()
    (kept.folder / "hold").unlink()
    await kept.ended()
    assert kept.directory.reports[-1].state is HostState.ENDED
    assert len(kept.started()) == 1


async def test_gateways_find_the_list_in_a_file_and_keep_it_without_a_directory(
    kept: Kept,
) -> None:
    await kept.directory.until(is_ready)
    kept.directory.orders = Orders(workers=WorkerList(engine=("10.0.0.5:9001",)))
    path = kept.folder / LIST_FILE
    await until(lambda: json.loads(path.read_text())["engine"] == ["10.0.0.5:9001"])
    kept.directory.is_lost = True
    [(pid, _, _)] = kept.started()
    os.kill(int(str(pid)), signal.SIGKILL)
    await until(lambda: len(kept.started()) == 2)
    assert json.loads(path.read_text())["engine"] == ["10.0.0.5:9001"]
    kept.directory.is_lost = False
    await kept.directory.until(lambda report: report.n_restarts == 1 and is_ready(report))


async def test_a_keeper_that_is_given_up_leaves_no_process(kept: Kept) -> None:
    report = await kept.directory.until(is_ready)
    kept.task.cancel()
    await asyncio.gather(kept.task, return_exceptions=True)
    with pytest.raises(ProcessLookupError):
        os.kill(report.pid, 0)

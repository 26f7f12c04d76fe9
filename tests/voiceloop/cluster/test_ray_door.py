"""Who reaches Ray: with a token, and on one machine from there alone."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from voiceloop.cluster.ray_door import DEFAULT_PATH, MODE, TOKEN, TOKEN_PATH, close_door
from voiceloop.errors import ConfigError

UP = """
import os, sys, time
from voiceloop.cluster.ray_door import close_door
close_door(os.environ, is_new=True)
from voiceloop.cluster import ray as control
control.begin_here()
control.begin((), {}, token=True)
import ray
print("address", ray.get_runtime_context().gcs_address, flush=True)
time.sleep(600)
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in (MODE, TOKEN, TOKEN_PATH):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def test_up_draws_a_token_that_only_its_user_reads_and_others_find_it(home: Path) -> None:
    first: dict[str, str] = {}
    close_door(first, is_new=True)
    token = home / DEFAULT_PATH
    assert first == {MODE: "token"}
    assert token.stat().st_mode & 0o777 == 0o600 and token.parent.stat().st_mode & 0o777 == 0o700
    drawn = token.read_text()
    assert len(drawn) == 64
    token.chmod(0o644)  # as Ray's own command writes it
    second: dict[str, str] = {}
    close_door(second, is_new=False)
    assert second == {MODE: "token"} and token.read_text() == drawn
    assert token.stat().st_mode & 0o777 == 0o600


def test_a_command_without_a_token_is_told_where_it_would_be(home: Path) -> None:
    with pytest.raises(ConfigError, match=rf"in RAY_AUTH_TOKEN or {home}/.ray/auth_token"):
        close_door({}, is_new=False)
    for own in ({MODE: "disabled"}, {TOKEN: "from elsewhere"}):
        close_door(environ := dict(own), is_new=False)
        assert environ.items() >= own.items()
    with pytest.raises(ConfigError, match="/no/such"):
        close_door({TOKEN_PATH: "/no/such"}, is_new=True)
    assert not (home / DEFAULT_PATH).exists()


class Up(NamedTuple):
    pid: int
    address: str
    home: Path


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """A cluster of this machine, without any process of ours."""
    pytest.importorskip("ray", reason="pip install 'voiceloop[cluster]'")
    home = tmp_path_factory.mktemp("home")
    process = subprocess.Popen(
        [sys.executable, "-c", UP], env=environ_of(home), text=True, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        told = iter(process.stdout.readline, "")
        address = next(line for line in told if line.startswith("address")).split()[1]
        yield Up(process.pid, address, home)
    finally:
        process.terminate()
        process.wait(timeout=30)
        process.stdout.close()


def environ_of(home: Path, **more: str) -> dict[str, str]:
    kept = {name: text for name, text in os.environ.items() if not name.startswith("RAY_")}
    return {**kept, "HOME": str(home), **more}


def status(up: Up, home: Path, **more: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "voiceloop", "cluster", "status", "--json"]
    return subprocess.run(
        [*command, "--address", up.address],
        env=environ_of(home, **more), text=True, capture_output=True, timeout=60,
    )  # fmt: skip


def listening(pid: int) -> set[str]:
    """The addresses, as the kernel writes them, at which a process and all below it listen."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
        except OSError:  # it has ended meanwhile
            continue
    below = {pid}
    while more := {one for one, parent in parents.items() if parent in below} - below:
        below |= more
    inodes = set()
    for one in below:
        for file in Path(f"/proc/{one}/fd").glob("*"):
            try:
                inodes |= set(re.findall(r"socket:\[(\d+)\]", os.readlink(file)))
            except OSError:
                continue
    rows = [
        line.split()
        for name in ("tcp", "tcp6")
        for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]
    ]
    return {row[1].partition(":")[0] for row in rows if row[3] == "0A" and row[9] in inodes}


@pytest.mark.call(seconds=45)
@pytest.mark.timeout(180)
def test_a_cluster_of_one_machine_listens_at_loopback_alone(up: Up) -> None:
    # 127.0.0.1, plain and within IPv6, in the kernel's order of bytes.
    found = listening(up.pid)
    assert found and found <= {"0100007F", "0000000000000000FFFF00000100007F"}


@pytest.mark.call(seconds=45)
@pytest.mark.timeout(180)
def test_who_has_the_token_of_up_sees_the_cluster_and_nobody_else(up: Up, tmp_path: Path) -> None:
    found = status(up, up.home)  # a second terminal of the same user
    assert found.returncode == 0, found.stderr
    assert '"processes"' in found.stdout
    without = status(up, tmp_path)
    assert without.returncode != 0 and "No token of the Ray cluster" in without.stderr
    for told in ({TOKEN: "0" * 64}, {MODE: "disabled"}):
        refused = status(up, tmp_path, **told, RAY_NUM_REDIS_GET_RETRIES="1")
        assert refused.returncode != 0 and "expected a Ray cluster" in refused.stderr

"""A project's own audio/, engine/ or clients/ on the path harms no process of VoiceLoop."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from voiceloop.backends import VoiceOptions
from voiceloop.rooms import HOME, ROOMS
from voiceloop.workers.messages import RoleSpec, WorkerSpec
from voiceloop.workers.supervisor import Supervisor


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with packages of our names, each of which fails when it is imported."""
    for name in ROOMS:
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise ImportError('the wrong package')")
    return tmp_path


def hostile_path(project: Path) -> dict[str, str]:
    """The project first; ours only where the tests themselves find it."""
    return {"PYTHONPATH": os.pathsep.join([str(project), str(HOME)])}


def run(project: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=project,
        env={**os.environ, **hostile_path(project)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_packages_of_the_project_would_win(project: Path) -> None:
    assert "the wrong package" in run(project, "-c", "import audio.frames").stderr


@pytest.mark.parametrize("arguments", [("-P", "-m", "voiceloop"), ("-m", "voiceloop")])
def test_the_command_takes_its_own_packages(project: Path, arguments: tuple[str, ...]) -> None:
    ran = run(project, *arguments, "conformance", "--list")  # imports clients, and a wing of it
    assert ran.returncode == 0, ran.stderr
    assert "session" in ran.stdout


def test_other_packages_of_the_project_go_on_being_its_own(project: Path) -> None:
    (project / "numbers_of_mine.py").write_text("print('mine')")
    told = "from voiceloop.rooms import prefer_own_rooms; prefer_own_rooms(); "
    told += "import numbers_of_mine, engine, audio; print(engine.__file__)"
    ran = run(project, "-c", told)
    assert ran.stdout.split() == ["mine", str(HOME / "engine" / "__init__.py")], ran.stderr


async def test_a_worker_takes_its_own_packages(project: Path) -> None:
    pytest.importorskip("espeakng_loader")
    spec = WorkerSpec("speech", (RoleSpec("voice", {"model": "espeak"}),), 1)
    async with Supervisor([spec], environ=hostile_path(project)) as supervisor:
        stream = await supervisor.voice().open("one", VoiceOptions())
        await stream.close()
        assert supervisor.ready()

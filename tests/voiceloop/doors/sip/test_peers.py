"""Calls by the field's own programs: baresip as a telephone, SIPp as many of them."""

from __future__ import annotations

import asyncio
import gc
import os
import re
import shutil
import wave
from asyncio.subprocess import DEVNULL, PIPE, STDOUT
from pathlib import Path

import numpy as np
import pytest

from audio.resample import Resampler
from tests.fakes import FakeRecognizer, instant_backends, utterance
from tests.voiceloop.doors.sip.test_call import dialled, line_of, n_legs
from tests.waiting import until
from voiceloop.config import Limits
from voiceloop.doors.line import Line

SCENARIOS = Path(__file__).parent / "scenarios"
CODECS = ("PCMA/8000/1", "PCMU/8000/1", "G722/16000/1", "opus/48000/2")
MODULES = "stdio aubridge g711 g722 opus aufile sndfile"
needs_baresip = pytest.mark.skipif(not shutil.which("baresip"), reason="no baresip-core of Debian")
needs_sipp = pytest.mark.skipif(not shutil.which("sipp"), reason="no sip-tester of Debian")


def telephone(folder: Path, codec: str) -> None:
    """A configuration of baresip that says half a second, and keeps what it hears."""
    folder.mkdir()
    _, hz, channels = codec.split("/")
    quiet = np.zeros(12_000, np.int16)
    said = np.concatenate([quiet, utterance(900, 24_000), np.tile(quiet, 6)])
    with wave.open(str(folder / "caller.wav"), "wb") as file:
        file.setparams((int(channels), 2, int(hz), 0, "NONE", ""))
        sound = Resampler(24_000, int(hz)).push(said)
        file.writeframes(np.repeat(sound, int(channels)).tobytes())
    lines = ["module_path /usr/lib/baresip/modules"]
    lines += [f"module {name}.so" for name in MODULES.split()]
    lines += ["module_app account.so", "module_app menu.so", "sip_listen 127.0.0.1:0"]
    lines += [f"audio_source aufile,{folder}/caller.wav", "audio_player aubridge,none"]
    (folder / "config").write_text("\n".join([*lines, f"snd_path {folder}", ""]))
    (folder / "accounts").write_text(f"<sip:me@127.0.0.1>;regint=0;audio_codecs={codec}\n")


def loud_s(folder: Path) -> float:
    """For how long baresip has heard something."""
    (heard,) = folder.glob("dump-*-dec.wav")
    with wave.open(str(heard)) as file:
        samples = np.frombuffer(file.readframes(file.getnframes()), "<i2").astype(np.int32)
        return float((np.abs(samples) > 300).sum() / file.getframerate() / file.getnchannels())


@needs_baresip
async def test_a_turn_over_baresip_with_each_codec(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pressed: list[tuple[Line, str]] = []
    monkeypatch.setattr(Line, "press", lambda line, key: pressed.append((line, key)))
    async with asyncio.TaskGroup() as telephones:  # each speaks for seconds, by the clock
        for codec in CODECS:
            telephones.create_task(calls(codec, tmp_path / codec.split("/")[0], pressed))


async def calls(codec: str, folder: Path, pressed: list[tuple[Line, str]]) -> None:
    telephone(folder, codec)
    backends = instant_backends(recognizer=FakeRecognizer(["a latte please"]))
    async with dialled(backends) as (door, _):
        dial = f"/dial sip:clinic@127.0.0.1:{door.port}"
        baresip = await asyncio.create_subprocess_exec(
            "baresip", "-f", str(folder), "-e", dial, "-t", "7",
            stdin=PIPE, stdout=PIPE, stderr=STDOUT,
        )  # fmt: skip
        assert baresip.stdin is not None
        await until(lambda: len(door._calls) == 1)
        line = line_of(door)
        await asyncio.sleep(0.3)
        baresip.stdin.write(b"5")
        await until(lambda: (line, "5") in pressed)
        log, _ = await baresip.communicate()  # it ends by itself, its file over
        assert codec.split("/")[0].lower() in log.decode(errors="replace").lower()
        await until(lambda: n_legs(door) == 0)
        assert [key for at, key in pressed if at is line] == ["5"]
    assert loud_s(folder) > 0.1


async def sipp(port: int, folder: Path, *options: str) -> str:
    """Run it; returns what it says. It ends with an error where one call is not as described."""
    process = await asyncio.create_subprocess_exec(
        "sipp", f"127.0.0.1:{port}", "-i", "127.0.0.1", "-nostdin", "-timeout", "60", *options,
        cwd=folder, stdin=DEVNULL, stdout=PIPE, stderr=STDOUT,
    )  # fmt: skip
    told, _ = await process.communicate()
    assert process.returncode == 0, told.decode(errors="replace")[-3000:]
    return told.decode(errors="replace")


@needs_sipp
@pytest.mark.parametrize("scenario", ["delayed_offer", "no_codec"])
async def test_sipps_scenarios_are_answered_as_they_say(scenario: str, tmp_path: Path) -> None:
    async with dialled() as (door, _):
        await sipp(
            door.port, tmp_path, "-sf", str(SCENARIOS / f"{scenario}.xml"), "-m", "3", "-r", "5"
        )
        await until(lambda: n_legs(door) == 0)


@needs_sipp
async def test_many_calls_at_once_leave_no_port_no_task_and_no_descriptor(tmp_path: Path) -> None:
    async with dialled(limits=Limits(max_sessions=100)) as (door, _):
        gc.collect()
        before = len(asyncio.all_tasks()), len(os.listdir("/proc/self/fd"))
        told = await sipp(
            door.port, tmp_path, "-sn", "uac", "-m", "16", "-l", "8", "-r", "20", "-d", "300"
        )
        assert re.search(r"Failed call +\| +0 +\| +0", told), told[-2000:]
        await until(lambda: not door._tasks)
        await asyncio.sleep(0.1)
        gc.collect()
        assert (len(asyncio.all_tasks()), len(os.listdir("/proc/self/fd"))) == before

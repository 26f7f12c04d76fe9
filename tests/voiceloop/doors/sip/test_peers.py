"""Calls by the field's own programs: telephones, many of them at once, a proxy and its relay."""

from __future__ import annotations

import asyncio
import gc
import os
import re
import shutil
import wave
from asyncio.subprocess import DEVNULL, PIPE, STDOUT
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest

from audio.resample import Resampler
from clients.server_process import free_port
from tests.fakes import FakeRecognizer, instant_backends, utterance
from tests.tool_service import ANY, Service, box
from tests.voiceloop.doors.sip.test_call import LONG, dialled, leg_of, line_of, n_legs
from tests.voiceloop.doors.test_agent_at_the_phone import calling
from tests.voiceloop.doors.test_desk import Taken
from tests.waiting import until
from voiceloop.agent import AgentConfig, AgentTool
from voiceloop.call_manners import CallManners, Transfer
from voiceloop.config import Limits
from voiceloop.doors.line import Line
from voiceloop.doors.sip.door import SipDoor
from voiceloop.doors.sip.leg import LegState
from voiceloop.server.app import Gateway
from voiceloop.telephony import Announcement

pytestmark = pytest.mark.call(
    seconds=70
)  # real programs by the clock: they wait more than they compute
SCENARIOS = Path(__file__).parent / "scenarios"
KAMAILIO = Path(__file__).parent / "kamailio.cfg"
CODECS = ("PCMA/8000/1", "PCMU/8000/1", "G722/16000/1", "opus/48000/2")
MODULES = "stdio aubridge g711 g722 opus aufile sndfile"
needs_baresip = pytest.mark.skipif(not shutil.which("baresip"), reason="no baresip-core of Debian")
needs_proxy = pytest.mark.skipif(
    not (shutil.which("kamailio") and shutil.which("rtpengine")),
    reason="no kamailio or rtpengine-daemon of Debian",
)
needs_linphone = pytest.mark.skipif(
    not shutil.which("linphonec"), reason="no linphone-cli of Debian"
)
needs_sipp = pytest.mark.skipif(not shutil.which("sipp"), reason="no sip-tester of Debian")


def telephone(folder: Path, codec: str, silence_s: float) -> None:
    """A configuration of baresip that speaks for a second, and keeps what it hears. It hangs up
    when its file is over, silence_s later.
    """
    folder.mkdir()
    _, hz, channels = codec.split("/")
    quiet = np.zeros(12_000, np.int16)
    said = np.concatenate([quiet, utterance(900, 24_000), np.tile(quiet, round(2.0 * silence_s))])
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
    backends = instant_backends(recognizer=FakeRecognizer(["a latte please"]))
    async with dialled(backends) as (door, _), baresip(folder, door, codec) as caller:
        assert caller.stdin is not None
        line = line_of(door)
        await asyncio.sleep(0.3)
        caller.stdin.write(b"5")
        await until(lambda: (line, "5") in pressed)
        log, _ = await caller.communicate()  # it ends by itself, its file over
        assert codec.split("/")[0].lower() in log.decode(errors="replace").lower()
        await until(lambda: n_legs(door) == 0)
        assert [key for at, key in pressed if at is line] == ["5"]
    assert loud_s(folder) > 0.1


@asynccontextmanager
async def baresip(
    folder: Path, door: SipDoor, codec: str = "PCMU/8000/1", port: int = 0, silence_s: float = 3.0
) -> AsyncIterator[asyncio.subprocess.Process]:
    """One that calls, and speaks as `telephone` says; keys of its keyboard go to its input.

    port: of whoever stands before the door.
    """
    telephone(folder, codec, silence_s)
    dial = f"/dial sip:clinic@127.0.0.1:{port or door.port}"
    process = await asyncio.create_subprocess_exec(
        "baresip", "-f", str(folder), "-e", dial, "-t", f"{silence_s + 4.0:g}",
        stdin=PIPE, stdout=PIPE, stderr=STDOUT,
    )  # fmt: skip
    try:
        await until(lambda: len(door._calls) == 1)
        yield process
    finally:
        if process.returncode is None:
            process.terminate()
        await process.communicate()


async def hangs_up(process: asyncio.subprocess.Process) -> None:
    assert process.stdin is not None
    process.stdin.write(b"b")


async def said_beside(line: Line, text: str) -> None:
    """Wait until the agent has said this."""
    with line.side() as side:
        async with asyncio.timeout(15.0):
            while (event := await side.next()) is not None:
                if '"response.output_audio_transcript.done"' in event and text in event:
                    return
    raise AssertionError(f"expected {text!r} before the call ended, found nothing of it")


@needs_baresip
@needs_sipp
async def test_baresip_takes_its_caller_to_whoever_answers_and_back_from_who_does_not(
    tmp_path: Path,
) -> None:
    async with asyncio.TaskGroup() as calls_at_once:  # each speaks for seconds, by the clock
        calls_at_once.create_task(hands_over(tmp_path, "taken", "-sn", "uas"))
        busy = str(SCENARIOS / "busy.xml")
        calls_at_once.create_task(hands_over(tmp_path, "busy", "-sf", busy, comes_back=True))


async def hands_over(folder: Path, name: str, *there: str, comes_back: bool = False) -> None:
    """name: of the caller's folder. there: the scenario of SIPp that it is connected with."""
    port = free_port()
    desk = asyncio.create_task(sipp(0, folder, *there, "-p", str(port), "-m", "1"))
    to = Transfer("desk", f"sip:desk@127.0.0.1:{port}", words=("a person",))
    agent = AgentConfig(greeting="Good day.", transfers=(to,))
    backends = instant_backends(recognizer=FakeRecognizer(["i want a person please"]))
    async with (
        dialled(backends, agent=agent) as (door, _),
        baresip(folder / name, door, silence_s=10.0) as caller,
    ):
        if comes_back:
            await said_beside(line_of(door), CallManners().not_transferred)
            assert n_legs(door) == 1
        else:
            await until(lambda: n_legs(door) == 0)
        await hangs_up(caller)
        await until(lambda: n_legs(door) == 0)
        await desk


def is_bound(port: int) -> bool:
    """Whether somebody takes datagrams there."""
    return any(f":{port:04X} " in Path(f"/proc/net/{one}").read_text() for one in ("udp", "udp6"))


@asynccontextmanager
async def proxy(port: int, folder: Path) -> AsyncIterator[tuple[int, range]]:
    """kamailio before this port, with rtpengine: its port, and those of the sound it relays."""
    at, relay, first = free_port(), free_port(), free_port()
    sound = range(first, min(first + 40, 65_535))
    told = KAMAILIO.read_text()
    for name, number in (("PROXY_PORT", at), ("SERVER_PORT", port), ("RELAY_PORT", relay)):
        told = told.replace(name, str(number))
    file = folder / KAMAILIO.name
    file.write_text(told)
    commands = (
        ("rtpengine", "--foreground", "--log-stderr", "--table=-1", "--interface=127.0.0.1",
         f"--listen-ng=127.0.0.1:{relay}", f"--port-min={sound[0]}", f"--port-max={sound[-1]}"),
        ("kamailio", "-DD", "-E", "-f", str(file), "-Y", str(folder), "-m", "16", "-M", "4"),
    )  # fmt: skip
    running = []
    try:
        for command, bound in zip(commands, (relay, at), strict=True):  # the proxy asks its relay
            running.append(
                await asyncio.create_subprocess_exec(
                    *command, stdin=DEVNULL, stdout=DEVNULL, stderr=DEVNULL
                )
            )
            await until(lambda port=bound: is_bound(port))  # type: ignore[misc]
        yield at, sound
    finally:
        for process in running:
            if process.returncode is None:
                process.terminate()
            await process.wait()


@needs_baresip
@needs_proxy
async def test_a_call_comes_through_a_proxy_that_relays_its_sound(tmp_path: Path) -> None:
    backends = instant_backends(recognizer=FakeRecognizer(["a latte please"]))
    folder = tmp_path / "caller"
    async with (
        dialled(backends) as (door, _),
        proxy(door.port, tmp_path) as (port, sound),
        baresip(folder, door, port=port) as caller,
    ):
        leg = leg_of(door)
        assert leg.dialog.flow.port == port
        await caller.communicate()
        assert leg.media._to[1] in sound
        await until(lambda: n_legs(door) == 0)
    assert loud_s(folder) > 0.1


@asynccontextmanager
async def linphone(
    folder: Path, *options: str
) -> AsyncIterator[tuple[asyncio.subprocess.Process, int]]:
    """One on files for sound, which keeps what it hears; its commands go to its input. And its
    port.
    """
    (folder / ".local/share/linphone").mkdir(parents=True)
    port = free_port()
    identity = f"sip:{folder.name}@127.0.0.1"
    lines = [f"[sip]\nsip_port={port}\nsip_tcp_port=0\nsip_tls_port=0\nguess_hostname=0"]
    lines += [f"contact={identity}\nuse_ipv6=0\n[rtp]\naudio_rtp_port={free_port()}\n"]
    (folder / "rc").write_text("\n".join(lines))
    process = await asyncio.create_subprocess_exec(
        "linphonec", "-c", str(folder / "rc"), *options, env={**os.environ, "HOME": str(folder)},
        stdin=PIPE, stdout=DEVNULL, stderr=DEVNULL,
    )  # fmt: skip
    assert process.stdin is not None
    process.stdin.write(f"soundcard use files\nrecord {folder}/heard.wav\n".encode())
    try:
        await until(lambda: is_bound(port))
        yield process, port
    finally:
        await process.communicate(b"terminate all\nquit\n")


@needs_linphone
async def test_a_warm_transfer_by_linphone_connects_the_caller_with_who_was_told(
    tmp_path: Path,
) -> None:
    told = Announcement("Wants a refund.", utterance(900, 24_000).tobytes())
    async with (
        dialled() as (door, _),
        linphone(tmp_path / "desk", "-a") as (desk, port),
        linphone(tmp_path / "caller") as (caller, _),
    ):
        assert caller.stdin is not None
        caller.stdin.write(f"call sip:clinic@127.0.0.1:{door.port}\n".encode())
        await until(lambda: len(door._calls) == 1)
        leg = leg_of(door)
        await until(lambda: leg.state is LegState.LIVE)
        await leg.transfer(f"sip:desk@127.0.0.1:{port}", told)
        await until(lambda: n_legs(door) == 0)
    with wave.open(str(tmp_path / "desk" / "heard.wav")) as file:
        heard = np.frombuffer(file.readframes(file.getnframes()), "<i2").astype(np.int32)
        assert (np.abs(heard) > 300).sum() / file.getframerate() > 0.3


@needs_baresip
async def test_a_caller_at_baresip_hangs_up_in_the_greeting_and_in_a_tool(tmp_path: Path) -> None:
    async with asyncio.TaskGroup() as calls_at_once:
        calls_at_once.create_task(hangs_up_in_the_greeting(tmp_path / "greeting"))
        calls_at_once.create_task(hangs_up_in_a_tool(tmp_path / "tool"))


async def hangs_up_in_the_greeting(folder: Path) -> None:
    async with (
        dialled(agent=AgentConfig(greeting=LONG)) as (door, _),
        baresip(folder, door) as caller,
    ):
        leg = leg_of(door)
        await until(lambda: leg.media._sender.n_packets > 20)
        await hangs_up(caller)
        await until(lambda: n_legs(door) == 0 and not door._tasks)


async def hangs_up_in_a_tool(folder: Path) -> None:
    order = AgentTool("order", "", ANY, url="https://shop.test/")
    service = Service(takes_s=1.0)
    agent = AgentConfig(greeting="Good day.", tools=(order,))
    async with dialled(calling("order", "{}"), agent=agent) as (door, _):
        gateway = door._server
        assert isinstance(gateway, Gateway)
        gateway.calls.toolbox = box(asyncio.get_running_loop().time, order=(order, service))
        async with baresip(folder, door) as caller:
            await until(lambda: service.n_begun)
            await hangs_up(caller)
            await until(lambda: n_legs(door) == 0 and not door._tasks)
        await gateway.calls.toolbox.close()
        assert service.n_done == 1


async def sipp(port: int, folder: Path, *options: str, at: str = "127.0.0.1") -> str:
    """Run it; returns what it says. It ends with an error where one call is not as described.

    port: that it calls; 0: it waits to be called.
    """
    to = (f"127.0.0.1:{port}",) if port else ()
    process = await asyncio.create_subprocess_exec(
        "sipp", *to, "-i", at, "-nostdin", "-timeout", "60", *options,
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
async def test_a_caller_at_sipp_who_gives_up_while_it_rings_is_nobodys_any_more(
    tmp_path: Path,
) -> None:
    async with dialled() as (door, _):
        desk = door._calls.desk
        desk._webhook = Taken().webhook()
        await sipp(door.port, tmp_path, "-sf", str(SCENARIOS / "gives_up.xml"), "-m", "5")
        await until(lambda: not door._tasks)
        assert desk._ringing == {} and not desk._limits._n_open


@needs_sipp
async def test_calls_of_a_line_that_loses_every_tenth_message_come_about(tmp_path: Path) -> None:
    async with dialled() as (door, _):
        await sipp(door.port, tmp_path, "-sn", "uac", "-m", "8", "-r", "20", "-lost", "10")
        await until(lambda: not door._tasks)


@needs_sipp
async def test_a_scanner_is_refused_whatever_it_tries(tmp_path: Path) -> None:
    async with dialled() as (door, _):
        scenario = str(SCENARIOS / "scanner.xml")
        await sipp(door.port, tmp_path, "-sf", scenario, "-m", "4", "-r", "8", at="127.0.0.2")
        assert not door._legs and not door.is_known("127.0.0.2")


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

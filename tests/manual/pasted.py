"""What a page has a reader paste into a terminal, line by line, and who runs it.

Owns which lines are run, and the terminal they run in; what is not run `unrun.py` reads. The
terminal has what a reader has: `voiceloop` and `python` on its path, the files of an agent, a
recording, keys, a certificate. Hosts and ports of the pages are those of this test.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import httpx
import soundfile

from clients.recording import write_wav
from clients.server_process import free_port
from tests.manual.unrun import check_of
from voiceloop.new_agent.files import write
from voiceloop.new_agent.options import wanted_of

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "voiceloop" / "docs"
PAGES = [*sorted(DOCS.glob("*.md")), ROOT / "README.md", ROOT / "SECURITY.md"]
SAID = ROOT / "clients/call/heart/1_hours.flac"  # a question that a caller speaks
FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
READY_S, LINE_S = 60.0, 180.0
SERVERS = re.compile(r"(?:\. \S+ && )?(?:\w+=\S+ )*voiceloop (?:serve|gateway|worker)\b")

# What goes on over lines: a text that is handed in, and a loop.
LONG = (
    re.compile(r"(<<'?(\w+)'?\n.*?^\2$)", re.MULTILINE | re.DOTALL),
    re.compile(r"^(for .*?^done$)", re.MULTILINE | re.DOTALL),
)
# What is no command: an exchange of events, an output, a part of a prompt.
SHOWN = re.compile(r"  \.\.\.|[<>] \w|ok    |how long can I")
# What may be run: anything else is of a kind that `unrun.CHECKS` reads, or nobody has thought of.
RUN = re.compile(
    r"(?:\. \S+ && )?(?:cd \S+ && )?(?:\w+=\S+ )*(?:voiceloop|curl|python3?|export|cd|cat|\.) "
)
# Followed step by step, with the model that ships and with one that can.
OF_OTHERS = {"YOUR_AGENT": "tests/voiceloop/test_your_agent_page.py"}


@dataclass(frozen=True, slots=True)
class Line:
    page: str
    block: int
    text: str

    @property
    def is_run(self) -> bool:
        """Whether it is run here, not read by a rule of its program or followed elsewhere."""
        return self.page not in OF_OTHERS and check_of(self.text) is None


def lines() -> Iterator[Line]:
    """Every line that is pasted, those of a text that goes on as one."""
    for page in PAGES:
        blocks = FENCE.findall(page.read_text(encoding="utf-8"))
        for number, (indent, language, block) in enumerate(blocks):
            if language not in ("", "sh"):
                continue
            whole = re.sub(r"\\\n\s*", " ", re.sub(rf"^{indent}", "", block, flags=re.MULTILINE))
            for form in LONG:
                whole = form.sub(_as_one, whole)
            if SHOWN.match(whole):
                continue
            open_text = ""
            for text in whole.splitlines():
                open_text += ("\n" if open_text else "") + text.replace("\0", "\n")
                if open_text and open_text.count('"') % 2 == 0:  # else a text goes on
                    yield Line(page.stem, number, open_text)
                    open_text = ""


def _as_one(match: re.Match[str]) -> str:
    return match[1].replace("\n", "\0")


def to_run() -> dict[str, list[Line]]:
    """By page; what other pages have too is not run for the list of commands."""
    found = list(lines())
    elsewhere = {_bare(one.text) for one in found if one.page != "COMMANDS"}
    chosen: dict[str, list[Line]] = {}
    for one in found:
        if one.is_run and not (one.page == "COMMANDS" and _bare(one.text) in elsewhere):
            chosen.setdefault(one.page, []).append(one)
    return chosen


def _bare(text: str) -> str:
    return text.partition("  #")[0].strip()


class Terminal:
    """A reader's terminal in a folder of its own, and the server in the one beside it.

    service: the port of a model server, which stands in for each one that a page names.
    """

    def __init__(self, folder: Path, service: int) -> None:
        self.folder = self.cwd = folder
        self.port, self.worker_port, self.service = free_port(), free_port(), service
        self._server: asyncio.subprocess.Process | None = None
        self._worker: asyncio.subprocess.Process | None = None
        self.printed = ""
        url = f"http://127.0.0.1:{service}/v1"
        (folder / "bin").mkdir()
        for name, command in (("voiceloop", "-P -m voiceloop "), ("python", "")):
            path = folder / "bin" / name
            path.write_text(f'#!/bin/sh\nexec {sys.executable} {command}"$@"\n')
            path.chmod(0o755)
        self.environment = {
            **os.environ,
            "PATH": f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "VOICELOOP_PORT": str(self.port),
            "VOICELOOP_ANTICIPATION_OFF": "p_end,p_voice",
            **{f"VOICELOOP_{part}_URL": url for part in ("STT", "LLM", "TTS")},
            "METRICS_KEY": "a-key-of-metrics",
            "AGENT_KEY": "a-key-of-calls",
        }
        self._place_files()

    def _place_files(self) -> None:
        """What the pages had the reader write before."""
        write(self.folder / "made", wanted_of({}))
        scenario = '[[scenarios]]\nname = "hours"\nlines = ["What are your opening hours?"]\n'
        for name in ("agent", "my-agent", "bakery"):
            text = (self.folder / "made" / "agent.toml").read_text()
            (self.folder / f"{name}.toml").write_text(text)
        (self.folder / "tools.py").write_text((self.folder / "made" / "tools.py").read_text())
        for name in ("scenarios", "bakery_scenarios", "FILE"):
            (self.folder / f"{name}.toml").write_text(scenario)
        for name in ("server", "my-server", "gateway", "new"):
            (self.folder / f"{name}.toml").write_text("")
        (self.folder / ".venv" / "bin").mkdir(parents=True)
        (self.folder / ".venv" / "bin" / "activate").write_text("")
        (self.folder / "voiceloop").symlink_to(ROOT / "voiceloop")
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2",
             "-subj", "/CN=localhost", "-keyout", "key.pem", "-out", "cert.pem"],
            cwd=self.folder, check=True, capture_output=True,
        )  # fmt: skip
        samples, rate_hz = soundfile.read(SAID, dtype="int16")
        write_wav(self.folder / "question.wav", (samples,), rate_hz)

    def _of_here(self, text: str) -> str:
        """The line with this test's addresses in place of the page's."""
        here, service = f"127.0.0.1:{self.port}", f"127.0.0.1:{self.service}"
        for theirs, ours in {
            "127.0.0.1:8080": here,
            "HOST:8080": here,
            "https://voice.example.com": f"http://{here}",
            "127.0.0.1:8000": service,
            "HOST:8000": service,
            "127.0.0.1:11434": service,
            "0.0.0.0:9001": f"127.0.0.1:{self.worker_port}",
            "10.0.0.5:9001": f"127.0.0.1:{self.worker_port}",
            "--scenarios FILE": "--scenarios FILE.toml",
            "voiceloop talk --wav": f"voiceloop talk ws://{here} --wav",
            "port = 5070": f"port = {free_port()}",
            "/tmp/caller.wav": str(self.folder / "caller.wav"),
            "--host 0.0.0.0": "--host 127.0.0.1",
        }.items():
            text = text.replace(theirs, ours)
        return text

    async def run(self, line: str) -> int:
        """The exit code; of a server 0 once it is ready."""
        line = self._of_here(line)
        if SERVERS.match(line):
            await self._serve(line)
            return 0
        if f":{self.port}" in line and self._server is None:
            await self._serve("voiceloop serve")  # as the page has it running elsewhere
        after, log = self.folder / ".after", self.folder / "line.log"
        # Into a file: what a line leaves running would hold a pipe open.
        script = f"{{ {line}\n}} > {log} 2>&1\ncode=$?\n(pwd; env -0) > {after}\nexit $code\n"
        process = await self._start(script)
        async with asyncio.timeout(LINE_S):
            await process.wait()
        self.printed = log.read_text(errors="replace")
        cwd, _, environment = after.read_text().partition("\n")
        self.cwd = Path(cwd)
        pairs = (one.partition("=") for one in environment.split("\0") if one)
        self.environment = {name: value for name, _, value in pairs}
        assert process.returncode is not None
        return process.returncode

    async def _serve(self, line: str) -> None:
        """In the background; it takes the place of the one before."""
        is_worker = "voiceloop worker" in line
        if not is_worker:
            await self._stop(self._server)
        log = self.folder / "server.log"
        # On a machine of its own: what the services stand in for, a worker holds itself.
        line = f"unset VOICELOOP_{{STT,LLM,TTS}}_URL; {line}" if is_worker else line
        process = await self._start(f"{{ {line}\n}} > {log} 2>&1")
        if is_worker:
            self._worker = process
        else:
            self._server = process
        port = self.worker_port if is_worker else self.port
        async with asyncio.timeout(READY_S):
            while not await self._is_ready(port, tells=not is_worker, tls="--certfile" in line):
                assert process.returncode is None, log.read_text()
                await asyncio.sleep(0.05)

    async def _is_ready(self, port: int, *, tells: bool, tls: bool) -> bool:
        with suppress(OSError, httpx.TransportError):
            if not tells:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.close()
                return True
            context = ssl.create_default_context()
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            async with httpx.AsyncClient(verify=context, timeout=5.0) as http:
                url = f"{'https' if tls else 'http'}://127.0.0.1:{port}/readyz"
                return (await http.get(url)).status_code == 200
        return False

    async def _start(self, script: str) -> asyncio.subprocess.Process:
        nothing = asyncio.subprocess.DEVNULL
        return await asyncio.create_subprocess_exec(
            "bash", "-c", script, cwd=self.cwd, env=self.environment, start_new_session=True,
            stdin=nothing, stdout=nothing, stderr=nothing,
        )  # fmt: skip

    async def _stop(self, process: asyncio.subprocess.Process | None) -> None:
        if process is not None and process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            with suppress(TimeoutError):
                async with asyncio.timeout(15.0):
                    await process.wait()

    async def close(self) -> None:
        """End the servers, and whatever a line has left running in this folder."""
        await asyncio.gather(self._stop(self._server), self._stop(self._worker))
        end_all_in(self.folder)


def end_all_in(folder: Path) -> None:
    """Every process that runs there, whoever started it."""
    for place in Path("/proc").glob("[0-9]*/cwd"):
        with suppress(OSError):
            if place.resolve().is_relative_to(folder):
                os.kill(int(place.parent.name), signal.SIGKILL)

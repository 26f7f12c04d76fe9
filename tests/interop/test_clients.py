"""Real clients of the field, each in its own environment, against our server.

Every client goes through its scenarios twice: with scripted models, where every word is certain,
and with the embedded preset, the server that a person starts (calls are forced by `tool_choice`).
Two clients run at a time; the rest wait. Environments are made by ``tests/interop/make_envs.py``;
one that is missing skips its tests, or fails them where ``INTEROP_REQUIRED`` is set (as in CI).
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import numpy as np
import pytest
import soundfile

from audio.resample import Resampler
from clients.server_process import free_port
from tests.interop.make_envs import NPM, interpreter, is_made

ROOT = Path(__file__).resolve().parents[2]
CLIENTS = ROOT / "tests" / "interop" / "clients"
ENVIRONMENTS = Path(os.environ.get("INTEROP_DIR", ROOT / "out" / "interop"))
SPEECH = ROOT / "clients" / "call" / "heart" / "1_hours.flac"

SCENARIOS = ("text_turn", "spoken_turn", "tool_call", "barge_in", "manual_commit", "cancel")
# Script -> (its environment, scenarios beside the common ones)
SCRIPTS: dict[str, tuple[str, tuple[str, ...]]] = {
    "openai": ("openai", ("client_secret", "resume")),
    "openai_sync": ("openai", ()),
    "agents": ("agents", ()),
    "pipecat": ("pipecat", ()),
    "livekit": ("livekit", ()),
    "openai_js": ("openai_js", ()),
    "agents_js": ("agents_js", ()),
    "agents_webrtc": ("agents_js", ()),
}
# Only a whole session of pipecat can be told to call, not one reply: it would never stop calling.
NOT_EMBEDDED = {"pipecat": "tool_call"}
STRICT = ("openai", "openai_sync", "agents", "livekit")  # pipecat warns of itself at its import
N_AT_ONCE = 3  # they wait most of the time, but each starts with seconds of imports
# A server that is busy refuses callers; no client here is to meet that.
SERVED = {"PYTHONPATH": str(ROOT), "VOICELOOP_LIMITS_ADMIT_BY_LOAD": "false"}
CLIENT_S = 240.0
READY_S = 120.0

pytestmark = [pytest.mark.call(seconds=150), pytest.mark.timeout(600)]


@dataclass(frozen=True, slots=True)
class Kind:
    """Of server. without: the scenario that a client leaves out there."""

    command: tuple[str, ...]
    without: Mapping[str, str]


KINDS = {
    "scripted": Kind(("-m", "tests.interop.scripted_server"), {}),
    # With the shipped agent, greeting and all: unmodified clients must not notice.
    "embedded": Kind(("-m", "voiceloop", "serve", "--preset", "embedded"), NOT_EMBEDDED),
}


@dataclass(frozen=True, slots=True)
class Server:
    """The same models with and without TLS."""

    url: str
    tls_url: str
    certfile: Path


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("tls")
    certfile, keyfile = folder / "cert.pem", folder / "key.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2",
         "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost",
         "-keyout", keyfile, "-out", certfile],
        check=True, capture_output=True,
    )  # fmt: skip
    return certfile, keyfile


@pytest.fixture(scope="module")
def speech(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("speech") / "speech.raw"
    samples, rate_hz = soundfile.read(SPEECH, dtype="int16")
    resampled = Resampler(rate_hz, 24_000).push(samples)
    path.write_bytes(np.asarray(resampled, dtype="<i2").tobytes())
    return path


@contextmanager
def starting(command: tuple[str, ...], log: Path) -> Iterator[Callable[[], str]]:
    """Start ``command --port N``; stop it at the end. Yields what waits for it, and tells where."""
    port = free_port()
    scheme = "https" if "--certfile" in command else "http"
    with log.open("wb") as sink:
        process = subprocess.Popen(
            [sys.executable, "-P", *command, "--port", str(port)],
            cwd=ROOT, env=os.environ | SERVED, stdout=sink, stderr=sink,
        )  # fmt: skip

    def ready() -> str:
        deadline = time.monotonic() + READY_S
        while True:
            assert process.poll() is None and time.monotonic() < deadline, log.read_text()
            try:
                if httpx.get(f"{scheme}://localhost:{port}/readyz", verify=False).is_success:
                    return f"localhost:{port}"
            except httpx.TransportError:
                time.sleep(0.1)

    try:
        yield ready
    finally:
        process.terminate()
        process.wait(20)


@contextmanager
def servers(
    command: tuple[str, ...], folder: Path, tls: tuple[Path, Path]
) -> Iterator[Callable[[], Server]]:
    folder.mkdir()
    certfile, keyfile = tls
    secure = ("--certfile", str(certfile), "--keyfile", str(keyfile))
    with (
        starting(command, folder / "plain.log") as plain,
        starting((*command, *secure), folder / "tls.log") as encrypted,
    ):
        yield lambda: Server(f"ws://{plain()}", f"wss://{encrypted()}", certfile)


@dataclass(slots=True)
class Run:
    """One client's process, queued or running or ended."""

    expected: tuple[str, ...]
    process: Future[subprocess.CompletedProcess[str]]


def begin(
    pool: ThreadPoolExecutor, script: str, scenarios: tuple[str, ...], server: Server, speech: Path
) -> Run:
    environment, more = SCRIPTS[script]
    expected = (*scenarios, *more)
    program = interpreter(ENVIRONMENTS, environment)
    is_node = environment in NPM
    flags = ["-W", "error"] if script in STRICT else []
    path = CLIENTS / f"{script}_client{'.mjs' if is_node else '.py'}"
    url = server.tls_url if script == "openai_js" else server.url  # it speaks TLS only
    known = {
        "CLIENT_ENVIRONMENT": str(ENVIRONMENTS / environment),
        "NODE_EXTRA_CA_CERTS": str(server.certfile),
    }
    command = [str(program), *flags, str(path), url, str(speech), *expected]
    env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | known
    run = pool.submit(
        subprocess.run, command, env=env, text=True, timeout=CLIENT_S,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    return Run(expected, run)


def require(name: str) -> None:
    """The environment of this script, or of this name."""
    environment = SCRIPTS[name][0] if name in SCRIPTS else name
    if is_made(ENVIRONMENTS, environment):
        return
    message = f"no {ENVIRONMENTS / environment}; python tests/interop/make_envs.py makes it"
    if os.environ.get("INTEROP_REQUIRED"):
        pytest.fail(message)
    pytest.skip(message)


@contextmanager
def all_runs(
    kinds: Mapping[str, Kind], folder: Path, tls: tuple[Path, Path], speech: Path
) -> Iterator[dict[tuple[str, str], Run]]:
    """By server and client, all begun: the second server loads while the first has its callers."""
    made = [script for script, (name, _) in SCRIPTS.items() if is_made(ENVIRONMENTS, name)]
    with ExitStack() as stack:
        ready = {
            name: stack.enter_context(servers(kind.command, folder / name, tls))
            for name, kind in kinds.items()
            if made
        }
        pool = stack.enter_context(ThreadPoolExecutor(N_AT_ONCE))
        runs = {}
        for name, kind in kinds.items():
            for script in made:
                wanted = tuple(one for one in SCENARIOS if one != kind.without.get(script))
                runs[name, script] = begin(pool, script, wanted, ready[name](), speech)
        yield runs


@pytest.fixture(scope="module")
def runs(
    certificate: tuple[Path, Path], speech: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[tuple[str, str], Run]]:
    with all_runs(KINDS, tmp_path_factory.mktemp("servers"), certificate, speech) as found:
        yield found


def passed(run: Run) -> None:
    result = run.process.result()
    lines = result.stdout.splitlines()
    found = tuple(line.removeprefix("passed ") for line in lines if line.startswith("passed "))
    assert (result.returncode, found) == (0, run.expected), result.stdout[-4000:]


@pytest.mark.parametrize("client", SCRIPTS)
@pytest.mark.parametrize("server", KINDS)
def test_a_real_client_works_with(
    server: str, client: str, runs: dict[tuple[str, str], Run]
) -> None:
    require(client)
    passed(runs[server, client])


def test_the_stock_sdk_reads_what_mcp_servers_of_a_session_come_to(tmp_path: Path) -> None:
    """Listed, called, and called once the client has allowed it; against a real server."""
    pytest.importorskip("mcp", reason="the package mcp is not installed")
    require("openai")
    shop_port = free_port()
    shop = [sys.executable, "-m", "tests.mcp_server", str(shop_port)]
    allowed = ("--mcp-host", f"http://127.0.0.1:{shop_port}")
    module = ("-m", "tests.interop.scripted_server", *allowed)
    process = subprocess.Popen(shop, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)})
    try:
        with starting(module, tmp_path / "server.log") as ready:
            host, _, port = ready().partition(":")
            path = CLIENTS / "openai_mcp_client.py"
            asked = [f"ws://{host}:{port}", f"http://127.0.0.1:{shop_port}/mcp"]
            ran = subprocess.run(
                [str(interpreter(ENVIRONMENTS, "openai")), str(path), *asked],
                env={k: v for k, v in os.environ.items() if k != "PYTHONPATH"},
                text=True, timeout=CLIENT_S, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            )  # fmt: skip
    finally:
        process.kill()
        process.wait(10)
    assert ran.stdout.splitlines() == ["passed called", "passed allowed"], ran.stdout[-4000:]

"""The section llama.cpp of SERVICES.md against that server itself, with SmolLM2-135M-Instruct."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from clients.server_process import free_port
from tests.interop.make_envs import interpreter
from tests.interop.test_clients import CLIENTS, ENVIRONMENTS, require
from tests.manual.pasted import DOCS, Terminal, to_run
from tests.real_weights.fetch import folder_of
from tests.real_weights.packages import SMOLLM2
from voiceloop.backends import ChatMessage, Generated, GenerateParams, TextDelta
from voiceloop.remote.language import RemoteLanguageModel
from voiceloop.remote.service import RemoteService

pytestmark = [pytest.mark.call, pytest.mark.timeout(400)]
READY_S = 60.0


@pytest.fixture
def port(tmp_path: Path) -> Iterator[int]:
    """Of the server, with its model loaded."""
    require("llama_cpp")
    if (folder := folder_of(SMOLLM2)) is None:
        pytest.skip("not here: python -m tests.real_weights.fetch smollm2-135m")
    [weights] = folder.glob("*.gguf")
    port, log = free_port(), tmp_path / "llama.log"
    program = interpreter(ENVIRONMENTS, "llama_cpp")
    with log.open("wb") as sink:
        command = [program, CLIENTS / "llama_cpp_server.py", weights, str(port)]
        process = subprocess.Popen(command, stdout=sink, stderr=sink)
    try:
        deadline = time.monotonic() + READY_S
        while True:
            assert process.poll() is None and time.monotonic() < deadline, log.read_text()
            try:
                if httpx.get(f"http://127.0.0.1:{port}/health").is_success:
                    break
            except httpx.TransportError:
                time.sleep(0.1)
        yield port
    finally:
        process.kill()
        process.wait(10)


async def test_the_lines_of_the_page_run_and_the_model_answers(port: int, tmp_path: Path) -> None:
    page = (DOCS / "SERVICES.md").read_text(encoding="utf-8")
    [settings] = re.findall(r"### llama\.cpp\n.*?```toml\n(.*?)```", page, re.DOTALL)
    terminal = Terminal(tmp_path, port)
    for part in ("STT", "LLM", "TTS"):  # the embedded ones hear and speak
        del terminal.environment[f"VOICELOOP_{part}_URL"]
    file = tmp_path / "my-server.toml"
    file.write_text(settings.replace("127.0.0.1:8081", f"127.0.0.1:{port}"), encoding="utf-8")
    try:
        for line in to_run()["SERVICES"]:
            few = line.text.replace("bench ", "bench --requests 2 --max-tokens 16 ")
            assert await terminal.run(few) in (0, 1), terminal.printed
            if "doctor" in line.text:
                assert "llama.cpp" in terminal.printed, terminal.printed
    finally:
        await terminal.close()
    assert await answer_of(f"http://127.0.0.1:{port}/v1")


async def answer_of(url: str) -> str:
    """What the model says to a caller, as a server asks it."""
    service = RemoteService(url, model="")
    await service.start()
    try:
        assert service.kind.name == "llama.cpp"
        branch = await RemoteLanguageModel(service).branch("sess_1/turn_1", ())
        branch.commit(
            (ChatMessage("user", "Tell me a short story."),), GenerateParams(max_tokens=20)
        )
        text = ""
        async for event in branch.events():
            text += event.text if isinstance(event, TextDelta) else ""
            if isinstance(event, Generated):
                break
        await branch.close()
        return text
    finally:
        await service.close()

"""The embedded preset with a brain elsewhere: ``python -m tests.interop.other_brains BRAIN``.

Behind BRAIN stand flags of ``voiceloop serve``. The brain is another VoiceLoop. "upstream": it is
asked as a speech-to-speech server. "heard": it is asked as a chat service that hears, behind a door
that takes `input_audio` and passes the words on.
"""

from __future__ import annotations

import asyncio
import base64
import io
import re
import signal
import sys
import tempfile
import wave
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from benchmarks.harness.serving import served
from clients.connection import own_key
from clients.server_process import running_server
from voiceloop.remote.heard_turn import RECOGNIZED

SERVE = (sys.executable, "-m", "voiceloop", "serve", "--preset", "embedded")
WORDS = re.compile(re.escape(RECOGNIZED).replace(r"\{\}", "(.*)"), re.DOTALL)


class Ear:
    """A chat service that hears, as far as it can be checked: n_heard turns came as sound."""

    def __init__(self, brain: str, key: str) -> None:
        headers = {"authorization": f"Bearer {key}"} if key else {}
        self._client = httpx.AsyncClient(base_url=brain, headers=headers, timeout=60.0)

    async def answer(self, request: Request) -> Response:
        body = await request.json()
        for message in body["messages"]:
            if isinstance(message["content"], list):
                message["content"] = self._heard(message["content"])
        asked = self._client.build_request("POST", "/v1/chat/completions", json=body)
        answer = await self._client.send(asked, stream=True)

        async def pieces() -> AsyncIterator[bytes]:
            async for piece in answer.aiter_bytes():
                yield piece
            await answer.aclose()

        kind = answer.headers.get("content-type")
        return StreamingResponse(pieces(), answer.status_code, media_type=kind)

    def _heard(self, parts: list[dict[str, Any]]) -> str:
        *sound, words = parts
        for part in sound:
            with wave.open(io.BytesIO(base64.b64decode(part["input_audio"]["data"]))) as file:
                assert (file.getframerate(), file.getnchannels()) == (16_000, 1)
                assert file.getnframes() > 1600
        found = WORDS.match(words["text"])
        assert found is not None and sound, parts
        return found[1] + words["text"][found.end() :]


async def run(brain: str, arguments: list[str]) -> int:
    key = own_key("http://127.0.0.1") or ""
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "server.toml"
        async with running_server(("--preset", "embedded"), log=Path(folder) / "log") as far:
            http = f"http://127.0.0.1:{far.url.rsplit(':', 1)[1].partition('/')[0]}"
            ear = Ear(http, key)
            door = Starlette(routes=[
                Route("/v1/chat/completions", ear.answer, methods=["POST"]),
                Route("/v1/models", lambda request: Response("{}")),
            ])  # fmt: skip
            async with served(door) as address:
                if brain == "heard":
                    lines = f'llm_url = "{address}/v1"\nllm_hears = true\nllm_model = "heard"\n'
                else:
                    lines = f'realtime_url = "{http.replace("http", "ws")}/v1"\n'
                    lines += f'llm_key = "{key}"\n' if key else ""
                config.write_text(lines, encoding="utf-8")
                command = (*SERVE, "--config", str(config), *arguments)
                server = await asyncio.create_subprocess_exec(*command)
                loop = asyncio.get_running_loop()
                loop.add_signal_handler(signal.SIGTERM, server.terminate)
                with suppress(ProcessLookupError):
                    return await server.wait()
    return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(run(sys.argv[1], sys.argv[2:])))

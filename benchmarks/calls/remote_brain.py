"""A language model behind a service, as quick as people's: ``turn_latency --ablate service``.

``python -m benchmarks.calls.remote_brain --port N``: it reads a whole prompt in 100 ms, less what
its prefix cache has of it, and writes a word in 10 ms. What it says is always the same, and long
enough to be interrupted.
"""

from __future__ import annotations

import argparse
import sys
import tomllib
from pathlib import Path

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from benchmarks.calls.fake_server import REPLY
from benchmarks.harness.command_line import run
from benchmarks.remote_prefill import Stub
from clients.arguments import whole_number
from clients.bench.prompt import prompt_of

COMMAND = (sys.executable, "-m", "benchmarks.calls.remote_brain")
PREFILL_MS, TOKEN_MS = 100.0, 10.0
PROMPT_TOKENS, TOKENS_A_WORD = 1500, 1.4


def long_agent(agent: Path, into: Path) -> Path:
    """A file of this agent whose instructions are about PROMPT_TOKENS long."""
    told = tomllib.loads(agent.read_text(encoding="utf-8"))
    text = told["instructions"]
    text += f"\n{prompt_of(PROMPT_TOKENS - round(TOKENS_A_WORD * len(text.split())), 0)}"
    lines = [f"{key} = {told[key]!r}" for key in ("name", "greeting")]
    into.write_text("\n".join([*lines, f"instructions = '''{text}'''\n"]), encoding="utf-8")
    return into


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.calls.remote_brain", description=__doc__.splitlines()[0]
    )
    parser.add_argument(
        "--port", type=whole_number(1, 65535), required=True, metavar="N",
        help="loopback port to listen on",
    )  # fmt: skip
    chosen = parser.parse_args()
    stub = Stub(PREFILL_MS, TOKEN_MS, REPLY)

    async def models(request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [{"id": "stub", "object": "model"}]})

    routes = [
        Route("/readyz", models),
        Route("/v1/models", models),
        Route("/v1/chat/completions", stub.answer, methods=["POST"]),
    ]
    uvicorn.run(Starlette(routes=routes), host="127.0.0.1", port=chosen.port, log_level="warning")
    return 0


if __name__ == "__main__":
    sys.exit(run(main))

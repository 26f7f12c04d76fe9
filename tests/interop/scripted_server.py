"""Our server on scripted models, as a process: ``python -m tests.interop.scripted_server``.

What the interop tests need of a model is fixed here: a reply long enough to be interrupted, and a
tool call when one is asked for.
"""

from __future__ import annotations

import argparse
import asyncio
from dataclasses import replace
from pathlib import Path

from tests.fakes import FakeLanguageModel, FakeRecognizer, Reply, instant_backends
from voiceloop.agent import AgentConfig
from voiceloop.backends import ChatMessage, ToolCall
from voiceloop.capabilities import Capabilities
from voiceloop.config import Config
from voiceloop.server.app import Gateway, build_app
from voiceloop.server.process import listen, make_server

HEARD = "well this is what i said"
REPLY = "Certainly, that is noted, and here is a little more about it so that you can interrupt."


def answer(messages: tuple[ChatMessage, ...]) -> Reply:
    """A tool call when asked for one, its result when it is there, else seconds of talk."""
    last = messages[-1]
    if last.role == "tool":
        return Reply(f"It is {last.content}.")
    if last.role == "user" and "use the tool" in last.content:
        return Reply("", (ToolCall("call_1", "hours", '{"day": "monday"}'),))
    if last.role == "user" and "ask the shop" in last.content:
        return Reply("", (ToolCall(f"call_{len(messages)}", "price", '{"item": "latte"}'),))
    return Reply(REPLY)


async def serve(
    port: int, certfile: Path | None, keyfile: Path | None, mcp_hosts: tuple[str, ...]
) -> None:
    backends = instant_backends(
        recognizer=FakeRecognizer((HEARD,)), language_model=FakeLanguageModel(answer)
    )
    backends = replace(backends, known=lambda: Capabilities(mcp_hosts=mcp_hosts))
    config = Config(certfile=certfile, keyfile=keyfile, mcp_allowed_hosts=mcp_hosts)
    gateway = Gateway(config, AgentConfig(instructions="Be kind."), backends)
    await make_server(build_app(gateway), config).serve(sockets=[listen("127.0.0.1", port)])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--certfile", type=Path)
    parser.add_argument("--keyfile", type=Path)
    parser.add_argument("--mcp-host", action="append", default=[])
    chosen = parser.parse_args()
    hosts = tuple(chosen.mcp_host)
    asyncio.run(serve(chosen.port, chosen.certfile, chosen.keyfile, hosts))


if __name__ == "__main__":
    main()

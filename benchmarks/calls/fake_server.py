"""The real server with scripted models that answer at once: what the runtime alone costs.

``python -m benchmarks.calls.fake_server --port N`` is for ``turn_latency --fakes``; it takes the
place of ``voiceloop serve`` and runs everything but the workers: sockets, protocol, detector,
turns, pacing.
"""

from __future__ import annotations

import argparse
import asyncio
import sys

from benchmarks.harness.command_line import run
from clients.arguments import whole_number
from tests.fakes import FakeLanguageModel, FakeRecognizer, FakeVoice
from voiceloop.agent import AgentConfig
from voiceloop.backends import Backends
from voiceloop.config import Config, Limits
from voiceloop.server.app import Gateway, build_app
from voiceloop.server.process import listen, make_server

# About five seconds of the fake voice's tone: long enough to be interrupted after 1.2 s.
REPLY = "Certainly, that is noted, and here is a little more about it so that you can interrupt."


RISE_HZ_PER_S = 400.0  # five seconds stay below 3 kHz, and 20 ms of it are one pitch


def fake_backends(*, rises: bool = False) -> Backends:
    voice = FakeVoice(rise_hz_per_s=RISE_HZ_PER_S if rises else 0.0)
    return Backends(
        FakeRecognizer(("well this is what i said",)), FakeLanguageModel((REPLY,)), voice
    )


async def serve_fakes(port: int, n_most: int, *, rises: bool) -> None:
    # Nothing is computed here that could be too much: a burst of callers is let in at once.
    config = Config(port=port, limits=Limits(max_sessions=n_most, admit_by_load=False))
    gateway = Gateway(
        config, AgentConfig(name="Fake", greeting="Hello."), fake_backends(rises=rises)
    )
    server = make_server(build_app(gateway), config)
    await server.serve(sockets=[listen(config.host, config.port)])


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.calls.fake_server", description=__doc__.splitlines()[0]
    )
    parser.add_argument(
        "--port", type=whole_number(0, 65535), required=True, metavar="N",
        help="loopback port to listen on, 0 for any",
    )  # fmt: skip
    parser.add_argument(
        "--most", type=whole_number(1), default=Limits().max_sessions, metavar="N",
        help="calls at a time (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--rising", action="store_true", help="a voice whose pitch tells its place in the reply"
    )
    chosen = parser.parse_args()
    asyncio.run(serve_fakes(chosen.port, chosen.most, rises=chosen.rising))
    return 0


if __name__ == "__main__":
    sys.exit(run(main, loss="the server has stopped"))

"""The real server with scripted models that answer at once: what the runtime alone costs.

``python -m benchmarks.calls.fake_server --port N`` is for ``turn_latency --fakes``; it takes the
place of ``voiceloop serve`` and runs everything but the workers: sockets, protocol, detector,
turns, pacing. With ``--worker`` the models are scripted in a process of their own, as real ones
are, and ``--profile FILE`` keeps how often the gateway was found computing where.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from functools import partial
from pathlib import Path
from types import FrameType

from benchmarks.cluster.scripted import HELD, roles
from benchmarks.harness.command_line import run
from clients.arguments import whole_number
from tests.fakes import FakeLanguageModel, FakeRecognizer, FakeVoice
from voiceloop.agent import AgentConfig
from voiceloop.backends import Backends
from voiceloop.config import Config, Limits
from voiceloop.server.app import Gateway, build_app
from voiceloop.server.process import listen, make_server
from voiceloop.workers.messages import WorkerSpec
from voiceloop.workers.supervisor import Supervisor

# About five seconds of the fake voice's tone: long enough to be interrupted after 1.2 s.
REPLY = "Certainly, that is noted, and here is a little more about it so that you can interrupt."


RISE_HZ_PER_S = 400.0  # five seconds stay below 3 kHz, and 20 ms of it are one pitch


def fake_backends(*, rises: bool = False) -> Backends:
    voice = FakeVoice(rise_hz_per_s=RISE_HZ_PER_S if rises else 0.0)
    return Backends(
        FakeRecognizer(("well this is what i said",)), FakeLanguageModel((REPLY,)), voice
    )


N_TONES = 8  # of 0.3 s each: a clause, so that the gateway paces and sends as in a call
SAMPLED_S = 0.002  # of the process's computing
OWN = ("voiceloop", "audio", "engine")


def place_of(frame: FrameType | None) -> str:
    """File and function of the innermost frame of ours; what others compute for it is its own."""
    while frame is not None:
        module = str(frame.f_globals.get("__name__", ""))
        if module.partition(".")[0] in OWN:
            return f"{module}:{frame.f_code.co_qualname}"
        frame = frame.f_back
    return "outside: the event loop, sockets, frames of the wire"


@contextmanager
def sampled(into: Path) -> Iterator[None]:
    """Keep where the main thread was, whenever the process had computed for so long."""
    found = Counter[str]()
    signal.signal(signal.SIGPROF, lambda _, frame: found.update((place_of(frame),)))
    signal.setitimer(signal.ITIMER_PROF, SAMPLED_S, SAMPLED_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        into.write_text(json.dumps(found.most_common()), encoding="utf-8")


async def serve_fakes(
    port: int, n_most: int, *, rises: bool, has_worker: bool, profile: Path | None
) -> None:
    # Nothing is computed here that could be too much: a burst of callers is let in at once.
    config = Config(port=port, limits=Limits(max_sessions=n_most, admit_by_load=False))
    backends = fake_backends(rises=rises)
    async with AsyncExitStack() as stack:
        if has_worker:
            spec = WorkerSpec("scripted", roles(HELD, n_tones=N_TONES))
            environ = {"PYTHONPATH": str(Path(__file__).parents[2])}  # to find the roles there
            worker = await stack.enter_async_context(Supervisor((spec,), environ=environ))
            backends = Backends(
                worker.recognizer(), worker.language_model(), worker.voice(), workers=worker.loads
            )
        gateway = Gateway(config, AgentConfig(name="Fake", greeting="Hello."), backends)
        server = make_server(build_app(gateway), config)
        if profile is not None:
            stack.enter_context(sampled(profile))
            ends = partial(setattr, server, "should_exit", True)
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ends)
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
    parser.add_argument(
        "--worker", action="store_true", help="the models in a process of their own"
    )
    parser.add_argument("--profile", type=Path, metavar="FILE", help="where the gateway computes")
    chosen = parser.parse_args()
    serving = serve_fakes(
        chosen.port, chosen.most,
        rises=chosen.rising, has_worker=chosen.worker, profile=chosen.profile,
    )  # fmt: skip
    asyncio.run(serving)
    return 0


if __name__ == "__main__":
    sys.exit(run(main, loss="the server has stopped"))

"""The ``voiceloop`` command: serve, gateway, worker, demo, talk, evaluate, models, and others.

Owns the command line and its exit codes: 0 when all went well, 1 when a call got no answer or the
doctor found a problem, 2 with one sentence on standard error for whatever a person can put right,
130 after ctrl-C, 141 where nobody reads the output any more. Each command imports what it needs
when it runs, so ``--help`` is instant.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from clients.arguments import DEFAULT_URL
from clients.bench.arguments import DESCRIPTION as BENCH_DESCRIPTION
from clients.bench.arguments import add_bench_arguments
from clients.command import EXIT_BAD_INPUT, run
from clients.conformance.arguments import add_conformance_arguments
from clients.console.arguments import DESCRIPTION as CALL_DESCRIPTION
from clients.console.arguments import add_call_arguments
from clients.errors import ClientError
from clients.evaluate.arguments import DESCRIPTION as EVALUATE_DESCRIPTION
from clients.evaluate.arguments import add_evaluate_arguments
from clients.talk.arguments import DESCRIPTION as TALK_DESCRIPTION
from clients.talk.arguments import add_talk_arguments
from voiceloop import __version__
from voiceloop.cluster.arguments import (
    CLUSTER_DESCRIPTION,
    GATEWAY_DESCRIPTION,
    WORKER_DESCRIPTION,
    WORKER_SETTINGS,
    add_cluster_arguments,
    add_gateway_arguments,
    add_worker_arguments,
)
from voiceloop.command_parser import CommandParser, Commands, add_keys, remedy_for
from voiceloop.errors import InvalidRequest, VoiceLoopError
from voiceloop.new_agent.options import OPTIONS
from voiceloop.replay.arguments import DESCRIPTION as REPLAY_DESCRIPTION
from voiceloop.replay.arguments import add_replay_arguments

PARTS = ("stt", "llm", "tts")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code. A mistake in the arguments exits with 2."""
    return run(lambda: _run(argv))


def _run(argv: Sequence[str] | None) -> int:
    parser = build_parser()
    arguments = parser.parse_args(argv)
    if arguments.run is None:
        parser.print_help()
        return 0
    command: Callable[[argparse.Namespace], int] = arguments.run
    try:
        return command(arguments)
    except (VoiceLoopError, ClientError) as error:
        return _refuse(str(error))
    except ModuleNotFoundError as error:
        remedy = remedy_for(error)
        if remedy is None:
            raise
        return _refuse(remedy)


def _refuse(message: str) -> int:
    print(f"voiceloop: {message}", file=sys.stderr)
    return EXIT_BAD_INPUT


def build_parser() -> argparse.ArgumentParser:
    parser = CommandParser(
        prog="voiceloop",
        description="A voice-agent runtime you host yourself: it answers before the silence feels "
        "like one.",
        epilog="Start with: voiceloop demo",
    )
    parser.add_argument("--version", action="version", version=f"voiceloop {__version__}")
    parser.set_defaults(run=None)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    _add_demo(commands)
    _add_init(commands)
    _add_serve(commands)
    _add_gateway(commands)
    _add_worker(commands)
    _add_cluster(commands)
    _add_talk(commands)
    _add_call(commands)
    _add_conformance(commands)
    _add_bench(commands)
    _add_evaluate(commands)
    _add_replay(commands)
    _add_models(commands)
    _add_doctor(commands)
    return parser


def _add_demo(commands: Commands) -> None:
    demo = commands.add_parser(
        "demo",
        help="hear an agent answer a caller, and see where each millisecond went",
        description="Start the real server on a free loopback port, play a recorded caller into it "
        "in real time, print the conversation as it happens, and write conversation.wav (caller "
        "left, agent right), turns.json, waterfall.png and report.html; after ctrl-C with what was "
        "recorded by then. Nothing is downloaded. Exits with 1 where a turn got no answer.",
    )
    demo.add_argument(
        "--wav",
        type=Path,
        metavar="FILE",
        help="your own caller: a mono 16-bit WAV of at most ten minutes (default: a bundled call)",
    )
    demo.add_argument(
        "--json", action="store_true", help="print the figures as JSON (the rest goes to stderr)"
    )
    demo.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        default=Path("demo-out"),
        help="the folder the files go to (default: %(default)s)",
    )
    demo.set_defaults(run=_demo)


def _add_init(commands: Commands) -> None:
    init = commands.add_parser(
        "init",
        help="begin an agent of your own: its file, a tool, scenarios, a test, a container file",
        description="Write a folder for an agent of your own. In a terminal it asks; each question "
        "is also a flag, and without a terminal what is not named has its default.",
    )
    init.add_argument(
        "folder", type=Path, nargs="?", default=Path("my-agent"), metavar="FOLDER",
        help="a new or empty one (default: %(default)s)",
    )  # fmt: skip
    for option in OPTIONS:
        told = option.question + (f" (default: {option.default})" if option.default else "")
        init.add_argument(option.flag, metavar="TEXT", help=told.replace("%", "%%"))
    init.add_argument("--defaults", action="store_true", help="ask nothing")
    init.add_argument("--list-options", action="store_true", help="print the questions as JSON")
    init.set_defaults(run=_init)


def _add_serve(commands: Commands) -> None:
    serve = commands.add_parser(
        "serve",
        help="run the server: the OpenAI Realtime protocol at /v1/realtime",
        description="Run the server. Settings come from --config, then the environment "
        "(VOICELOOP_<NAME>), then the flags below; the last one wins.",
    )
    _add_place(serve)
    add_keys(serve, (f"{part}_{what}" for part in PARTS for what in ("url", "model")))
    add_keys(serve, ("preset", "llm_adapter"))
    add_keys(serve.add_argument_group("[engine] of the configuration"), (), prefix="engine.")
    serve.set_defaults(run=_serve)


def _add_place(server: argparse.ArgumentParser) -> None:
    """Where a server listens, who may come in, and which agent answers."""
    server.add_argument(
        "--config", type=Path, metavar="FILE", help="settings: a TOML file (default: none)"
    )
    add_keys(
        server,
        (
            *("host", "port", "agent", "agents", "reload"),
            *("keys_file", "certfile", "keyfile", "log_level"),
        ),
    )


def _add_gateway(commands: Commands) -> None:
    gateway = commands.add_parser(
        "gateway",
        help="run a server whose models are elsewhere: workers on the network, services",
        description=GATEWAY_DESCRIPTION,
    )
    _add_place(gateway)
    add_gateway_arguments(gateway)
    gateway.set_defaults(run=_gateway)


def _add_worker(commands: Commands) -> None:
    worker = commands.add_parser(
        "worker",
        help="hold models for servers on other machines",
        description=WORKER_DESCRIPTION,
    )
    add_worker_arguments(worker)
    worker.set_defaults(run=_worker)


def _add_cluster(commands: Commands) -> None:
    told = "run gateways and workers over machines, with Ray"
    cluster = commands.add_parser("cluster", help=told, description=CLUSTER_DESCRIPTION)
    add_cluster_arguments(cluster)
    cluster.set_defaults(run=_cluster)


def _add_url(command: argparse.ArgumentParser) -> None:
    told = "the server (default: %(default)s)"
    command.add_argument("url", nargs="?", metavar="URL", default=DEFAULT_URL, help=told)


def _add_talk(commands: Commands) -> None:
    told = "talk to a running server with your microphone, or with a WAV"
    talk = commands.add_parser("talk", help=told, description=TALK_DESCRIPTION)
    _add_url(talk)
    add_talk_arguments(talk)
    talk.set_defaults(run=_talk)


def _add_call(commands: Commands) -> None:
    told = "drive a call turn by turn, by hand or from a program: start, say, events, stop"
    call = commands.add_parser("call", help=told, description=CALL_DESCRIPTION)
    add_call_arguments(call)
    call.set_defaults(run=_call)


def _add_conformance(commands: Commands) -> None:
    conformance = commands.add_parser(
        "conformance",
        help="check any server against the OpenAI Realtime protocol",
        description="Try named black-box checks of the Realtime protocol (GA) on a running server, "
        "VoiceLoop or another, and print a table. Exits with 1 where a check fails.",
    )
    _add_url(conformance)
    add_conformance_arguments(conformance)
    conformance.set_defaults(run=_conformance)


def _add_bench(commands: Commands) -> None:
    told = "measure any chat or Realtime endpoint: first token, tokens a second, the gap"
    bench = commands.add_parser("bench", help=told, description=BENCH_DESCRIPTION)
    add_bench_arguments(bench)
    bench.set_defaults(run=_bench)


def _add_replay(commands: Commands) -> None:
    told = "play kept calls again with other settings, and print what differs"
    replay = commands.add_parser("replay", help=told, description=REPLAY_DESCRIPTION)
    add_replay_arguments(replay)
    replay.set_defaults(run=_replay)


def _add_evaluate(commands: Commands) -> None:
    told = "play scenarios to an agent, and judge what it says, does, and how fast"
    evaluate = commands.add_parser("evaluate", help=told, description=EVALUATE_DESCRIPTION)
    add_evaluate_arguments(evaluate)
    evaluate.set_defaults(run=_evaluate)


def _add_models(commands: Commands) -> None:
    models = commands.add_parser(
        "models",
        help="the models of each preset: which are on disk, fetch them, where they lie",
        description="The models of each preset. They lie in the Hugging Face cache, where other "
        "programs find them too; HF_HOME, HF_ENDPOINT, HF_TOKEN and HF_HUB_OFFLINE are honoured.",
    )
    models.set_defaults(run=_models)
    verbs = models.add_subparsers(title="verbs", metavar="VERB", dest="verb", required=True)
    verbs.add_parser("list", help="each preset's models, and what it lacks here")
    pull = verbs.add_parser("pull", help="fetch a preset's models, or one model")
    pull.add_argument("name", metavar="NAME", help="cpu, gpu, or an id owner/name[@revision]")
    gate = verbs.add_parser(
        "gate",
        help="whether a model in eight or four bits still is the model, beside bf16",
        description="Likeliest tokens, divergence and fifty tool calls in this format and in bf16, "
        "on callers that ship. It takes minutes; serve and doctor tell what it found.",
    )
    gate.add_argument("name", metavar="MODEL", help="as --llm-model: a name, a folder, a GGUF file")
    gate.add_argument("--weights", default="int8", choices=("int8", "int4", "bf16"))
    gate.add_argument("--kv", default="bf16", choices=("int8", "bf16"))
    gate.add_argument("--exact", action="store_true", help="fp32 too: what bf16 itself strays by")
    path = verbs.add_parser("path", help="print the cache's folder, or a model's")
    path.add_argument("name", metavar="NAME", nargs="?", help="a preset or an id")


def _add_doctor(commands: Commands) -> None:
    doctor = commands.add_parser(
        "doctor",
        help="check this machine: versions, devices, models, a self-test of each stage",
        description="Check this machine and name the remedy for each problem found.",
    )
    doctor.add_argument("--preset", metavar="NAME", help="look at this one (default: serve's own)")
    doctor.add_argument(
        "--config", type=Path, metavar="FILE", help="with these settings of a server"
    )
    doctor.add_argument(
        "--agent", type=Path, metavar="FILE", help="and ask what its tools and documents need"
    )
    doctor.set_defaults(run=_doctor)


# --- the commands --------------------------------------------------------------------------------


def _demo(arguments: argparse.Namespace) -> int:
    from clients.demo import DemoOptions, run_demo

    options = DemoOptions(arguments.out, arguments.wav, arguments.json)
    return asyncio.run(run_demo(options))


def _init(arguments: argparse.Namespace) -> int:
    from voiceloop.new_agent.command import run_init

    return run_init(arguments)


def _serve(arguments: argparse.Namespace) -> int:
    from voiceloop.server.serve_command import run_serve

    return run_serve(arguments.config, _flags(arguments))


def _gateway(arguments: argparse.Namespace) -> int:
    from voiceloop.server.serve_command import run_gateway

    return run_gateway(
        arguments.config,
        _flags(arguments),
        shares_port=arguments.share_port,
        tells=arguments.json,
    )


def _flags(arguments: argparse.Namespace) -> dict[str, Any]:
    """What was named on the command line; None: it was not."""
    others = ("run", "config", "json", "share_port")
    return {key: value for key, value in vars(arguments).items() if key not in others}


def _worker(arguments: argparse.Namespace) -> int:
    from voiceloop.server.worker_command import run_worker

    flags = {key: value for key, value in vars(arguments).items() if key in WORKER_SETTINGS}
    return run_worker(
        arguments.config,
        flags,
        arguments.role,
        arguments.listen,
        version=arguments.version,
        tells=arguments.json,
    )


def _cluster(arguments: argparse.Namespace) -> int:
    from voiceloop.server.cluster_command import run_cluster

    return run_cluster(arguments)


def _talk(arguments: argparse.Namespace) -> int:
    from clients.connection import own_key
    from clients.talk.command import TalkOptions, run_talk

    if arguments.out is not None and arguments.wav is None:
        raise InvalidRequest("expected --wav with --out, found --out alone")
    if arguments.wav is not None and arguments.push_to_talk:
        raise InvalidRequest("expected --push-to-talk without --wav, found both")
    options = TalkOptions(
        arguments.url,
        arguments.wav,
        arguments.out,
        own_key(arguments.url),
        arguments.voice,
        push_to_talk=arguments.push_to_talk,
        cancels_echo=not arguments.no_echo_cancellation,
    )
    return asyncio.run(run_talk(options))


def _call(arguments: argparse.Namespace) -> int:
    from clients.console.command import run_call

    return run_call(arguments)


def _conformance(arguments: argparse.Namespace) -> int:
    from clients.conformance.command import ConformanceOptions, print_checks, run_conformance
    from clients.connection import own_key

    if arguments.list:
        print_checks()
        return 0
    options = ConformanceOptions(
        arguments.url,
        arguments.api_key or own_key(arguments.url),
        arguments.model,
        tuple(arguments.only),
        arguments.json,
        arguments.jobs,
        arguments.timeout,
    )
    return asyncio.run(run_conformance(options))


def _bench(arguments: argparse.Namespace) -> int:
    from clients.bench.command import run_bench

    return run_bench(arguments)


def _evaluate(arguments: argparse.Namespace) -> int:
    from clients.evaluate.command import run_evaluate

    return run_evaluate(arguments)


def _replay(arguments: argparse.Namespace) -> int:
    from voiceloop.replay.command import run_replay

    return run_replay(arguments)


def _models(arguments: argparse.Namespace) -> int:
    from voiceloop.models.listing import run_gate, run_list, run_path, run_pull

    if arguments.verb == "list":
        return run_list()
    if arguments.verb == "gate":
        asked = arguments.weights, arguments.kv
        return run_gate(arguments.name, *asked, exact=arguments.exact)
    return run_pull(arguments.name) if arguments.verb == "pull" else run_path(arguments.name)


def _doctor(arguments: argparse.Namespace) -> int:
    from voiceloop.config import load_config
    from voiceloop.doctor.report import run_doctor

    flags = {"preset": arguments.preset, "agent": arguments.agent}
    return run_doctor(load_config(arguments.config, environ=os.environ, flags=flags))

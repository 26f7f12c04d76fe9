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
        description="A server for real-time voice agents that you host yourself.",
        examples=("voiceloop demo", "voiceloop serve --agent dentist"),
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
        help="Plays a recorded call to the real server, and writes its sound and report.",
        description="Starts the real server on a free port of this machine, and plays a recorded "
        "caller to it in real time. Writes conversation.wav (caller left, agent right), "
        "turns.json, waterfall.png and report.html. Ctrl-C keeps what was recorded by then. "
        "Downloads nothing. Exits with 1 if a turn got no answer.",
        examples=("voiceloop demo --out demo-out",),
    )
    demo.add_argument(
        "--wav",
        type=Path,
        metavar="FILE",
        help="Play your own caller: a mono 16-bit WAV of at most ten minutes (default: bundled)",
    )
    demo.add_argument(
        "--json",
        action="store_true",
        help="Print the figures as JSON; the rest goes to standard error",
    )
    demo.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        default=Path("demo-out"),
        help="Write the files into this folder (default: %(default)s)",
    )
    demo.set_defaults(run=_demo)


def _add_init(commands: Commands) -> None:
    init = commands.add_parser(
        "init",
        help="Writes the folder of an agent of your own, which runs at once.",
        description="Writes a folder for an agent of your own: its file, a tool, scenarios, a"
        " test and a container file. In a terminal the command asks questions. Each question "
        "is also a flag. Without a terminal a flag that you leave out has its default.",
        examples=("voiceloop init my-agent", "voiceloop init my-shop --defaults"),
    )
    init.add_argument(
        "folder", type=Path, nargs="?", default=Path("my-agent"), metavar="FOLDER",
        help="Write into this new or empty folder (default: %(default)s)",
    )  # fmt: skip
    for option in OPTIONS:
        told = option.question + (f" (default: {option.default})" if option.default else "")
        init.add_argument(option.flag, metavar="TEXT", help=told.replace("%", "%%"))
    init.add_argument("--defaults", action="store_true", help="Ask nothing, and take the defaults")
    init.add_argument(
        "--list-options", action="store_true", help="Print the questions as JSON, and write nothing"
    )
    init.set_defaults(run=_init)


def _add_serve(commands: Commands) -> None:
    serve = commands.add_parser(
        "serve",
        help="Runs the server.",
        description="Runs the server: the OpenAI Realtime protocol at /v1/realtime, a page at /. "
        "Settings come from --config, then the environment (VOICELOOP_<NAME>), then the flags "
        "below. The last one wins.",
        examples=(
            "voiceloop serve --agent dentist",
            "voiceloop serve --config server.toml --agent agent.toml --reload",
        ),
    )
    _add_place(serve)
    add_keys(serve, (f"{part}_{what}" for part in PARTS for what in ("url", "model")))
    add_keys(serve, ("preset", "llm_adapter"))
    add_keys(serve.add_argument_group("[engine] of the configuration"), (), prefix="engine.")
    serve.set_defaults(run=_serve)


def _add_place(server: argparse.ArgumentParser) -> None:
    """Add the flags for the address, the callers who may come in, and the agent."""
    server.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help="Read the settings from this TOML file (default: none)",
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
        help="Runs a server whose models are elsewhere: workers on the network, services.",
        description=GATEWAY_DESCRIPTION,
        examples=("voiceloop gateway --config gateway.toml",),
    )
    _add_place(gateway)
    add_gateway_arguments(gateway)
    gateway.set_defaults(run=_gateway)


def _add_worker(commands: Commands) -> None:
    worker = commands.add_parser(
        "worker",
        help="Holds models for servers on other machines.",
        description=WORKER_DESCRIPTION,
        examples=("voiceloop worker --role engine --listen 0.0.0.0:9001 --preset embedded",),
    )
    add_worker_arguments(worker)
    worker.set_defaults(run=_worker)


def _add_cluster(commands: Commands) -> None:
    told = "Runs gateways and workers over machines, with Ray."
    cluster = commands.add_parser("cluster", help=told, description=CLUSTER_DESCRIPTION)
    add_cluster_arguments(cluster)
    cluster.set_defaults(run=_cluster)


def _add_url(command: argparse.ArgumentParser) -> None:
    told = "Call this server (default: %(default)s)"
    command.add_argument("url", nargs="?", metavar="URL", default=DEFAULT_URL, help=told)


def _add_talk(commands: Commands) -> None:
    told = "Talks to a running server with your microphone, or with a WAV."
    talk = commands.add_parser(
        "talk",
        help=told,
        description=TALK_DESCRIPTION,
        examples=(
            "voiceloop talk ws://127.0.0.1:8080",
            "voiceloop talk --wav question.wav --out call.wav",
        ),
    )
    _add_url(talk)
    add_talk_arguments(talk)
    talk.set_defaults(run=_talk)


def _add_call(commands: Commands) -> None:
    told = "Drives a call turn by turn, by hand or from a program."
    call = commands.add_parser("call", help=told, description=CALL_DESCRIPTION)
    add_call_arguments(call)
    call.set_defaults(run=_call)


def _add_conformance(commands: Commands) -> None:
    conformance = commands.add_parser(
        "conformance",
        help="Checks any server against the OpenAI Realtime protocol.",
        description="Tries named checks of the Realtime protocol (GA) on a running server, "
        "VoiceLoop or another, and prints a table. Exits with 1 if a check fails.",
        examples=("voiceloop conformance ws://127.0.0.1:8080/v1/realtime --only session",),
    )
    _add_url(conformance)
    add_conformance_arguments(conformance)
    conformance.set_defaults(run=_conformance)


def _add_bench(commands: Commands) -> None:
    told = "Measures any chat or Realtime endpoint: first token, response latency."
    bench = commands.add_parser(
        "bench",
        help=told,
        description=BENCH_DESCRIPTION,
        examples=(
            "voiceloop bench http://127.0.0.1:8000/v1 --at-once 1,4",
            "voiceloop bench ws://127.0.0.1:8080 --calls 8",
        ),
    )
    add_bench_arguments(bench)
    bench.set_defaults(run=_bench)


def _add_replay(commands: Commands) -> None:
    told = "Plays kept calls again with other settings, and prints what differs."
    replay = commands.add_parser(
        "replay",
        help=told,
        description=REPLAY_DESCRIPTION,
        examples=("voiceloop replay calls/ --config new.toml",),
    )
    add_replay_arguments(replay)
    replay.set_defaults(run=_replay)


def _add_evaluate(commands: Commands) -> None:
    told = "Plays scenarios to an agent, and judges what it says and does."
    evaluate = commands.add_parser(
        "evaluate",
        help=told,
        description=EVALUATE_DESCRIPTION,
        examples=("voiceloop evaluate agent.toml --scenarios scenarios.toml --spoken",),
    )
    add_evaluate_arguments(evaluate)
    evaluate.set_defaults(run=_evaluate)


def _add_models(commands: Commands) -> None:
    models = commands.add_parser(
        "models",
        help="Lists, fetches, finds and checks the models of each preset.",
        description="Lists, fetches, finds and checks the models of each preset. The models "
        "are kept in the Hugging Face cache, which other programs share. HF_HOME, "
        "HF_ENDPOINT, HF_TOKEN and HF_HUB_OFFLINE have their usual effect.",
    )
    models.set_defaults(run=_models)
    verbs = models.add_subparsers(title="verbs", metavar="VERB", dest="verb", required=True)
    verbs.add_parser(
        "list",
        help="Lists each preset's models, and what is missing here.",
        examples=("voiceloop models list",),
    )
    pull = verbs.add_parser(
        "pull",
        help="Fetches a preset's models, or one model.",
        examples=("voiceloop models pull cpu", "voiceloop models pull Qwen/Qwen3-1.7B"),
    )
    pull.add_argument("name", metavar="NAME", help="Fetch cpu, gpu, or an id owner/name[@revision]")
    gate = verbs.add_parser(
        "gate",
        help="Compares a model in 8 or 4 bits with itself in bf16.",
        description="Compares a model in 8 or 4 bits with itself in bf16: likeliest tokens, "
        "divergence, fifty tool calls. The comparison takes minutes. `serve` and `doctor` "
        "report the result.",
        examples=("voiceloop models gate smollm2-135m --weights int8 --kv int8",),
    )
    gate.add_argument(
        "name",
        metavar="MODEL",
        help="Check this model: a name, a folder or a GGUF file, as for --llm-model",
    )
    gate.add_argument(
        "--weights", default="int8", choices=("int8", "int4", "bf16"),
        help="Keep the weights in this format (default: %(default)s)",
    )  # fmt: skip
    gate.add_argument(
        "--kv", default="bf16", choices=("int8", "bf16"),
        help="Keep keys and values in this format (default: %(default)s)",
    )  # fmt: skip
    gate.add_argument(
        "--exact",
        action="store_true",
        help="Compare bf16 with fp32 too: how far bf16 itself is off",
    )
    path = verbs.add_parser(
        "path",
        help="Prints the folder of the cache, or of a model.",
        examples=("voiceloop models path cpu",),
    )
    path.add_argument("name", metavar="NAME", nargs="?", help="Find this preset or id")


def _add_doctor(commands: Commands) -> None:
    doctor = commands.add_parser(
        "doctor",
        help="Checks this machine, and names the remedy for each problem.",
        description="Checks this machine: versions, devices, models, a self-test of each stage. "
        "Names the remedy for each problem. Exits with 1 if it finds one.",
        examples=("voiceloop doctor --config server.toml --agent agent.toml",),
    )
    doctor.add_argument(
        "--preset", metavar="NAME", help="Check this preset (default: the one that serve takes)"
    )
    doctor.add_argument(
        "--config", type=Path, metavar="FILE", help="Check with these settings of a server"
    )
    doctor.add_argument(
        "--agent",
        type=Path,
        metavar="FILE",
        help="Check also what this agent's tools and documents need",
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
    """Return what was named on the command line; None: it was not."""
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

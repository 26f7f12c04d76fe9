"""The arguments of ``voiceloop worker``, ``gateway`` and ``cluster``. Imports nothing slow."""

from __future__ import annotations

import argparse
from pathlib import Path

WORKER_DESCRIPTION = (
    "Loads models of a preset, and serves them to servers whose configuration names this address "
    "(llm_url = 'worker://HOST:PORT'). Both ends need the same workers.key (VOICELOOP_WORKERS_KEY)."
)
GATEWAY_DESCRIPTION = (
    "Runs a server that holds no models. A service or a worker on the network holds each "
    "model, and says which voices and languages callers may ask for. Name services and "
    "workers by URL or in workers.list. Settings come from --config, then the environment "
    "(VOICELOOP_<NAME>), then the flags below. The last one wins."
)
WORKER_SETTINGS = ("preset", "stt_model", "llm_model", "tts_model")


def add_gateway_arguments(gateway: argparse.ArgumentParser) -> None:
    gateway.add_argument(
        "--share-port",
        action="store_true",
        help="Share the port with other gateways of this user here: a call goes to any of them",
    )
    _add_telling(gateway)


def _add_telling(process: argparse.ArgumentParser) -> None:
    process.add_argument(
        "--json",
        action="store_true",
        help="Print the state twice a second, in a line of JSON. Drain when the reader is gone",
    )


def add_worker_arguments(worker: argparse.ArgumentParser) -> None:
    worker.add_argument(
        "--role",
        action="append",
        required=True,
        choices=("engine", "recognizer", "voice"),
        help="Hold this role; repeat it for several",
    )
    worker.add_argument(
        "--listen",
        required=True,
        metavar="HOST:PORT",
        help="Listen there; port 0 takes any free one",
    )
    worker.add_argument(
        "--version",
        metavar="LABEL",
        default="",
        help="Label the model. Servers divide new calls among labels, and refuse two models of "
        "one label and role (default: none)",
    )
    _add_telling(worker)
    worker.add_argument(
        "--preset", metavar="NAME", help="Hold the models of this preset (default: auto)"
    )
    worker.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help="Read the settings from this TOML file, as serve does",
    )
    for part, what in (("stt", "recognizer"), ("llm", "language model"), ("tts", "voice")):
        worker.add_argument(
            f"--{part}-model", metavar="NAME", help=f"Hold another {what}, as for serve"
        )


CLUSTER_DESCRIPTION = (
    "Runs gateways and workers on one machine or many. Ray places and watches these "
    "processes. Calls and models talk to each other directly. A file, cluster.toml, says what"
    " to run."
)


def add_cluster_arguments(cluster: argparse.ArgumentParser) -> None:
    verbs = cluster.add_subparsers(title="verbs", metavar="VERB", dest="verb", required=True)
    up = verbs.add_parser(
        "up",
        help="Starts a cluster.",
        description="Starts a cluster. Without --address the cluster runs on this machine "
        "until ctrl-C.",
        examples=("voiceloop cluster up --config cluster.toml",),
    )
    _add_plan(up)
    _add_address(up, "Start it on this running Ray cluster (default: this machine alone)")
    status = verbs.add_parser(
        "status",
        help="Shows machines, processes, versions and load.",
        examples=("voiceloop cluster status",),
    )
    status.add_argument("--json", action="store_true", help="Print it as JSON")
    deploy = verbs.add_parser(
        "deploy",
        help="Rolls out another plan, or the one before.",
        description="Rolls out another plan, or goes back to the previous one. New calls move"
        " first.",
        examples=("voiceloop cluster deploy --config cluster.toml --canary 0.05",),
    )
    _add_plan(deploy)
    deploy.add_argument(
        "--canary",
        type=_share,
        default=0.0,
        metavar="SHARE",
        help="Give workers that differ only this share of new calls, until the next deploy",
    )
    drain = verbs.add_parser(
        "drain",
        help="Empties a machine: its calls end, or move to others.",
        examples=("voiceloop cluster drain 10.0.0.5",),
    )
    drain.add_argument(
        "node", metavar="NODE", help="Leave this machine: its address or id, as status shows it"
    )
    drain.add_argument("--undo", action="store_true", help="Place processes there again")
    down = verbs.add_parser(
        "down", help="Drains and ends the whole cluster.", examples=("voiceloop cluster down",)
    )
    for verb in (status, deploy, drain, down):
        _add_address(verb, "Find it on this Ray cluster (default: the one of this machine)")


def _share(text: str) -> float:
    try:
        share = float(text)
    except ValueError:
        share = 0.0
    if not 0 < share <= 0.5:
        raise argparse.ArgumentTypeError(f"expected more than 0, 0.5 at most, found {text!r}")
    return share


def _add_plan(verb: argparse.ArgumentParser) -> None:
    told = "Run what this TOML file names"
    verb.add_argument("--config", type=Path, metavar="FILE", required=True, help=told)


def _add_address(verb: argparse.ArgumentParser, told: str) -> None:
    verb.add_argument("--address", metavar="ADDRESS", help=told)

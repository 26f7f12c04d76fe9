"""The arguments of ``voiceloop worker``, ``gateway`` and ``cluster``. Imports nothing slow."""

from __future__ import annotations

import argparse
from pathlib import Path

WORKER_DESCRIPTION = (
    "Load models of a preset and serve them to the servers whose configuration names this address "
    "(llm_url = 'worker://HOST:PORT'). Both ends need the same workers.key (VOICELOOP_WORKERS_KEY)."
)
GATEWAY_DESCRIPTION = (
    "Run a server that holds no models: each part is a service or is held by workers on the "
    "network, by its URL or by workers.list. What callers may ask for, voices and languages, is "
    "what these say. Settings come from --config, then the "
    "environment (VOICELOOP_<NAME>), then the flags below; the last one wins."
)
WORKER_SETTINGS = ("preset", "stt_model", "llm_model", "tts_model")


def add_gateway_arguments(gateway: argparse.ArgumentParser) -> None:
    gateway.add_argument(
        "--share-port",
        action="store_true",
        help="with other gateways of this user on this machine: a call goes to any of them",
    )
    _add_telling(gateway)


def _add_telling(process: argparse.ArgumentParser) -> None:
    process.add_argument(
        "--json",
        action="store_true",
        help="tell of itself twice a second, in a line of JSON; drain once nobody reads it",
    )


def add_worker_arguments(worker: argparse.ArgumentParser) -> None:
    worker.add_argument(
        "--role",
        action="append",
        required=True,
        choices=("engine", "recognizer", "voice"),
        help="what to hold; may be repeated",
    )
    worker.add_argument(
        "--listen", required=True, metavar="HOST:PORT", help="where; port 0 for any free one"
    )
    worker.add_argument(
        "--version",
        metavar="LABEL",
        default="",
        help="workers of one label and role hold the same model, of several labels any: servers "
        "refuse a worker that differs, and divide new calls among labels (default: none)",
    )
    _add_telling(worker)
    worker.add_argument("--preset", metavar="NAME", help="whose models (default: auto)")
    worker.add_argument(
        "--config", type=Path, metavar="FILE", help="settings, as of serve: a TOML file"
    )
    for part, what in (("stt", "recognizer"), ("llm", "language model"), ("tts", "voice")):
        worker.add_argument(f"--{part}-model", metavar="NAME", help=f"another {what}, as of serve")


CLUSTER_DESCRIPTION = (
    "Run gateways and workers on one machine or many, placed and watched by Ray: calls and models "
    "talk to each other directly. What is to run stands in a file, cluster.toml."
)


def add_cluster_arguments(cluster: argparse.ArgumentParser) -> None:
    verbs = cluster.add_subparsers(title="verbs", metavar="VERB", dest="verb", required=True)
    up = verbs.add_parser("up", help="start a cluster; without --address here, until ctrl-C")
    _add_plan(up)
    _add_address(up, "a running Ray cluster to start it on (default: this machine alone)")
    status = verbs.add_parser("status", help="machines, processes, versions, load")
    status.add_argument("--json", action="store_true", help="as JSON")
    deploy = verbs.add_parser(
        "deploy", help="roll out another plan, or the one before: new calls move first"
    )
    _add_plan(deploy)
    deploy.add_argument(
        "--canary",
        type=_share,
        default=0.0,
        metavar="SHARE",
        help="only give workers that differ this share of new calls, as 0.05; deploy ends it",
    )
    drain = verbs.add_parser("drain", help="leave a machine: its calls end, or move")
    drain.add_argument("node", metavar="NODE", help="its address or id, as status shows it")
    drain.add_argument("--undo", action="store_true", help="place processes there again")
    down = verbs.add_parser("down", help="drain and end all of it")
    for verb in (status, deploy, drain, down):
        _add_address(verb, "the Ray cluster it runs on (default: the one of this machine)")


def _share(text: str) -> float:
    try:
        share = float(text)
    except ValueError:
        share = 0.0
    if not 0 < share <= 0.5:
        raise argparse.ArgumentTypeError(f"expected more than 0, 0.5 at most, found {text!r}")
    return share


def _add_plan(verb: argparse.ArgumentParser) -> None:
    told = "what is to run: a TOML file"
    verb.add_argument("--config", type=Path, metavar="FILE", required=True, help=told)


def _add_address(verb: argparse.ArgumentParser, told: str) -> None:
    verb.add_argument("--address", metavar="ADDRESS", help=told)

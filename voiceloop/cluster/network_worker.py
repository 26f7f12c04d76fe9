"""The process of a worker on the network: a worker whose loop also serves gateways over TCP.

`host.py` starts it and hands it the listening socket, which outlives it.
"""

from __future__ import annotations

import argparse
import os
import socket
import sys
from collections.abc import Sequence

import msgspec

from voiceloop.cluster.door import NetworkDoor
from voiceloop.cluster.handshake import stretched
from voiceloop.cluster.tls import Seal, drawn_seal
from voiceloop.strangers import network_of
from voiceloop.workers.messages import WorkerSpec
from voiceloop.workers.process_setup import prepare
from voiceloop.workers.worker import add_arguments, serve

KEY_VARIABLE = "VOICELOOP_WORKERS_KEY"  # of this process: all of them, as JSON


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="voiceloop.cluster.network_worker", description="Holds models for many gateways."
    )
    add_arguments(parser)
    parser.add_argument("--listen-fd", type=int, required=True, help="an inherited socket")
    options = parser.parse_args(arguments)
    spec = msgspec.json.decode(options.spec_json, type=WorkerSpec)
    keys = msgspec.json.decode(os.environ.pop(KEY_VARIABLE), type=tuple[str, ...])
    prepare(spec)
    listening = socket.socket(fileno=options.listen_fd)
    seal = drawn_seal() if network_of(listening.getsockname()[0]) else None
    with socket.socket(fileno=options.fd) as connection:
        return serve(connection, spec, lambda: _door(listening, keys, seal))


def _door(listening: socket.socket, keys: Sequence[str], seal: Seal | None) -> NetworkDoor:
    return NetworkDoor(listening, [stretched(key.encode()) for key in keys], seal)


if __name__ == "__main__":
    sys.exit(main())

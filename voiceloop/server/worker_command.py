"""``voiceloop worker``: from a configuration to a worker on the network."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from voiceloop.backends import RoleName
from voiceloop.cell import make_undumpable
from voiceloop.cluster.address import Address, read_address
from voiceloop.cluster.host import host_worker
from voiceloop.config import Config, load_config
from voiceloop.errors import ConfigError
from voiceloop.models.held import describe_models
from voiceloop.models.presets import with_preset, worker_specs
from voiceloop.server.progress import ServeProgress
from voiceloop.server.serve_command import log_at
from voiceloop.workers.messages import WorkerSpec

MAX_VERSION = 100  # characters of a label


def run_worker(
    file: Path | None,
    flags: Mapping[str, Any],
    roles: Sequence[RoleName],
    listen: str,
    *,
    version: str = "",
    tells: bool = False,
) -> int:
    """Serve until a signal; returns the exit code. tells: of itself, in lines of JSON.

    Raises: as `host_worker`.
    """
    config, notes = with_preset(load_config(file, environ=os.environ, flags=flags))
    log_at(config.log_level)
    serving = host_worker(
        msgspec.structs.replace(spec_of_roles(config, roles), version=version[:MAX_VERSION]),
        read_address("--listen", listen),
        config.workers,
        drain_s=config.limits.longest_drain_s,
        tells=tells,
        ready=_tell_ready,
        on_progress=ServeProgress(notes).role_changed,
    )
    make_undumpable()  # it holds what callers say
    asyncio.run(serving)
    return 0


def spec_of_roles(config: Config, roles: Sequence[RoleName]) -> WorkerSpec:
    """One process with these roles of the preset, for a worker on the network.

    Raises: as `worker_specs`, and ConfigError where a role has no model here.
    """
    nowhere = replace(config.workers, engine=(), recognizer=(), voice=(), list=None)
    here = replace(config, workers=nowhere)
    specs = worker_specs(here, roles)
    held = {spec.role for one in specs for spec in one.roles}
    lacking = [role for role in roles if role not in held]
    if lacking:
        raise ConfigError(f"--role: expected one with a model here, found {lacking[0]}")
    one = msgspec.structs.replace(
        specs[0],
        name=" and ".join(spec.name for spec in specs),
        roles=tuple(role for spec in specs for role in spec.roles),
        n_threads=max(spec.n_threads for spec in specs),
    )
    return describe_models(here, one)


def _tell_ready(address: Address) -> None:
    print(f"voiceloop worker is ready: {address}", file=sys.stderr, flush=True)

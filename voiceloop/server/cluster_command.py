"""``voiceloop cluster``: up, status, deploy, drain, down."""

from __future__ import annotations

import argparse
import os
import secrets
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from voiceloop.cluster.control.plan import Group, configuration_of, read_plan
from voiceloop.cluster.control.status import Status, lack_of_room, text_of
from voiceloop.cluster.ray_door import MODE, close_door
from voiceloop.config import PREFIX, Config, all_keys, load_config, variable_of
from voiceloop.config_reader import FILE, overlay
from voiceloop.errors import ConfigError

LOOK_S = 0.5
SEEN_S = 3.0  # by then what is wanted has been asked of Ray
ROOM_S = 20.0  # Ray starts a process within some 5 s of two busy cores
HERE = "auto"  # as Ray calls the cluster that runs on this machine
SOURCE = "the cluster's configuration"
FILES = {path.rpartition(".")[2] for path, key in all_keys().items() if key.is_path}
SECRETS = {path: variable_of(path) for path, key in all_keys().items() if key.is_secret}
KEY_NAMES = tuple(SECRETS.values())


def run_cluster(arguments: argparse.Namespace, environ: Mapping[str, str] = os.environ) -> int:
    """Returns the exit code.

    Raises:
        ConfigError: the plan, or the configuration it names, is wrong; no token of Ray's.
        ClusterError: there is no cluster, there is one already, or it does not answer.
    """
    verb = arguments.verb
    if verb in ("up", "deploy"):
        groups = read_plan(arguments.config)
        settings = settings_for(groups, environ)
    is_new = verb == "up" and arguments.address is None
    close_door(os.environ, is_new=is_new)
    if os.environ[MODE] != "token":
        print(f"{MODE}={os.environ[MODE]}: who reaches Ray runs code here", file=sys.stderr)
    from voiceloop.cluster import ray as control  # the extra; a mistake in the plan is told first

    if is_new:
        os.environ.update(new_keys(groups, environ))  # Ray's processes have what this one has
        return _up_here(groups, settings)
    control.join(arguments.address or HERE)
    try:
        match verb:
            case "up":
                control.begin(groups, settings, KEY_NAMES, token=os.environ[MODE] == "token")
                if lacking := new_keys(groups, environ):
                    wanted = "expected in the environment of each machine, as its keys"
                    print(f"{' and '.join(sorted(lacking))}: {wanted}", file=sys.stderr)
                print("the cluster starts: voiceloop cluster status", file=sys.stderr)
            case "deploy":
                share = arguments.canary
                tried = control.deploy(groups, settings, canary=share)
                waiting = wait_for_room(control.status)
                print(_told_of_deploy(tried, share), file=sys.stderr)
                if waiting:
                    raise control.ClusterError(waiting)
            case "drain":
                machine = control.drain(arguments.node, is_left=not arguments.undo)
                told = "is taken again" if arguments.undo else "is being left"
                print(f"machine {machine.address} {told}", file=sys.stderr)
            case "down":
                control.stop()
                _wait_down()
                control.forget()
            case "status":
                status = control.status()
                print(_json_of(status) if arguments.json else text_of(status))
    finally:
        control.leave()
    return 0


def _told_of_deploy(tried: Sequence[str], canary: float) -> str:
    if not canary:
        return "it is being rolled out: voiceloop cluster status"
    if not tried:
        return "nothing is tried: no workers of this plan differ"
    return f"{canary:.0%} of new calls go to the other version of {', '.join(tried)}"


def wait_for_room(status: Callable[[], Status], sleep: Callable[[float], None] = time.sleep) -> str:
    """Watch what was wanted begin, for ROOM_S at most; what finds no room, "" where all does."""
    waiting = ""
    for look in range(round(ROOM_S / LOOK_S)):
        sleep(LOOK_S)
        now = status()
        waiting = lack_of_room(now)
        if now.is_settled or (not waiting and look * LOOK_S >= SEEN_S):
            return ""
    return waiting


def settings_for(groups: Sequence[Group], environ: Mapping[str, str]) -> dict[str, str]:
    """Return this environment's settings, which all processes get, checked with their
    configuration.

    Returns them without keys. Raises: ConfigError.
    """
    configuration = configuration_of(groups)
    told = overlay(Config(), configuration, SOURCE)
    _check_paths(configuration)
    _check_secrets(configuration)
    own = {name: text for name, text in environ.items() if name.startswith(PREFIX)}
    if version := next(iter((*load_config(environ=own).canary, *told.canary)), ""):
        wanted = "expected none, for workers are tried by voiceloop cluster deploy --canary"
        raise ConfigError(f"{SOURCE}: canary: {wanted}; found {version!r}")
    return {name: text for name, text in own.items() if name not in KEY_NAMES}


def new_keys(groups: Sequence[Group], environ: Mapping[str, str]) -> dict[str, str]:
    """Drawn for a cluster that has none: without them no worker takes a gateway, and no call goes
    on at another one."""
    configuration = configuration_of(groups)
    named = {
        "VOICELOOP_SECRET_KEY": configuration.get("secret_key"),
        "VOICELOOP_WORKERS_KEY": configuration.get("workers", {}).get("key"),
    }
    return {
        name: secrets.token_hex(16)
        for name, text in named.items()
        if not text and not environ.get(name)
    }


def _check_secrets(values: Mapping[str, Any], path: str = "") -> None:
    """The text goes to every machine by Ray, and a key in it would."""
    for key, value in values.items():
        where = f"{path}{key}"
        if isinstance(value, Mapping) and where not in SECRETS:
            _check_secrets(value, f"{where}.")
        elif where in SECRETS and not _is_elsewhere(value):
            wanted = f"expected {SECRETS[where]} in the environment of each machine instead"
            raise ConfigError(f"{SOURCE}: {where}: {wanted}, found a key in the file")


def _is_elsewhere(value: Any) -> bool:
    """Whether this names where a key is, and is none itself."""
    if isinstance(value, Mapping):
        return all(_is_elsewhere(one) for one in value.values())
    if isinstance(value, list):
        return all(_is_elsewhere(one) for one in value)
    return not value or str(value).startswith(FILE) or "${" in str(value)


def _check_paths(values: Mapping[str, Any]) -> None:
    """The text goes to every machine, and nothing that lies beside it does."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            _check_paths(value)
        elif key in FILES and isinstance(value, str) and not Path(value).is_absolute():
            wanted = "an absolute path, the same on every machine"
            raise ConfigError(f"{SOURCE}: {key}: expected {wanted}, found {value!r}")


def _up_here(groups: tuple[Group, ...], environ: dict[str, str]) -> int:
    """A cluster of this machine, for as long as this command runs."""
    from voiceloop.cluster import ray as control

    print("starting Ray on this machine", file=sys.stderr)
    control.begin_here()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # Ray's own would cut calls
    try:
        control.begin(
            groups, environ, KEY_NAMES, address=control.LOOPBACK
        )  # nobody else is to reach them
        try:
            _watch()
        except KeyboardInterrupt:
            print("stopping: calls in progress may end; ctrl-C again cuts them", file=sys.stderr)
            control.stop()
            _wait_down()
    finally:
        control.leave()
    return 0


def _watch() -> None:
    """Tell what changes, for ever."""
    from voiceloop.cluster import ray as control

    before: dict[str, str] = {}
    was_settled = False
    while True:
        status = control.status()
        now = {one.name: one.state for one in status.processes}
        for one in status.processes:
            if before.get(one.name) != one.state:
                print(f"{one.name}: {one.state} {one.address}".rstrip(), file=sys.stderr)
        if status.is_settled and not was_settled:
            urls = sorted({one.address for one in status.processes if not one.roles})
            print(f"the cluster is ready: {', '.join(urls)}", file=sys.stderr, flush=True)
        before, was_settled = now, status.is_settled
        time.sleep(LOOK_S)


def _wait_down() -> None:
    from voiceloop.cluster import ray as control

    while not control.is_down():
        time.sleep(LOOK_S)


def _json_of(status: Status) -> str:
    return msgspec.json.format(msgspec.json.encode(status)).decode()

"""The plan of a cluster: ``cluster.toml``, read strictly, and what follows for each process.

Owns the groups of processes, how many of each, what one takes of a machine, the command that starts
it, and the version: a digest of everything that makes a process of this group what it is, so that
whatever differs is rolled out and nothing else is. Pure but for the reading of the files.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from voiceloop.backends import RoleName
from voiceloop.config_reader import key, overlay, read_toml, read_toml_text
from voiceloop.errors import ConfigError
from voiceloop.operation import HOST, PORT

GATEWAYS = "gateways"
CONFIGURATION, AGENT = "server.toml", "agent.toml"  # as they are called on every machine
MOST_PROCESSES = 1000  # of a group: a cell is about a thousand calls, and this is a slip
MAX_FILE_BYTES = 1024 * 1024
NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,40}")
DIGEST_CHARACTERS = 6
OWN_KEYS = {"CPU": "cpus", "GPU": "gpus"}
LEAST_AMOUNT = 0.0001  # of a resource: Ray counts in such parts


@dataclass(frozen=True, slots=True, kw_only=True)
class Processes:
    """How many processes of a kind there are, and what one takes of its machine, as Ray counts it.

    spare: how many more than the load needs, warm and taking calls, so that one may go.
    """

    least: int = key(2, "How many at least.", ge=1, le=MOST_PROCESSES)
    most: int = key(0, "How many at most.", ge=1, le=MOST_PROCESSES, zero="as `least`")
    spare: int = key(1, "How many of them the load may not need.", ge=0, le=MOST_PROCESSES)
    cpus: float = key(1.0, "Processors of one.", ge=0, le=1024)
    resources: Mapping[str, float] = key({}, "Other resources of one.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Gateways(Processes):
    """The processes that callers reach. Those of one machine share its port."""

    host: str = HOST
    port: int = key(PORT, "Shared by those of one machine.", ge=1, le=65535)


@dataclass(frozen=True, slots=True, kw_only=True)
class Workers(Processes):
    """Processes that hold the same models."""

    roles: tuple[RoleName, ...]
    name: str = ""
    preset: str = ""
    stt_model: str = ""
    llm_model: str = ""
    tts_model: str = ""
    version: str = key(
        "",
        "What a person calls them.",
        pattern=r"[A-Za-z0-9._-]{0,40}",
        wanted="at most 40 letters, digits, dots, - and _",
    )
    gpus: float = key(0.0, "GPUs of one.", ge=0, le=64)


@dataclass(frozen=True, slots=True)
class PlanFile:
    """``cluster.toml`` as it is written. config, agent: files whose text goes to every machine."""

    version: str = ""
    config: Path | None = None
    agent: Path | None = None
    gateways: Gateways = field(default_factory=Gateways)
    workers: tuple[Workers, ...] = ()


@dataclass(frozen=True, slots=True)
class Launch:
    """How a process starts: arguments of the ``voiceloop`` command, and files beside it.

    ``{folder}``, ``{address}`` and ``{version}`` in an argument stand for where the files lie, for
    the machine's address and for the group's version; other braces are doubled.
    """

    arguments: tuple[str, ...]
    files: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Group:
    """Processes that are alike. roles: none of a gateway. version: what workers call themselves.

    needs: what one takes of its machine, by Ray's names.
    """

    name: str
    roles: tuple[RoleName, ...]
    version: str
    least: int
    most: int
    spare: int
    launch: Launch
    needs: Mapping[str, float]

    def with_settings(self, environ: Mapping[str, str]) -> Group:
        """Return its processes with these settings, as a version of their own."""
        if not environ:
            return self
        version = f"{self.version}-{_digest(sorted(environ.items()))}"
        return dataclasses.replace(self, version=version)


class Desired(msgspec.Struct, frozen=True):
    """The wanted state of the cluster; the higher generation is the newer.

    environ: settings that its processes have in common; key_names: variables with the keys that
    they have in common too, which stand in the environment of each machine and nowhere else.
    canary: workers of another version, beside those of `groups`; share: what of new calls they get;
    trial: the generation in which they were first wanted.
    given_up: why the last canary was. cordoned: machines to leave.
    """

    generation: int
    groups: tuple[Group, ...]
    environ: Mapping[str, str] = {}
    key_names: tuple[str, ...] = ()
    canary: tuple[Group, ...] = ()
    share: float = 0.0
    trial: int = 0
    given_up: str = ""
    cordoned: tuple[str, ...] = ()
    is_stopping: bool = False

    def without_canary(self, given_up: str = "") -> Desired:
        """The same with nothing that is tried; given_up: why."""
        return msgspec.structs.replace(self, canary=(), share=0.0, given_up=given_up)

    def group(self, name: str) -> Group | None:
        return next((group for group in self.all_groups if group.name == name), None)

    @property
    def all_groups(self) -> tuple[Group, ...]:
        return (*self.groups, *self.canary)


def read_plan(path: Path) -> tuple[Group, ...]:
    """The groups of a ``cluster.toml``. Paths in it are relative to its folder.

    Raises:
        ConfigError: it is missing or not TOML, a key is unknown, a value is of a wrong type or out
            of its range, or a file that it names cannot be read.
    """
    told = overlay(PlanFile(), read_toml(path, "expected a cluster's file"), str(path))
    texts = {
        name: _text(path.absolute().parent / named, f"{path}: {where}")
        for where, name, named in (
            ("config", CONFIGURATION, told.config),
            ("agent", AGENT, told.agent),
        )
        if named is not None
    }
    if not told.workers:
        raise ConfigError(f"{path}: expected [[workers]], found none")
    _check_processes(told.gateways, f"{path}: gateways")
    groups = [_gateway_group(told, texts)]
    for index, workers in enumerate(told.workers):
        where = f"{path}: workers[{index}]"
        _check_workers(workers, where)
        group = _worker_group(told, workers, texts)
        if any(group.name == other.name for other in groups):
            raise ConfigError(f"{where}.name: expected a name of its own, found {group.name!r}")
        groups.append(group)
    held = {role for group in groups for role in group.roles}
    if "engine" not in held:
        raise ConfigError(f"{path}: expected workers with the role engine, found none")
    return tuple(groups)


def configuration_of(groups: Sequence[Group]) -> dict[str, Any]:
    """The configuration that all processes read; empty where the plan names none.

    Raises: ConfigError where it is not TOML.
    """
    texts = [group.launch.files.get(CONFIGURATION) for group in groups]
    text = next((text for text in texts if text is not None), "")
    return read_toml_text(text, "the cluster's configuration")


def _text(path: Path, where: str) -> str:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{where}: expected a text file, found {path} ({error})") from None
    if len(text) > MAX_FILE_BYTES:
        raise ConfigError(f"{where}: expected at most {MAX_FILE_BYTES} characters, found more")
    return text


def _check_workers(workers: Workers, where: str) -> None:
    if not workers.roles or len(set(workers.roles)) < len(workers.roles):
        raise ConfigError(f"{where}.roles: expected each role once, found {list(workers.roles)}")
    if workers.name and (not NAME.fullmatch(workers.name) or workers.name == GATEWAYS):
        wanted = f"small letters, digits and -, other than {GATEWAYS}"
        raise ConfigError(f"{where}.name: expected {wanted}, found {workers.name!r}")
    if workers.gpus > 1 and workers.gpus % 1:  # Ray places nothing of the kind
        wanted = "a share of one, or as many whole ones"
        raise ConfigError(f"{where}.gpus: expected {wanted}, found {workers.gpus}")
    _check_processes(workers, where)


def _check_processes(one: Processes, where: str) -> None:
    if one.most and one.most < one.least:
        wanted = f"{one.least} to {MOST_PROCESSES}"
        raise ConfigError(f"{where}.most: expected {wanted}, found {one.most}")
    for name, amount in {"CPU": one.cpus, **one.resources}.items():
        place = f"{where}.cpus" if name == "CPU" else f"{where}.resources.{name}"
        if name in OWN_KEYS and name in one.resources:
            wanted = f"the key {OWN_KEYS[name]} for it"
            raise ConfigError(f"{where}.resources: expected {wanted}, found {name}")
        is_number = isinstance(amount, int | float) and not isinstance(amount, bool)
        if not is_number or not math.isfinite(amount) or amount < 0 or 0 < amount < LEAST_AMOUNT:
            wanted = f"0 or a number of at least {LEAST_AMOUNT:g}"
            raise ConfigError(f"{place}: expected {wanted}, found {amount!r}")


def _gateway_group(told: PlanFile, texts: Mapping[str, str]) -> Group:
    gateways = told.gateways
    arguments = [
        "gateway", f"--host={_verbatim(gateways.host)}", f"--port={gateways.port}",
        "--share-port", "--json",
    ]  # fmt: skip
    if CONFIGURATION in texts:
        arguments.append(f"--config={{folder}}/{CONFIGURATION}")
    if AGENT in texts:
        arguments.append(f"--agent={{folder}}/{AGENT}")
    launch = Launch(tuple(arguments), dict(texts))
    return _group(GATEWAYS, (), told.version, gateways, 0.0, launch)


def _worker_group(told: PlanFile, workers: Workers, texts: Mapping[str, str]) -> Group:
    arguments = ["worker", *(f"--role={role}" for role in workers.roles)]
    arguments += ["--listen={address}:0", "--version={version}", "--json"]
    for name in ("preset", "stt_model", "llm_model", "tts_model"):
        if value := getattr(workers, name):
            arguments.append(f"--{name.replace('_', '-')}={_verbatim(value)}")
    files = {name: text for name, text in texts.items() if name == CONFIGURATION}
    if files:
        arguments.append(f"--config={{folder}}/{CONFIGURATION}")
    name, version = workers.name or "-".join(workers.roles), workers.version or told.version
    launch = Launch(tuple(arguments), files)
    return _group(name, workers.roles, version, workers, workers.gpus, launch)


def _group(
    name: str,
    roles: tuple[RoleName, ...],
    version: str,
    one: Processes,
    gpus: float,
    launch: Launch,
) -> Group:
    needs = {"CPU": one.cpus, "GPU": gpus, **one.resources}
    most = max(one.least, one.most)
    named = version_of(version, launch)
    return Group(name, roles, named, one.least, most, one.spare, launch, needs)


def version_of(named: str, launch: Launch) -> str:
    """The version as a person calls it, and a digest of what a process is started with."""
    digest = _digest([list(launch.arguments), sorted(launch.files.items())])
    return f"{named}-{digest}" if named else digest


def _digest(said: Any) -> str:
    encoded = msgspec.json.encode(said)
    return hashlib.blake2b(encoded, digest_size=16).hexdigest()[:DIGEST_CHARACTERS]


def _verbatim(value: str) -> str:
    """Return a plan's text for an argument in which braces stand for something."""
    return value.replace("{", "{{").replace("}", "}}")

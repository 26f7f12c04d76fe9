"""A file that names the workers of each role, read again whenever it is replaced.

Whoever knows where workers are writes it (a directory, Kubernetes, a person), to the end and then
renamed; a server reads it twice a second. One that cannot be read changes nothing: a server goes on
with the list it has.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import aclosing
from pathlib import Path
from typing import get_args

import msgspec

from voiceloop.backends import RoleName
from voiceloop.canary.trial import Canary
from voiceloop.cluster.address import read_address
from voiceloop.errors import ConfigError
from voiceloop.operation import WorkerAddresses
from voiceloop.watched_file import NEVER, writings

log = logging.getLogger(__name__)

ROLES: tuple[RoleName, ...] = get_args(RoleName)
LOOK_EVERY_S = 0.5
MAX_BYTES = 1024 * 1024
MAX_WORKERS = 4096  # of all roles; a cell of a thousand calls has thirty


class WorkerList(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``HOST:PORT`` of each role's workers.

    shares: of new calls, by the version of the workers they go to; a role without any is served by
    all its workers alike. canary: the versions that the writer of this list tries, and judges.
    """

    engine: tuple[str, ...] = ()
    recognizer: tuple[str, ...] = ()
    voice: tuple[str, ...] = ()
    shares: dict[RoleName, dict[str, float]] = {}
    canary: Canary | None = None


def addresses_of(named: WorkerList | WorkerAddresses) -> dict[RoleName, tuple[str, ...]]:
    """Return the addresses of each role that is named."""
    return {role: found for role in ROLES if (found := getattr(named, role))}


def read_worker_list(path: Path) -> WorkerList:
    """Raises: ConfigError where it is missing, too long or no such list."""
    try:
        with path.open("rb") as file:
            body = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise ConfigError(
            f"workers.list: expected a file, found none to read at {path} ({error.strerror})"
        ) from None
    if len(body) > MAX_BYTES:
        raise ConfigError(f"workers.list: expected at most {MAX_BYTES} bytes, found more in {path}")
    try:
        found = msgspec.json.decode(body, type=WorkerList)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise ConfigError(f"workers.list: expected a list of workers in {path}: {error}") from None
    _check(found)
    return found


def _check(found: WorkerList) -> None:
    addresses = addresses_of(found)
    n_workers = sum(map(len, addresses.values()))
    if n_workers > MAX_WORKERS:
        raise ConfigError(f"workers.list: expected at most {MAX_WORKERS}, found {n_workers}")
    for role, texts in addresses.items():
        for text in texts:
            read_address(f"workers.list: {role}", text)
    for role, shares in found.shares.items():
        if any(not 0 <= share <= 1 for share in shares.values()):
            raise ConfigError(f"workers.list: shares.{role}: expected 0 to 1 each, found {shares}")


async def watch_worker_list(path: Path, changed: Callable[[WorkerList], None]) -> None:
    """Tell of each new list for ever, the first included; files that cannot be read are logged."""
    trouble = ""
    while True:
        async with aclosing(writings(path, LOOK_EVERY_S, NEVER)) as new:
            async for _ in new:
                try:
                    found = await asyncio.to_thread(read_worker_list, path)
                except ConfigError as error:
                    if str(error) != trouble:
                        log.warning("%s; the list before it stands", error)
                    trouble = str(error)
                    break  # a disk that failed for a moment writes nothing anew: look again
                trouble = ""
                changed(found)
        await asyncio.sleep(LOOK_EVERY_S)

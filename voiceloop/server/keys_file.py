"""The file of API keys, read again while the server runs.

Owns when it is read, and that what cannot be read changes nothing: a door never opens by a mistake
in a file.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from pathlib import Path

from voiceloop.access.keys import KeyRing
from voiceloop.config import Config, read_keys_file
from voiceloop.errors import ConfigError

log = logging.getLogger(__name__)

READ_EVERY_S = 2.0  # of the 5 s in which a removed key's calls are to end


class KeysFile:
    """The file at `keys_file` beside the keys that the configuration names itself.

    revoke: told the tenants whose keys are gone.
    """

    def __init__(
        self, config: Config, ring: KeyRing, revoke: Callable[[frozenset[str]], None]
    ) -> None:
        self._path = config.keys_file
        self._known = config.keys
        self._own = _without_end(config.keys, config.keys_file)
        self._ring = ring
        self._revoke = revoke
        self._trouble = ""

    async def watch(self) -> None:
        """Watch the file for ever; return at once where there is no file."""
        if self._path is None:
            return
        while True:
            await asyncio.sleep(READ_EVERY_S)
            await self.read(self._path)

    async def read(self, path: Path) -> None:
        """Take what stands there now."""
        try:
            keys = (*self._own, *await asyncio.to_thread(read_keys_file, path))
        except ConfigError as error:
            if str(error) != self._trouble:
                log.error("%s; the keys stay as they were", error)
            self._trouble = str(error)
            return
        self._trouble = ""
        if keys == self._known:
            return
        await asyncio.to_thread(self._ring.derive, keys)
        gone = self._ring.take(keys)
        added = len(set(keys) - set(self._known))
        self._known = keys
        log.info("keys_file was read again: keys added: %d, removed: %d", added, len(gone))
        if gone:
            self._revoke(gone)


def _without_end(keys: Sequence[str], path: Path | None) -> tuple[str, ...]:
    """The keys without those of the file, which stand at the end."""
    try:
        of_file = read_keys_file(path) if path is not None else ()
    except ConfigError:
        of_file = ()
    n_own = len(keys) - len(of_file)
    if n_own >= 0 and tuple(keys[n_own:]) == tuple(of_file):
        return tuple(keys[:n_own])
    return tuple(key for key in keys if key not in of_file)  # it changed as the server started

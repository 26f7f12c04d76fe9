"""The agent's file, read again while somebody writes it: ``voiceloop serve --reload``.

Owns when it is read, and which of its parts wait for the next start. A file that is wrong changes
nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from voiceloop.agent import AgentConfig
from voiceloop.errors import ConfigError
from voiceloop.watched_file import stamp_of, writings

log = logging.getLogger(__name__)

LOOK_EVERY_S = 0.2
# Made of these at the start: connections, processes, an index, what the recognizer was opened with.
AT_THE_START = (
    *("python", "network", "tools", "mcp", "knowledge", "slots"),
    *("language", "lexicon", "hotwords", "llm_adapter"),
)


class AgentFile:
    """read: the file as an agent, checked; take: what the server does with another one.

    Both raise ConfigError; `take` runs in the event loop, `read` beside it.
    """

    def __init__(
        self,
        path: Path,
        agent: AgentConfig,
        read: Callable[[], AgentConfig],
        take: Callable[[AgentConfig], None],
    ) -> None:
        self._path = path
        self._agent = agent
        self._read = read
        self._take = take
        self._saved = stamp_of(path)

    async def watch(self) -> None:
        """Watch the file for ever; what was saved while the server started is taken first."""
        if await asyncio.to_thread(self._is_another):
            await self.reload()
        async for _ in writings(self._path, LOOK_EVERY_S, self._saved):
            await self.reload()

    def _is_another(self) -> bool:
        try:
            return self._read() != self._agent
        except ConfigError:
            return True  # `reload` tells of it

    async def reload(self) -> None:
        """Take what stands in the file now."""
        try:
            found = await asyncio.to_thread(self._read)
            kept = {name: getattr(self._agent, name) for name in AT_THE_START}
            waiting = [name for name, value in kept.items() if getattr(found, name) != value]
            agent = replace(found, **kept)
            self._take(agent)
        except ConfigError as error:
            log.error("%s; the agent stays as it was", error)
            return
        self._agent = agent
        later = f"; {', '.join(waiting)}: at the next start" if waiting else ""
        log.info("%s was read again%s", self._path, later)

"""One answer that several services may be asked for: the first of them to begin it is heard."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from voiceloop.errors import BackendError
from voiceloop.remote.chat_answer import ChatAnswer
from voiceloop.remote.dialect import Dialect, PriorityOrder
from voiceloop.remote.prompt_cache import PromptCache
from voiceloop.remote.service import RemoteService


class Place:
    """One service, how it is spoken to, and what it most likely still has of our prompts."""

    def __init__(
        self,
        service: RemoteService,
        order: PriorityOrder,
        salt_of: Callable[[str], str],
        prompt_cache: PromptCache,
        added: Mapping[str, Any] | None = None,
    ) -> None:
        self.service, self.prompt_cache = service, prompt_cache
        self._order, self._salt_of = order, salt_of
        self._added = added
        self._dialect: Dialect | None = None

    @property
    def dialect(self) -> Dialect:
        """As the service has named itself; one that was not there at the start does so later."""
        service = self.service
        if self._dialect is None or self._dialect.kind is not service.kind:
            self._dialect = Dialect(
                service.kind, service.model, self._order, self._salt_of, self._added
            )
        return self._dialect


class Overtaken(BackendError):
    """Another service has begun the same answer."""


class Race:
    """One answer that services are asked for: the first of them to begin it is heard."""

    def __init__(self, on_text: Callable[[str], None]) -> None:
        self.on_text = on_text
        self._first: Place | None = None
        self._begun = asyncio.Event()

    @property
    def has_begun(self) -> bool:
        return self._first is not None

    def is_won_by(self, place: Place) -> bool:
        return self._first is place

    def begin(self, place: Place) -> None:
        """Raises: Overtaken."""
        if self._first not in (None, place):
            raise Overtaken("expected to be the first that answers, found another was")
        self._first = place
        self._begun.set()

    async def begins_within(self, seconds: float, asked: asyncio.Task[ChatAnswer]) -> None:
        """Return once it begins, fails or is late."""
        begun = asyncio.create_task(self._begun.wait())
        try:
            await asyncio.wait([begun, asked], timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            begun.cancel()


async def first_answer(race: Race, asks: Mapping[asyncio.Task[ChatAnswer], Place]) -> ChatAnswer:
    """Of the first that is answered; where all fail, the error of the first.

    Where the one fails that was heard, no other may be: its error, at once.
    """
    waiting = set(asks)
    while waiting:
        done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            if task.exception() is None or race.is_won_by(asks[task]):
                return task.result()
    raise next(iter(asks)).exception() or AssertionError("unreachable: one of them is answered")

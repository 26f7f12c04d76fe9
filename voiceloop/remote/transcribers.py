"""Several services that transcribe while audio streams in: one of them for each caller."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Sequence

from voiceloop.backends import RecognizerOptions
from voiceloop.errors import BackendError, BackendRefused
from voiceloop.remote.pool import reachable_first
from voiceloop.remote.transcriber import RemoteTranscriber, RemoteTranscriberStream

log = logging.getLogger(__name__)


class Transcribers:
    """``Recognizer`` over several of them; a caller is with one from the opening on."""

    def __init__(
        self, each: Sequence[RemoteTranscriber], draw: random.Random | None = None
    ) -> None:
        self._each = tuple(each)
        self._draw = draw or random.Random()

    async def start(self) -> None:
        """Raises: as `RemoteTranscriber.start`, where none can be had."""
        outcomes = await asyncio.gather(
            *(one.start() for one in self._each), return_exceptions=True
        )
        failures = [one for one in outcomes if isinstance(one, BaseException)]
        for failure in failures:
            if len(failures) == len(self._each):
                raise failure
            log.warning("%s; others of its role do", failure)

    async def open(self, stream_id: str, options: RecognizerOptions) -> RemoteTranscriberStream:
        """Raises: as `RemoteTranscriber.open`, of the last that was asked."""
        *others, last = reachable_first(self._each, self._draw)
        for one in others:
            try:
                return await one.open(stream_id, options)
            except BackendRefused:
                raise
            except BackendError as error:
                log.warning("%s; the next service is asked", error)
        return await last.open(stream_id, options)

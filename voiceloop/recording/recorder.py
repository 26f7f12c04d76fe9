"""The recordings of one server: what a call is given to be kept, and who may have one deleted."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from voiceloop import __version__
from voiceloop.access.keys import KeyRing, client_key, tenant_of
from voiceloop.access.origins import check_origin
from voiceloop.agent import AgentConfig
from voiceloop.config import Config
from voiceloop.errors import InvalidRequest, VoiceLoopError
from voiceloop.http.gate import error_response
from voiceloop.recording.consent import CallConsent
from voiceloop.recording.messages import Forget, Inbox
from voiceloop.recording.shelf import Shelf, sealing
from voiceloop.recording.tap import Tap
from voiceloop.recording.writer import Outcome, Writer
from voiceloop.telemetry.tap import CallTap, KeptCall, Recordings

CLOSE_S = 5.0  # for what waits to be written, once the calls are over


class Recorder(Recordings):
    """Raises: ConfigError, MissingExtra."""

    def __init__(
        self,
        config: Config,
        agent: AgentConfig,
        clock: Callable[[], float],
        observe: Callable[[Outcome], None],
    ) -> None:
        settings = config.recording
        assert settings.folder is not None
        self._settings = settings
        self._clock = clock
        self._shelf = Shelf(settings.folder, settings.keep_days, sealing(settings.age_key))
        self._inbox = Inbox()
        head = {"version": __version__, "configuration": digest_of(config, agent)}
        self._writer = Writer(self._shelf, self._inbox, settings, head, observe)
        self._writer.start()

    def begin(self, call: KeptCall) -> CallTap:
        how, words = self._settings.consent, self._settings.announcement
        consent = CallConsent(how, call.language, words, call.greeting)
        return Tap(call, self._inbox, consent, self._clock)

    def close(self) -> None:
        """May block for CLOSE_S."""
        self._writer.close(CLOSE_S)

    async def delete(self, call_id: str, tenant: str) -> bool:
        """Delete a call of this tenant's, also one that lasts. Whether there was one."""
        is_there = await run_in_threadpool(self._shelf.delete, call_id, tenant)
        if is_there:
            self._inbox.put(call_id, Forget(tenant))  # its files may just have got other names
        return is_there


def deletion_route(
    keys: KeyRing, allowed_origins: Sequence[str], recorder: Recorder | None
) -> Route:
    """``DELETE /v1/recordings/ID``. recorder: None where no call is kept."""

    async def delete(request: Request) -> Response:
        key, call_id = client_key(request.headers), request.path_params["call_id"]
        try:
            check_origin(request.headers, allowed_origins, is_keyed=not keys.is_open)
            keys.check_lasting(key)
        except VoiceLoopError as error:
            return error_response(error)
        if recorder is None or not await recorder.delete(call_id, tenant_of(key)):
            text = "This key has no recording with that id."
            missing = InvalidRequest(text, code="recording_not_found", param="call_id")
            response = error_response(missing)
            response.status_code = 404
            return response
        return JSONResponse({"id": call_id, "object": "recording", "deleted": True})

    return Route("/v1/recordings/{call_id}", delete, methods=["DELETE"])


def digest_of(config: Config, agent: AgentConfig) -> str:
    """Return what tells configurations apart, secrets aside: these are in no `repr`."""
    return hashlib.sha256(repr((config, agent)).encode()).hexdigest()[:16]

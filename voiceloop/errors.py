"""The one error tree of VoiceLoop.

Every error a person or a client can meet carries what the wire needs: an error ``type`` and
``code`` for the ``error`` event, the WebSocket ``close_code`` when the connection cannot go on
(else None), the ``http_status`` of a refused request, and whether trying again can help
(``retryable``). Messages are one sentence that names what was expected and what was found; they
never contain keys, prompts or transcripts.
"""

from __future__ import annotations

import logging
from typing import ClassVar

log = logging.getLogger(__name__)


class VoiceLoopError(Exception):
    """Root of the tree; never raised itself."""

    type: ClassVar[str] = "server_error"
    code: ClassVar[str] = "server_error"
    close_code: ClassVar[int | None] = None
    http_status: ClassVar[int] = 400
    retryable: ClassVar[bool] = False

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.wire_code = code if code is not None else self.code


class InvalidRequest(VoiceLoopError):
    """The client sent something that is not in the protocol; the session goes on."""

    type = "invalid_request_error"
    code = "invalid_value"


class NotActive(InvalidRequest):
    """No response is active. response_id: the one that the client named; None: it named none."""

    code = "response_cancel_not_active"

    def __init__(self, response_id: str | None) -> None:
        super().__init__("Cancellation failed: no active response found")
        self.response_id = response_id


class UnknownCall(InvalidRequest):
    """No call of this id goes on, or it is somebody else's."""

    code = "call_id_not_found"
    http_status = 404


class CallElsewhere(InvalidRequest):
    """Another of the servers that share this port has the call, if it goes on."""

    code = "call_at_another_server"
    http_status = 421


class NotOnThisLine(InvalidRequest):
    """The far end of this call's line cannot do that."""

    code = "not_on_this_line"


class NotAnswered(VoiceLoopError):
    """A call that goes out was not taken: nobody is there, or nobody wants it."""

    code = "not_answered"
    http_status = 502


class CallRejected(VoiceLoopError):
    """A telephone's call is not answered. sip_status: what its far end is told."""

    code = "call_rejected"
    close_code = 1008
    http_status = 403

    def __init__(self, message: str, sip_status: int) -> None:
        super().__init__(message)
        self.sip_status = sip_status


class TransferFailed(VoiceLoopError):
    """The error that nobody answered where the caller was to be connected; the call goes on
    here.
    """

    code = "transfer_failed"
    http_status = 502


class FrameTooLarge(InvalidRequest):
    """One WebSocket frame was over the limit."""

    code = "frame_too_large"
    close_code = 1009
    http_status = 413


class RateLimited(VoiceLoopError):
    """The client sent more than its quota allows; it may try again later."""

    type = "rate_limit_error"
    code = "rate_limit_exceeded"
    http_status = 429
    retryable = True


class Unauthorized(VoiceLoopError):
    """No key, a wrong key or an expired one."""

    type = "invalid_request_error"
    code = "invalid_api_key"
    close_code = 1008
    http_status = 401


class Forbidden(VoiceLoopError):
    """The request comes from a page that may not call this server."""

    type = "invalid_request_error"
    code = "origin_not_allowed"
    close_code = 1008
    http_status = 403


class Unproved(VoiceLoopError):
    """A telephone's request, or its stream, does not prove whose it is."""

    code = "unproved_call"
    close_code = 1008
    http_status = 403


class Overloaded(VoiceLoopError):
    """The server has no place for one more, or a bounded queue is full."""

    code = "server_overloaded"
    close_code = 1013
    http_status = 503
    retryable = True


class SessionExpired(VoiceLoopError):
    """The session reached its time limit."""

    type = "invalid_request_error"
    code = "session_expired"
    close_code = 1001


class ConfigError(VoiceLoopError):
    """A configuration file, environment variable or flag is wrong; the process does not start."""

    type = "invalid_request_error"
    code = "invalid_config"


class MissingExtra(VoiceLoopError):
    """An optional dependency or model is absent; the message names the command that brings it."""

    code = "missing_extra"
    http_status = 501


class ModelUnavailable(VoiceLoopError):
    """A model cannot be fetched (no hub, no right, no disk); the message says what to do."""

    code = "model_unavailable"


class BackendError(VoiceLoopError):
    """A recognizer, language model or voice failed; the turn ends as failed, the call goes on."""

    code = "backend_error"
    http_status = 502
    retryable = True


class BackendRefused(BackendError):
    """A backend will not do this, however often it is asked (bad option, key or model)."""

    code = "backend_refused"
    http_status = 400
    retryable = False


class RequestUnserved(BackendRefused):
    """The error that this model cannot serve this request: too long, or tools for a template
    that has none.
    """

    type = "invalid_request_error"
    code = "not_served_by_model"


class PromptTooLong(RequestUnserved):
    """The prompt has more tokens than the model takes; a shorter conversation may fit."""

    code = "context_length_exceeded"


class WorkerLost(BackendError):
    """The worker process that held the model died or hung; the supervisor is restarting it."""

    code = "worker_lost"
    http_status = 503


class BackendTimeout(BackendError):
    """A backend did not answer within its deadline."""

    code = "backend_timeout"
    http_status = 504


def expected(where: str, what: str, found: object) -> InvalidRequest:
    """An error of the form "expected X, found Y" for a value a client sent at path ``where``."""
    if found is None:
        shown = "nothing"
    elif isinstance(found, dict | list):
        shown = "an object" if isinstance(found, dict) else f"a list of {len(found)}"
    else:
        shown = repr(found)
        shown = shown if len(shown) <= 60 else shown[:60] + "..."
    return InvalidRequest(f"{where}: expected {what}, found {shown}", param=where)


def first_error(group: BaseExceptionGroup[BaseException]) -> VoiceLoopError:
    """The first error of a task group. Raises the group itself if a bug is among its errors."""
    matched, bugs = group.split(VoiceLoopError)
    if bugs is not None or matched is None:
        raise group
    error: BaseException = matched
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, VoiceLoopError)
    return error


class InternalError(VoiceLoopError):
    """A bug of ours; its traceback is in the log."""

    code = "internal_error"
    http_status = 500


def error_of(error: BaseException) -> VoiceLoopError:
    """The error that a client sees; the traceback of a bug goes to the log."""
    if isinstance(error, VoiceLoopError):
        return error
    try:
        if isinstance(error, BaseExceptionGroup):
            return first_error(error)
    except BaseExceptionGroup:
        pass
    log.error("expected an answer, found a bug", exc_info=error)
    return InternalError("A bug of the server. Its log has the traceback.")

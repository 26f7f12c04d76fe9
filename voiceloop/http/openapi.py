"""``/openapi.json``: the HTTP routes in the form that API tools read.

Owns the description; a test holds it against the routes that the application really has. The bodies
are those of the structs that check them.
"""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from voiceloop import __version__
from voiceloop.http.chat_request import ChatBody
from voiceloop.http.health import SecretBody
from voiceloop.http.sites import SiteBody, VisitorBody
from voiceloop.http.speech import SpeechBody
from voiceloop.http.transcription import FORMATS as TRANSCRIPT_FORMATS
from voiceloop.realtime.settings import Json

TEXT: Json = {"type": "string"}
OBJECT: Json = {"type": "object"}


def _object(required: tuple[str, ...], **properties: Json) -> Json:
    return {"type": "object", "required": list(required), "properties": properties}


def _told(form: Json, description: str) -> Json:
    return {**form, "description": description}


BEGINS_WITH = _told(OBJECT, "What the call begins with, as `session.update`.")
CALL = _object(("sdp",), sdp=_told(TEXT, "The offer."), session=BEGINS_WITH)
DIAL = _object(("to",), to=_told(TEXT, "`tel:NUMBER` or `sip:NAME@HOST`."), session=BEGINS_WITH)
# Of one call: what its verbs take.
CLOSING = _object((), headers=_told(OBJECT, "`X-...` headers for the BYE of a call by SIP."))
ACCEPTED = _told(OBJECT, "The session that the call begins with.")
STATUS = {"type": "integer", "minimum": 400, "maximum": 699}
REJECTED = _object((), status_code=_told(STATUS, "What the caller's telephone is told."))
REFERRED = _object(("target_uri",), target_uri=_told(TEXT, "One that `phone.transfer_to` allows."))
TRANSCRIPTION = _object(
    ("file",),
    file={"type": "string", "format": "binary"},
    model=TEXT,
    language=TEXT,
    prompt=TEXT,
    response_format={"enum": list(TRANSCRIPT_FORMATS), "default": "json"},
    **{"timestamp_granularities[]": {"type": "array", "items": {"enum": ["word", "segment"]}}},
)
BODIES, SCHEMAS = msgspec.json.schema_components(
    (ChatBody, SpeechBody, SecretBody, SiteBody, VisitorBody),
    ref_template="#/components/schemas/{name}",
)
CHAT, SPEECH, SECRET, SITE, VISITOR = BODIES

# What may go wrong, by its code: the status, and when.
CODES = {
    "invalid_value": ("400", "a field is wrong; the message names it, and what was expected"),
    "missing_required_parameter": ("400", "a field is missing"),
    "not_served_by_model": ("400", "the model cannot do this"),
    "context_length_exceeded": ("400", "the prompt is longer than the model takes"),
    "not_a_phone_call": ("400", "the call is no telephone's"),
    "call_decided": ("400", "the call does not ring any more"),
    "invalid_api_key": ("401", "no key, or not one of this server's"),
    "origin_not_allowed": ("403", "a page of another origin"),
    "model_not_found": ("404", "no model has this name"),
    "call_id_not_found": ("404", "no such call goes on"),
    "recording_not_found": ("404", "no such recording of this key's"),
    "frame_too_large": ("413", "the body is too large"),
    "call_at_another_server": ("421", "another server of this port has the call"),
    "quota_exceeded": ("429", "too many for one key, or for one page"),
    "phone_limit": ("429", "a bound of calls that go out, or a quiet hour"),
    "missing_extra": ("501", "an optional package is missing; the message names it"),
    "backend_error": ("502", "a model failed"),
    "not_answered": ("502", "nobody took the call"),
    "transfer_failed": ("502", "nobody answered where the caller was to go"),
    "server_overloaded": ("503", "no room or not ready; `Retry-After` says when to come back"),
    "backend_timeout": ("504", "a model did not answer in time"),
}
KEYED = ("invalid_api_key", "origin_not_allowed")
WRONG = ("invalid_value", "missing_required_parameter", "frame_too_large")
ASKED = (*WRONG, *KEYED)
OF_MODEL = (*ASKED, "quota_exceeded", "backend_error", "server_overloaded", "backend_timeout")
OF_CALL = (*KEYED, "call_id_not_found", "call_at_another_server")
JSON = ("application/json",)
SOUND = ("audio/mpeg", "audio/ogg", "audio/flac", "audio/wav", "audio/pcm")
EMPTY = ("text/plain",)


def _operation(
    summary: str,
    answer: str,
    codes: tuple[str, ...] = KEYED,
    types: tuple[str, ...] = JSON,
    body: Json | None = None,
    of: str = "",
    status: str = "200",
) -> Json:
    """answer: what comes back, in a sentence. of: the name in the path."""
    content = {one: {"schema": OBJECT if "json" in one else TEXT} for one in types}
    failed = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    answers: Json = {status: {"description": answer, "content": content}}
    for code in sorted(codes, key=lambda code: CODES[code][0]):
        number, told = CODES[code]
        before = f"{answers[number]['description']}; " if number in answers else ""
        answers[number] = {"description": f"{before}`{code}`: {told}", "content": failed}
    found: Json = {"summary": summary, "responses": answers}
    if "invalid_api_key" in codes and body is not VISITOR:
        found["security"] = [{"key": []}]
    if body is not None:
        kind = "multipart/form-data" if body is TRANSCRIPTION else "application/json"
        is_needed = body is not CLOSING and body is not ACCEPTED
        found["requestBody"] = {"required": is_needed, "content": {kind: {"schema": body}}}
    if of:
        found["parameters"] = [{"name": of, "in": "path", "required": True, "schema": TEXT}]
    return found


def _paths() -> Json:
    return {
        "/v1/models": {"get": _operation("Lists what this server answers with.", "The models.")},
        "/v1/models/{name}": {
            "get": _operation(
                "Describes one model.", "The model.", (*KEYED, "model_not_found"), of="name"
            )
        },
        "/v1/agent": {
            "get": _operation(
                "Says who answers a call.",
                "`name`, `try_saying`, `preset`, `models`, `voices`, `client_tools`, `webrtc`.",
                (*KEYED, "server_overloaded"),
            )
        },
        "/v1/agents": {
            "get": _operation("Lists the agents that the key opens.", "`data`: each with a `name`.")
        },
        "/v1/chat/completions": {
            "post": _operation(
                "Generates a reply, or several.",
                "OpenAI's `chat.completion`; with `stream` its chunks as server-sent events.",
                (*OF_MODEL, "not_served_by_model", "context_length_exceeded"),
                (*JSON, "text/event-stream"), CHAT,
            )
        },
        "/v1/audio/speech": {
            "post": _operation(
                "Speaks a text.", "The sound, sent while it is spoken.",
                OF_MODEL, SOUND, SPEECH,
            )
        },
        "/v1/audio/transcriptions": {
            "post": _operation(
                "Writes down the words of a file.", "The words; `verbose_json` adds their times.",
                OF_MODEL, (*JSON, "text/plain"), TRANSCRIPTION,
            )
        },
        "/v1/realtime/client_secrets": {
            "post": _operation(
                "Issues a short-lived key that a browser may hold.",
                "`value` (`ek_...`), `expires_at`, `session`.", (*ASKED, "quota_exceeded"),
                body=SECRET,
            )
        },
        "/v1/realtime/sites": {
            "post": _operation(
                "Issues an id for a page whose visitors may call.", "`site`: the id.", ASKED,
                body=SITE,
            )
        },
        "/v1/realtime/sites/secret": {
            "post": _operation(
                "Gives a visitor of such a page a key for a minute.", "`value`, `expires_at`.",
                (*ASKED, "quota_exceeded"), body=VISITOR,
            )
        },
        "/v1/realtime/calls": {
            "post": _operation(
                "Begins a call over WebRTC.",
                "The answer to the offer. `Location` ends with the call's id.",
                (*ASKED, "quota_exceeded", "missing_extra", "server_overloaded"),
                ("application/sdp",), CALL, status="201",
            )
        },
        **_of_one_call(),
        "/v1/realtime/ice-servers": {
            "get": _operation("Names the TURN servers, and what opens them.", "`ice_servers`.")
        },
        "/v1/phone/calls": {
            "post": _operation(
                "Calls a telephone by SIP.", "`id` of the call, once somebody has answered.",
                (*ASKED, "phone_limit", "not_answered", "server_overloaded"), body=DIAL,
                status="201",
            )
        },
        "/v1/recordings/{call_id}": {
            "delete": _operation(
                "Deletes a call that was kept.", "`id`, `object`, `deleted`.",
                (*KEYED, "recording_not_found"), of="call_id",
            )
        },
    }  # fmt: skip


def _of_one_call() -> Json:
    """The verbs of a call that goes on, or rings."""
    path = "/v1/realtime/calls/{call_id}"
    verbs = {
        "hangup": ("Ends a call.", CLOSING, ()),
        "accept": ("Answers a call that rings.", ACCEPTED, ("call_decided", "server_overloaded")),
        "reject": ("Refuses a call that rings.", REJECTED, ("call_decided",)),
        "refer": ("Connects the caller with somebody else.", REFERRED, ("transfer_failed",)),
    }
    found: Json = {}
    for verb, (told, body, codes) in verbs.items():
        of_phone = () if verb == "hangup" else ("not_a_phone_call",)
        all_codes = (*WRONG, *OF_CALL, *of_phone, *codes)
        operation = _operation(told, "Nothing.", all_codes, EMPTY, body, of="call_id")
        found[f"{path}/{verb}"] = {"post": operation}
    ended = _operation("Ends a call.", "Nothing.", OF_CALL, EMPTY, of="call_id")
    return {path: {"delete": ended}, **found}


def description() -> Json:
    """The document."""
    error = _object(("message", "type"), message=TEXT, type=TEXT, code={}, param={})
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "VoiceLoop",
            "version": __version__,
            "description": "The HTTP side. Calls are held over the WebSocket /v1/realtime, or "
            "over WebRTC, which begins at /v1/realtime/calls.",
        },
        "paths": _paths(),
        "components": {
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
            "schemas": {**SCHEMAS, "Error": _object(("error",), error=error)},
        },
    }


def openapi_route() -> Route:
    async def openapi(request: Request) -> Response:
        return JSONResponse(description())

    return Route("/openapi.json", openapi, methods=["GET"])

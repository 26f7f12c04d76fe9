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


CALL = _object(("sdp",), sdp=TEXT, session=OBJECT)
DIAL = _object(("to",), to=TEXT, session=OBJECT)
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

ERRORS = {
    "400": "the request is wrong: the message names the field, what was expected and found",
    "401": "no key, or not one of this server's",
    "403": "a page of another origin",
    "413": "the body is too large",
    "503": "no room or not ready; Retry-After says when to come back",
}


def _operation(summary: str, types: tuple[str, ...], body: Json | None = None) -> Json:
    content = {one: {"schema": OBJECT if "json" in one else TEXT} for one in types}
    failed = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    answers: Json = {"200": {"description": "the answer", "content": content}}
    for status, description in ERRORS.items():
        answers[status] = {"description": description, "content": failed}
    found: Json = {"summary": summary, "responses": answers, "security": [{"key": []}]}
    if body is not None:
        is_form = body is TRANSCRIPTION
        kind = "multipart/form-data" if is_form else "application/json"
        found["requestBody"] = {"required": True, "content": {kind: {"schema": body}}}
    return found


def description() -> Json:
    """The document."""
    json_type = ("application/json",)
    streamed = (*json_type, "text/event-stream")
    chat = _operation("A reply, or several", streamed, CHAT)
    types = ("audio/mpeg", "audio/ogg", "audio/aac", "audio/flac", "audio/wav", "audio/pcm")
    heard = _operation("A file's words", (*json_type, "text/plain"), TRANSCRIPTION)
    one_model = _operation("One model", json_type)
    one_model["parameters"] = [{"name": "name", "in": "path", "required": True, "schema": TEXT}]
    secret = _operation("A short-lived key that opens a session", json_type, SECRET)
    site = _operation("An id for a page whose visitors may call", json_type, SITE)
    visitor = _operation("A visitor's short-lived key", json_type, VISITOR)
    call = _operation("A call over WebRTC: an offer, its answer", ("application/sdp",), CALL)
    call["responses"]["201"] = call["responses"].pop("200")
    recording = _operation("Delete a call that was kept", json_type)
    recording["parameters"] = [{"name": "call_id", "in": "path", "required": True, "schema": TEXT}]
    error = _object(("message", "type"), message=TEXT, type=TEXT, code={}, param={})
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "VoiceLoop",
            "version": __version__,
            "description": "The HTTP side. Calls are held over the WebSocket /v1/realtime, or "
            "over WebRTC, which begins at /v1/realtime/calls.",
        },
        "paths": {
            "/v1/models": {"get": _operation("What this server answers with", json_type)},
            "/v1/models/{name}": {"get": one_model},
            "/v1/agent": {"get": _operation("Who answers a call", json_type)},
            "/v1/agents": {"get": _operation("Who else could, of several", json_type)},
            "/v1/chat/completions": {"post": chat},
            "/v1/audio/speech": {"post": _operation("Speech of a text", types, SPEECH)},
            "/v1/audio/transcriptions": {"post": heard},
            "/v1/realtime/client_secrets": {"post": secret},
            "/v1/realtime/sites": {"post": site},
            "/v1/realtime/sites/secret": {"post": visitor},
            "/v1/realtime/calls": {"post": call},
            "/v1/phone/calls": {"post": _operation("Call a telephone", json_type, DIAL)},
            "/v1/recordings/{call_id}": {"delete": recording},
            **_of_one_call(),
            "/v1/realtime/ice-servers": {
                "get": _operation("TURN servers, and what opens them", json_type)
            },
        },
        "components": {
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
            "schemas": {**SCHEMAS, "Error": _object(("error",), error=error)},
        },
    }


def _of_one_call() -> Json:
    """The verbs of a call that goes on."""
    path, empty = "/v1/realtime/calls/{call_id}", ("text/plain",)
    parameters = [{"name": "call_id", "in": "path", "required": True, "schema": TEXT}]
    verbs = {f"{path}/{verb}": "post" for verb in ("hangup", "accept", "reject", "refer")}
    return {
        where: {method: _operation("Of one call", empty) | {"parameters": parameters}}
        for where, method in {**verbs, path: "delete"}.items()
    }


def openapi_route() -> Route:
    async def openapi(request: Request) -> Response:
        return JSONResponse(description())

    return Route("/openapi.json", openapi, methods=["GET"])

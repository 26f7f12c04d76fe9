"""The beta's names of the Realtime protocol, for connections that ask for them.

A client that sends ``OpenAI-Beta: realtime=v1`` speaks the protocol as it was before it became
generally available. Owns the translation of frames in both directions; everything behind it knows
the GA names only. Pure.
"""

from __future__ import annotations

from typing import Any

from voiceloop.realtime.settings import Json

RENAMED = {
    "response.output_text.delta": "response.text.delta",
    "response.output_text.done": "response.text.done",
    "response.output_audio.delta": "response.audio.delta",
    "response.output_audio.done": "response.audio.done",
    "response.output_audio_transcript.delta": "response.audio_transcript.delta",
    "response.output_audio_transcript.done": "response.audio_transcript.done",
    "conversation.item.added": "conversation.item.created",
}
_DROPPED = frozenset({"conversation.item.done"})  # the beta told of an item once
_CONTENT = {"output_text": "text", "output_audio": "audio"}
_FORMATS = {"audio/pcm": "pcm16", "audio/pcmu": "g711_ulaw", "audio/pcma": "g711_alaw"}
_DEFAULT_TEMPERATURE = 0.8  # the beta's own; 0 to 2 here


# --- to the client -------------------------------------------------------------------------------


def to_beta(event: Json) -> Json | None:
    """A server event under its beta name; None where the beta had no such event."""
    kind = event["type"]
    if kind in _DROPPED:
        return None
    event = {**event, "type": RENAMED.get(kind, kind)}
    if "session" in event and event["session"]["type"] == "transcription":
        event["type"] = f"transcription_{kind}"
    if "session" in event:
        event["session"] = _session_to_beta(event["session"])
    if "response" in event:
        event["response"] = _response_to_beta(event["response"])
    if "item" in event:
        event["item"] = _item_to_beta(event["item"])
    return event


def _session_to_beta(session: Json) -> Json:
    audio = session["audio"]
    flat: Json = {
        "id": session["id"],
        "object": session["object"],
        "expires_at": session["expires_at"],
        "input_audio_format": _FORMATS[audio["input"]["format"]["type"]],
        "input_audio_transcription": audio["input"]["transcription"],
        "input_audio_noise_reduction": audio["input"]["noise_reduction"],
        "turn_detection": audio["input"]["turn_detection"],
    }
    if session["type"] == "transcription":
        return flat
    return flat | {
        "model": session["model"],
        "modalities": _modalities_to_beta(session["output_modalities"]),
        "instructions": session["instructions"],
        "voice": audio["output"]["voice"],
        "speed": audio["output"]["speed"],
        "output_audio_format": _FORMATS[audio["output"]["format"]["type"]],
        "tools": session["tools"],
        "tool_choice": session["tool_choice"],
        "temperature": _temperature(session),
        "max_response_output_tokens": session["max_output_tokens"],
    }


def _response_to_beta(response: Json) -> Json:
    beta = {key: value for key, value in response.items() if key not in ("audio", "output")}
    output = response["audio"]["output"]
    beta["modalities"] = _modalities_to_beta(beta.pop("output_modalities"))
    beta["voice"] = output["voice"]
    beta["output_audio_format"] = _FORMATS[output["format"]["type"]]
    beta["temperature"] = _temperature(response)
    beta["output"] = [_item_to_beta(item) for item in response["output"]]
    return beta


def _temperature(ga: Json) -> float:
    """Return what was set; a number in any case, since clients of the beta read one."""
    found: float | None = ga.get("temperature")
    return _DEFAULT_TEMPERATURE if found is None else found


def _item_to_beta(item: Json) -> Json:
    if item["type"] != "message":
        return item
    content = [
        {**part, "type": _CONTENT.get(part["type"], part["type"])} for part in item["content"]
    ]
    return {**item, "content": content}


def _modalities_to_beta(modalities: list[str]) -> list[str]:
    return ["audio", "text"] if "audio" in modalities else ["text"]


# --- from the client -----------------------------------------------------------------------------


def from_beta(event: Json) -> Json:
    """A client event of the beta in GA form. What is not beta is left as it is."""
    if event.get("type") == "transcription_session.update":
        event = {**event, "type": "session.update"}
    if isinstance(event.get("session"), dict):
        return {**event, "session": _session_from_beta(event["session"])}
    if isinstance(event.get("response"), dict):
        return {**event, "response": _response_from_beta(event["response"])}
    return event


def _session_from_beta(session: Json) -> Json:
    ga = dict(session)
    _move(ga, "max_response_output_tokens", ga, "max_output_tokens")
    _modalities_from_beta(ga)
    audio_in: Json = {}
    _move(ga, "input_audio_format", audio_in, "format")
    _move(ga, "input_audio_transcription", audio_in, "transcription")
    _move(ga, "input_audio_noise_reduction", audio_in, "noise_reduction")
    _move(ga, "turn_detection", audio_in, "turn_detection")
    audio_out = _output_from_beta(ga)
    if audio_in or audio_out:
        ga["audio"] = {"input": audio_in, "output": audio_out}
    return ga


def _response_from_beta(response: Json) -> Json:
    ga = dict(response)
    _move(ga, "max_response_output_tokens", ga, "max_output_tokens")
    _modalities_from_beta(ga)
    if audio_out := _output_from_beta(ga):
        ga["audio"] = {"output": audio_out}
    return ga


def _output_from_beta(ga: Json) -> Json:
    output: Json = {}
    _move(ga, "output_audio_format", output, "format")
    _move(ga, "voice", output, "voice")
    _move(ga, "speed", output, "speed")
    return output


def _modalities_from_beta(ga: Json) -> None:
    """The beta's ["text", "audio"] is the GA's ["audio"], which brings its transcript."""
    value = ga.pop("modalities", None)
    if isinstance(value, list):
        ga["output_modalities"] = ["audio"] if "audio" in value else value
    elif value is not None:
        ga["output_modalities"] = value  # wrong; the merge says so


def _move(source: Json, old: str, target: Json, new: str) -> None:
    missing: Any = object()
    value = source.pop(old, missing)
    if value is not missing:
        target[new] = value

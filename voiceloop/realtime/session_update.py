"""The merge of ``session.update`` into a session's settings, and the fields it shares with
``response.create``.

Owns the semantics: present fields replace, ``null`` goes back to the default, a change of the turn
detection's type starts from that type's defaults, keys this server does not know are accepted and
dropped. Pure.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from voiceloop.backends import MAX_TOOLS, TOOL_NAME, Tool
from voiceloop.capabilities import Capabilities
from voiceloop.errors import InvalidRequest, expected
from voiceloop.realtime.client_events import from_validation
from voiceloop.realtime.mcp.entry import check_hosts, read_entries
from voiceloop.realtime.settings import (
    AudioFormat,
    Json,
    SemanticVad,
    ServerVad,
    SessionSettings,
    Transcription,
    TurnDetection,
)

MAX_OUTPUT_TOKENS = 4096
PCM_RATES_HZ = (24000, 16000)
EAGERNESS = ("auto", "low", "medium", "high")

_EMPTY_SCHEMA: Json = {"type": "object", "properties": {}}


def merge(settings: SessionSettings, patch: Json) -> SessionSettings:
    """The settings after this update.

    Raises:
        InvalidRequest: a value is wrong; ``param`` is its path. Nothing is changed then.
    """
    default = SessionSettings()
    changes: Json = {}
    kind = patch.get("type")
    if kind not in (None, "realtime", "transcription"):
        raise expected("session.type", "realtime or transcription", kind)
    if kind is not None:
        changes["type"] = kind
    for key, read in _TOP_LEVEL.items():
        if key in patch:
            value = patch[key]
            changes[key] = getattr(default, key) if value is None else read(value, key)
    if "reasoning" in patch:
        changes["reasoning_effort"] = read_effort(patch["reasoning"], "session.reasoning")
    if "tools" in patch:
        changes["mcp"] = read_entries(patch["tools"] or [], "session.tools")
    audio = _object(patch, "audio", "session.audio")
    changes |= _merge_input(settings, _object(audio, "input", "session.audio.input"))
    changes |= _merge_output(_object(audio, "output", "session.audio.output"))
    changes |= _merge_extras(_object(patch, "voiceloop", "session.voiceloop"))
    return msgspec.structs.replace(settings, **changes)


def _merge_input(settings: SessionSettings, patch: Json) -> Json:
    changes: Json = {}
    where = "session.audio.input"
    if patch.get("format") is not None:
        changes["input_format"] = read_format(patch["format"], f"{where}.format")
    if "turn_detection" in patch:
        changes["turn_detection"] = _merge_turn_detection(
            settings.turn_detection, patch["turn_detection"], f"{where}.turn_detection"
        )
    if "transcription" in patch:
        changes["transcription"] = _merge_transcription(
            settings.transcription, patch["transcription"], f"{where}.transcription"
        )
    if "noise_reduction" in patch:
        noise = patch["noise_reduction"]
        if noise is not None:
            if not isinstance(noise, dict) or noise.get("type") not in ("near_field", "far_field"):
                raise expected(f"{where}.noise_reduction", "near_field or far_field", noise)
            noise = noise["type"]
        changes["noise_reduction"] = noise
    return changes


def _merge_output(patch: Json) -> Json:
    changes: Json = {}
    where = "session.audio.output"
    if patch.get("format") is not None:
        changes["output_format"] = read_format(patch["format"], f"{where}.format")
    if patch.get("voice") is not None:
        changes["voice"] = read_voice(patch["voice"], f"{where}.voice")
    if "speed" in patch:
        speed = 1.0 if patch["speed"] is None else patch["speed"]
        changes["speed"] = read_number(speed, f"{where}.speed", 0.25, 1.5)
    return changes


def _merge_extras(patch: Json) -> Json:
    """VoiceLoop's own switches."""
    changes: Json = {}
    for key in ("timeline", "partials", "notices", "sources", "slots", "confirmations", "resume"):
        if key in patch:
            if not isinstance(patch[key], bool):
                raise expected(f"session.voiceloop.{key}", "true or false", patch[key])
            changes[key] = patch[key]
    return changes


def _merge_turn_detection(current: TurnDetection | None, patch: Any, where: str) -> Any:
    if patch is None:
        return None
    if not isinstance(patch, dict):
        raise expected(where, "an object or null", patch)
    kinds: dict[str, type[TurnDetection]] = {"server_vad": ServerVad, "semantic_vad": SemanticVad}
    name = patch.get("type")
    if name is None:
        kind: type[TurnDetection] = type(current) if current is not None else ServerVad
    elif isinstance(name, str) and name in kinds:
        kind = kinds[name]
    else:
        raise expected(f"{where}.type", "server_vad, semantic_vad or null", name)
    base: TurnDetection = current if isinstance(current, kind) else kind()
    wire = msgspec.to_builtins(base)
    defaults = msgspec.to_builtins(kind())
    for key, value in patch.items():
        if key in wire and key != "type":
            wire[key] = defaults[key] if value is None else value
    if wire.get("eagerness", "auto") not in EAGERNESS:
        raise expected(f"{where}.eagerness", ", ".join(EAGERNESS), wire["eagerness"])
    try:
        merged: TurnDetection = msgspec.convert(wire, kind)
    except msgspec.ValidationError as error:
        raise from_validation(error, where, "session.update") from None
    if isinstance(merged, ServerVad):
        _check_server_vad(merged, where)
    return merged


def _check_server_vad(vad: ServerVad, where: str) -> None:
    read_number(vad.threshold, f"{where}.threshold", 0.0, 1.0)
    read_number(vad.prefix_padding_ms, f"{where}.prefix_padding_ms", 0, 10_000)
    read_number(vad.silence_duration_ms, f"{where}.silence_duration_ms", 0, 10_000)
    if vad.idle_timeout_ms is not None:
        read_number(vad.idle_timeout_ms, f"{where}.idle_timeout_ms", 1000, 120_000)


def _merge_transcription(current: Transcription | None, patch: Any, where: str) -> Any:
    if patch is None:
        return None
    if not isinstance(patch, dict):
        raise expected(where, "an object or null", patch)
    wire = msgspec.to_builtins(current or Transcription())
    wire |= {key: patch[key] for key in ("model", "language", "prompt") if key in patch}
    try:
        return msgspec.convert(wire, Transcription)
    except msgspec.ValidationError as error:
        raise from_validation(error, where, "session.update") from None


# --- fields that response.create has too ---------------------------------------------------------


def read_format(value: Any, where: str) -> AudioFormat:
    """An audio format: the GA object, or the beta's name of it."""
    if isinstance(value, str):
        beta = {"pcm16": "audio/pcm", "g711_ulaw": "audio/pcmu", "g711_alaw": "audio/pcma"}
        value = {"type": beta.get(value, value)}
    if not isinstance(value, dict):
        raise expected(where, "an object with a type", value)
    match value.get("type"):
        case "audio/pcm":
            rate = value.get("rate")
            rate = 24000 if rate is None else rate
            if isinstance(rate, bool) or rate not in PCM_RATES_HZ:
                raise expected(f"{where}.rate", "24000 or 16000", rate)
            return AudioFormat("audio/pcm", int(rate))
        case "audio/pcmu":
            return AudioFormat("audio/pcmu", 8000)
        case "audio/pcma":
            return AudioFormat("audio/pcma", 8000)
        case other:
            raise expected(f"{where}.type", "audio/pcm, audio/pcmu or audio/pcma", other)


def read_voice(value: Any, where: str) -> str:
    """A voice's name, or ``{"id": name}``."""
    if isinstance(value, dict):
        value = value.get("id")
    if not isinstance(value, str) or not 0 < len(value) <= 128:
        raise expected(where, "the name of a voice", value)
    return value


def read_modalities(value: Any, where: str) -> tuple[str, ...]:
    if value in (["audio"], ["text"]):
        return (value[0],)
    if isinstance(value, list) and sorted(map(str, value)) == ["audio", "text"]:
        raise InvalidRequest(
            f'{where}: expected ["audio"] or ["text"], found both (audio brings its transcript)',
            param=where,
        )
    raise expected(where, '["audio"] or ["text"]', value)


MAX_SCHEMA_BYTES = 64 * 1024  # the largest schemas of public APIs have a quarter of it


def read_tools(value: Any, where: str) -> tuple[Tool, ...]:
    """Function tools; MCP servers are read by `mcp.entry`, tools of other kinds dropped."""
    if not isinstance(value, list) or len(value) > MAX_TOOLS:
        raise expected(where, f"a list of at most {MAX_TOOLS} tools", value)
    tools: list[Tool] = []
    for index, raw in enumerate(value):
        path = f"{where}[{index}]"
        if not isinstance(raw, dict):
            raise expected(path, "an object", raw)
        if raw.get("type", "function") != "function":
            continue
        tools.append(_read_tool(raw, path))
    names = [tool.name for tool in tools]
    for name in names:
        if names.count(name) > 1:
            raise InvalidRequest(f"{where}: expected each name once, found {name!r} twice")
    return tuple(tools)


def _read_tool(raw: Json, path: str) -> Tool:
    name = raw.get("name")
    if not isinstance(name, str) or not TOOL_NAME.fullmatch(name):
        raise expected(f"{path}.name", "1 to 64 letters, digits, _ or -", name)
    description = raw.get("description") or ""
    if not isinstance(description, str):
        raise expected(f"{path}.description", "a string", description)
    parameters = raw.get("parameters")
    parameters = _EMPTY_SCHEMA if parameters is None else parameters
    if not isinstance(parameters, dict):
        raise expected(f"{path}.parameters", "a JSON schema", parameters)
    check_schema(parameters, f"{path}.parameters")
    return Tool(name=name, description=description, parameters=parameters)


def check_schema(schema: Json, where: str) -> None:
    """Bound what compiling a schema may cost. Raises: InvalidRequest."""
    n_bytes = len(msgspec.json.encode(schema))
    if n_bytes > MAX_SCHEMA_BYTES:
        raise InvalidRequest(
            f"{where}: expected a schema of at most {MAX_SCHEMA_BYTES} bytes, found {n_bytes}",
            param=where,
        )


def read_tool_choice(value: Any, where: str) -> str | Json:
    if value in ("auto", "none", "required"):
        return str(value)
    if isinstance(value, dict):
        function = value.get("function")  # the chat API's spelling
        name = value.get("name", function.get("name") if isinstance(function, dict) else None)
        if value.get("type") == "function" and isinstance(name, str):
            return {"type": "function", "name": name}
    raise expected(where, "auto, none, required or a function", value)


def read_max_tokens(value: Any, where: str) -> int | str:
    if value == "inf":
        return "inf"
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    if not is_whole or not 1 <= value <= MAX_OUTPUT_TOKENS:
        raise expected(where, f'1 to {MAX_OUTPUT_TOKENS} or "inf"', value)
    return int(value)


def read_text(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise expected(where, "a string", value)
    return value


def read_temperature(value: Any, where: str) -> float:
    return read_number(value, where, 0.0, 2.0)


def read_flag(value: Any, where: str) -> bool:
    if not isinstance(value, bool):
        raise expected(where, "true or false", value)
    return value


EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh")


def read_effort(value: Any, where: str) -> str | None:
    """How much a model may think: `{"effort": ...}`, null for what the server does by itself."""
    effort = value.get("effort") if isinstance(value, dict) else value
    if effort is None or (isinstance(value, dict) and effort in EFFORTS):
        return effort if effort is None else str(effort)
    raise expected(f"{where}.effort", ", ".join(EFFORTS), effort)


def _read_model(value: Any, where: str) -> str:
    """Any string: the model is the server's; clients only want their own name back."""
    if not isinstance(value, str) or len(value) > 256:
        raise expected(where, "the name of a model", value)
    return value


def _read_truncation(value: Any, where: str) -> str | Json:
    if value in ("auto", "disabled"):
        return str(value)
    if isinstance(value, dict) and value.get("type") == "retention_ratio":
        ratio = read_number(value.get("retention_ratio"), f"{where}.retention_ratio", 0.0, 1.0)
        limits = _object(value, "token_limits", f"{where}.token_limits")
        found: Json = {"type": "retention_ratio", "retention_ratio": ratio}
        if (n_most := limits.get("post_instructions")) is not None:
            path = f"{where}.token_limits.post_instructions"
            found["token_limits"] = {"post_instructions": int(read_number(n_most, path, 1, 10**9))}
        return found
    raise expected(where, "auto, disabled or a retention_ratio", value)


def _at(read: Callable[[Any, str], Any]) -> Callable[[Any, str], Any]:
    return lambda value, key: read(value, f"session.{key}")


_TOP_LEVEL: dict[str, Callable[[Any, str], Any]] = {
    "model": _at(_read_model),
    "instructions": _at(read_text),
    "output_modalities": _at(read_modalities),
    "tools": _at(read_tools),
    "tool_choice": _at(read_tool_choice),
    "parallel_tool_calls": _at(read_flag),
    "max_output_tokens": _at(read_max_tokens),
    "temperature": _at(read_temperature),
    "truncation": _at(_read_truncation),
}


def _object(raw: Json, key: str, where: str) -> Json:
    value = raw.get(key)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise expected(where, "an object", value)
    return value


def read_number(value: Any, where: str, low: float, high: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise expected(where, f"a number from {low:g} to {high:g}", value)
    return float(value)


def within_capabilities(known: Capabilities, settings: SessionSettings) -> SessionSettings:
    """The settings as this server serves them: without noise reduction where it has none, and
    without MCP servers where sessions may name none.

    Raises:
        InvalidRequest: its models do not speak the session's voice or hear its language; ``param``
            is the path in the session.
    """
    known.check_voice(settings.voice, "session.audio.output.voice")
    asked = settings.transcription
    if asked is not None and asked.language:
        known.check_language(asked.language, "session.audio.input.transcription.language")
    if not known.mcp_hosts:
        settings = msgspec.structs.replace(settings, mcp=())
    check_hosts(settings.mcp, known.mcp_hosts)
    if settings.noise_reduction is not None and not known.reduces_noise:
        return msgspec.structs.replace(settings, noise_reduction=None)
    return settings

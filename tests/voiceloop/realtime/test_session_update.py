"""session.update: present fields replace, null clears, a type change starts from defaults."""

from __future__ import annotations

from typing import Any

import pytest

from tests.tables import each_row
from voiceloop.capabilities import Capabilities
from voiceloop.errors import InvalidRequest
from voiceloop.realtime.session_update import MAX_SCHEMA_BYTES, merge, within_capabilities
from voiceloop.realtime.settings import (
    SemanticVad,
    ServerVad,
    SessionSettings,
    Transcription,
)

BASE = SessionSettings(instructions="Be kind.", max_output_tokens=50)


def detect(patch: Any) -> dict[str, Any]:
    return {"audio": {"input": {"turn_detection": patch}}}


def test_turn_detection_merges_within_its_type_and_starts_anew_across_types() -> None:
    first = merge(BASE, detect({"type": "server_vad", "threshold": 0.7}))
    second = merge(first, detect({"silence_duration_ms": 300}))
    assert second.turn_detection == ServerVad(threshold=0.7, silence_duration_ms=300)
    third = merge(second, detect({"type": "semantic_vad", "eagerness": "high"}))
    assert third.turn_detection == SemanticVad(eagerness="high")
    assert merge(third, detect({"type": "server_vad"})).turn_detection == ServerVad()


def test_transcription_is_switched_and_merged() -> None:
    on = merge(BASE, {"audio": {"input": {"transcription": {"model": "whisper-1"}}}})
    assert on.transcription == Transcription(model="whisper-1")
    more = merge(on, {"audio": {"input": {"transcription": {"language": "en", "keywords": []}}}})
    assert more.transcription == Transcription(model="whisper-1", language="en")
    assert merge(more, {"audio": {"input": {"transcription": None}}}).transcription is None


def test_noise_reduction_is_echoed_as_it_is_served() -> None:
    asked = merge(BASE, {"audio": {"input": {"noise_reduction": {"type": "far_field"}}}})
    served = within_capabilities(Capabilities(reduces_noise=True), asked)
    assert served.noise_reduction == "far_field"
    echo = served.to_wire("s", 1)["audio"]["input"]
    assert echo["noise_reduction"] == {"type": "far_field"}
    # A server without the package does not say that it does what it cannot.
    lacking = within_capabilities(Capabilities(), asked)
    assert lacking.to_wire("s", 1)["audio"]["input"]["noise_reduction"] is None
    off = merge(served, {"audio": {"input": {"noise_reduction": None}}})
    assert off.noise_reduction is None


def test_a_schema_too_large_to_compile_is_refused_with_its_place() -> None:
    parameters = {"type": "object", "properties": {"size": {"enum": ["x" * MAX_SCHEMA_BYTES]}}}
    tool = {"type": "function", "name": "order", "parameters": parameters}
    with pytest.raises(InvalidRequest, match="expected a schema of at most") as refused:
        merge(BASE, {"tools": [tool]})
    assert refused.value.param == "session.tools[0].parameters"


def test_tools_are_flat_and_other_kinds_are_dropped() -> None:
    tools = [{"type": "function", "name": "hours"}, {"type": "mcp", "server_label": "x"}]
    merged = merge(BASE, {"tools": tools})
    assert [tool.name for tool in merged.tools] == ["hours"]
    assert merged.to_wire("s", 1)["tools"] == [
        {
            "type": "function",
            "name": "hours",
            "description": "",
            "parameters": {"type": "object", "properties": {}},
        }
    ]


@each_row(("patch", "param"), [
    ({"type": "video"}, "session.type"),
    ({"instructions": 5}, "session.instructions"),
    ({"output_modalities": ["audio", "text"]}, "session.output_modalities"),
    ({"output_modalities": "audio"}, "session.output_modalities"),
    ({"audio": 5}, "session.audio"),
    ({"audio": {"input": []}}, "session.audio.input"),
    ({"audio": {"input": {"format": {"type": "audio/opus"}}}}, "session.audio.input.format.type"),
    ({"audio": {"input": {"format": {"type": "audio/pcm", "rate": 44100}}}},
     "session.audio.input.format.rate"),
    ({"audio": {"input": {"noise_reduction": {"type": "x"}}}},
     "session.audio.input.noise_reduction"),
    (detect({"type": "magic"}), "session.audio.input.turn_detection.type"),
    (detect({"type": "server_vad", "threshold": "0.5"}),
     "session.audio.input.turn_detection.threshold"),
    (detect({"type": "server_vad", "threshold": 2}),
     "session.audio.input.turn_detection.threshold"),
    (detect({"type": "server_vad", "create_response": 1}),
     "session.audio.input.turn_detection.create_response"),
    (detect({"type": "semantic_vad", "eagerness": "very"}),
     "session.audio.input.turn_detection.eagerness"),
    ({"audio": {"output": {"speed": 9}}}, "session.audio.output.speed"),
    ({"audio": {"output": {"voice": {"name": "x"}}}}, "session.audio.output.voice"),
    ({"tools": {}}, "session.tools"),
    ({"tools": [{"type": "function", "name": "two words"}]}, "session.tools[0].name"),
    ({"tool_choice": "maybe"}, "session.tool_choice"),
    ({"max_output_tokens": 0}, "session.max_output_tokens"),
    ({"max_output_tokens": True}, "session.max_output_tokens"),
    ({"truncation": "some"}, "session.truncation"),
    ({"truncation": {"type": "retention_ratio", "retention_ratio": 0.5,
                     "token_limits": {"post_instructions": 0}}},
     "session.truncation.token_limits.post_instructions"),
    ({"voiceloop": {"timeline": 1}}, "session.voiceloop.timeline"),
])  # fmt: skip
def test_a_wrong_value_names_its_path(patch: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        merge(BASE, patch)
    assert caught.value.param == param
    assert "expected" in caught.value.message and "found" in caught.value.message

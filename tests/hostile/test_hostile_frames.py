"""Mutated frames: whatever arrives, the protocol answers with a documented error or does as told.

A few thousand mutations in every run; VOICELOOP_FUZZ=50000 for as many as that. The seed is fixed;
a failure names the frame.
"""

from __future__ import annotations

import copy
import json
import os
import random
from typing import Any

from tests.tables import each_row
from tests.wire import Wire

N_MUTATIONS = int(os.environ.get("VOICELOOP_FUZZ", "4000"))

CODES = {
    "invalid_value",
    "missing_required_parameter",
    "frame_too_large",
    "invalid_audio",
    "input_audio_buffer_commit_empty",
    "input_audio_buffer_full",
    "item_create_duplicate_item_id",
    "item_retrieve_invalid_item_id",
    "item_delete_invalid_item_id",
    "item_truncate_invalid_item_id",
    "response_cancel_not_active",
    "conversation_already_has_active_response",
    "too_many_responses",
    "conversation_full",
}

TOOL = {
    "type": "function",
    "name": "hours",
    "description": "Opening hours.",
    "parameters": {"type": "object", "properties": {"day": {"type": "string"}}},
}
FRAMES: list[dict[str, Any]] = [
    {
        "type": "session.update",
        "event_id": "e1",
        "session": {
            "type": "realtime",
            "instructions": "Be kind.",
            "output_modalities": ["audio"],
            "tools": [TOOL],
            "tool_choice": "auto",
            "max_output_tokens": 100,
            "audio": {
                "input": {
                    "format": {"type": "audio/pcm", "rate": 24000},
                    "turn_detection": {"type": "server_vad", "threshold": 0.5},
                    "transcription": {"model": "whisper-1", "language": "en"},
                    "noise_reduction": {"type": "near_field"},
                },
                "output": {"format": {"type": "audio/pcmu"}, "voice": "alloy", "speed": 1.0},
            },
            "voiceloop": {"timeline": True},
        },
    },
    {"type": "input_audio_buffer.append", "audio": "AAAAAAAA"},
    {"type": "input_audio_buffer.commit"},
    {"type": "input_audio_buffer.clear"},
    {"type": "output_audio_buffer.clear"},
    {
        "type": "conversation.item.create",
        "previous_item_id": "root",
        "item": {
            "id": "i1",
            "type": "message",
            "role": "user",
            "content": [{"type": "input_text", "text": "hello"}, {"type": "input_audio"}],
        },
    },
    {
        "type": "conversation.item.create",
        "item": {"type": "function_call", "call_id": "c1", "name": "hours", "arguments": "{}"},
    },
    {
        "type": "conversation.item.create",
        "item": {"type": "function_call_output", "call_id": "c1", "output": "9 to 5"},
    },
    {"type": "conversation.item.retrieve", "item_id": "i1"},
    {"type": "conversation.item.delete", "item_id": "i1"},
    {"type": "conversation.item.truncate", "item_id": "i1", "content_index": 0, "audio_end_ms": 9},
    {
        "type": "response.create",
        "response": {
            "conversation": "none",
            "metadata": {"a": "b"},
            "input": [{"type": "item_reference", "id": "i1"}],
            "audio": {"output": {"voice": "alloy"}},
        },
    },
    {"type": "response.create"},
    {"type": "response.cancel", "response_id": "resp_1"},
]
ODD_VALUES: list[Any] = [
    None, True, False, 0, -1, 1, 0.5, 1e308, -(2**63), 2**64, "", "x", "null", "\x00", "\ud83d",
    "é" * 300, [], [[]], {}, {"type": None}, [None], {"": ""}, ["audio", "text"], "inf", "A" * 9,
]  # fmt: skip


def mutate(rng: random.Random, frame: dict[str, Any]) -> str | bytes:
    """One valid frame, broken in one of many ways (or not at all)."""
    value = json.loads(json.dumps(frame))
    for _ in range(rng.choice((0, 1, 1, 2, 4))):
        twist(rng, value)
    text = json.dumps(value, ensure_ascii=rng.random() < 0.8)
    kind = rng.random()
    if kind < 0.6:
        return text
    if kind < 0.7:
        return text[: rng.randrange(len(text) + 1)]
    if kind < 0.8:
        at = rng.randrange(len(text))
        return text[:at] + rng.choice('{}[]",:\\0aé\x00 ') + text[at + rng.randrange(3) :]
    if kind < 0.85:
        return text.encode("utf-8", "surrogatepass")
    if kind < 0.9:
        return text.replace("{", "{" * rng.choice((2, 100, 5000)), 1)
    if kind < 0.95:
        return text.replace(":", ': {"a": ' * rng.choice((2, 70, 3000)), 1)
    return text[:-1] + "," + text[1:]  # every key twice


def twist(rng: random.Random, value: Any) -> None:
    """Change one place of a JSON value."""
    places: list[tuple[Any, Any]] = []
    stack = [value]
    while stack:
        node = stack.pop()
        entries = node.items() if isinstance(node, dict) else enumerate(node)
        for key, child in list(entries):
            places.append((node, key))
            if isinstance(child, dict | list):
                stack.append(child)
    if not places:
        return
    node, key = rng.choice(places)
    action = rng.random()
    if action < 0.6:
        node[key] = copy.deepcopy(rng.choice(ODD_VALUES))
    elif action < 0.8 and isinstance(node, dict):
        del node[key]
    elif isinstance(node, dict):
        node[rng.choice(["type", "id", "extra", "audio", "", "event_id"])] = copy.deepcopy(
            node[key]
        )


def test_mutated_frames_give_only_documented_errors() -> None:
    rng = random.Random(7)
    wire = Wire()
    for n in range(N_MUTATIONS):
        if n % 200 == 0:
            wire = Wire()
        frame = mutate(rng, rng.choice(FRAMES))
        wire.protocol.receive(frame)
        for outgoing in wire.protocol.take_outgoing():
            event = json.loads(outgoing.data)
            outgoing.data.encode()  # a lone surrogate would break the socket
            assert len(outgoing.data) < 1024 * 1024
            if event["type"] != "error":
                continue
            error = event["error"]
            assert error["code"] in CODES, (error, frame)
            assert error["type"] == "invalid_request_error"
            assert 0 < len(error["message"]) < 600, (error, frame)


def test_a_session_survives_everything_and_still_works() -> None:
    rng = random.Random(11)
    wire = Wire()
    for _ in range(300):
        wire.protocol.receive(mutate(rng, rng.choice(FRAMES)))
    if wire.protocol.active_response is not None:
        wire.say("response.cancel")
    wire.sent()
    wire.update(output_modalities=["text"])
    handle = wire.protocol.open_response()
    handle.text_delta("Still here.")
    handle.close("completed")
    assert wire.sent()[-1]["response"]["status"] == "completed"


@each_row(("frame", "words"), [
    ('{"type": "input_audio_buffer.append", "audio": "AAA"}',
     "audio: expected base64, found 'AAA'"),
    ('{"type": "input_audio_buffer.append", "audio": "A A="}', "audio: expected base64"),
    ('{"type": "input_audio_buffer.append", "audio": "AA-_"}', "audio: expected base64"),
    ('{"type": "input_audio_buffer.append", "audio": "AAAA===="}', "audio: expected base64"),
    ('{"type": "input_audio_buffer.append", "audio": "é"}', "audio: expected base64"),
    ('{"type": "input_audio_buffer.append", "audio": "AAAA"}',
     "audio: expected 16-bit samples (an even byte count), found 3 bytes"),
    ('{"type": "audio.append"}', "expected type to be a client event, found 'audio.append'"),
    ('{"type": "response.create", "response": 5}', "response: expected object | null, found int"),
    ("{" + "x" * (2 * 1024 * 1024), "expected a frame of at most 2097152 bytes, found 2097153"),
])  # fmt: skip
def test_bad_input_is_told_in_one_sentence(frame: str, words: str) -> None:
    wire = Wire()
    assert wire.protocol.receive(frame) == []
    (event,) = wire.sent()
    assert event["type"] == "error" and words in event["error"]["message"]

"""The orderings of the Realtime protocol, as clients of the field expect them."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from clients.connection import typed
from tests.tables import each_row
from tests.wire import Wire
from voiceloop.backends import SpokenWord, Usage
from voiceloop.capabilities import Capabilities
from voiceloop.errors import BackendError
from voiceloop.realtime.commands import (
    AppendAudio,
    CreateResponse,
    SettingsChanged,
    TruncateItem,
)
from voiceloop.realtime.items import Message
from voiceloop.realtime.protocol import Protocol
from voiceloop.realtime.settings import AudioFormat, SessionSettings, Transcription
from voiceloop.realtime.window import most_characters

SECOND = b"\0\0" * 24000
USER_ITEM = typed("hello")
MANUAL: dict[str, Any] = {"turn_detection": None}


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def test_a_spoken_turn_in_order() -> None:
    wire = Wire(transcription=Transcription())
    protocol = wire.protocol
    item_id = protocol.speech_started(100.0)
    protocol.speech_stopped(900.0)
    assert protocol.commit_input() == item_id
    protocol.transcription_completed(item_id, "hello", 0.8)
    handle = protocol.open_response()
    handle.transcript_delta("Hi.")
    handle.audio_delta(SECOND[:960], 20.0)
    handle.close("completed", usage=Usage(7, 3, 2))
    events = wire.sent()
    assert [event["type"] for event in events] == [
        "input_audio_buffer.speech_started",
        "input_audio_buffer.speech_stopped",
        "input_audio_buffer.committed",
        "conversation.item.added",
        "conversation.item.done",
        "conversation.item.input_audio_transcription.completed",
        "response.created",
        "response.output_item.added",
        "conversation.item.added",
        "response.content_part.added",
        "response.output_audio_transcript.delta",
        "response.output_audio.delta",
        "response.output_audio.done",
        "response.output_audio_transcript.done",
        "response.content_part.done",
        "conversation.item.done",
        "response.output_item.done",
        "response.done",
    ]
    assert events[3]["item"]["content"] == [{"type": "input_audio", "transcript": None}]
    done = events[-1]["response"]
    assert done["status"] == "completed" and done["usage"]["total_tokens"] == 9 + 8 + 1
    assert done["output"][0]["content"] == [{"type": "output_audio", "transcript": "Hi."}]


def test_barge_in_flushes_the_client_before_it_closes_the_response() -> None:
    wire = Wire()
    handle = wire.protocol.open_response()
    handle.transcript_delta("Let me tell you")
    wire.sent()
    wire.protocol.speech_started(5000.0)
    events = wire.sent()
    assert events[0]["type"] == "input_audio_buffer.speech_started"
    assert [event["type"] for event in events][-1] == "response.done"
    details = events[-1]["response"]["status_details"]
    assert details == {"type": "cancelled", "reason": "turn_detected"}
    assert events[-2]["item"]["status"] == "incomplete"
    assert handle.closed


def test_a_deltas_of_a_cancelled_response_is_stale_and_its_lifecycle_is_not() -> None:
    wire = Wire()
    handle = wire.protocol.open_response()
    handle.audio_delta(SECOND[:960], 20.0)
    wire.say("response.cancel")
    frames = wire.protocol.take_outgoing()
    stale = [json.loads(f.data)["type"] for f in frames if wire.protocol.outbox.is_stale(f)]
    assert stale == ["response.output_audio.delta"]


def test_nothing_follows_the_terminal() -> None:
    wire = Wire()
    handle = wire.protocol.open_response()
    handle.close("failed", error=BackendError("the voice failed"))
    wire.sent()
    handle.text_delta("x")
    handle.transcript_delta("x")
    handle.audio_delta(SECOND, 1000.0)
    handle.function_call("c", "f")
    handle.arguments_done("c", "{}")
    handle.close("completed")
    assert wire.sent() == []


def test_out_of_band_responses_are_bounded() -> None:
    wire = Wire()
    for _ in range(4):
        wire.say("response.create", response={"conversation": "none"})
    wire.sent()
    wire.say("response.create", response={"conversation": "none"})
    assert wire.error_code() == "too_many_responses"


def test_a_responses_own_input_replaces_the_conversation() -> None:
    wire = Wire(instructions="Be kind.")
    item = {
        "id": "u1",
        "type": "message",
        "role": "user",
        "content": [{"type": "input_text", "text": "first"}],
    }
    wire.say("conversation.item.create", item=item)
    asked = {
        "conversation": "none",
        "instructions": "Classify.",
        "input": [
            {"type": "item_reference", "id": "u1"},
            typed("now"),
        ],
    }
    (command,) = wire.say("response.create", response=asked)
    assert isinstance(command, CreateResponse)
    contents = [message.content for message in command.response.messages()]
    assert contents == ["Classify.", "first", "now"]


def test_a_reference_counts_as_what_it_refers_to_each_time() -> None:
    wire = Wire()
    wire.say("conversation.item.create", item={**USER_ITEM, "id": "u1", "content": [
        {"type": "input_text", "text": "w" * 30_000},
    ]})  # fmt: skip
    wire.sent()
    most = most_characters(0) // 30_000
    reference = {"type": "item_reference", "id": "u1"}
    asked = {"conversation": "none", "input": most * [reference]}
    assert len(wire.say("response.create", response=asked)) == 1
    wire.sent()
    asked["input"] = (most + 1) * [reference]
    assert wire.say("response.create", response=asked) == []
    assert wire.error_code() == "context_length_exceeded"


def test_an_idle_caller_makes_an_empty_turn() -> None:
    wire = Wire()
    item_id = wire.protocol.idle_timeout(1000.0, 7000.0)
    events = wire.sent()
    assert [event["type"] for event in events] == [
        "input_audio_buffer.timeout_triggered",
        "input_audio_buffer.committed",
        "conversation.item.added",
        "conversation.item.done",
    ]
    assert events[0]["item_id"] == events[1]["item_id"] == item_id
    assert wire.protocol.shown.messages() == ()


def test_uncommitted_audio_is_bounded_when_only_the_client_commits() -> None:
    wire = Wire(**MANUAL, input_format=AudioFormat("audio/pcmu", 8000))
    minute = b64(bytes(8000 * 60))
    for _ in range(10):
        assert wire.say("input_audio_buffer.append", audio=minute)
    assert wire.say("input_audio_buffer.append", audio=minute) == []
    assert wire.error_code() == "input_audio_buffer_full"


def test_audio_in_items_is_bounded_until_its_words_are_known_or_not_wanted() -> None:
    wire = Wire(input_format=AudioFormat("audio/pcmu", 8000))
    part = {"type": "input_audio", "audio": b64(bytes(8000 * 60))}  # a minute

    def create(item_id: str) -> bool:
        item = {"id": item_id, "type": "message", "role": "user", "content": [part]}
        return bool(wire.say("conversation.item.create", item=item))

    assert all(create(f"clip_{n}") for n in range(10))
    wire.sent()
    assert not create("over")
    assert wire.error_code() == "input_audio_buffer_full"
    assert wire.protocol.conversation.get("over") is None
    wire.protocol.transcription_completed("clip_0", "one tea", 60.0)
    assert create("after words") and not create("over")
    wire.protocol.transcription_failed("clip_1", "the recognizer is gone")
    assert create("after a failure") and not create("over")
    wire.say("conversation.item.delete", item_id="clip_2")
    assert create("after a deletion") and not create("over")


def reply(wire: Wire, seconds: int = 1) -> str:
    """A finished spoken reply of two words; returns its item."""
    handle = wire.protocol.open_response()
    handle.transcript_delta("Hello there.")
    handle.audio_delta(SECOND * seconds, 1000.0 * seconds)
    handle.add_words((SpokenWord("Hello", 0, 400, 5), SpokenWord("there", 400, 900, 12)))
    item_id = handle.item_id
    handle.close("completed")
    wire.sent()
    assert item_id is not None
    return item_id


@pytest.mark.parametrize(("asked_ms", "kept_ms", "heard"), [
    (450, 450, "Hello"), (99_999, 1000, "Hello there."), (-5, 0, ""), (0, 0, ""),
])  # fmt: skip
def test_truncate_is_clamped_acknowledged_and_keeps_what_was_heard(
    asked_ms: int, kept_ms: int, heard: str
) -> None:
    wire = Wire()
    item_id = reply(wire)
    commands = wire.say(
        "conversation.item.truncate", item_id=item_id, content_index=0, audio_end_ms=asked_ms
    )
    assert commands == [TruncateItem(item_id, kept_ms)]
    (event,) = wire.sent()
    assert event["type"] == "conversation.item.truncated" and event["audio_end_ms"] == kept_ms
    said = [m.content for m in wire.protocol.shown.messages() if m.role == "assistant"]
    assert said == ([heard] if heard else [])


@each_row(("event", "code"), [
    ({"type": "conversation.item.retrieve", "item_id": "x"}, "item_retrieve_invalid_item_id"),
    ({"type": "conversation.item.delete", "item_id": "x"}, "item_delete_invalid_item_id"),
    ({"type": "conversation.item.truncate", "item_id": "x", "content_index": 0,
      "audio_end_ms": 1}, "item_truncate_invalid_item_id"),
    ({"type": "conversation.item.truncate", "item_id": "u", "content_index": 0,
      "audio_end_ms": 1}, "invalid_value"),
    ({"type": "conversation.item.create", "item": {"id": "u", "type": "message", "role": "user",
      "content": []}}, "item_create_duplicate_item_id"),
    ({"type": "conversation.item.create", "previous_item_id": "x", "item": {"type": "message",
      "role": "user"}}, "invalid_value"),
    ({"type": "response.create", "response": {"input": [{"type": "item_reference", "id": "x"}]}},
     "invalid_value"),
    ({"type": "response.create", "response": {"metadata": {"k": "v" * 513}}}, "invalid_value"),
    ({"type": "response.create", "response": {"conversation": "other"}}, "invalid_value"),
])  # fmt: skip
def test_what_cannot_be_done_has_its_code(event: dict[str, Any], code: str) -> None:
    wire = Wire()
    wire.protocol.conversation.insert(Message(id="u", role="user"))
    assert wire.protocol.receive(json.dumps({**event, "event_id": "e7"})) == []
    (sent,) = wire.sent()
    assert (sent["error"]["code"], sent["error"]["event_id"]) == (code, "e7")


def test_stable_words_grow_the_transcript_while_the_caller_speaks() -> None:
    wire = Wire(transcription=Transcription())
    item_id = wire.protocol.speech_started(0.0)
    wire.sent()
    for stable in ("two", "two", "two lattes", "two lattes please"):
        wire.protocol.partial(item_id, stable, "unsure")
    events = wire.sent()
    assert {event["item_id"] for event in events} == {item_id}
    assert [event["delta"] for event in events] == ["two", " lattes", " please"]
    wire.protocol.commit_input()
    second = wire.protocol.speech_started(9.0)
    wire.sent()
    wire.protocol.partial(second, "and", "")
    assert [event["delta"] for event in wire.sent()] == ["and"]


def test_the_extra_events_are_sent_to_those_who_asked() -> None:
    wire = Wire()
    wire.update(voiceloop={"timeline": True, "partials": True})
    wire.protocol.partial("item", "two", "lattes")
    wire.protocol.timeline({"gap_ms": 1})
    assert wire.types() == ["voiceloop.partial", "voiceloop.timeline"]


def test_a_settings_change_is_echoed_and_handed_on() -> None:
    wire = Wire()
    (command,) = wire.say("session.update", session={"instructions": "Be brief."})
    assert isinstance(command, SettingsChanged)
    assert command.current.instructions == "Be brief." != command.previous.instructions
    assert wire.sent()[0]["session"]["instructions"] == "Be brief."


def test_an_echo_never_outgrows_what_clients_read() -> None:
    wire = Wire()
    wire.say("session.update", session={"instructions": "x" * 600_000})
    assert wire.error_code() == "invalid_value"
    text = [{"type": "input_text", "text": "x" * 600_000}]
    wire.say("conversation.item.create", item={"type": "message", "role": "user", "content": text})
    assert wire.error_code() == "invalid_value"


def test_the_open_user_turns_id_is_taken() -> None:
    wire = Wire()
    item_id = wire.protocol.speech_started(100.0)
    wire.sent()
    wire.say("conversation.item.create", item={"id": item_id, **USER_ITEM})
    assert wire.error_code() == "item_create_duplicate_item_id"
    assert wire.protocol.commit_input() == item_id


def test_what_the_detector_heard_does_not_fill_a_manual_buffer() -> None:
    wire = Wire()
    for _ in range(11 * 60):
        wire.say("input_audio_buffer.append", audio=b64(SECOND))
    wire.update(type="realtime", audio={"input": {"turn_detection": None}})
    assert wire.say("input_audio_buffer.append", audio=b64(SECOND)) == [AppendAudio(SECOND)]


@pytest.mark.parametrize("arguments", ["{not json", "[]", "12", '{"a": ' * 99 + "1" + "}" * 99])
def test_a_call_with_broken_arguments_does_not_enter_the_history(arguments: str) -> None:
    wire = Wire()
    item = {"type": "function_call", "call_id": "c1", "name": "hours", "arguments": arguments}
    wire.say("conversation.item.create", item=item)
    (event,) = wire.sent()
    assert event["error"]["param"] == "item.arguments"
    assert not wire.protocol.conversation.items()


def test_a_call_without_arguments_has_an_empty_object_of_them() -> None:
    wire = Wire()
    item = {"type": "function_call", "call_id": "c1", "name": "hours", "arguments": ""}
    wire.say("conversation.item.create", item=item)
    assert wire.sent()[0]["item"]["arguments"] == "{}"


def test_audio_counts_by_its_time_beside_the_text() -> None:
    wire = Wire()
    wire.protocol.speech_started(100)
    wire.protocol.speech_stopped(1650)
    wire.protocol.commit_input()
    handle = wire.protocol.open_response()
    handle.audio_delta(bytes(2 * 24 * 510), 510.0)
    handle.close("completed", usage=Usage(7, 3, 2))
    wire.protocol.open_response().close("completed", usage=Usage(7, 7, 2))
    first, second = (e["response"]["usage"] for e in wire.sent() if e["type"] == "response.done")
    assert first["input_token_details"]["audio_tokens"] == 16
    assert first["output_token_details"]["audio_tokens"] == 11
    assert (first["input_tokens"], first["output_tokens"]) == (7 + 16, 2 + 11)
    assert first["total_tokens"] == 7 + 16 + 2 + 11
    assert second["input_token_details"]["audio_tokens"] == 0 and second["total_tokens"] == 9


def test_instructions_that_the_model_cannot_take_change_nothing() -> None:
    known = Capabilities(context_tokens=400)
    protocol = Protocol(SessionSettings(instructions="Be kind."), capabilities=known)
    patch = {"instructions": "Be kind. " * 400}
    protocol.receive(json.dumps({"type": "session.update", "session": patch}))
    (error,) = (json.loads(frame.data) for frame in protocol.take_outgoing())
    assert error["error"]["param"] == "session.instructions"
    assert protocol.settings.instructions == "Be kind."

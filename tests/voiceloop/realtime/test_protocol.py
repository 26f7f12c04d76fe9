"""The orderings of the Realtime protocol, as clients of the field expect them."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from tests.wire import Wire
from voiceloop.backends import SpokenWord, Usage
from voiceloop.capabilities import Capabilities
from voiceloop.errors import BackendError, InvalidRequest
from voiceloop.realtime.commands import (
    AppendAudio,
    CancelResponse,
    CommitAudio,
    CreateResponse,
    ItemCreated,
    ItemDeleted,
    SettingsChanged,
    TruncateItem,
)
from voiceloop.realtime.items import Message
from voiceloop.realtime.protocol import Protocol
from voiceloop.realtime.response_request import ResponseRequest
from voiceloop.realtime.settings import AudioFormat, SemanticVad, SessionSettings, Transcription
from voiceloop.realtime.window import most_characters

SECOND = b"\0\0" * 24000
USER_ITEM = {
    "type": "message",
    "role": "user",
    "content": [{"type": "input_text", "text": "hello"}],
}
MANUAL: dict[str, Any] = {"turn_detection": None}


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def test_a_session_is_announced_unprompted() -> None:
    wire = Wire()
    wire.protocol.connect()
    (created,) = wire.sent()
    assert created["type"] == "session.created"
    session = created["session"]
    assert session["audio"]["input"]["turn_detection"] == {
        "type": "semantic_vad",
        "eagerness": "auto",
        "create_response": True,
        "interrupt_response": True,
    }
    assert session["audio"]["output"]["format"] == {"type": "audio/pcm", "rate": 24000}
    assert session["audio"]["input"]["transcription"] is None


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


def test_a_text_reply_in_order() -> None:
    wire = Wire(output_modalities=("text",))
    handle = wire.protocol.open_response()
    handle.text_delta("Hel")
    handle.text_delta("lo.")
    handle.close("completed")
    assert wire.types() == [
        "response.created",
        "response.output_item.added",
        "conversation.item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "conversation.item.done",
        "response.output_item.done",
        "response.done",
    ]


def test_a_tool_call_in_order() -> None:
    wire = Wire()
    handle = wire.protocol.open_response()
    handle.function_call("call_1", "hours")
    handle.arguments_done("call_1", '{"day": "monday"}')
    handle.close("completed")
    events = wire.sent()
    assert [event["type"] for event in events] == [
        "response.created",
        "response.output_item.added",
        "conversation.item.added",
        "response.function_call_arguments.delta",
        "response.function_call_arguments.done",
        "conversation.item.done",
        "response.output_item.done",
        "response.done",
    ]
    assert events[4]["name"] == "hours" and events[4]["call_id"] == "call_1"
    result = {"type": "function_call_output", "call_id": "call_1", "output": "9 to 5"}
    (command,) = wire.say("conversation.item.create", item=result)
    assert isinstance(command, ItemCreated)
    roles = [message.role for message in wire.protocol.shown.messages()]
    assert roles == ["assistant", "tool"]


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


def test_speech_leaves_the_response_alone_where_interruption_is_off() -> None:
    wire = Wire(turn_detection=SemanticVad(interrupt_response=False))
    handle = wire.protocol.open_response()
    wire.protocol.speech_started(10.0)
    assert not handle.closed


def test_a_deltas_of_a_cancelled_response_is_stale_and_its_lifecycle_is_not() -> None:
    wire = Wire()
    handle = wire.protocol.open_response()
    handle.audio_delta(SECOND[:960], 20.0)
    wire.say("response.cancel")
    frames = wire.protocol.take_outgoing()
    stale = [json.loads(f.data)["type"] for f in frames if wire.protocol.outbox.is_stale(f)]
    assert stale == ["response.output_audio.delta"]


def test_deltas_of_a_completed_response_are_not_stale() -> None:
    wire = Wire()
    handle = wire.protocol.open_response()
    handle.audio_delta(SECOND[:960], 20.0)
    handle.close("completed")
    assert not any(wire.protocol.outbox.is_stale(frame) for frame in wire.protocol.take_outgoing())


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


def test_a_failed_response_says_why() -> None:
    wire = Wire()
    wire.protocol.open_response().close("failed", error=BackendError("the voice failed"))
    details = wire.sent()[-1]["response"]["status_details"]
    told = {"type": "server_error", "code": "backend_error", "message": "the voice failed"}
    assert details == {"type": "failed", "error": told}


def test_only_one_response_of_the_conversation_runs() -> None:
    wire = Wire()
    (command,) = wire.say("response.create")
    assert isinstance(command, CreateResponse)
    wire.sent()
    assert wire.say("response.create", event_id="mine") == []
    (event,) = wire.sent()
    assert event["error"]["code"] == "conversation_already_has_active_response"
    assert event["error"]["event_id"] == "mine"
    with pytest.raises(InvalidRequest):
        wire.protocol.open_response()


def test_out_of_band_responses_run_beside_it_and_leave_no_trace() -> None:
    wire = Wire()
    wire.protocol.open_response()
    wire.sent()
    (command,) = wire.say(
        "response.create", response={"conversation": "none", "metadata": {"a": "b"}}
    )
    assert isinstance(command, CreateResponse)
    command.response.transcript_delta("aside")
    command.response.close("completed")
    events = wire.sent()
    assert not any(event["type"].startswith("conversation.") for event in events)
    assert events[0]["response"]["conversation_id"] is None
    assert events[-1]["response"]["metadata"] == {"a": "b"}
    assert wire.protocol.shown.messages() == ()
    assert wire.protocol.active_response is not None


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
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "now"}]},
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


def test_cancel_closes_at_once_and_without_a_response_is_an_error() -> None:
    wire = Wire()
    handle = wire.protocol.open_response()
    assert wire.say("response.cancel") == [CancelResponse(handle.id)]
    details = wire.sent()[-1]["response"]["status_details"]
    assert details == {"type": "cancelled", "reason": "client_cancelled"}
    assert wire.say("response.cancel") == [CancelResponse(None)]  # one cut short may wait
    (event,) = wire.sent()
    assert event["error"]["code"] == "response_cancel_not_active"
    assert event["error"]["message"].startswith("Cancellation failed")


def test_manual_commit_acknowledges_and_starts_no_response() -> None:
    wire = Wire(**MANUAL)
    (append,) = wire.say("input_audio_buffer.append", audio=b64(SECOND))
    assert append == AppendAudio(SECOND)
    (commit,) = wire.say("input_audio_buffer.commit")
    assert isinstance(commit, CommitAudio)
    assert wire.types() == [
        "input_audio_buffer.committed",
        "conversation.item.added",
        "conversation.item.done",
    ]


@pytest.mark.parametrize("n_bytes", [0, 4798])
def test_a_commit_of_too_little_audio_is_refused(n_bytes: int) -> None:
    wire = Wire(**MANUAL)
    wire.say("input_audio_buffer.append", audio=b64(bytes(n_bytes)))
    wire.say("input_audio_buffer.commit")
    assert wire.error_code() == "input_audio_buffer_commit_empty"


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


def test_clear_forgets_what_waits() -> None:
    wire = Wire(**MANUAL)
    wire.say("input_audio_buffer.append", audio=b64(SECOND))
    wire.say("input_audio_buffer.clear")
    wire.say("input_audio_buffer.commit")
    assert wire.types() == ["input_audio_buffer.cleared", "error"]


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


def test_items_are_created_where_asked_retrieved_and_deleted() -> None:
    wire = Wire()
    for item_id, previous in [("a", None), ("c", None), ("b", "a"), ("0", "root")]:
        message = {
            "id": item_id,
            "type": "message",
            "role": "user",
            "content": [{"type": "input_text", "text": item_id}],
        }
        wire.say("conversation.item.create", item=message, previous_item_id=previous)
    assert [item.id for item in wire.protocol.conversation.items()] == ["0", "a", "b", "c"]
    added = [e for e in wire.sent() if e["type"] == "conversation.item.added"]
    assert [event["previous_item_id"] for event in added] == [None, "a", "a", None]
    wire.say("conversation.item.retrieve", item_id="b")
    (event,) = wire.sent()
    assert event["item"]["content"] == [{"type": "input_text", "text": "b"}]
    assert wire.say("conversation.item.delete", item_id="b") == [ItemDeleted("b")]
    assert wire.types() == ["conversation.item.deleted"]


@pytest.mark.parametrize(("event", "code"), [
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


def test_the_transcript_reaches_the_item_before_a_retrieve_asks() -> None:
    wire = Wire(transcription=Transcription())
    item_id = wire.protocol.commit_input()
    wire.protocol.transcription_completed(item_id, "two lattes", 1.0)
    wire.sent()
    wire.say("conversation.item.retrieve", item_id=item_id)
    assert wire.sent()[0]["item"]["content"][0]["transcript"] == "two lattes"


def test_transcription_is_silent_unless_asked_for_and_known_all_the_same() -> None:
    wire = Wire()
    item_id = wire.protocol.commit_input()
    wire.sent()
    wire.protocol.transcription_delta(item_id, "two")
    wire.protocol.transcription_completed(item_id, "two lattes", 1.0)
    wire.protocol.partial(item_id, "two", "lattes")
    wire.protocol.timeline({"gap_ms": 1})
    assert wire.sent() == []
    assert wire.protocol.shown.messages()[0].content == "two lattes"


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


def test_a_transcription_session_is_told_the_words_and_gives_no_response() -> None:
    wire = Wire(type="transcription")
    item_id = wire.protocol.commit_input()
    wire.protocol.transcription_completed(item_id, "two lattes", 1.0)
    assert wire.types()[-1].endswith("transcription.completed")
    assert wire.say("response.create") == []
    assert wire.error_code() == "invalid_value"


def test_the_extra_events_are_sent_to_those_who_asked() -> None:
    wire = Wire()
    wire.update(voiceloop={"timeline": True, "partials": True})
    wire.protocol.partial("item", "two", "lattes")
    wire.protocol.timeline({"gap_ms": 1})
    assert wire.types() == ["voiceloop.partial", "voiceloop.timeline"]


def test_settings_of_a_response_override_the_sessions() -> None:
    wire = Wire(instructions="long", max_output_tokens=50)
    asked = {"output_modalities": ["text"], "instructions": "short", "max_output_tokens": 9}
    (command,) = wire.say("response.create", response=asked)
    assert isinstance(command, CreateResponse)
    response = command.response
    assert (response.speaks, response.instructions, response.max_output_tokens) == (
        False, "short", 9,
    )  # fmt: skip
    assert ResponseRequest().instructions is None


def test_every_event_has_its_own_id() -> None:
    wire = Wire()
    reply_id = reply(wire)
    wire.say("conversation.item.retrieve", item_id=reply_id)
    wire.protocol.connect()
    ids = [event["event_id"] for event in wire.sent()]
    assert len(set(ids)) == len(ids) == 2 and all(ids)


def test_long_audio_goes_out_in_frames_a_client_takes() -> None:
    wire = Wire()
    handle = wire.protocol.open_response()
    handle.audio_delta(SECOND * 3 + SECOND[:100], 3002.0)
    deltas = [e["delta"] for e in wire.sent() if e["type"].endswith("audio.delta")]
    sizes = [len(base64.b64decode(delta)) for delta in deltas]
    assert sum(sizes) == 3 * len(SECOND) + 100 and max(sizes) <= 9600
    assert all(size % 2 == 0 for size in sizes)


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

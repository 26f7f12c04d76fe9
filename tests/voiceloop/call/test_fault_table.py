"""Defects that break real clients, read backwards: each row of the field's fault table.

Each row: what a real client did when a server broke that one thing, found by fault injection.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.wire import Wire
from voiceloop.access.keys import subprotocol
from voiceloop.backends import SpokenWord, Usage
from voiceloop.realtime.commands import CreateResponse
from voiceloop.realtime.settings import Transcription

# Fields that the protocol documents as nullable; everything else is left out when it is not set.
NULLABLE = {
    "previous_item_id", "transcript", "status_details", "usage", "metadata", "conversation_id",
    "param", "event_id", "turn_detection", "transcription", "noise_reduction", "idle_timeout_ms",
}  # fmt: skip


def call() -> tuple[Wire, list[dict[str, Any]]]:
    """A call with everything in it: settings, speech, words, audio, a tool, an error, a cut."""
    wire = Wire(transcription=Transcription())
    protocol = wire.protocol
    protocol.connect()
    wire.say(
        "session.update", session={"audio": {"input": {"turn_detection": {"type": "server_vad"}}}}
    )
    item_id = protocol.speech_started(10.0)
    protocol.speech_stopped(900.0)
    protocol.commit_input()
    protocol.transcription_completed(item_id, "hello", 0.9)
    (command,) = wire.say("response.create", response={"metadata": {"client_event_id": "7"}})
    assert isinstance(command, CreateResponse)
    response = command.response
    response.transcript_delta("Hi.")
    response.audio_delta(bytes(960), 20.0)
    response.add_words((SpokenWord("Hi", 0, 20, 3),))
    response.function_call("call_1", "hours")
    response.arguments_done("call_1", "{}")
    response.close("completed", usage=Usage(5, 2, 3))
    wire.say(
        "conversation.item.truncate", item_id=response.item_id, content_index=0, audio_end_ms=9
    )
    wire.say("response.cancel", event_id="mine")
    return wire, wire.sent()


def of(events: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    found = [event for event in events if event["type"] == kind]
    assert found, kind
    return found


def nulls(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for key, child in value.items():
            if child is None:
                yield key
            yield from nulls(child)
    elif isinstance(value, list):
        for child in value:
            yield from nulls(child)


def test_every_event_has_an_id() -> None:
    _, events = call()
    assert all(event["event_id"] for event in events)


def test_the_metadata_of_a_response_comes_back_at_once_and_at_the_end() -> None:
    _, events = call()
    for kind in ("response.created", "response.done"):
        assert of(events, kind)[0]["response"]["metadata"] == {"client_event_id": "7"}


def test_every_item_is_added_and_done() -> None:
    _, events = call()
    added = [event["item"]["id"] for event in of(events, "conversation.item.added")]
    done = [event["item"]["id"] for event in of(events, "conversation.item.done")]
    assert sorted(added) == sorted(done) and len(set(added)) == len(added) == 3


def test_the_session_is_announced_first_and_each_update_answered() -> None:
    _, events = call()
    assert events[0]["type"] == "session.created" and events[1]["type"] == "session.updated"


def test_the_echo_says_whether_speech_interrupts() -> None:
    _, events = call()
    for event in events[:2]:
        detection = event["session"]["audio"]["input"]["turn_detection"]
        assert detection["interrupt_response"] is True and detection["create_response"] is True


def test_usage_has_every_integer() -> None:
    _, events = call()
    usage = of(events, "response.done")[0]["response"]["usage"]
    assert not list(nulls(usage))
    assert usage["input_token_details"]["cached_tokens"] == 2
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]
    for side, n_text in (("input", 5), ("output", 3)):
        details = usage[f"{side}_token_details"]
        assert details["text_tokens"] == n_text
        assert usage[f"{side}_tokens"] == n_text + details["audio_tokens"]


def test_only_documented_nullables_are_null() -> None:
    _, events = call()
    for event in events:
        assert set(nulls(event)) <= NULLABLE, event


def test_a_failed_cancel_has_the_code_and_the_words_that_clients_know() -> None:
    _, events = call()
    error = of(events, "error")[0]["error"]
    assert error["code"] == "response_cancel_not_active" and error["event_id"] == "mine"
    assert error["message"].startswith("Cancellation failed")


def test_the_transcription_echo_has_no_key_of_its_own() -> None:
    wire = Wire()
    asked = {"model": "whisper-1", "language": "en", "delay": "low", "keywords": ["latte"]}
    echo = wire.update(audio={"input": {"transcription": asked}})["session"]
    assert echo["audio"]["input"]["transcription"] == {"model": "whisper-1", "language": "en"}
    assert echo["audio"]["output"]["format"]["rate"] == 24000


def test_finished_arguments_name_their_function() -> None:
    _, events = call()
    assert of(events, "response.function_call_arguments.done")[0]["name"] == "hours"


def test_a_completed_transcription_has_its_usage() -> None:
    _, events = call()
    kind = "conversation.item.input_audio_transcription.completed"
    assert of(events, kind)[0]["usage"] == {"type": "duration", "seconds": 0.9}


def test_content_parts_are_called_text_and_audio() -> None:
    _, events = call()
    for kind in ("response.content_part.added", "response.content_part.done"):
        assert {event["part"]["type"] for event in of(events, kind)} == {"audio"}


def test_no_vendor_event_is_sent_unasked() -> None:
    wire, events = call()
    wire.protocol.timeline({"gap_ms": 1})
    wire.protocol.partial("item", "a", "b")
    kinds = {event["type"].partition(".")[0] for event in [*events, *wire.sent()]}
    assert kinds <= {"session", "conversation", "input_audio_buffer", "response", "error"}


def test_repeated_updates_that_ask_for_tracing_are_taken() -> None:
    wire = Wire()
    for _ in range(2):
        assert wire.update(tracing="auto")["type"] == "session.updated"


def test_assistant_messages_with_input_text_are_taken() -> None:
    wire = Wire()
    content = [{"type": "input_text", "text": "Hi."}]
    wire.say("conversation.item.create", item={"type": "message", "role": "assistant",
                                               "content": content})  # fmt: skip
    assert wire.sent()[0]["item"]["content"] == [{"type": "output_text", "text": "Hi."}]


def test_the_users_words_come_by_one_way_only() -> None:
    _, events = call()
    user = of(events, "conversation.item.added")[0]["item"]
    assert user["content"] == [{"type": "input_audio", "transcript": None}]


def test_a_setting_that_is_not_known_is_no_error() -> None:
    wire = Wire()
    event = wire.update(x_newer_setting={"level": 3}, include=[], audio={"x": 1})
    assert event["type"] == "session.updated" and "x_newer_setting" not in event["session"]


def test_a_tool_of_another_kind_brings_no_item_and_no_event_of_its_own() -> None:
    wire = Wire()
    mcp = {"type": "mcp", "server_label": "docs", "server_url": "https://mcp.invalid/sse"}
    event = wire.update(tools=[mcp])
    assert event["session"]["tools"] == [] and wire.sent() == []


def test_the_subprotocol_selected_is_the_one_without_the_key() -> None:
    offered = ["openai-insecure-api-key.secret", "realtime", "openai-agents-sdk.1"]
    assert subprotocol(offered) == "realtime"
    assert subprotocol(offered[:1]) is None


def test_the_codes_of_ordinary_races_are_those_that_clients_tolerate() -> None:
    wire = Wire()
    wire.say("response.cancel")
    assert wire.error_code() == "response_cancel_not_active"
    wire.say("conversation.item.retrieve", item_id="none")
    assert wire.error_code() == "item_retrieve_invalid_item_id"
    wire.protocol.open_response()
    wire.sent()
    wire.say("response.create")
    assert wire.error_code() == "conversation_already_has_active_response"

"""A connection with the beta's header is spoken to in the beta's names; others never are."""

from __future__ import annotations

import base64

from tests.wire import Wire
from voiceloop.realtime.commands import CreateResponse
from voiceloop.realtime.settings import AudioFormat, ServerVad, Transcription


def test_a_flat_update_is_understood() -> None:
    wire = Wire(is_beta=True)
    echo = wire.update(
        modalities=["text", "audio"],
        voice="alloy",
        input_audio_format="g711_ulaw",
        output_audio_format="g711_alaw",
        input_audio_transcription={"model": "whisper-1"},
        turn_detection={"type": "server_vad", "silence_duration_ms": 300},
        max_response_output_tokens=99,
        temperature=0.7,
    )["session"]
    settings = wire.protocol.settings
    assert settings.input_format == AudioFormat("audio/pcmu", 8000)
    assert settings.output_format == AudioFormat("audio/pcma", 8000)
    assert settings.turn_detection == ServerVad(silence_duration_ms=300)
    assert settings.transcription == Transcription(model="whisper-1")
    assert (settings.max_output_tokens, settings.temperature) == (99, 0.7)
    assert echo["input_audio_format"] == "g711_ulaw" and echo["max_response_output_tokens"] == 99
    assert echo["temperature"] == 0.7


def test_manual_mode_by_a_flat_null() -> None:
    wire = Wire(is_beta=True)
    assert wire.update(turn_detection=None)["session"]["turn_detection"] is None
    assert wire.protocol.settings.turn_detection is None


def test_a_turn_has_the_betas_events() -> None:
    wire = Wire(is_beta=True)
    wire.protocol.commit_input()
    handle = wire.protocol.open_response()
    handle.transcript_delta("Hi.")
    handle.audio_delta(b"\1\0" * 240, 10.0)
    handle.close("completed")
    events = wire.sent()
    assert [event["type"] for event in events] == [
        "input_audio_buffer.committed",
        "conversation.item.created",
        "response.created",
        "response.output_item.added",
        "conversation.item.created",
        "response.content_part.added",
        "response.audio_transcript.delta",
        "response.audio.delta",
        "response.audio.done",
        "response.audio_transcript.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.done",
    ]
    assert base64.b64decode(events[7]["delta"]) == b"\1\0" * 240
    done = events[-1]["response"]
    assert done["modalities"] == ["audio", "text"] and done["output_audio_format"] == "pcm16"
    assert done["output"][0]["content"] == [{"type": "audio", "transcript": "Hi."}]


def test_a_flat_response_request_is_understood() -> None:
    wire = Wire(is_beta=True)
    asked = {"modalities": ["text"], "max_response_output_tokens": 5, "voice": "alloy"}
    (command,) = wire.say("response.create", response=asked)
    assert isinstance(command, CreateResponse)
    assert not command.response.speaks and command.response.max_output_tokens == 5


def test_the_temperature_told_is_the_one_set() -> None:
    wire = Wire(is_beta=True)
    wire.update(temperature=0.3)
    wire.say("response.create", response={"modalities": ["text"]})
    response = wire.protocol.active_response
    assert response is not None
    response.close("completed")
    wire.say("response.create", response={"modalities": ["text"], "temperature": 0.0})
    told = [event["response"]["temperature"] for event in wire.sent() if "response" in event]
    assert told == [0.3, 0.3, 0.0]


def test_without_the_header_no_temperature_is_told() -> None:
    wire = Wire()
    assert "temperature" not in wire.update(temperature=0.3)["session"]
    wire.say("response.create", response={})
    (created,) = (event for event in wire.sent() if event["type"] == "response.created")
    assert "temperature" not in created["response"]


def test_flat_keys_mean_nothing_without_the_header() -> None:
    wire = Wire()
    wire.update(voice="alloy", turn_detection=None)
    assert wire.protocol.settings.voice == "default"
    assert wire.protocol.settings.turn_detection is not None


def test_a_transcription_session_of_the_beta_has_its_own_events() -> None:
    wire = Wire(is_beta=True, type="transcription")
    wire.protocol.connect()
    asked = {"input_audio_format": "g711_ulaw"}
    assert wire.say("transcription_session.update", session=asked)
    created, updated = wire.sent()
    assert created["type"] == "transcription_session.created"
    assert updated["type"] == "transcription_session.updated"
    assert updated["session"]["input_audio_format"] == "g711_ulaw"

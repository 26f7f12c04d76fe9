"""What is no event is refused with one clear sentence; what newer clients add is ignored."""

from __future__ import annotations

import json

import msgspec
import pytest

from tests.tables import each_row
from voiceloop.errors import InvalidRequest
from voiceloop.realtime.client_events import (
    CLIENT_EVENTS,
    MAX_CHARACTERS_READ_TWICE,
    MAX_DEPTH,
    MAX_VALUES,
    AudioAppend,
    parse_event,
    parse_frame,
)


def refused(frame: str | bytes) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        parse_event(parse_frame(frame))
    return caught.value


def test_the_protocol_has_eleven_client_events_and_two_of_our_own() -> None:
    own = [name for name in CLIENT_EVENTS if name.startswith("voiceloop.")]
    assert (len(CLIENT_EVENTS) - len(own), own) == (11, ["voiceloop.resume", "voiceloop.confirm"])


@each_row(("frame", "words"), [
    ("{", "expected JSON, found"),
    ("[1]", "expected a JSON object, found a list"),
    ("3", "expected a JSON object, found a bare value"),
    (b"\x00", "found a binary frame"),
    ('{"a": NaN}', "expected JSON, found"),
    ('{"type": "x", "a": 1e999}', "expected JSON, found"),
    ('{"a": 1, "a": 2}', "expected each key once, found 'a' twice"),
    ("[" * 100_000, "expected JSON of at most 40000 values, found more"),
    ("[" * 30_000, "nested at most 64 deep"),
    ('{"type":"session.update","session":' + '{"a":' * 80 + "1" + "}" * 81, "64 deep"),
    ('{"type": "\\ud800"}', "expected"),
    ('{"type": 5}', "expected type to be a string"),
    ("{}", "expected type to be a string, found nothing"),
    ('{"type": "respnse.create"}', "did you mean 'response.create'?"),
    ('{"type": "input_audio_buffer.append"}', "expected audio in input_audio_buffer.append"),
    ('{"type": "input_audio_buffer.append", "audio": 5}', "audio: expected str, found int"),
    ('{"type": "session.update", "session": []}', "session: expected object, found array"),
    ('{"type": "conversation.item.truncate", "item_id": "i", "content_index": 0.5, '
     '"audio_end_ms": 1}', "content_index: expected int, found float"),
    ('{"type": "response.cancel", "event_id": 7}', "event_id: expected str"),
])  # fmt: skip
def test_a_bad_frame_is_refused_in_words(frame: str | bytes, words: str) -> None:
    assert words in refused(frame).message


def test_a_frame_of_many_keys_is_searched_once_for_a_double_one() -> None:
    keys = ", ".join(f'"k{n}": 0' for n in range(5_000))
    # Compared pairwise these would hold up every call of the server for minutes.
    assert "found 'k4999' twice" in refused(f'{{{keys}, "k4999": 1}}').message


def test_depth_is_measured_as_documented() -> None:
    deep = json.loads("[" * (MAX_DEPTH - 1) + "]" * (MAX_DEPTH - 1))
    frame = json.dumps({"type": "session.update", "session": {"x": deep}})
    with pytest.raises(InvalidRequest):
        parse_frame(frame)
    frame = json.dumps({"type": "session.update", "session": {"x": deep[0]}})
    assert parse_frame(frame)["type"] == "session.update"


def test_values_are_counted_before_they_cost_anything() -> None:
    frame = json.dumps({"type": "session.update", "session": {"x": [[]] * MAX_VALUES}})
    assert f"at most {MAX_VALUES} values" in refused(frame).message


def test_a_long_text_is_not_read_twice() -> None:
    text = '"a": 1, "a": 2, ' + '"b": "' + MAX_CHARACTERS_READ_TWICE * "b" + '"'
    frame = '{"type": "session.update", "session": {' + text + "}}"
    assert parse_frame(frame)["session"]["a"] == 2
    assert "found 'a' twice" in refused(frame.replace("bb", "")).message


def test_audio_takes_the_short_way() -> None:
    event = parse_event(parse_frame('{"type": "input_audio_buffer.append", "audio": "AAAA"}'))
    assert event == AudioAppend(audio="AAAA")


def test_a_frame_of_a_million_brackets_is_refused_before_it_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def decode(frame: str) -> object:
        raise AssertionError("expected the frame to be left unread")

    monkeypatch.setattr(msgspec.json, "decode", decode)
    for piece in ("{},", "[],"):
        with pytest.raises(InvalidRequest, match="at most 40000 values"):
            parse_frame('{"type": "session.update", "session": [' + piece * 600_000 + "1]}")

"""What an error of a request's body says: what was expected there, and what was found."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from voiceloop.errors import InvalidRequest
from voiceloop.http.body import checked
from voiceloop.http.chat_request import ChatBody
from voiceloop.http.health import SecretBody
from voiceloop.http.speech import SpeechBody

HELLO = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


@pytest.mark.parametrize(("kind", "body", "told"), [
    (SpeechBody, {"input": "a", "response_format": "ogg"},
     "response_format: expected flac, mp3, opus, pcm, wav, found 'ogg'"),
    (SecretBody, {"lock": ["all"]},
     "lock[0]: expected instructions, roles, tools, voice, found 'all'"),
    (ChatBody, HELLO | {"tool_choice": "any"},
     "tool_choice: expected auto, none, required, found 'any'"),
    (ChatBody, HELLO | {"response_format": {"type": "xml"}},
     "response_format.type: expected text, json_object, json_schema, found 'xml'"),
    (ChatBody, HELLO | {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
     "messages[0].content[0].type: expected text, found 'image_url'"),
])  # fmt: skip
def test_an_error_names_what_may_be_chosen(
    kind: type[msgspec.Struct], body: dict[str, Any], told: str
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        checked(body, kind)
    assert caught.value.message == told


@pytest.mark.parametrize(("claims", "wanted"), [
    ({"order": "secret" * 50}, "str of length <= 128"),
    ({"secret" * 50: "17"}, "str of length <= 64"),
    ({f"secret {n}": "17" for n in range(9)}, "object of length <= 8"),
])  # fmt: skip
def test_an_error_of_claims_says_what_they_may_be_and_repeats_none(
    claims: dict[str, str], wanted: str
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        checked({"claims": claims}, SecretBody, private="claims")
    assert caught.value.message == f"claims: expected {wanted}, found another"

"""/v1/completions: a prompt as it is, what benchmark clients send, what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from tests.fakes import FakeLanguageModel, Fault, instant_backends
from tests.voiceloop.http_client import http_client, sse
from voiceloop.backends import Backends
from voiceloop.errors import InvalidRequest
from voiceloop.http.completions import parse_completion

URL = "/v1/completions"
ASKED: dict[str, Any] = {"model": "any", "prompt": "Once upon"}


def backends(*replies: str, **options: Any) -> tuple[Backends, FakeLanguageModel]:
    model = FakeLanguageModel(replies, **options)
    return instant_backends(language_model=model), model


async def test_the_prompt_goes_on_as_it_is() -> None:
    fakes, model = backends("a time there was")
    async with http_client(fakes) as http:
        body = (await http.post(URL, json=ASKED | {"max_tokens": 8, "logprobs": 1})).json()
    choice = body["choices"][0]
    assert body["object"] == "text_completion" and choice["text"] == "a time there was"
    assert choice["logprobs"]["tokens"] == ["a", " time", " there", " was"]
    assert choice["logprobs"]["text_offset"] == [0, 1, 6, 12]
    assert parse_completion(ASKED).params.is_raw and not model.open_branches


async def test_the_request_of_a_benchmark_client_is_served() -> None:
    fakes, _ = backends("one two three four five")
    asked = ASKED | {
        "temperature": 0.0, "repetition_penalty": 1.0, "max_tokens": 3, "logprobs": None,
        "stream": True, "stream_options": {"include_usage": True}, "ignore_eos": True,
        "min_tokens": 3, "top_k": -1,
    }  # fmt: skip
    async with http_client(fakes) as http:
        *chunks, last, usage, done = sse((await http.post(URL, json=asked)).text)
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == "one two three"
    assert last["choices"][0]["finish_reason"] == "length" and done == "[DONE]"
    assert usage["choices"] == [] and usage["usage"]["completion_tokens"] == 3


async def test_every_prompt_has_its_choices() -> None:
    fakes, _ = backends("a", "b", "c", "d")
    async with http_client(fakes) as http:
        body = (await http.post(URL, json=ASKED | {"prompt": ["x", "y"], "n": 2})).json()
    found = [(choice["index"], choice["text"]) for choice in body["choices"]]
    assert found == [(0, "a"), (1, "b"), (2, "c"), (3, "d")]
    assert body["usage"]["prompt_tokens"] == 2


@pytest.mark.parametrize(("fields", "param"), [
    ({"prompt": [1, 2]}, "prompt"),
    ({"prompt": ""}, "prompt"),
    ({"prompt": []}, "prompt"),
    ({"echo": True}, "echo"),
    ({"best_of": 2}, "best_of"),
    ({"suffix": "x"}, "suffix"),
    ({"logprobs": 6}, "logprobs"),
    ({"model": None}, "model"),
    ({"min_tokens": 4}, "min_tokens"),
])  # fmt: skip
def test_a_wrong_field_is_named(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_completion(ASKED | fields)
    assert caught.value.param == param


async def test_a_failure_in_mid_stream_is_the_last_event() -> None:
    fakes, model = backends("one two three", faults=(Fault("commit", after=2),))
    async with http_client(fakes) as http:
        response = await http.post(URL, json=ASKED | {"stream": True})
    *_, error, done = sse(response.text)
    assert error["error"]["code"] == "worker_lost" and done == "[DONE]"
    assert not model.open_branches

"""/v1/chat/completions and /v1/models: what clients send, what they get, what is refused."""

from __future__ import annotations

import asyncio
import json
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fakes import FakeLanguageModel, FakeRecognizer, FakeVoice, Fault, Reply
from tests.tables import each_row
from tests.voiceloop.http_client import KEY, http_client, sse
from voiceloop.access.quotas import Quotas
from voiceloop.admission import places
from voiceloop.backends import OWN_MODEL, Backends, Cascade, ChatMessage, NamedModel, ToolCall
from voiceloop.config import Config, FurtherModel
from voiceloop.errors import InvalidRequest
from voiceloop.http.chat import replies
from voiceloop.http.chat_request import parse_chat
from voiceloop.operation import KeyQuota

URL = "/v1/chat/completions"
HELLO: dict[str, Any] = {"model": "any", "messages": [{"role": "user", "content": "hello"}]}
TOOL = {
    "type": "function",
    "function": {"name": "opening_hours", "parameters": {"type": "object", "properties": {}}},
}


def backends(*replies: str | Reply, **options: Any) -> tuple[Backends, FakeLanguageModel]:
    model = FakeLanguageModel(replies or ("Good morning.",), **options)
    return Backends(FakeRecognizer(), model, FakeVoice()), model


async def test_a_reply_comes_whole_with_its_usage() -> None:
    fakes, model = backends("Good morning.")
    async with http_client(fakes) as http:
        body = (await http.post(URL, json=HELLO)).json()
    assert body["object"] == "chat.completion" and body["model"] == "any"
    choice = body["choices"][0]
    assert choice["message"]["content"] == "Good morning." and choice["finish_reason"] == "stop"
    assert body["usage"]["total_tokens"] == 1 + 2
    assert not model.open_branches


@pytest.mark.parametrize(("faults", "n_ended"), [((), 2), ((Fault("branch"),), 1)])
async def test_nothing_is_kept_of_a_reply_once_it_is_over(
    faults: tuple[Fault, ...], n_ended: int
) -> None:
    ended: list[str] = []
    model = FakeLanguageModel(("Good morning.",), faults=faults)
    fakes = Backends(FakeRecognizer(), model, FakeVoice(), end_call=ended.append)
    async with http_client(fakes) as http:
        await http.post(URL, json=HELLO | {"n": 2})
    assert len(ended) == n_ended and all(each.startswith("http-") for each in ended)


async def test_what_was_used_over_http_is_counted_apart_from_calls() -> None:
    fakes, _ = backends("Good morning.")
    async with http_client(fakes) as http:
        await http.post(URL, json=HELLO)
        streamed = await http.post(URL, json=HELLO | {"stream": True})
        assert streamed.status_code == 200
        told = (await http.get("/metrics")).text
    assert 'voiceloop_model_tokens_total{kind="reply",surface="http"} 4.0' in told
    assert 'surface="call"' not in told


@pytest.mark.parametrize("is_left", [False, True])
async def test_what_a_cascades_large_model_writes_over_http_is_the_keys(is_left: bool) -> None:
    """Also what a client has not read to its end. Beyond it the small one answers."""
    large, small = (FakeLanguageModel([f"I am the {who} one."]) for who in ("large", "small"))
    fakes = Backends(
        FakeRecognizer(), large, FakeVoice(),
        models={OWN_MODEL: NamedModel(large), "little": NamedModel(small)},
        cascade=Cascade("little", OWN_MODEL),
    )  # fmt: skip
    quota = KeyQuota(large_tokens=2)
    config = Config(
        keys=(KEY, "another-key-22"), quota=quota, models=(FurtherModel("little", model="a"),),
        prices={"little": [1.0, 1.0, 1.0]},
    )  # fmt: skip
    async with http_client(fakes, config) as http:

        async def answer(key: str) -> str:
            headers = {"Authorization": f"Bearer {key}"}
            body = (await http.post(URL, json=HELLO, headers=headers)).json()
            return str(body["choices"][0]["message"]["content"])

        if is_left:
            allowance = Quotas(quota, lambda: 0.0).allowance("a")
            asked = replace(parse_chat(HELLO), allowance=allowance)
            async with aclosing(replies(fakes, asked)) as events:
                n_read = 0
                async for _ in events:
                    if (n_read := n_read + 1) == 3:
                        break
            assert not allowance.may_use_large()
            return
        assert await answer(KEY) == "I am the large one."

        async def costs_of_the_small_one() -> bool:
            headers = {"Authorization": f"Bearer {KEY}"}
            told = (await http.get("/metrics", headers=headers)).text
            assert "voiceloop_model_tokens_total" in told
            return 'voiceloop_model_cost_total{model="little"}' in told

        assert not await costs_of_the_small_one()
        assert await answer(KEY) == "I am the small one." and await costs_of_the_small_one()
        assert await answer("another-key-22") == "I am the large one."


async def test_a_reply_streams_and_ends_with_done() -> None:
    fakes, model = backends("Good morning.")
    asked = HELLO | {"stream": True, "stream_options": {"include_usage": True}}
    async with http_client(fakes) as http:
        response = await http.post(URL, json=asked)
    assert response.headers["content-type"].startswith("text/event-stream")
    *chunks, usage, done = sse(response.text)
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    texts = [chunk["choices"][0]["delta"].get("content", "") for chunk in chunks]
    assert "".join(texts) == "Good morning."
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"
    assert usage["choices"] == [] and usage["usage"]["completion_tokens"] == 2
    assert done == "[DONE]" and len({chunk["id"] for chunk in chunks}) == 1
    assert not model.open_branches


async def test_messages_and_tools_reach_the_model_and_its_calls_the_client() -> None:
    call = ToolCall("call_1", "opening_hours", "{}")
    fakes, model = backends(Reply("", (call, call)))
    parts = [{"type": "text", "text": "Be "}, {"type": "text", "text": "brief."}]
    earlier = {"name": "opening_hours", "arguments": "{}"}
    called = [{"id": "c0", "type": "function", "function": earlier}]
    messages = [
        {"role": "developer", "content": parts},
        {"role": "user", "content": "When?"},
        {"role": "assistant", "content": None, "tool_calls": called},
        {"role": "tool", "tool_call_id": "c0", "content": "8 to 6"},
    ]
    asked = HELLO | {"messages": messages, "tools": [TOOL]}
    async with http_client(fakes) as http:
        whole = (await http.post(URL, json=asked)).json()["choices"][0]
        streamed = sse((await http.post(URL, json=asked | {"stream": True})).text)
    assert whole["finish_reason"] == "tool_calls" and whole["message"]["content"] is None
    assert whole["message"]["tool_calls"][0]["function"]["name"] == "opening_hours"
    deltas = [chunk["choices"][0]["delta"] for chunk in streamed[:-1]]
    indexes = [d["tool_calls"][0]["index"] for d in deltas if "tool_calls" in d]
    assert indexes == [0, 1]
    assert model.prompts[0] == (
        ChatMessage("system", "Be brief."),
        ChatMessage("user", "When?"),
        ChatMessage("assistant", "", (ToolCall("c0", "opening_hours", "{}"),)),
        ChatMessage("tool", "8 to 6", tool_call_id="c0"),
    )
    assert [tool.name for tool in model.branches[0].tools] == ["opening_hours"]


async def test_log_probabilities_come_with_their_tokens() -> None:
    asked = HELLO | {"logprobs": True, "top_logprobs": 1}
    fakes, model = backends("Good morning.")
    async with http_client(fakes) as http:
        whole = (await http.post(URL, json=asked)).json()["choices"][0]
        streamed = sse((await http.post(URL, json=asked | {"stream": True})).text)
        model.tells_logprobs = False
        refused = await http.post(URL, json=asked)
    told = whole["logprobs"]["content"]
    assert "".join(one["token"] for one in told) == whole["message"]["content"]
    assert told[0]["top_logprobs"][0]["bytes"] == list(b"Good") and told[0]["logprob"] == -0.5
    assert streamed[1]["choices"][0]["logprobs"]["content"] == told[:1]
    assert refused.status_code == 400 and refused.json()["error"]["param"] == "logprobs"


async def test_several_choices_are_replies_of_their_own_seeds_to_one_prompt() -> None:
    fakes, _ = backends("Good morning.", "Hello to you.")
    asked = HELLO | {"n": 2}
    async with http_client(fakes) as http:
        body = (await http.post(URL, json=asked)).json()
        options = {"stream": True, "stream_options": {"include_usage": True}}
        *chunks, usage, _ = sse((await http.post(URL, json=asked | options)).text)
    texts = [choice["message"]["content"] for choice in body["choices"]]
    assert texts == ["Good morning.", "Hello to you."]
    assert body["usage"]["prompt_tokens"] == 1 and body["usage"]["completion_tokens"] == 5
    assert {chunk["choices"][0]["index"] for chunk in chunks} == {0, 1}
    assert usage["usage"] == body["usage"]


async def test_one_call_at_a_time_is_one_call() -> None:
    call = ToolCall("call_1", "opening_hours", "{}")
    fakes, _ = backends(Reply("", (call, call)))
    asked = HELLO | {"tools": [TOOL], "parallel_tool_calls": False}
    async with http_client(fakes) as http:
        message = (await http.post(URL, json=asked)).json()["choices"][0]["message"]
    assert len(message["tool_calls"]) == 1


def test_sampling_fields_become_the_engines_parameters() -> None:
    fields = {"max_tokens": 7, "temperature": 0, "top_p": 0.5, "seed": 3, "stop": "\n"}
    params = parse_chat(HELLO | fields | {"tool_choice": "none"}).params
    assert (params.max_tokens, params.temperature, params.top_p) == (7, 0.0, 0.5)
    assert (params.seed, params.stop, params.tool_choice) == (3, ("\n",), "none")
    assert parse_chat(HELLO | fields | {"max_completion_tokens": 9}).params.max_tokens == 9
    named = parse_chat(HELLO | {"tool_choice": {"type": "function", "function": {"name": "f"}}})
    assert named.params.tool_choice == '{"type": "function", "name": "f"}'


def test_a_response_format_becomes_the_schema_of_the_reply() -> None:
    schema = {"type": "object", "properties": {"price": {"type": "number"}}}
    wrapped = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    found = parse_chat(HELLO | {"response_format": wrapped}).params.json_schema
    assert found is not None and json.loads(found) == schema
    loose = parse_chat(HELLO | {"response_format": {"type": "json_object"}}).params.json_schema
    assert loose is not None and json.loads(loose) == {"type": "object"}
    assert parse_chat(HELLO | {"response_format": {"type": "text"}}).params.json_schema is None


@each_row(("fields", "param"), [
    ({"messages": []}, "messages"),
    ({"messages": "hello"}, "messages"),
    ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role"),
    ({"messages": [{"role": "user"}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": [{}]}]}, "messages[0].content[0].text"),
    ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].tool_call_id"),
    ({"model": None}, "model"),
    ({"temperature": 3}, "temperature"),
    ({"max_tokens": True}, "max_tokens"),
    ({"stop": ["a"] * 5}, "stop"),
    ({"stop": [""]}, "stop[0]"),
    ({"seed": 1.5}, "seed"),
    ({"stream": "yes"}, "stream"),
    ({"tools": [{"type": "function"}]}, "tools[0].function"),
    ({"tool_choice": "maybe"}, "tool_choice"),
    ({"response_format": {"type": "xml"}}, "response_format.type"),
    ({"n": 9}, "n"),
    ({"top_logprobs": 2}, "top_logprobs"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    ({"presence_penalty": 2.5}, "presence_penalty"),
    ({"min_tokens": 5}, "min_tokens"),
    ({"max_completion_tokens": 0}, "max_completion_tokens"),
    ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
])  # fmt: skip
def test_a_wrong_field_is_named(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_chat(HELLO | fields)
    assert caught.value.param == param


@pytest.mark.parametrize("fields", [
    {"logit_bias": {"50256": -100}}, {"audio": {"voice": "alloy"}}, {"repetition_penalty": 1.1},
])  # fmt: skip
async def test_what_the_engine_cannot_do_is_refused_by_name(fields: dict[str, Any]) -> None:
    async with http_client() as http:
        response = await http.post(URL, json=HELLO | fields)
    error = response.json()["error"]
    assert response.status_code == 400 and error["code"] == "unsupported_parameter"
    assert error["param"] == next(iter(fields))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)
FIELDS = ["messages", "model", "tools", "tool_choice", "stop", "seed", "n", "stream",
          "response_format", "temperature", "max_tokens", "stream_options", "logprobs",
          "top_logprobs", "top_k", "ignore_eos", "min_tokens", "presence_penalty"]  # fmt: skip
CALL_FIELDS = {"id": JSON, "function": st.fixed_dictionaries({"name": JSON, "arguments": JSON})}
MESSAGE = st.fixed_dictionaries({}, optional={
    "role": st.sampled_from(["user", "assistant", "tool"]), "content": JSON,
    "tool_calls": st.lists(st.fixed_dictionaries(CALL_FIELDS), max_size=2), "tool_call_id": JSON,
})  # fmt: skip


@settings(max_examples=50, derandomize=True)
@given(st.dictionaries(st.sampled_from(FIELDS), JSON), st.lists(MESSAGE, max_size=3))
def test_whatever_is_sent_only_the_documented_error_is_raised(
    fields: dict[str, Any], messages: list[Any]
) -> None:
    for body in (HELLO | fields, HELLO | {"messages": messages}):
        try:
            parsed = parse_chat(body)
        except InvalidRequest:
            continue
        assert parsed.messages and parsed.params.max_tokens >= 1


async def test_fields_that_ask_for_nothing_are_accepted() -> None:
    fields = {"response_format": {"type": "text"}, "logprobs": False, "n": 1, "user": "me"}
    async with http_client() as http:
        assert (await http.post(URL, json=HELLO | fields)).status_code == 200


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("after", [0, 2])
async def test_a_reply_that_fails_is_one_line_of_the_log(
    caplog: pytest.LogCaptureFixture, streams: bool, after: int
) -> None:
    fakes, _ = backends("one two three", faults=(Fault("commit", after=after),))
    async with http_client(fakes) as http:
        response = await http.post(URL, json=HELLO | {"stream": streams})
    assert "found a scripted fault" in response.text
    lines = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    why = "expected an answer, found a scripted fault"
    assert lines == [f"an answer over HTTP failed (worker_lost): {why}"]


async def test_a_failure_before_the_first_token_has_its_own_status() -> None:
    for at in ("branch", "commit"):
        fakes, model = backends(faults=(Fault(at),))
        async with http_client(fakes) as http:
            response = await http.post(URL, json=HELLO | {"stream": True})
        assert response.status_code in (502, 503) and "error" in response.json()
        assert not model.open_branches


async def test_a_failure_in_mid_stream_is_the_last_event() -> None:
    fakes, model = backends("one two three", faults=(Fault("commit", after=2),))
    async with http_client(fakes) as http:
        response = await http.post(URL, json=HELLO | {"stream": True})
    *_, error, done = sse(response.text)
    assert error["error"]["code"] == "worker_lost" and done == "[DONE]"
    assert not model.open_branches


async def test_a_reply_that_the_model_gave_up_is_no_whole_one() -> None:
    fakes, model = backends(Reply("one two", is_cancelled=True))
    async with http_client(fakes) as http:
        whole = await http.post(URL, json=HELLO)
        streamed = await http.post(URL, json=HELLO | {"stream": True})
    assert whole.status_code == 502 and "cancelled" in whole.json()["error"]["message"]
    *pieces, error, done = sse(streamed.text)
    assert "cancelled" in error["error"]["message"] and done == "[DONE]"
    assert all(piece["choices"][0]["finish_reason"] is None for piece in pieces)
    assert not model.open_branches


async def test_one_request_too_many_is_told_when_to_come_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(places, "MAX_HTTP_REQUESTS", 1)
    fakes, model = backends(faults=(Fault("commit", "hang"),))
    async with http_client(fakes) as http:
        first = asyncio.create_task(http.post(URL, json=HELLO))
        while not model.prompts:  # noqa: ASYNC110
            await asyncio.sleep(0)
        second = await http.post(URL, json=HELLO)
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        assert second.status_code == 503 and int(second.headers["Retry-After"]) > 0
        assert not model.open_branches
        assert (await http.post(URL, json=HELLO)).status_code == 200


async def test_a_stream_keeps_its_slot_until_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "MAX_HTTP_REQUESTS", 1)
    async with http_client() as http:
        for _ in range(3):
            assert (await http.post(URL, json=HELLO | {"stream": True})).status_code == 200


async def test_a_server_that_loads_says_so() -> None:
    async with http_client(loaded=False) as http:
        response = await http.post(URL, json=HELLO)
    assert response.status_code == 503 and "loading" in response.json()["error"]["message"]


@pytest.mark.parametrize("content", [b"{", b"[]", b"\xff\xfe", b""])
async def test_a_body_that_is_no_json_object_is_refused(content: bytes) -> None:
    async with http_client() as http:
        assert (await http.post(URL, content=content)).status_code == 400


async def test_a_body_too_large_is_refused() -> None:
    async with http_client() as http:
        response = await http.post(URL, content=b" " * (2 * 1024 * 1024 + 1))
    assert response.status_code == 413


ROUTES = [
    ("GET", "/v1/models"),
    ("GET", "/v1/models/voiceloop"),
    ("POST", URL),
    ("POST", "/v1/audio/speech"),
    ("POST", "/v1/audio/transcriptions"),
]


@each_row(("method", "path"), ROUTES)
@each_row(("headers", "status"), [
    ({}, 401),
    ({"Authorization": "Bearer wrong-key-1"}, 401),
    ({"Authorization": "Bearer ek_expired"}, 401),
    ({"Authorization": f"Bearer {KEY}", "Origin": "https://evil.example"}, 403),
])  # fmt: skip
async def test_every_route_is_shut_to_strangers_before_any_work(
    method: str, path: str, headers: dict[str, str], status: int
) -> None:
    async with http_client(config=Config(keys=(KEY,)), loaded=False) as http:
        response = await http.request(method, path, headers=headers, content=b"not even JSON")
    assert response.status_code == status and KEY not in response.text


async def test_a_client_secret_reads_the_models_and_spends_none() -> None:
    async with http_client(config=Config(keys=(KEY,))) as http:
        made = await http.post(
            "/v1/realtime/client_secrets", json={}, headers={"Authorization": f"Bearer {KEY}"}
        )
        secret = {"Authorization": f"Bearer {made.json()['value']}"}
        assert (await http.get("/v1/models", headers=secret)).status_code == 200
        assert (await http.post(URL, json=HELLO, headers=secret)).status_code == 401


async def test_models_are_listed_and_unknown_ones_are_404() -> None:
    config = Config(llm_url=("http://llm/v1",), llm_model="org/model-8b")
    async with http_client(config=config) as http:
        listed: httpx.Response = await http.get("/v1/models")
        assert [one["id"] for one in listed.json()["data"]] == ["voiceloop", "org/model-8b"]
        assert (await http.get("/v1/models/org/model-8b")).json()["object"] == "model"
        missing = await http.get("/v1/models/nothing")
        assert missing.status_code == 404
        assert missing.json()["error"]["code"] == "model_not_found"

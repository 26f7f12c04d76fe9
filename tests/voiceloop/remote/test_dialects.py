"""Services as they are: each is spoken to in its own way, and no thought of its model is said."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from tests.dialect_service import (
    MODELS,
    NAMES,
    THOUGHT,
    DialectService,
    streamed,
    unsupported,
)
from tests.remote_service import Answer, Remote, scripted_remote
from voiceloop.backends import ChatMessage, Generated, GenerateParams, TextDelta, Thinks
from voiceloop.errors import BackendError, BackendRefused, PromptTooLong
from voiceloop.remote.dialect import KINDS, UNKNOWN, Dialect, Urgency, kind_of
from voiceloop.remote.language import RemoteLanguageModel
from voiceloop.remote.service import RemoteService
from voiceloop.thoughts import Thoughts

PARAMS = GenerateParams(max_tokens=60, top_k=20, presence_penalty=0.5)
USER = (ChatMessage("user", "how much is a latte"),)
Connect = Callable[..., RemoteService]


async def said(model: RemoteLanguageModel, thought: list[Thinks] | None = None) -> str:
    branch = await model.branch("sess_1/turn_1", ())
    branch.commit(USER, PARAMS)
    text = ""
    async for event in branch.events():
        if isinstance(event, TextDelta):
            text += event.text
        if isinstance(event, Thinks) and thought is not None:
            assert not text
            thought.append(event)
        if isinstance(event, Generated):
            break
    await branch.close()
    return text


@pytest.fixture
async def remote_service(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Remote]:
    name, thinks_anyway = getattr(request, "param", ("openai-like", False))
    async with scripted_remote(DialectService(name, thinks_anyway=thinks_anyway)) as running:
        yield running


async def started(connect: Connect, name: str, **options: Any) -> RemoteService:
    named = name if KINDS[name].hosts or name == "openai-like" else ""
    remote = connect(model=MODELS.get(name, ""), kind=named, **options)
    await remote.start()
    return remote


@pytest.mark.parametrize("remote_service", [(name, False) for name in NAMES], indirect=True)
async def test_each_service_answers_without_a_thought(service: Any, connect: Connect) -> None:
    remote = await started(connect, service.name)
    assert remote.kind.name == service.name
    model = RemoteLanguageModel(remote)
    assert await said(model) == "Four dollars."
    n_asked = len(service.bodies)
    assert await said(model) == "Four dollars."
    assert len(service.bodies) == n_asked + 1  # what it refused once is not asked again
    assert "zxq" not in json.dumps(service.bodies)


@pytest.mark.parametrize("remote_service", [(name, True) for name in NAMES], indirect=True)
async def test_a_model_that_thinks_anyway_is_given_room_and_not_heard(
    service: Any, connect: Connect
) -> None:
    model = RemoteLanguageModel(await started(connect, service.name))
    assert await said(model) == "Four dollars."
    thought: list[Thinks] = []
    assert await said(model, thought) == "Four dollars." and len(thought) == 1
    room = service.bodies[-1].get("max_tokens") or service.bodies[-1]["max_completion_tokens"]
    assert room > PARAMS.max_tokens


def test_a_service_is_known_by_its_address_its_answer_or_its_models_owner() -> None:
    known = {
        "https://api.openai.com/v1": "openai",
        "https://us.openai.azure.com": "azure",
        "https://api.groq.com/openai/v1": "groq",
        "https://openrouter.ai/api/v1": "openrouter",
        "http://127.0.0.1:8000/v1": "openai-like",
        "https://api.openai.com.example.org/v1": "openai-like",
    }
    assert {url: kind_of(url).name for url in known} == known
    assert kind_of("http://gpu:8000/v1", owner="vllm") is KINDS["vllm"]
    assert kind_of("http://gpu:4000", headers=["X-LiteLLM-Version"]) is KINDS["litellm"]
    assert kind_of("http://gpu:4000", named="ollama") is KINDS["ollama"]


async def test_an_address_without_a_path_is_given_the_services_own() -> None:
    expected = {
        "http://127.0.0.1:11434": "http://127.0.0.1:11434/v1",
        "https://api.groq.com": "https://api.groq.com/openai/v1",
        "https://x.openai.azure.com/openai/deployments/a?api-version=1":
            "https://x.openai.azure.com/openai/deployments/a",
    }  # fmt: skip
    for url, whole in expected.items():
        remote = RemoteService(url, model="m")
        assert remote.url == whole
        await remote.close()


async def test_the_operators_fields_are_sent_and_never_left_out(
    service: Any, connect: Connect
) -> None:
    service.name = "groq"  # refuses top_k
    remote = await started(connect, "openai-like")
    model = RemoteLanguageModel(remote, added={"top_k": 5, "provider": {"sort": "latency"}})
    with pytest.raises(BackendRefused):
        await said(model)
    assert service.bodies[-1]["provider"] == {"sort": "latency"}


async def test_a_refusal_is_not_told_in_the_services_words(service: Any, connect: Connect) -> None:
    quoted = {
        "error": {"message": "invalid request: how much is a latte", "type": "BadRequestError"}
    }
    service.answer_to = lambda path, body: Answer([json.dumps(quoted).encode()], 400)
    remote = connect(model="m")
    with pytest.raises(BackendRefused) as refusal:
        await said(RemoteLanguageModel(remote))
    assert "BadRequest" in str(refusal.value) and "latte" not in str(refusal.value)


async def test_a_page_of_html_is_named_as_a_wrong_address(service: Any, connect: Connect) -> None:
    service.answer_to = lambda path, body: Answer([b"<html>"], content_type="text/html")
    with pytest.raises(BackendError, match="page of HTML") as failure:
        await said(RemoteLanguageModel(connect(model="m")))
    assert not isinstance(failure.value, BackendRefused)  # another service may be asked


async def test_the_key_goes_where_the_service_wants_it(connect: Connect) -> None:
    azure = connect(model="m", kind="azure", key="secret", headers={"x-tenant": "shop"})
    sent = azure._client.headers
    assert (sent["api-key"], sent["x-tenant"]) == ("secret", "shop")
    assert "authorization" not in sent
    named = connect(model="m", key="secret", headers={"Authorization": "Basic shop"})
    assert named._client.headers["authorization"] == "Basic shop"
    await azure.close()
    await named.close()


@pytest.mark.parametrize(
    ("routes", "window"),
    [
        ({"/models": {"data": [{"id": "m", "owned_by": "vllm", "max_model_len": 8192}]}}, 8192),
        ({"/models": {"data": [{"id": "m", "owned_by": "llamacpp"}]},
          "/props": {"default_generation_settings": {"n_ctx": 4096}}}, 4096),
        ({"/models": {"data": [{"id": "m", "owned_by": "library"}]},
          "/api/ps": {"models": []}, "/api/show": {"parameters": "num_ctx    16384"}}, 16384),
        ({"/models": {"data": [{"id": "m", "owned_by": "library"}]},
          "/api/ps": {"models": [{"name": "m", "model": "m", "context_length": 2048}]}}, 2048),
        ({"/models": {"data": [{"id": "m", "owned_by": "somebody", "max_model_len": "x"}]}}, None),
        ({"/models": {"data": [{"id": "m", "owned_by": "llamacpp"}]}, "/props": [1]}, None),
    ],
)  # fmt: skip
async def test_a_services_window_is_learned_where_it_tells_one(
    service: Any, connect: Connect, routes: dict[str, Any], window: int | None
) -> None:
    def answer_to(path: str, body: bytes) -> Answer:
        found = routes.get(path.removeprefix("/v1"))
        return Answer([json.dumps(found).encode()], 200 if found is not None else 404)

    service.answer_to = answer_to
    remote = connect(model="")
    await remote.start()
    assert (remote.model, remote.context_tokens) == ("m", window)


@pytest.mark.parametrize(
    "told",
    [
        "This model's maximum context length is 4096 tokens. However, you requested 5000",
        "request (5000 tokens) exceeds the available context size (4096 tokens)",
        "the prompt does not fit: n_ctx: 4096",
    ],
)
async def test_a_window_that_is_not_told_is_learned_from_the_first_refusal(
    service: Any, connect: Connect, told: str
) -> None:
    refusal = {"error": {"message": told, "code": "context_length_exceeded"}}
    service.answer_to = lambda path, body: Answer([json.dumps(refusal).encode()], 400)
    model = RemoteLanguageModel(connect(model="m"))
    assert model.context_tokens == 0
    with pytest.raises(PromptTooLong):
        await said(model)
    assert model.context_tokens == 4096


def test_the_operators_bound_of_replies_is_none_of_what_is_only_read_ahead() -> None:
    dialect = Dialect(UNKNOWN, added={"max_tokens": 400})
    assert dialect.body({"max_tokens": 1}, Urgency.STAGED, "")["max_tokens"] == 1
    assert dialect.body({"max_tokens": 60}, Urgency.COMMITTED, "")["max_tokens"] == 400


def test_a_dialect_gives_up_where_a_refusal_names_nothing_that_can_go() -> None:
    dialect = Dialect(UNKNOWN)
    body = dialect.body({"model": "m", "messages": [], "temperature": 1}, Urgency.COMMITTED, "")
    assert not dialect.learn('{"error": {"message": "the model is not loaded"}}', body)
    assert not dialect.learn("<html>", body)
    assert dialect.learn('{"error": {"message": "temperature must be 1"}}', body)
    assert "temperature" not in dialect.body(body, Urgency.COMMITTED, "")


async def test_what_a_refusal_only_quotes_is_asked_for_again(
    service: Any, connect: Connect
) -> None:
    quoted = {"error": {"message": "no such model: please stop, the temperature is 4 and top_p 1"}}
    service.answer_to = lambda path, body: Answer([json.dumps(quoted).encode()], 400)
    model = RemoteLanguageModel(connect(model="m"))
    with pytest.raises(BackendRefused):
        await said(model)
    (place,) = model.places.values()
    body = place.dialect.body({"temperature": 1, "stop": ["x"]}, Urgency.COMMITTED, "")
    assert body == {"temperature": 1, "stop": ["x"]}


async def test_a_callers_words_in_a_refusal_tell_no_window(service: Any, connect: Connect) -> None:
    refused = "invalid request " + "." * 200
    quoted = {"error": {"message": f"{refused} a context window of 512"}}
    service.answer_to = lambda path, body: Answer([json.dumps(quoted).encode()], 400)
    model = RemoteLanguageModel(connect(model="m"))
    with pytest.raises(BackendRefused) as refusal:
        await said(model)
    assert not isinstance(refusal.value, PromptTooLong) and model.context_tokens == 0


def test_two_requests_that_are_refused_the_same_learn_it_once() -> None:
    dialect = Dialect(KINDS["openai"], "gpt-5")
    refusal = json.dumps(unsupported("reasoning_effort"))
    body = dialect.body({"model": "gpt-5"}, Urgency.COMMITTED, "")
    assert dialect.learn(refusal, body) and dialect.learn(refusal, body) == ""
    assert dialect.body({}, Urgency.COMMITTED, "") == {"reasoning_effort": "minimal"}


def test_a_reply_keeps_a_bound_whatever_a_service_says_of_it() -> None:
    dialect = Dialect(UNKNOWN)
    told = '{"error": {"message": "max_tokens or max_completion_tokens must be at least 16"}}'
    assert dialect.learn(told, {"max_tokens": 1}) is None
    assert dialect.learn(told, {"max_tokens": 60}) == "max_tokens"
    assert dialect.learn(told, dialect.body({"max_tokens": 60}, Urgency.COMMITTED, "")) is None
    dialect.forget(["max_tokens"])
    assert dialect.body({"max_tokens": 60}, Urgency.COMMITTED, "") == {"max_tokens": 60}


@pytest.mark.parametrize(
    "deltas",
    [
        [{"content": f"{THOUGHT}</th"}, {"content": "ink>\n\nFour dollars."}],
        [{"content": ""}, {"reasoning_content": THOUGHT}, {"content": "Four dollars."}],
        [{"content": "Four dollars."}],
    ],
)
@pytest.mark.parametrize("named", ["DeepSeek-R1-Distill-Qwen-32B", "Qwen3-30B-A3B-Thinking-2507"])
async def test_the_first_thought_of_a_model_whose_prompt_opens_it_is_not_said(
    service: Any, connect: Connect, named: str, deltas: list[dict[str, Any]]
) -> None:
    service.answer_to = lambda path, body: streamed(*deltas)
    model = RemoteLanguageModel(connect(model=named))
    assert await said(model) == "Four dollars."


def test_a_mark_in_one_answer_does_not_hold_back_all_later_ones() -> None:
    dialect = Dialect(UNKNOWN)
    stray = Thoughts()
    stray.feed("Type </think> there.")
    stray.finish()
    dialect.observe(stray, has_thought=True)
    assert dialect.begins_inside
    cut = Thoughts(begins_inside=True)
    assert cut.feed("the caller wants") + cut.finish(is_cut=True) == ""
    dialect.observe(cut, has_thought=False)
    assert dialect.begins_inside
    answer = Thoughts(begins_inside=True)
    assert answer.feed("Four dollars.") + answer.finish() == "Four dollars."
    dialect.observe(answer, has_thought=False)
    assert not dialect.begins_inside


async def test_a_model_that_a_service_names_late_is_kept_from_thinking_in_its_own_way(
    service: Any, connect: Connect
) -> None:
    remote = connect(model="", kind="vllm")
    (place,) = RemoteLanguageModel(remote).places.values()
    assert "reasoning_effort" not in place.dialect.body({}, Urgency.COMMITTED, "")
    service.say("/models", Answer([b'{"data": [{"id": "gpt-oss-20b"}]}']))
    await remote.start()
    assert place.dialect.body({}, Urgency.COMMITTED, "")["reasoning_effort"] == "low"

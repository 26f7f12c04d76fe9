"""A remote language model that is slow, drops, refuses and breaks off."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Callable
from typing import Any

import pytest

from tests.remote_service import Answer, Service
from voiceloop.backends import (
    ChatMessage,
    Generated,
    GenerateParams,
    PreemptiveDelta,
    PreemptiveDone,
    Staged,
    TextDelta,
    Tool,
    ToolCall,
)
from voiceloop.errors import BackendError, BackendRefused, BackendTimeout, ConfigError
from voiceloop.remote import service as remote
from voiceloop.remote.language import RemoteLanguageModel
from voiceloop.remote.service import RemoteService

PARAMS = GenerateParams(max_tokens=20)
USER = (ChatMessage("user", "hello"),)

Connect = Callable[..., RemoteService]


def chunks(*deltas: dict[str, Any], reason: str = "stop", done: bool = True) -> list[bytes]:
    lines = [{"choices": [{"delta": delta, "finish_reason": None}]} for delta in deltas]
    if done:
        lines.append({"choices": [{"delta": {}, "finish_reason": reason}]})
        lines.append({"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 2}})
    pieces = [f"data: {json.dumps(line)}\n\n".encode() for line in lines]
    return [*pieces, b"data: [DONE]\n\n"] if done else pieces


def reply(*deltas: dict[str, Any], **options: Any) -> Answer:
    reason = options.pop("reason", "stop")
    done = options.pop("done", True)
    pieces = chunks(*deltas, reason=reason, done=done)
    return Answer(pieces, content_type="text/event-stream", **options)


async def generate(service: RemoteService, params: GenerateParams = PARAMS) -> list[object]:
    branch = await RemoteLanguageModel(service).branch("sess_1/turn_1", ())
    try:
        branch.commit(USER, params)
        found: list[object] = []
        async for event in branch.events():
            found.append(event)
            if isinstance(event, Generated):
                return found
    finally:
        await branch.close()
    raise AssertionError("the branch ended without a reply")


async def test_a_reply_streams_in_with_its_usage(service: Service, connect: Connect) -> None:
    service.say("/chat/completions", reply({"content": "good "}, {"content": "morning"}))
    *deltas, generated = await generate(connect(key="secret"))
    assert deltas == [TextDelta("good "), TextDelta("morning")]
    assert isinstance(generated, Generated)
    assert (generated.finish_reason, generated.usage.n_prompt_tokens) == ("stop", 9)
    asked = json.loads(service.asked("/chat/completions")[0])
    assert asked["messages"] == [{"role": "user", "content": "hello"}]
    assert asked["model"] == "m"
    assert "tools" not in asked


async def test_a_service_without_chat_refuses_by_name(service: Service, connect: Connect) -> None:
    service.say("/chat/completions", Answer([b'{"detail": "Not Found"}'], status=404))
    with pytest.raises(BackendRefused, match="/chat/completions"):
        await generate(connect())


async def test_a_reply_made_ahead_is_promised_as_the_reply_unless_it_was_given_up_before_its_end(
    service: Service, connect: Connect
) -> None:
    pieces = ({"content": "good "}, {"content": "morning"})
    service.say("/chat/completions", reply(*pieces), reply(*pieces, hold_end=asyncio.Event()),
                reply({"content": "another"}))  # fmt: skip
    for is_stopped_late in (True, False):
        branch = await RemoteLanguageModel(connect()).branch("sess_1/turn_1", ())
        events = branch.events()
        branch.begin_preemptive(1, (ChatMessage("user", "hello"),), PARAMS)
        assert await anext(events) == PreemptiveDelta(1, "good ")
        assert await anext(events) == PreemptiveDelta(1, "morning")
        if is_stopped_late:
            assert await anext(events) == PreemptiveDone(1, "stop")
        branch.stop_preemptive()
        assert branch.commit(USER, PARAMS) == is_stopped_late
        if not is_stopped_late:
            assert await anext(events) == PreemptiveDone(1, "lost")
        said = "good morning" if is_stopped_late else "another"
        assert await anext(events) == TextDelta(said)
        await branch.close()


async def test_a_tool_call_comes_whole_and_its_result_continues_the_reply(
    service: Service, connect: Connect
) -> None:
    parts = ('{"n"', ": 2}")
    head = {"index": 0, "id": "call_9", "function": {"name": "order", "arguments": parts[0]}}
    tail = {"index": 0, "function": {"arguments": parts[1]}}
    service.say(
        "/chat/completions",
        reply({"tool_calls": [head]}, {"tool_calls": [tail]}, reason="tool_calls"),
        reply({"content": "done"}),
    )
    tools = (Tool("order", "orders", {"type": "object"}),)
    branch = await RemoteLanguageModel(connect()).branch("sess_1/turn_1", (), tools)
    events = branch.events()
    branch.commit(USER, PARAMS)
    call = ToolCall("call_9", "order", '{"n": 2}')
    assert await anext(events) == call
    generated = await anext(events)
    assert isinstance(generated, Generated) and generated.finish_reason == "tool_calls"
    named = GenerateParams(tool_choice='{"type": "function", "name": "order"}')
    branch.commit((ChatMessage("tool", "ok", tool_call_id="call_9"),), named)
    assert await anext(events) == TextDelta("done")
    await branch.close()
    first, second = (json.loads(body) for body in service.asked("/chat/completions"))
    assert [message["role"] for message in second["messages"]] == ["user", "assistant", "tool"]
    assert first["tool_choice"] == "auto"
    assert second["tool_choice"] == {"type": "function", "function": {"name": "order"}}


async def test_a_call_that_nobody_made_is_said_not_to_have_been(
    service: Service, connect: Connect
) -> None:
    """Of two calls one is of no tool: services refuse a call that has no result behind it."""
    parts = [
        {"index": n, "id": f"c{n}", "function": {"name": name, "arguments": "{}"}}
        for n, name in enumerate(("order", "no_such_tool"))
    ]
    service.say("/chat/completions", reply({"tool_calls": parts}), reply({"content": "done"}))
    branch = await RemoteLanguageModel(connect()).branch("sess_1/turn_1", ())
    events = branch.events()
    branch.commit(USER, PARAMS)
    while not isinstance(await anext(events), Generated):
        pass
    branch.commit((ChatMessage("tool", "ok", tool_call_id="c0"),), PARAMS)
    assert await anext(events) == TextDelta("done")
    await branch.close()
    messages = json.loads(service.asked("/chat/completions")[1])["messages"]
    results = {m["tool_call_id"]: m["content"] for m in messages if m["role"] == "tool"}
    assert results == {"c0": "ok", "c1": '{"error": "not called"}'}


async def test_calls_of_one_index_are_told_apart_by_their_ids(
    service: Service, connect: Connect
) -> None:
    given = {n: json.dumps({"n": n}) for n in (1, 2)}
    parts = [{"id": f"c{n}", "function": {"name": "f", "arguments": given[n]}} for n in given]
    service.say("/chat/completions", reply(*({"tool_calls": [p]} for p in parts)))
    assert (await generate(connect()))[:2] == [
        ToolCall("c1", "f", given[1]),
        ToolCall("c2", "f", given[2]),
    ]


async def test_calls_of_a_service_without_ids_have_an_id_of_their_own_in_every_turn(
    service: Service, connect: Connect
) -> None:
    part = {"index": 0, "function": {"name": "f", "arguments": "{}"}}
    service.say("/chat/completions", *(reply({"tool_calls": [part]}) for _ in range(2)))
    found = [(await generate(connect()))[0] for _ in range(2)]
    ids = {call.call_id for call in found if isinstance(call, ToolCall)}
    assert len(ids) == 2 and "" not in ids


async def test_staging_is_answered_without_a_request(service: Service, connect: Connect) -> None:
    branch = await RemoteLanguageModel(connect()).branch("sess_1/turn_1", ())
    branch.stage(4, "hel")
    assert await anext(branch.events()) == Staged(4, 0, 0, None)
    await branch.close()
    assert service.asked("/chat/completions") == []


async def test_closing_in_mid_reply_hangs_up(service: Service, connect: Connect) -> None:
    never = asyncio.Event()
    service.say("/chat/completions", reply({"content": "A"}, {"content": "b"}, hold_end=never))
    branch = await RemoteLanguageModel(connect()).branch("sess_1/turn_1", ())
    branch.commit(USER, PARAMS)
    assert await anext(branch.events()) == TextDelta("A")
    await branch.close()
    await service.hung_up.wait()


@pytest.mark.parametrize("status", [429, 500, 503])
async def test_a_busy_service_is_asked_again(
    service: Service, connect: Connect, status: int
) -> None:
    service.say("/chat/completions", Answer([b"busy"], status), reply({"content": "now"}))
    assert (await generate(connect()))[0] == TextDelta("now")


async def test_a_dropped_connection_is_asked_again_before_the_first_byte(
    service: Service, connect: Connect
) -> None:
    service.say("/chat/completions", Answer([], drop_before=True), reply({"content": "now"}))
    assert (await generate(connect()))[0] == TextDelta("now")


async def test_a_service_that_broke_off_one_reply_is_not_taken_for_gone(
    service: Service, connect: Connect
) -> None:
    service.say("/chat/completions", reply({"content": "half"}, done=False, drop_after=True))
    started = connect()
    await started.start()
    with pytest.raises(BackendError):
        await generate(started)
    assert started.reachable


async def test_one_slow_reply_keeps_nobody_out_and_a_service_that_stays_silent_does(
    service: Service, connect: Connect
) -> None:
    service.say("/chat/completions", Answer([], hold=asyncio.Event()))
    now = [100.0]
    started = connect(silence_s=0.05, clock=lambda: now[0])
    await started.start()
    reachable = []
    for _ in range(3):
        with pytest.raises(BackendTimeout):
            await generate(started)
        reachable.append(started.reachable)
    assert reachable == [True, True, False]
    now[0] += 3.0
    assert started.reachable  # so that a call is let in, which finds out


async def test_a_reply_that_ends_without_a_reason_has_failed(
    service: Service, connect: Connect
) -> None:
    service.say("/chat/completions", reply({"content": "half"}, done=False))
    with pytest.raises(BackendError, match="to its end"):
        await generate(connect())


async def test_a_service_that_stays_busy_is_given_up(service: Service, connect: Connect) -> None:
    service.say("/chat/completions", Answer([b'{"error": {"code": "queue_full"}}'], 429))
    with pytest.raises(BackendError, match="429: queue_full"):
        await generate(connect())
    assert len(service.asked("/chat/completions")) == 3


async def test_a_long_retry_after_is_not_waited_for(service: Service, connect: Connect) -> None:
    service.say("/chat/completions", Answer([b"busy"], 429, headers={"retry-after": "30"}))
    with pytest.raises(BackendError):
        await generate(connect())
    assert len(service.asked("/chat/completions")) == 1


@pytest.mark.parametrize("status", [400, 401, 404])
async def test_a_refusal_is_final(service: Service, connect: Connect, status: int) -> None:
    service.say("/chat/completions", Answer([b'{"error": {"type": "NotFoundError"}}'], status))
    with pytest.raises(BackendRefused, match="NotFoundError"):
        await generate(connect())
    assert len(service.asked("/chat/completions")) == 1


async def test_a_silent_service_times_out(service: Service, connect: Connect) -> None:
    service.say("/chat/completions", Answer([], hold=asyncio.Event()))
    with pytest.raises(BackendTimeout):
        await generate(connect(silence_s=0.05))


@pytest.mark.parametrize(
    "data",
    [
        b"data: {nonsense\n\n",
        b"data: 3\n\n",
        b'data: {"error":"x"}\n\n',
        b'data: {"choices": ["x"]}\n\n',
        b'data: {"choices": 5}\n\n',
    ],
)
async def test_chunks_that_are_no_chunks_fail_the_reply(
    service: Service, connect: Connect, data: bytes
) -> None:
    service.say("/chat/completions", Answer([data]))
    with pytest.raises(BackendError):
        await generate(connect())


async def test_one_warm_connection_serves_many_requests(service: Service, connect: Connect) -> None:
    service.say("/chat/completions", reply({"content": "x"}))
    remote_service = connect()
    await remote_service.warm_up()
    for _ in range(3):
        await generate(remote_service)
    assert service.n_connections == 1


async def test_nobody_at_the_address_is_said_in_one_sentence(service: Service) -> None:
    nowhere = RemoteService("http://127.0.0.1:1/v1", model="m")
    with pytest.raises(BackendError, match="expected an answer from http://127.0.0.1:1/v1"):
        await nowhere.warm_up()
    await nowhere.close()


async def test_a_service_that_comes_back_is_found_without_a_call(
    service: Service, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "LOOK_AGAIN_S", 0.0)
    started = connect()
    await started.start()
    assert started.reachable
    service.say("/chat/completions", Answer([], drop_before=True))
    n_asked = len(service.asked("/models"))
    with pytest.raises(BackendError):
        await generate(started)
    await service.wait_asked("/models", n_asked + 1)
    while not started.reachable:  # noqa: ASYNC110
        await asyncio.sleep(0.001)


async def test_that_a_service_is_away_is_told_once_and_that_it_is_back(
    service: Service,
    connect: Connect,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(remote, "LOOK_AGAIN_S", 0.0)
    gone = Answer([], drop_before=True)
    service.say("/models", Answer([b"{}"]), *[gone] * 5, Answer([b"{}"]))
    service.say("/chat/completions", gone)
    started = connect()
    await started.start()
    with pytest.raises(BackendError):
        await generate(started)
    await service.wait_asked("/models", 7)
    while not started.reachable:  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    told = [one.message for one in caplog.records if one.levelname == "WARNING"]
    url = f"http://127.0.0.1:{service.port}/v1"
    away, back = told
    assert away.startswith(f"expected an answer from {url}, found: ")
    assert back == f"{url} answers again"


async def test_a_host_that_nobody_knows_is_called_so(monkeypatch: pytest.MonkeyPatch) -> None:
    async def unknown(*place: object, **options: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", unknown)
    nowhere = RemoteService("http://llm.nowhere:8000/v1?api-key=s3cret", model="m")
    with pytest.raises(BackendError) as raised:
        await nowhere.warm_up()
    await nowhere.close()
    assert raised.value.message == (
        "expected an answer from http://llm.nowhere:8000/v1, "
        "found: no host of this name (Name or service not known)"
    )


async def test_a_service_that_keeps_failing_is_left_alone_and_the_error_says_so(
    service: Service, connect: Connect
) -> None:
    service.say("/chat/completions", Answer([b"broken"], 500))
    remote_service = connect()
    for _ in range(3):
        with pytest.raises(BackendError, match="answered 500"):
            await generate(remote_service)
    n_asked = len(service.asked("/chat/completions"))
    with pytest.raises(BackendError, match="keeps failing: .*500: no code"):
        await generate(remote_service)
    assert len(service.asked("/chat/completions")) == n_asked


async def test_a_refused_request_does_not_count_against_the_service(
    service: Service, connect: Connect
) -> None:
    service.say("/chat/completions", *[Answer([b"no"], 400)] * 5, reply({"content": "now"}))
    remote_service = connect()
    for _ in range(5):
        with pytest.raises(BackendRefused):
            await generate(remote_service)
    assert (await generate(remote_service))[0] == TextDelta("now")


@pytest.mark.parametrize(
    ("listed", "asked"),
    [({"data": [{"id": "voiceloop"}]}, "voiceloop"), ({}, "default"), ({"data": "?"}, "default")],
)
async def test_a_service_is_always_asked_for_a_model(
    service: Service, connect: Connect, listed: dict[str, Any], asked: str
) -> None:
    service.say("/models", Answer([json.dumps(listed).encode()]))
    service.say("/chat/completions", reply({"content": "Hi."}))
    remote_service = connect(model="")
    await remote_service.start()
    await generate(remote_service)
    assert json.loads(service.asked("/chat/completions")[0])["model"] == asked


async def test_which_of_several_models_is_meant_must_be_said_at_the_start(
    service: Service, connect: Connect
) -> None:
    models = {"data": [{"id": f"model-{number}"} for number in range(20)]}
    service.say("/models", Answer([json.dumps(models).encode()]))
    with pytest.raises(
        ConfigError, match=r"--llm-model.*the 20 it has: model-0, .*model-7, \.\.\."
    ):
        await connect(model="").start()
    await connect(model="model-3").start()

"""`voiceloop bench` of chat endpoints: scripted services on real sockets, on a clock of theirs."""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from clients.bench.arguments import add_bench_arguments
from clients.bench.chat_endpoint import chat_url, open_endpoint
from clients.bench.chat_load import ChatLoad, ChatResult, chat_figures, run_chat_load
from clients.bench.command import run_bench
from clients.bench.prompt import prompt_of
from clients.errors import BenchError, ClientError, EndpointError
from tests.reading_service import ReadingService
from tests.remote_service import Answer, Service, scripted_remote
from tests.tables import each_row

CHAT = "/chat/completions"


@pytest.fixture
async def service() -> AsyncIterator[Service]:
    async with scripted_remote() as remote:
        yield remote.service


def url_of(service: Service) -> str:
    return f"http://127.0.0.1:{service.port}"


def said(*lines: Any) -> Answer:
    pieces = [f"data: {json.dumps(line)}\n\n".encode() for line in lines]
    return Answer([*pieces, b"data: [DONE]\n\n"], content_type="text/event-stream")


def token(text: str, **more: Any) -> dict[str, Any]:
    return {"choices": [{"delta": {"content": text}, "finish_reason": None, **more}]}


END = {"choices": [{"delta": {}, "finish_reason": "stop"}]}
USAGE = {"choices": [], "usage": {"prompt_tokens": 210, "completion_tokens": 5}}
REPLY = said(token("Once "), token("upon "), END, USAGE)


async def bench(*argv: str) -> int:
    """As the command line runs it, in a thread with an event loop of its own."""
    parser = argparse.ArgumentParser()
    add_bench_arguments(parser)
    return await asyncio.to_thread(run_bench, parser.parse_args(argv))


async def test_each_setting_is_measured_printed_and_written(
    service: Service, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    service.say(CHAT, REPLY)
    file = tmp_path / "bench.json"
    options = ("--requests", "3", "--at-once", "1,2", "--prompt-tokens", "50,100")
    assert await bench(url_of(service), *options, "--json", str(file)) == 0
    data = json.loads(file.read_text())
    assert (data["kind"], data["model"], data["partial"]) == ("chat", "default", None)
    settings = [(row["prompt_tokens"], row["at_once"]) for row in data["settings"]]
    assert settings == [(50, 1), (50, 2), (100, 1), (100, 2)]
    for row in data["settings"]:
        assert (row["answered"], row["failed"]) == (3, 0)
        assert row["reply_tokens"]["p50"] == 5 and row["prompt_tokens_counted"]["p50"] == 210
        assert 0 < row["ttft_ms"]["p50"] <= row["ttft_ms"]["p99"] <= row["total_ms"]["p99"]
    assert len(service.asked(CHAT)) == 4 * (3 + 1)
    shown = capsys.readouterr().out
    assert "3 of 3" in shown and "100 tokens, 2 at once │" in shown and "●" in shown


async def test_the_first_token_is_timed_from_the_request_and_the_prompts_differ() -> None:
    service = ReadingService(ms_per_character=0.1, base_ms=12.0)
    async with (
        scripted_remote(service),
        open_endpoint(url_of(service), clock=service.clock) as endpoint,
    ):
        result = ChatResult(ChatLoad(n_requests=3, prompt_tokens=300))
        await run_chat_load(endpoint, result, clock=service.clock)
    read = [asked.n_read for asked in service.asked_for[1:]]
    assert min(read) > 1000  # no prompt begins like another, which a prefix cache would serve
    found = [sample.ttft_ms for sample in result.samples]
    assert found == pytest.approx([12.0 + 0.1 * n_read for n_read in read])
    assert chat_figures(result)["elapsed_s"] == pytest.approx(sum(found) / 1000, abs=0.001)


async def test_the_same_prompt_shows_what_a_prefix_cache_gains() -> None:
    service = ReadingService(ms_per_character=0.1, base_ms=12.0)
    async with (
        scripted_remote(service),
        open_endpoint(url_of(service), clock=service.clock) as endpoint,
    ):
        load = ChatLoad(n_requests=2, prompt_tokens=300, is_same_prompt=True)
        result = ChatResult(load)
        await run_chat_load(endpoint, result)
    assert [sample.ttft_ms for sample in result.samples] == pytest.approx([12.0, 12.0])
    assert chat_figures(result)["cached_tokens"]["least"] > 1000


async def test_no_more_requests_are_under_way_than_were_asked_for(service: Service) -> None:
    hold = asyncio.Event()
    held = Answer(REPLY.pieces, hold=hold)
    service.say(CHAT, REPLY, held)
    async with open_endpoint(url_of(service)) as endpoint:
        result = ChatResult(ChatLoad(n_requests=6, at_once=3))
        running = asyncio.create_task(run_chat_load(endpoint, result))
        await service.wait_asked(CHAT, 1 + 3)
        assert len(service.asked(CHAT)) == 1 + 3
        hold.set()
        await running
    assert len(result.samples) == 6 and service.n_connections <= 1 + 3


async def test_requests_that_fail_are_counted_and_told(
    service: Service, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    busy = Answer([b'{"error": {"message": "queue full"}}'], 429)
    service.say(CHAT, REPLY, busy, busy, REPLY)
    file = tmp_path / "bench.json"
    assert await bench(url_of(service), "--requests", "4", "--json", str(file)) == 1
    [row] = json.loads(file.read_text())["settings"]
    assert (row["answered"], row["failed"]) == (2, 2)
    assert "failed, 2 times: expected" in (shown := capsys.readouterr().out)
    assert "HTTP 429: queue full" in shown


@pytest.mark.parametrize(
    ("answer", "found"),
    [
        (Answer([b"no"], 401), "HTTP 401: no"),
        (Answer([b""], 302, headers={"location": "http://127.0.0.1:1/"}), "HTTP 302"),
        (Answer([b"data: {nonsense\n\n"]), "expected a chunk of a chat reply"),
        (Answer([b"data: 3\n\n"]), "expected a chunk of a chat reply"),
        (Answer([b"data: " + b"[" * 100_000 + b"\n"]), "expected a chunk of a chat reply"),
        (said({"error": {"message": "out of memory"}}), "out of memory"),
        (said(token("half")), "found the connection closed before"),
        (said(END), "expected tokens in the reply, found none"),
        (said(token("a"), END, {"usage": {"completion_tokens": "many"}}), "expected numbers"),
        (Answer([b"data: " + b"x" * 100_000] * 30), "without one"),
        (Answer([], drop_before=True), "expected an answer from"),
        (Answer([b"data: {}\n\n"], drop_after=True), "expected an answer from"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_what_is_no_reply_is_a_typed_error(
    service: Service, answer: Answer, found: str
) -> None:
    service.say(CHAT, answer)
    async with open_endpoint(url_of(service), timeout_s=5.0) as endpoint:
        with pytest.raises(EndpointError, match=found):
            await endpoint.ask("hello", 8)


async def test_a_service_that_says_nothing_is_not_waited_for_for_ever(service: Service) -> None:
    service.say(CHAT, Answer([], hold=asyncio.Event()))
    async with open_endpoint(url_of(service), timeout_s=0.05) as endpoint:
        with pytest.raises(EndpointError, match="in time, found none"):
            await endpoint.ask("hello", 8)


async def test_an_endless_reply_is_ended(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clients.bench.chat_endpoint.MAX_ANSWER_BYTES", 1000)
    service.say(CHAT, said(*[token("again ")] * 50, END))
    async with open_endpoint(url_of(service)) as endpoint:
        with pytest.raises(EndpointError, match="at most 1000 bytes"):
            await endpoint.ask("hello", 8)


async def test_the_one_model_that_is_listed_is_asked_for_and_of_several_one_must_be_named(
    service: Service,
) -> None:
    def listed(*names: str) -> Answer:
        return Answer([json.dumps({"data": [{"id": name} for name in names]}).encode()])

    service.say(CHAT, REPLY)
    service.say("/models", listed("only"), listed("first", "second"))
    async with open_endpoint(url_of(service)) as endpoint:
        await endpoint.ask("hello", 8)
    assert json.loads(service.asked(CHAT)[0])["model"] == "only"
    with pytest.raises(EndpointError, match="--model with one of the 2 .*: first, second"):
        await bench(url_of(service))


async def test_an_endpoint_that_is_not_there_is_one_sentence() -> None:
    with pytest.raises(ClientError, match="expected an answer from http://127.0.0.1:1/v1"):
        await bench("http://127.0.0.1:1")


@each_row(
    ("argv", "found"),
    [
        (("http://x", "--calls", "2"), "expected options for the chat endpoint .* found --calls"),
        (("ws://x", "--max-tokens", "9"), "the Realtime endpoint .* found --max-tokens"),
        (("http://x/v1/realtime", "--requests", "9"), "the Realtime endpoint"),
        (("127.0.0.1:8080",), "expected http://host:port/v1"),
        (("ws://x", "--at-once", "1,2"), "found several"),
        (("http://x", "--at-once", "1,2,3,4,5", "--prompt-tokens", "1,2,3,4"), "found 20"),
        (("http://",), "expected an address as"),
        (("http://x", "--json", "/nowhere/x.json"), "expected a file that can be written"),
    ],
)
async def test_what_does_not_belong_together_is_refused(argv: tuple[str, ...], found: str) -> None:
    with pytest.raises(ClientError, match=found):
        await bench(*argv)


@pytest.mark.parametrize(
    "argv", [("--at-once", "0"), ("--at-once", "1,x"), ("--requests", "99999"), ("--timeout", "0")]
)
def test_numbers_out_of_their_range_are_refused(argv: tuple[str, ...]) -> None:
    parser = argparse.ArgumentParser(exit_on_error=False)
    add_bench_arguments(parser)
    with pytest.raises(argparse.ArgumentError, match="expected a"):
        parser.parse_args(["http://x", *argv])


async def test_a_key_for_this_machine_is_told_to_nobody_else(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    from clients.bench import command

    monkeypatch.setenv("VOICELOOP_KEYS", "secret-of-ours")
    assert command.own_key(url_of(service)) == "secret-of-ours"
    assert command.own_key("https://api.example.com/v1") is None


@pytest.mark.parametrize(
    ("url", "base"),
    [
        ("http://host:8000", "http://host:8000/v1"),
        ("https://host/v1/", "https://host/v1"),
        ("http://host/api/v3/chat/completions", "http://host/api/v3"),
    ],
)
def test_the_path_is_completed(url: str, base: str) -> None:
    assert chat_url(url) == base


def test_a_prompt_has_about_the_length_that_was_asked_for() -> None:
    assert 190 <= len(prompt_of(200, 1).split()) + 8 <= 210
    assert prompt_of(200, 1) == prompt_of(200, 1) != prompt_of(200, 2)


def test_errors_of_the_bench_are_clients_errors() -> None:
    assert issubclass(BenchError, ClientError) and issubclass(EndpointError, ClientError)

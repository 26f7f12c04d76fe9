"""What a tool behind a URL sends, what it takes for an answer, and what it refuses."""

from __future__ import annotations

import gzip
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from tests.tables import each_row
from voiceloop.agent import AgentTool
from voiceloop.errors import ConfigError
from voiceloop.tools.executor import ToolFailed
from voiceloop.tools.http import MAX_BODY_BYTES, HttpTool, new_client

KEY = {"SHOP_KEY": "s3cret", "SHOP": "https://shop.test/v1", "ODD": "{id}", "EMPTY": ""}


def unread(response: httpx.Response) -> httpx.Response:
    """It as it comes from a socket: its body still to be read."""
    if not response.is_stream_consumed:
        return response
    body = response.content

    async def pieces() -> AsyncIterator[bytes]:
        yield body

    headers = [
        (name, value) for name, value in response.headers.items() if name != "content-length"
    ]
    return httpx.Response(response.status_code, headers=headers, content=pieces())


class Shop:
    """Answers every request alike and keeps what was asked."""

    def __init__(self, response: httpx.Response | Exception | None = None) -> None:
        self.response = response or httpx.Response(200, json={"price": 3})
        self.requests: list[httpx.Request] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        request.read()
        self.requests.append(request)
        if isinstance(self.response, Exception):
            raise self.response
        return unread(self.response)

    async def asked(self, arguments: dict[str, Any], **fields: Any) -> str:
        parameters = {"type": "object", "required": ["id", "name"]}
        fields = {"url": "https://shop.test/price", "parameters": parameters} | fields
        tool = AgentTool("price", **fields)
        transport = httpx.MockTransport(self)
        async with httpx.AsyncClient(transport=transport) as client:
            return await HttpTool(tool, KEY, client).run("call_1", arguments)


async def test_arguments_go_out_as_json_and_the_answer_comes_back_as_it_is() -> None:
    shop = Shop()
    assert await shop.asked({"kind": "latte", "n": 2}) == '{"price":3}'
    [request] = shop.requests
    assert request.method == "POST" and json.loads(request.content) == {"kind": "latte", "n": 2}
    assert request.headers["idempotency-key"] == '"call_1"'


async def test_a_call_that_changes_nothing_needs_no_key_to_be_done_once() -> None:
    shop = Shop()
    await shop.asked({}, side_effect_free=True)
    assert "idempotency-key" not in shop.requests[0].headers


async def test_keys_come_from_the_environment_and_stand_in_no_message() -> None:
    shop = Shop(httpx.Response(500))
    headers = {"Authorization": "Bearer ${SHOP_KEY}"}
    with pytest.raises(ToolFailed) as caught:
        await shop.asked({"id": 1}, url="${SHOP}/orders/{id}", headers=headers)
    [request] = shop.requests
    assert request.headers["authorization"] == "Bearer s3cret"
    assert str(request.url) == "https://shop.test/v1/orders/1"
    assert "s3cret" not in caught.value.message + caught.value.told
    assert "shop.test" not in caught.value.told


@pytest.mark.parametrize(("fields", "words"), [
    ({"url": "${NOWHERE}/x"}, "expected $NOWHERE in the environment"),
    ({"url": "${EMPTY}/x"}, "expected $EMPTY in the environment"),
    ({"url": "https://a.test/", "headers": {"Authorization": "Bearer ${SHOP_KEY"}},
     "expected variables as ${NAME}, found one that is not"),
    ({"url": "ftp://shop.test/"}, "url: expected http:// or https://"),
    ({"url": "ftp://me:hush@shop.test/?key=hush"}, "slash, found 'ftp://shop.test/'"),
    ({"url": "https://{id}.test/x"}, "arguments in braces only after its slash"),
    ({"url": "https://shop.test{id}/x"}, "arguments in braces only after its slash"),
    ({"url": "https://shop.test/${ODD}"}, "arguments in braces only after its slash"),
    ({"url": "https://shop.test/{who}"}, "{who} to be one of the required parameters"),
    ({"url": "https://shop.test/", "headers": {"a": "${NOWHERE}"}}, "expected $NOWHERE"),
])  # fmt: skip
def test_a_wrong_address_ends_the_start(fields: dict[str, Any], words: str) -> None:
    parameters = {"type": "object", "required": ["id"]}
    with pytest.raises(ConfigError) as caught:
        HttpTool(AgentTool("price", parameters=parameters, **fields), KEY, httpx.AsyncClient())
    assert caught.value.message.startswith("tool 'price'") and words in caught.value.message


async def test_an_argument_fills_its_place_in_the_address_and_leads_out_of_nothing() -> None:
    shop = Shop()
    for name in ("a/b", "../admin", "x?y=1#z", "%2e%2e", "é", 7):
        await shop.asked({"name": name}, url="GET https://shop.test/of/{name}/now")
    paths = [request.url.raw_path.decode() for request in shop.requests]
    assert paths == [
        "/of/a%2Fb/now", "/of/..%2Fadmin/now", "/of/x%3Fy%3D1%23z/now", "/of/%252e%252e/now",
        "/of/%C3%A9/now", "/of/7/now",
    ]  # fmt: skip


@pytest.mark.parametrize("value", ["", ".", "..", None, {"a": 1}, ["a"]])
async def test_what_is_no_name_is_not_put_into_the_address(value: Any) -> None:
    shop = Shop()
    with pytest.raises(ToolFailed, match="name: expected a name or a number") as caught:
        await shop.asked({"name": value}, url="https://shop.test/of/{name}")
    assert not shop.requests and caught.value.is_unsent


async def test_arguments_of_a_query_join_what_stands_there_and_replace_none_of_it() -> None:
    shop = Shop()
    arguments = {"q": "a&b", "n": 2, "all": True, "v": "99"}
    await shop.asked(arguments, url="GET https://shop.test/?v=1")
    assert dict(shop.requests[0].url.params) == {"v": "1", "q": "a&b", "n": "2", "all": "true"}
    assert not shop.requests[0].content


@each_row(("response", "told", "may_help"), [
    (httpx.Response(404, text="no\n such order"), "refused (404): no such order", False),
    (httpx.Response(429, text="slow"), "refused (429): slow", True),
    (httpx.Response(503, text="secret trace"), "failed (503)", True),
    (httpx.Response(500, text="x"), "failed (500)", True),
    (httpx.Response(302, headers={"location": "http://inside.test"}), "failed (302)", False),
    (httpx.Response(200, content=b"\x89PNG", headers={"content-type": "image/png"}),
     "failed", False),
    (httpx.Response(200, text="x" * (MAX_BODY_BYTES + 1)), "the answer was too long", False),
    (httpx.ReadError("cut"), "failed", True),
    (httpx.ConnectError("refused"), "not in reach", True),
])  # fmt: skip
async def test_an_answer_that_is_none_says_what_the_model_may_know(
    response: httpx.Response | Exception, told: str, may_help: bool
) -> None:
    shop = Shop(response)
    with pytest.raises(ToolFailed) as caught:
        await shop.asked({})
    assert (caught.value.told, caught.value.may_help) == (told, may_help)
    assert caught.value.is_unsent == isinstance(response, httpx.ConnectError)
    assert len(shop.requests) == 1  # no redirect was followed


async def test_no_more_is_read_of_an_endless_answer_than_is_allowed() -> None:
    n_read = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal n_read
        while True:
            n_read += 2**16
            yield b"x" * 2**16

    with pytest.raises(ToolFailed, match="over"):
        await Shop(httpx.Response(200, content=endless())).asked({})
    assert n_read <= MAX_BODY_BYTES + 2**17


async def test_a_compressed_answer_is_not_asked_for_and_not_unpacked() -> None:
    async def packed() -> AsyncIterator[bytes]:
        yield gzip.compress(b"0" * 2**24)

    headers = {"content-encoding": "gzip", "content-type": "text/plain"}
    shop = Shop(httpx.Response(200, content=packed(), headers=headers))
    with pytest.raises(ToolFailed, match="compressed"):
        await shop.asked({})
    assert shop.requests[0].headers["accept-encoding"] == "identity"


async def test_an_empty_answer_is_told_by_its_status() -> None:
    assert await Shop(httpx.Response(204)).asked({}) == '{"status": 204}'


async def test_no_cookie_of_one_call_goes_out_with_another() -> None:
    shop = Shop(httpx.Response(200, text="ok", headers={"set-cookie": "who=ann; Path=/"}))
    client = new_client()
    client._transport = httpx.MockTransport(shop)
    tool = HttpTool(AgentTool("price", url="https://shop.test/"), {}, client)
    await tool.run("call_1", {})
    await tool.run("call_2", {})
    assert "cookie" not in shop.requests[1].headers
    await client.aclose()

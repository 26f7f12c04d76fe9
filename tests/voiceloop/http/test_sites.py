"""A page without a server calls by a site id; one with a server answers as EMBED.md says."""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import shutil
from pathlib import Path
from typing import Any

import httpx
import pytest

import voiceloop
from tests.tables import each_row
from tests.voiceloop.http_client import AGENT
from voiceloop.access.keys import KeyRing
from voiceloop.access.sites import MAX_NETWORKS, Visitors
from voiceloop.config import Config
from voiceloop.errors import RateLimited
from voiceloop.realtime.locks import LOCKABLE
from voiceloop.server.app import Gateway, build_app

KEYS = ("a-key-that-lasts-0123456789abcdef", "another-key-0123456789abcdefghijk")
SHOP = "https://shop.example.com"
HEADERS = {"Authorization": f"Bearer {KEYS[0]}"}
NOISE = random.Random(1).randbytes(9000).hex()  # it packs to more than an id may hold
PAGE = (Path(voiceloop.__file__).parent / "docs" / "EMBED.md").read_text(encoding="utf-8")


class Site:
    """A server with keys, and a browser on a page."""

    def __init__(self, *, allowed: tuple[str, ...] = (SHOP,)) -> None:
        self.gateway = Gateway(Config(keys=KEYS, allowed_origins=allowed), AGENT)
        self.app = build_app(self.gateway)

    def http(self, address: str = "203.0.113.7") -> httpx.AsyncClient:
        transport = httpx.ASGITransport(self.app, client=(address, 5000))
        return httpx.AsyncClient(transport=transport, base_url="https://voice.example.com")

    async def made(self, **more: Any) -> str:
        async with self.http() as http:
            answer = await http.post(
                "/v1/realtime/sites", headers=HEADERS, json={"origins": [SHOP], **more}
            )
        assert answer.status_code == 200, answer.text
        value: str = answer.json()["site"]
        return value

    async def visit(
        self, site: Any, origin: str | None = SHOP, address: str = "203.0.113.7"
    ) -> httpx.Response:
        headers = {} if origin is None else {"Origin": origin}
        async with self.http(address) as http:
            return await http.post(
                "/v1/realtime/sites/secret", headers=headers, json={"site": site}
            )


async def test_a_visitor_of_the_site_gets_a_key_for_one_locked_call() -> None:
    site = Site()
    made = await site.made(session={"instructions": "Sell shoes."}, max_session_seconds=120)
    answer = await site.visit(made)
    assert answer.status_code == 200
    assert answer.headers["access-control-allow-origin"] == "*"
    entry = site.gateway.keys.check(answer.json()["value"])
    assert entry.tenant == KeyRing(KEYS).check(KEYS[0]).tenant
    assert (entry.session, entry.max_session_s) == ({"instructions": "Sell shoes."}, 120)
    assert entry.lock == LOCKABLE


@pytest.mark.parametrize("origin", ["https://evil.example", "null", None])
async def test_another_page_gets_none_and_may_read_why(origin: str | None) -> None:
    site = Site()
    answer = await site.visit(await site.made(), origin)
    assert answer.status_code == 403
    assert answer.headers["access-control-allow-origin"] == "*"


async def test_a_page_that_the_server_does_not_allow_is_told_before_its_call() -> None:
    site = Site(allowed=())
    answer = await site.visit(await site.made())
    assert "Add it to allowed_origins" in answer.json()["error"]["message"]


async def test_an_address_begins_so_many_calls_an_hour_and_others_are_not_kept_out() -> None:
    site = Site()
    made = await site.made(calls_per_hour=2)
    found = [(await site.visit(made)).status_code for _ in range(3)]
    assert found == [200, 200, 429]
    assert (await site.visit(made, address="203.0.113.8")).status_code == 200
    assert (await site.visit(await site.made(calls_per_hour=3))).status_code == 200
    # The 64 bits that a customer chooses among are one address.
    found = [(await site.visit(made, address=f"2001:db8::{n}")).status_code for n in range(3)]
    assert found == [200, 200, 429]


@pytest.mark.parametrize(
    "site_id", ["", "site_", "site_x.y", "ek_x.y", "site_" + "A" * 9000, 5, None]
)
async def test_what_is_no_site_id_is_refused(site_id: Any) -> None:
    assert (await Site().visit(site_id)).status_code in (400, 401)


async def test_an_id_ends_with_its_key_and_cannot_be_changed() -> None:
    site = Site()
    made = await site.made()
    body, _, mac = made.removeprefix("site_").partition(".")
    changed = f"site_{body[:-1]}{'A' if body[-1] != 'A' else 'B'}.{mac}"
    assert (await site.visit(changed)).status_code == 401
    site.gateway.keys.take(KEYS[1:])
    assert (await site.visit(made)).status_code == 401


@each_row(
    "wrong",
    [
        {},
        {"origins": []},
        {"origins": ["shop.example.com"]},
        {"origins": ["*"]},
        {"origins": [SHOP] * 21},
        {"origins": [SHOP], "calls_per_hour": 0},
        {"origins": [SHOP], "max_session_seconds": "long"},
        {"origins": [SHOP], "session": {"tools": [{"type": "function", "name": "pay"}]}},
        {"origins": [SHOP], "session": ["tools"]},
        {"origins": [SHOP], "session": {"instructions": NOISE}},
    ],
)
async def test_a_site_that_could_not_be_served_is_not_signed(wrong: dict[str, Any]) -> None:
    async with Site().http() as http:
        answer = await http.post("/v1/realtime/sites", headers=HEADERS, json=wrong)
    assert answer.status_code == 400, answer.text


async def test_only_a_key_makes_a_site() -> None:
    site = Site()
    secret = (await site.visit(await site.made())).json()["value"]
    for key in ("nothing", secret):
        async with site.http() as http:
            headers = {"Authorization": f"Bearer {key}"}
            answer = await http.post(
                "/v1/realtime/sites", headers=headers, json={"origins": [SHOP]}
            )
        assert answer.status_code == 401


def test_visitors_are_counted_in_bounded_memory() -> None:
    visitors = Visitors(lambda: 0.0)
    for number in range(MAX_NETWORKS + 5):
        visitors.admit(b"site", str(number), 1)
    assert len(visitors._buckets) == MAX_NETWORKS
    with pytest.raises(RateLimited):
        visitors.admit(b"site", str(MAX_NETWORKS), 1)


def block(language: str) -> str:
    found = re.search(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)
    assert found is not None
    return found.group(1)


async def test_the_pages_endpoint_in_python_answers_with_a_secret(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    site = Site()
    monkeypatch.setenv("AGENT_KEY", KEYS[0])
    http = site.http()
    monkeypatch.setattr(httpx, "AsyncClient", lambda: http)
    scope: dict[str, Any] = {}
    exec(
        "import os, httpx\nfrom starlette.responses import JSONResponse\n" + block("python"), scope
    )
    answer = await scope["token"](None)
    entry = site.gateway.keys.check(json.loads(answer.body)["value"])
    assert (entry.max_session_s, entry.lock) == (600, LOCKABLE)


@pytest.mark.skipif(shutil.which("node") is None, reason="there is no Node here")
async def test_the_pages_endpoint_in_node_asks_for_the_same() -> None:
    program = """
      const app = { post: (path, handler) => { app.path = path; app.handler = handler; } };
      globalThis.fetch = async (url, options) => {
        const { method, headers, body } = options;
        const asked = JSON.stringify([url, method, headers, JSON.parse(body)]);
        return { status: 200, json: async () => asked };
      };
    """ + block("js")
    program += """
      const response = { status: () => response, json: (body) => console.log(app.path + body) };
      app.handler({}, response);
    """
    ran = await asyncio.create_subprocess_exec(
        "node", "-e", program, env={"AGENT_KEY": KEYS[0], "PATH": os.environ["PATH"]},
        stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    printed = (await ran.communicate())[0].decode()
    assert printed.startswith("/token")
    url, method, headers, asked = json.loads(printed.removeprefix("/token"))
    async with Site().http() as http:
        answer = await http.request(method, url, headers=headers, json=asked)
    assert answer.json()["value"].startswith("ek_")

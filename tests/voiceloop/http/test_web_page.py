"""The page's files are served with the headers that keep them to their own server."""

from __future__ import annotations

import re
from pathlib import Path

import httpx
import pytest
from starlette.applications import Starlette

from voiceloop.http.web_page import WEB_DIR, page_routes


def client(directory: Path = WEB_DIR) -> httpx.AsyncClient:
    app = Starlette(routes=page_routes(directory))
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://server")


async def test_the_page_and_every_file_it_names_are_served() -> None:
    async with client() as http:
        page = await http.get("/")
        assert page.status_code == 200 and page.headers["content-type"].startswith("text/html")
        named = re.findall(r'(?:href|src)="(web/[^"]+)"', page.text)
        assert "web/app.js" in named
        for path in named:
            assert (await http.get(f"/{path}")).status_code == 200, path


@pytest.mark.parametrize("path", ["/", "/web/app.js"])
async def test_the_page_loads_nothing_from_elsewhere(path: str) -> None:
    async with client() as http:
        headers = (await http.get(path)).headers
    policy = headers["content-security-policy"]
    assert "default-src 'self'" in policy
    assert "connect-src 'self' ws://server wss://server;" in policy
    assert headers["x-content-type-options"] == "nosniff"


def test_no_file_of_the_page_names_another_host() -> None:
    for file in WEB_DIR.iterdir():
        text = file.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"https?://", text), file.name


@pytest.mark.parametrize("path", ["/web/../server.py", "/web/%2e%2e/connection.py", "/web/", "/x"])
async def test_nothing_else_is_served(path: str) -> None:
    async with client() as http:
        assert (await http.get(path)).status_code == 404


def test_without_the_folder_there_is_no_page(tmp_path: Path) -> None:
    assert page_routes(tmp_path) == []

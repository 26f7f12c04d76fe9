"""The description of the HTTP routes is the one of the routes there are."""

from __future__ import annotations

import re

import pytest
from starlette.routing import Route

from tests.voiceloop.http_client import AGENT, http_client
from voiceloop.config import Config
from voiceloop.server.app import Gateway, build_app


async def test_every_route_is_described_and_every_description_has_its_route() -> None:
    async with http_client() as http:
        described = (await http.get("/openapi.json")).json()
    routes = build_app(Gateway(Config(), AGENT)).routes
    real = {
        (route.path.replace(":path}", "}"), method.lower())
        for route in routes
        if isinstance(route, Route) and route.path.startswith("/v1/")
        for method in (route.methods or set()) - {"HEAD", "OPTIONS"}
    }
    told = {(path, method) for path, verbs in described["paths"].items() for method in verbs}
    assert told == real


async def test_every_reference_in_the_description_leads_somewhere() -> None:
    async with http_client() as http:
        text = (await http.get("/openapi.json")).text
        described = (await http.get("/openapi.json")).json()
    assert described["openapi"].startswith("3.")
    named = set(re.findall(r'"#/components/schemas/([^"]*)"', text))
    assert "Error" in named and named <= described["components"]["schemas"].keys()


@pytest.mark.parametrize(
    ("path", "status", "code"),
    [("/v1/nothing", 404, "not_found"), ("/v1/chat/completions", 405, "method_not_allowed")],
)
async def test_a_wrong_path_or_method_is_told_in_the_form_of_every_error(
    path: str, status: int, code: str
) -> None:
    async with http_client() as http:
        answer = await http.get(path)
    assert answer.status_code == status
    assert answer.json()["error"] == {
        "type": "invalid_request_error",
        "code": code,
        "message": f"expected a path and method of /openapi.json, found GET {path}",
        "param": None,
    }

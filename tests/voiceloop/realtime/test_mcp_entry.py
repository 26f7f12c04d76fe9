"""One MCP server among a session's tools: what is read, what is refused, what is echoed."""

from __future__ import annotations

from typing import Any

import pytest

from voiceloop.errors import InvalidRequest
from voiceloop.realtime.mcp.entry import read_entries

SHOP = {"type": "mcp", "server_label": "shop", "server_url": "https://shop.test/mcp"}


@pytest.mark.parametrize(
    ("approval", "asked"),
    [
        (None, {"read", "write", "other"}),
        ("always", {"read", "write", "other"}),
        ("never", set()),
        ({"never": {"tool_names": ["read"]}}, {"write", "other"}),
        ({"always": {"tool_names": ["write"]}}, {"write"}),
        (
            {"always": {"tool_names": ["write"]}, "never": {"tool_names": ["read"]}},
            {"write", "other"},
        ),
    ],
)
def test_whose_calls_the_client_has_to_allow(approval: Any, asked: set[str]) -> None:
    (entry,) = read_entries([SHOP | {"require_approval": approval}], "tools")
    assert {name for name in ("read", "write", "other") if entry.needs_approval(name)} == asked


def test_only_named_tools_are_let_through_and_secrets_are_not_echoed() -> None:
    secrets = {"authorization": "t0ken", "headers": {"x-key": "s3cret"}}
    names = {"tool_names": ["read"]}
    (entry,) = read_entries([SHOP | secrets | {"allowed_tools": names}], "tools")
    assert entry.lets_through("read") and not entry.lets_through("write")
    assert dict(entry.headers) == {"authorization": "Bearer t0ken", "x-key": "s3cret"}
    assert entry.wire == SHOP | {"allowed_tools": names} and entry.host == "shop.test"


@pytest.mark.parametrize(
    "wrong",
    [
        {"server_label": "a b"},
        {"server_url": None},
        {"server_url": "file:///etc/passwd"},
        {"server_url": "https://shop.test/${HOME}"},
        {"headers": {"key": "${SECRET}"}},
        {"headers": {"key": "a\nb"}},
        {"headers": {"key": 1}},
        {"allowed_tools": [1]},
        {"require_approval": "sometimes"},
    ],
)
def test_what_is_wrong_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest):
        read_entries([SHOP | wrong], "tools")


def test_a_session_names_few_servers_and_each_once() -> None:
    with pytest.raises(InvalidRequest):
        read_entries([SHOP, SHOP], "tools")
    with pytest.raises(InvalidRequest):
        read_entries([SHOP | {"server_label": f"s{n}"} for n in range(5)], "tools")

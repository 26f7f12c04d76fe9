"""One MCP server among a session's tools: what is read, what is refused, what is echoed."""

from __future__ import annotations

from typing import Any

import pytest

from tests.tables import each_row
from voiceloop.errors import InvalidRequest
from voiceloop.realtime.mcp.entry import check_hosts, read_entries

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
    secrets = {"authorization": "t0ken", "headers": {"X-API-Key": "s3cret"}}
    names = {"tool_names": ["read"]}
    (entry,) = read_entries([SHOP | secrets | {"allowed_tools": names}], "tools")
    assert entry.lets_through("read") and not entry.lets_through("write")
    assert dict(entry.headers) == {"authorization": "Bearer t0ken", "x-api-key": "s3cret"}
    assert entry.wire == SHOP | {"allowed_tools": names} and entry.origin == "https://shop.test:443"


@each_row(
    "wrong",
    [
        {"server_label": "a b"},
        {"server_url": None},
        {"server_url": "file:///etc/passwd"},
        {"server_url": "https://shop.test/${HOME}"},
        {"headers": {"api-key": "${SECRET}"}},
        {"headers": {"api-key": "a\nb"}},
        {"headers": {"api-key": 1}},
        {"headers": {"api-key": "a", "API-Key": "b"}},
        {"headers": {"Host": "inside.test"}},
        {"headers": {"Transfer-Encoding": "chunked"}},
        {"headers": {"Accept-Encoding": "gzip"}},
        {"headers": {"X-Forwarded-For": "127.0.0.1"}},
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


@each_row(
    ("url", "host", "is_allowed"),
    [
        ("https://shop.test/mcp", "shop.test", True),
        ("https://SHOP.test:443/mcp", "shop.test", True),
        ("http://shop.test/mcp", "shop.test", False),
        ("https://shop.test:8443/mcp", "shop.test", False),
        ("https://shop.test:8443/mcp", "shop.test:8443", True),
        ("http://shop.test:8000/mcp", "http://shop.test:8000", True),
        ("http://shop.test:22/mcp", "http://shop.test:8000", False),
        ("https://shop.test/mcp", "http://shop.test", False),
        ("https://[::1]:8443/mcp", "[::1]:8443", True),
    ],
)
def test_a_host_is_allowed_at_its_port_and_in_the_clear_only_where_that_is_written(
    url: str, host: str, is_allowed: bool
) -> None:
    entries = read_entries([SHOP | {"server_url": url}], "tools")
    if is_allowed:
        check_hosts(entries, (host,))
    else:
        with pytest.raises(InvalidRequest, match="expected a host of"):
            check_hosts(entries, (host,))

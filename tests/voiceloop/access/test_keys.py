"""The door: keys, origins, binds."""

from __future__ import annotations

import random
import string
import zlib
from dataclasses import replace

import pytest

from tests.tables import each_row
from voiceloop.access.client_secrets import MAX_VALUE_CHARACTERS
from voiceloop.access.keys import (
    Entry,
    KeyRing,
    client_key,
    salts,
    subprotocol,
    tenant_of,
)
from voiceloop.access.origins import check_bind, check_origin
from voiceloop.access.signing import from_text
from voiceloop.errors import ConfigError, Forbidden, Unauthorized

KEY = "secret-key-1"


@each_row(("headers", "offered", "key"), [
    ({"authorization": f"Bearer {KEY}"}, [], KEY),
    ({"authorization": f"bearer  {KEY} "}, [], KEY),
    ({"api-key": KEY}, [], KEY),
    ({}, ["realtime", f"openai-insecure-api-key.{KEY}"], KEY),
    ({"authorization": "Bearer "}, [], None),
    ({"authorization": f"Basic {KEY}"}, [], None),
    ({}, ["openai-insecure-api-key."], None),
    ({}, ["realtime"], None),
])  # fmt: skip
def test_a_key_is_found_where_clients_put_it(
    headers: dict[str, str], offered: list[str], key: str | None
) -> None:
    assert client_key(headers, offered) == key


def test_any_of_the_keys_opens_and_no_keys_mean_an_open_door() -> None:
    KeyRing(["another-key", KEY]).check(KEY)
    KeyRing([]).check(None)


@pytest.mark.parametrize(("headers", "is_keyed"), [
    ({}, False),
    ({"origin": "http://localhost:8080", "host": "localhost:8080"}, False),
    ({"origin": "http://[::1]:8080", "host": "[::1]:8080"}, False),
    ({"origin": "https://calls.example.org", "host": "calls.example.org"}, True),
    ({"origin": "https://app.example.org", "host": "calls.example.org"}, True),
])  # fmt: skip
def test_own_and_listed_origins_pass(headers: dict[str, str], is_keyed: bool) -> None:
    check_origin(headers, ["https://app.example.org"], is_keyed=is_keyed)


@pytest.mark.parametrize(("headers", "is_keyed"), [
    ({"origin": "https://evil.example", "host": "localhost:8080"}, False),
    ({"origin": "https://evil.example", "host": "localhost:8080"}, True),
    ({"origin": "http://localhost:9999", "host": "localhost:8080"}, False),
    ({"origin": "null", "host": "localhost:8080"}, False),
    ({"origin": "", "host": ""}, True),
    ({"origin": "http://[::1", "host": "localhost"}, True),
    # A hostile name that resolves to 127.0.0.1: the same origin, and yet not ours.
    ({"origin": "http://evil.example:8080", "host": "evil.example:8080"}, False),
])  # fmt: skip
def test_other_origins_are_refused(headers: dict[str, str], is_keyed: bool) -> None:
    with pytest.raises(Forbidden):
        check_origin(headers, ["https://app.example.org"], is_keyed=is_keyed)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.2", "example.org", ""])
def test_other_machines_are_not_served_without_keys(host: str) -> None:
    with pytest.raises(ConfigError, match="expected keys"):
        check_bind(host, is_keyed=False)
    check_bind(host, is_keyed=True)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost"])
def test_this_machine_is_served_without_keys(host: str) -> None:
    check_bind(host, is_keyed=False)


def test_the_selected_subprotocol_is_never_the_key() -> None:
    assert subprotocol([f"openai-insecure-api-key.{KEY}", "realtime"]) == "realtime"
    assert subprotocol([f"openai-insecure-api-key.{KEY}"]) is None


# --- client secrets ---

BRIEF = {"instructions": "Be brief."}


def test_a_client_secret_opens_until_it_expires_as_its_issuers_tenant() -> None:
    now = [1000.0]
    ring = KeyRing(["another-key", KEY], lambda: now[0])
    secret = ring.issue(KEY, 10, BRIEF, max_session_s=60)
    assert secret.value.startswith("ek_") and secret.expires_at == 1010
    found = ring.check(secret.value)
    assert replace(found, secret="") == Entry(tenant_of(KEY), BRIEF, 60) and found.secret
    assert ring.check(KEY) == Entry(tenant_of(KEY))
    now[0] = 1010.0
    with pytest.raises(Unauthorized):
        ring.check(secret.value)
    assert secret.value not in repr(secret)


def test_every_server_with_the_issuing_key_takes_it_and_none_without() -> None:
    secret = KeyRing(["another-key", KEY]).issue(KEY, 60, BRIEF)
    assert KeyRing([KEY]).check(secret.value).session == BRIEF
    for keys in (["another-key"], []):
        with pytest.raises(Unauthorized):
            KeyRing(keys).check(secret.value)


def test_a_session_too_long_for_a_header_stays_with_its_server() -> None:
    long = {"instructions": "".join(random.Random(7).choices(string.ascii_letters, k=20_000))}
    ring = KeyRing([KEY])
    secret = ring.issue(KEY, 60, long)
    assert len(secret.value) < 200
    assert ring.check(secret.value).session == long
    with pytest.raises(Unauthorized):
        KeyRing([KEY]).check(secret.value)
    carried = ring.issue(KEY, 60, {"instructions": "Be kind. " * 20_000})  # packs well
    assert len(carried.value) < MAX_VALUE_CHARACTERS


def test_a_session_with_what_an_mcp_server_wants_to_see_stays_with_its_server() -> None:
    server = {"type": "mcp", "server_label": "shop", "server_url": "https://a.example/mcp"}
    for told in ({"authorization": "s3cret"}, {"headers": {"X-Shop": "s3cret"}}):
        session = {"tools": [{"type": "function", "name": "price"}, {**server, **told}]}
        ring = KeyRing([KEY])
        secret = ring.issue(KEY, 60, session)
        body = from_text(secret.value.removeprefix("ek_").split(".")[0])
        assert b"s3cret" not in body + zlib.decompress(body)
        assert ring.check(secret.value).session == session
    carried = KeyRing([KEY]).issue(KEY, 60, {"tools": [server]})
    assert KeyRing([KEY]).check(carried.value).session == {"tools": [server]}


def test_what_is_held_is_bounded_and_the_oldest_goes_first() -> None:
    ring = KeyRing([KEY, "another-key"])
    noise = random.Random(7)
    theirs = ring.issue("another-key", 60, {"instructions": noise.randbytes(6_000).hex()})
    issued = [
        ring.issue(KEY, 60, {"instructions": noise.randbytes(600_000).hex()}) for _ in range(20)
    ]
    with pytest.raises(Unauthorized):
        ring.check(issued[0].value)
    assert ring.check(theirs.value).session["instructions"]  # another issuer's stay
    assert ring.check(issued[-1].value).session["instructions"]


@pytest.mark.parametrize("keys", [[KEY], []])
def test_an_invented_or_altered_client_secret_opens_nothing(keys: list[str]) -> None:
    ring = KeyRing(keys)
    value = ring.issue(keys[0] if keys else None, 60, BRIEF).value
    assert ring.check(value).session == BRIEF
    altered = [value[:i] + ("A" if value[i] != "A" else "B") + value[i + 1 :] for i in range(3, 40)]
    for wrong in ("ek_", "ek_invented", "ek_.", "ek_a.b", value + ".x", value[:-2], *altered):
        with pytest.raises(Unauthorized):
            ring.check(wrong)


def test_a_tenants_name_at_a_service_tells_nobody_whose_it_is_and_stays_the_same() -> None:
    of = salts((KEY, "another-key"), ())
    names = {of(tenant_of(key)) for key in (KEY, "another-key")}
    assert len(names) == 2 and not names & {tenant_of(KEY), tenant_of("another-key")}
    assert salts(("another-key", KEY), ())(tenant_of(KEY)) in names
    assert salts((KEY,), ("some other secret",))(tenant_of(KEY)) not in names
    unshared = [salts((), ())("tenant") for _ in range(2)]
    assert unshared[0] != unshared[1]

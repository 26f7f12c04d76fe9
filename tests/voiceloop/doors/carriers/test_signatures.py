"""Carriers' signatures, against published vectors and against what was changed by one letter."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from voiceloop.doors.carriers.signatures import (
    LATEST_S,
    check_basic,
    check_plivo,
    check_telnyx,
    check_twilio,
    check_vonage,
)
from voiceloop.errors import Unproved

# twilio.com/docs/usage/security, "Validating Signatures from Twilio".
TWILIO_URL = "https://mycompany.com/myapp.php?foo=1&bar=2"
TWILIO_FIELDS = [
    ("CallSid", "CA1234567890ABCDE"), ("Caller", "+14158675309"), ("Digits", "1234"),
    ("From", "+14158675309"), ("To", "+18005551212"),
]  # fmt: skip
TWILIO_SIGNATURE = "RSOYDt4T1cUTdK1PDd93/VVr8B8="
# RFC 8032, 7.1, the first test vector's secret key.
SEED = bytes.fromhex("9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60")
NOW_S = 1_700_000_000.0


def test_twilios_published_request_is_proved() -> None:
    check_twilio("12345", TWILIO_SIGNATURE, TWILIO_URL, TWILIO_FIELDS)
    check_twilio("12345", TWILIO_SIGNATURE, TWILIO_URL, TWILIO_FIELDS[::-1])  # in any order


@pytest.mark.parametrize(
    ("token", "url", "fields"),
    [
        ("12346", TWILIO_URL, TWILIO_FIELDS),
        ("12345", TWILIO_URL.replace("mycompany", "another"), TWILIO_FIELDS),
        ("12345", TWILIO_URL, [*TWILIO_FIELDS, ("To", "+1900")]),
        ("12345", TWILIO_URL, TWILIO_FIELDS[1:]),
    ],
)
def test_a_request_that_twilio_has_not_signed_is_refused(
    token: str, url: str, fields: list[tuple[str, str]]
) -> None:
    with pytest.raises(Unproved):
        check_twilio(token, TWILIO_SIGNATURE, url, fields)


@given(st.text(max_size=40))
def test_whatever_stands_for_a_signature_is_refused_and_raises_nothing_else(found: str) -> None:
    for signature in (found, None):
        with pytest.raises(Unproved):
            check_twilio("12345", signature, TWILIO_URL, TWILIO_FIELDS)
        with pytest.raises(Unproved):
            check_plivo("token", signature, found, TWILIO_URL, TWILIO_FIELDS)
        with pytest.raises(Unproved):
            check_telnyx("A" * 43 + "=", signature, found, b"body", NOW_S)
        with pytest.raises(Unproved):
            check_vonage("secret", signature, b"body", NOW_S)
        with pytest.raises(Unproved):
            check_basic(signature, "password")


@pytest.mark.parametrize(
    "url", ["wss://v.example/s", "wss://v.example:443/s", "wss://v.example/s/"]
)
def test_an_upgrade_is_proved_however_twilio_spells_its_address(url: str) -> None:
    mac = base64.b64encode(hmac.digest(b"12345", url.encode(), "sha1")).decode()
    check_twilio("12345", mac, "wss://v.example/s")
    with pytest.raises(Unproved):
        check_twilio("12345", mac, "wss://v.example/other")


def test_plivos_signature_covers_address_fields_and_nonce() -> None:
    url, fields, nonce = "https://v.example/ring?b=2&a=1", [("To", "2"), ("From", "1")], "0542"
    text = "https://v.example/ring?a=1&b=2.From1To2.0542"
    mac = base64.b64encode(hmac.digest(b"token", text.encode(), "sha256")).decode()
    check_plivo("token", f"of another token,{mac}", nonce, url, fields)
    for other in (nonce + "1", None):
        with pytest.raises(Unproved):
            check_plivo("token", mac, other, url, fields)
    with pytest.raises(Unproved):
        check_plivo("token", mac, nonce, url, [("To", "3"), ("From", "1")])


def test_telnyxs_signature_covers_time_and_body_and_grows_old() -> None:
    key = Ed25519PrivateKey.from_private_bytes(SEED)
    public = base64.b64encode(key.public_key().public_bytes_raw()).decode()
    at, body = str(int(NOW_S)), b'{"CallSid":"v3"}'
    proof = base64.b64encode(key.sign(f"{at}|".encode() + body)).decode()
    check_telnyx(public, proof, at, body, NOW_S + LATEST_S)
    for when, said, told in (
        (NOW_S + LATEST_S + 1.0, at, body),
        (NOW_S - LATEST_S - 1.0, at, body),
        (NOW_S, str(int(NOW_S) + 1), body),
        (NOW_S, at, body + b" "),
    ):
        with pytest.raises(Unproved):
            check_telnyx(public, proof, said, told, when)


def token_of(head: Any, claims: Any, secret: bytes = b"secret") -> str:
    parts = [
        base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=").decode()
        for part in (head, claims)
    ]
    mac = hmac.digest(secret, ".".join(parts).encode(), "sha256")
    return "Bearer " + ".".join([*parts, base64.urlsafe_b64encode(mac).rstrip(b"=").decode()])


def test_vonages_token_covers_the_body_and_grows_old() -> None:
    body = b'{"from":"1","to":"2"}'
    claims = {"iat": int(NOW_S), "jti": "one", "payload_hash": hashlib.sha256(body).hexdigest()}
    head = {"alg": "HS256", "typ": "JWT"}
    check_vonage("secret", token_of(head, claims), body, NOW_S)
    for given_, told, when in (
        (token_of(head, claims, b"another"), body, NOW_S),
        (token_of({"alg": "none"}, claims), body, NOW_S),
        (token_of(head, {**claims, "payload_hash": "0"}), body, NOW_S),
        (token_of(head, {"iat": int(NOW_S)}), body, NOW_S),
        (token_of(head, claims), body + b" ", NOW_S),
        (token_of(head, claims), body, NOW_S + LATEST_S + 1.0),
    ):
        with pytest.raises(Unproved):
            check_vonage("secret", given_, told, when)


def test_the_password_is_what_counts_in_basic_authentication() -> None:
    given_ = base64.b64encode(b"whoever:pass:word").decode()
    check_basic(f"Basic {given_}", "pass:word")
    for found, wanted in ((f"Basic {given_}", "password"), (f"Bearer {given_}", "pass:word")):
        with pytest.raises(Unproved):
            check_basic(found, wanted)

"""How carriers prove that a request comes from them. Pure: headers, bytes and the time passed in.

Owns the comparison of signatures, in constant time. Every check is made over the address that the
operator configured: what a proxy or a caller writes into a header proves nothing.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from binascii import Error as NotBase64
from collections.abc import Iterable, Sequence
from urllib.parse import parse_qsl, urlsplit

from voiceloop.errors import Unproved

LATEST_S = 300.0  # of a signature that has a time: as the carriers' own libraries allow
MAX_TOKEN_BYTES = 8192
UNSIGNED = "The carrier's signature is missing or wrong. Check its secret and phone.public_url."

Fields = Sequence[tuple[str, str]]  # of a form, in their order


def check_twilio(token: str, signature: str | None, url: str, fields: Fields = ()) -> None:
    """X-Twilio-Signature of a request, or of an upgrade, which has no fields.

    Twilio signs the address with or without the scheme's own port, and that of a WebSocket with or
    without a slash at its end. Raises: Unproved.
    Source: twilio.com/docs/usage/security; the package `twilio` of npm, `validateRequest`.
    """
    unique = sorted(set(fields))
    form = "".join(name + value for name, value in unique)
    # All are compared, so that the time tells nothing about which one came close.
    matches = [
        _is_same(signature or "", base64.b64encode(hmac.digest(token.encode(), one, "sha1")))
        for one in ((spelled + form).encode() for spelled in _spellings(url))
    ]
    if not any(matches):
        raise Unproved(UNSIGNED)


def check_plivo(
    token: str, signature: str | None, nonce: str | None, url: str, fields: Fields = ()
) -> None:
    """X-Plivo-Signature-V3 of a POST, which may hold one for each of the account's tokens.

    Raises: Unproved. Source: github.com/plivo/plivo-python, plivo/utils/signature_v3.py.
    """
    parts = urlsplit(url)
    query = "&".join(f"{name}={value}" for name, value in sorted(parse_qsl(parts.query, True)))
    text = f"{parts.scheme}://{parts.netloc}{parts.path}"
    if query or fields:
        text += f"?{query}"
    if fields:
        text += "." if query else ""
        text += "".join(name + value for name, value in sorted(fields))
    mac = hmac.digest(token.encode(), f"{text}.{nonce}".encode(), "sha256")
    found = (signature or "").split(",")
    if not nonce or not any(_is_same(one.strip(), base64.b64encode(mac)) for one in found):
        raise Unproved(UNSIGNED)


def check_telnyx(
    public_key: str, signature: str | None, timestamp: str | None, body: bytes, now_s: float
) -> None:
    """Telnyx's Ed25519 signature of a webhook. public_key: base64. now_s: since the epoch.

    Raises: Unproved. Source: developers.telnyx.com, "Webhook Fundamentals".
    """
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        at = timestamp or ""
        key = Ed25519PublicKey.from_public_bytes(base64.b64decode(public_key, validate=True))
        proof = base64.b64decode(signature or "", validate=True)
        key.verify(proof, f"{at}|".encode() + body)
        sent_s = float(int(at))
    except (InvalidSignature, NotBase64, ValueError):
        raise Unproved(UNSIGNED) from None
    _check_time(sent_s, now_s)


def check_vonage(secret: str, authorization: str | None, body: bytes, now_s: float) -> None:
    """A signed webhook of Vonage: a JWT, which holds the body's digest.

    Raises: Unproved. Source: developer.vonage.com, "Decoding Signed Webhooks"; RFC 7515, 7519.
    """
    scheme, _, token = (authorization or "").partition(" ")
    signed, _, mac = token.strip().rpartition(".")
    wanted = hmac.digest(secret.encode(), signed.encode(), "sha256")
    wanted = base64.urlsafe_b64encode(wanted).rstrip(b"=")
    if scheme.lower() != "bearer" or len(token) > MAX_TOKEN_BYTES or not _is_same(mac, wanted):
        raise Unproved(UNSIGNED)
    try:
        # Padded with more than may lack, of which the rest is passed over.
        parts = (base64.urlsafe_b64decode(part + "==") for part in signed.split("."))
        head, claims = map(json.loads, parts)
        if head["alg"] != "HS256":
            raise ValueError
        sent_s = float(claims["iat"])
        digest = claims["payload_hash"] if body else hashlib.sha256(body).hexdigest()
    except (KeyError, TypeError, ValueError):
        raise Unproved("The carrier's token is wrong. Compare its secret in [phone].") from None
    _check_time(sent_s, now_s)
    if not _is_same(str(digest), hashlib.sha256(body).hexdigest().encode()):
        raise Unproved("The body is not the one that the carrier signed.")


def check_basic(authorization: str | None, password: str) -> None:
    """The password of HTTP Basic authentication, whatever the name. Raises: Unproved."""
    scheme, _, text = (authorization or "").partition(" ")
    try:
        found = base64.b64decode(text.strip(), validate=True).decode().partition(":")[2]
    except ValueError:
        found = ""
    if scheme.lower() != "basic" or not _is_same(found, password.encode()):
        raise Unproved("The exchange's password is wrong. Compare it with [phone].")


def _spellings(url: str) -> Iterable[str]:
    """The ways in which a carrier writes this address."""
    parts = urlsplit(url)
    own = "443" if parts.scheme in ("https", "wss") else "80"
    host = parts.hostname or ""
    rest = url.partition("://")[2].partition("/")
    hosts = {parts.netloc, f"{host}:{own}"} if parts.port is None else {parts.netloc}
    if parts.port == int(own):
        hosts.add(host)
    for one in hosts:
        spelled = f"{parts.scheme}://{one}{rest[1]}{rest[2]}"
        yield spelled
        if parts.scheme in ("ws", "wss"):
            yield spelled + "/"


def _is_same(found: str, wanted: bytes) -> bool:
    return hmac.compare_digest(found.encode("utf-8", "replace"), wanted)


def _check_time(sent_s: float, now_s: float) -> None:
    if not abs(now_s - sent_s) <= LATEST_S:
        raise Unproved(f"The carrier's signature is older than {LATEST_S:g} s. Set the clocks.")

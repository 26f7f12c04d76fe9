"""Tells whence a client comes: which pages and addresses may connect, what counts as one. Pure."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from urllib.parse import urlsplit

from voiceloop.errors import ConfigError, Forbidden


def check_origin(headers: Mapping[str, str], allowed: Sequence[str], *, is_keyed: bool) -> None:
    """Keep other sites' pages out; CORS does not cover WebSockets.

    No ``Origin`` means no browser. The server's own origin and those listed pass. Without keys
    "own" must also be a loopback name: a hostile name that resolves to this machine would match
    its own Host header.

    Raises:
        Forbidden: the page comes from elsewhere.
    """
    origin = headers.get("origin")
    if origin is None or origin in allowed or "*" in allowed:
        return
    try:
        page = urlsplit(origin)
        own = urlsplit(f"//{headers.get('host', '')}")
        is_own = page.netloc.lower() == own.netloc.lower() != ""
        if is_own and (is_keyed or is_loopback(own.hostname or "")):
            return
    except ValueError:  # not an URL
        pass
    raise Forbidden(f"The page {origin[:80]!r} may not call. Add it to allowed_origins.")


def is_loopback(host: str) -> bool:
    """True for the names and addresses of this machine alone."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_bind(host: str, *, is_keyed: bool) -> None:
    """Refuse to serve other machines without keys.

    Raises:
        ConfigError: the host is not loopback, and there are no keys.
    """
    if is_keyed or is_loopback(host):
        return
    raise ConfigError(
        f"expected keys (keys_file or VOICELOOP_KEYS) to serve on {host!r}, found none; "
        "or bind 127.0.0.1, behind a proxy that knows who may come in"
    )

"""One ``{"type": "mcp"}`` among a session's tools: which server, which of its tools, who says yes.

Owns the strict reading of it. Pure.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

import msgspec

from voiceloop.backends import TOOL_NAME
from voiceloop.errors import InvalidRequest, expected

MAX_SERVERS = 4  # of one session: each is a connection of its own
MAX_HEADERS = 16
MAX_SECRET_CHARS = 8192  # of a header; tokens have some 1,000
MAX_URL_CHARS = 2048
PORTS = {"https": 443, "http": 80}
SECRETS = ("authorization", "headers")
# Names in which services take a key. Any other, as Host or Forwarded, would speak for the gateway:
# to another service behind the allowed host, or for another caller.
HEADERS = frozenset(("authorization", "x-api-key", "api-key", "x-auth-token"))

Json = dict[str, Any]


class McpEntry(msgspec.Struct, frozen=True):
    """allowed: names of tools, None: all that it lists. asks_for, spares: whose calls the client
    has to allow, and need not; what neither names is asked for, as at the API that clients know.
    """

    server_label: str
    server_url: str
    headers: tuple[tuple[str, str], ...] = ()
    allowed: tuple[str, ...] | None = None
    asks_for: tuple[str, ...] = ()
    spares: tuple[str, ...] | None = ()  # None: all
    wire: Json = {}

    @property
    def origin(self) -> str:
        return origin_of(self.server_url)

    def lets_through(self, name: str) -> bool:
        return self.allowed is None or name in self.allowed

    def needs_approval(self, name: str) -> bool:
        return name in self.asks_for or not (self.spares is None or name in self.spares)


def read_entries(value: Any, where: str) -> tuple[McpEntry, ...]:
    """Read of a list of tools those that are MCP servers with an address. Raises: InvalidRequest.

    A connector of OpenAI's has none, and is left out like a tool of any other kind.
    """
    entries = [
        _read(raw, f"{where}[{index}]")
        for index, raw in enumerate(value)
        if isinstance(raw, dict) and raw.get("type") == "mcp" and "server_url" in raw
    ]
    if len(entries) > MAX_SERVERS:
        raise expected(where, f"at most {MAX_SERVERS} MCP servers", len(entries))
    labels = [entry.server_label for entry in entries]
    for label in labels:
        if labels.count(label) > 1:
            raise InvalidRequest(f"{where}: expected each label once, found {label!r} twice")
    return tuple(entries)


def check_hosts(entries: tuple[McpEntry, ...], hosts: tuple[str, ...]) -> None:
    """hosts: each `HOST[:PORT]` over TLS, or `http://HOST[:PORT]`, with that port alone.

    Raises: InvalidRequest: a server is none that the operator lets sessions name.
    """
    origins = [origin_of(host) for host in hosts]
    for entry in entries:
        if entry.origin not in origins:
            where = f"session.tools: {entry.server_label}"
            raise expected(f"{where}: server_url", f"a host of {', '.join(hosts)}", entry.origin)


def origin_of(address: str) -> str:
    """Scheme, host and port of an address; without a scheme it is https.

    Raises: ValueError: it has none of these that can be used.
    """
    parts = urlsplit(address if "://" in address else f"https://{address}")
    if parts.scheme not in PORTS or not parts.hostname or parts.port == 0:
        raise ValueError(address)
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{parts.scheme}://{host}:{parts.port or PORTS[parts.scheme]}"


def _read(raw: Json, where: str) -> McpEntry:
    label = raw.get("server_label")
    if not isinstance(label, str) or not TOOL_NAME.fullmatch(label):
        raise expected(f"{where}.server_label", "1 to 64 letters, digits, _ or -", label)
    url = raw.get("server_url")
    if not isinstance(url, str) or not _is_address(url):
        raise expected(f"{where}.server_url", "http:// or https:// and a host", url)
    asks_for, spares = _read_approval(raw.get("require_approval"), f"{where}.require_approval")
    return McpEntry(
        label,
        url,
        _read_headers(raw, where),
        _read_names(raw.get("allowed_tools"), f"{where}.allowed_tools"),
        asks_for,
        spares,
        {key: found for key, found in raw.items() if key not in SECRETS},
    )


def _is_address(url: str) -> bool:
    try:
        origin_of(url)
        return "://" in url and len(url) <= MAX_URL_CHARS and "$" not in url
    except ValueError:
        return False


def _read_headers(raw: Json, where: str) -> tuple[tuple[str, str], ...]:
    headers = raw.get("headers") or {}
    if not isinstance(headers, dict) or len(headers) > MAX_HEADERS:
        raise expected(f"{where}.headers", f"an object of at most {MAX_HEADERS}", "another value")
    found: Json = {}
    for name, value in headers.items():
        if name.lower() not in HEADERS or name.lower() in found:
            wanted = f"each of {', '.join(sorted(HEADERS))} at most once"
            raise expected(f"{where}.headers", wanted, name[:64])
        found[name.lower()] = value
    if (token := raw.get("authorization")) is not None:
        found["authorization"] = f"Bearer {token}" if isinstance(token, str) else token
    for name, value in found.items():
        is_text = isinstance(value, str) and value.isascii() and value.isprintable()
        # A dollar would be read as the name of a variable of the server's own environment.
        if not is_text or len(value) > MAX_SECRET_CHARS or "${" in value:
            raise expected(f"{where}.headers.{name[:64]}", "printable ASCII", "another value")
    return tuple(sorted(found.items()))


def _read_names(value: Any, where: str) -> tuple[str, ...] | None:
    if value is None:
        return None
    names = value.get("tool_names", []) if isinstance(value, dict) else value
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise expected(where, "a list of names", value)
    return tuple(names)


def _read_approval(value: Any, where: str) -> tuple[tuple[str, ...], tuple[str, ...] | None]:
    """Return whose calls are asked for, and whose are not (None: all)."""
    match value:
        case None | "always":
            return (), ()
        case "never":
            return (), None
        case {"always": always, "never": never}:
            return _read_names(always, where) or (), _read_names(never, where) or ()
        case {"always": always}:
            return _read_names(always, where) or (), None
        case {"never": never}:
            return (), _read_names(never, where) or ()
    raise expected(where, "always, never, or tool_names for each", value)

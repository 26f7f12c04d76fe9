"""A tool behind a URL: its arguments go out as JSON, or in the address, and a text comes back.

Owns one tool's requests. The address and the headers are the agent file's alone, with secrets from
the environment: a model can fill in a piece of the path or the query, and nothing before it. No
redirect is followed and no cookie is kept: one caller's session is nobody else's.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Any
from urllib.parse import quote

import httpx

from voiceloop.agent import AgentTool
from voiceloop.config_reader import VARIABLE, from_environment
from voiceloop.errors import ConfigError
from voiceloop.log_form import keyless, named
from voiceloop.tools.caller import NOBODY, Caller, CallerSigner
from voiceloop.tools.executor import ToolFailed
from voiceloop.tools.result import bounded
from voiceloop.trust import trusted

CONNECT_S = 2.0  # a service in reach connects within some 100 ms; the deadline bounds the rest
MAX_CONNECTIONS = 100  # httpx's own default, said here: the slots of the tools bound it further
# Of one answer, before `keep` and `MAX_RESULT_CHARS`: a list of 1,000 orders of 1 KB each.
MAX_BODY_BYTES = 2**20
MAX_REASON_CHARS = 200
MAX_REASON_BYTES = 4096
RETRIED_STATUS = frozenset({408, 425, 429, 500, 502, 503, 504})
CALLER_HEADER = "voiceloop-caller"
IN_BODY = ("POST", "PUT", "PATCH")
PLACE = re.compile(r"\{([A-Za-z0-9_-]+)\}")
BASE = re.compile(r"https?://[^/?#\s{}]+[/?][^#\s{}]*")


def new_client() -> httpx.AsyncClient:
    """The connections of all tools of a server."""
    return httpx.AsyncClient(
        verify=trusted(),
        timeout=httpx.Timeout(None, connect=CONNECT_S),
        limits=httpx.Limits(max_connections=MAX_CONNECTIONS),
        cookies=CookieJar(DefaultCookiePolicy(allowed_domains=[])),
        follow_redirects=False,
    )


class HttpTool:
    """One tool; see `Run`. client: shared, and closed by who made it."""

    def __init__(
        self, tool: AgentTool, environment: Mapping[str, str], client: httpx.AsyncClient
    ) -> None:
        """Raises: ConfigError, where the address or a header is not one."""
        where = f"tool {tool.name!r}"
        self._method, _ = tool.request
        self._client = client
        self._has_effect = not tool.side_effect_free
        self._pieces = _address(tool, environment, where)
        self._signer: CallerSigner | None = None
        if tool.caller_key:
            self._signer = CallerSigner(tool.caller_key, environment, where)
        self._name = tool.name
        self._headers = {"accept": "application/json, text/*", "accept-encoding": "identity"}
        for name, value in tool.headers.items():
            self._headers[name.lower()] = from_environment(str(value), environment, where)
        try:
            client.build_request(self._method, self._pieces[0], headers=self._headers)
        except (httpx.InvalidURL, ValueError, TypeError):
            raise ConfigError(f"{where}: expected a URL and headers, found them unusable") from None
        url = httpx.URL(self._pieces[0])
        self.source = f"{url.scheme}://{url.netloc.decode('ascii')}"

    async def run(self, key: str, arguments: Mapping[str, Any], caller: Caller = NOBODY) -> str:
        request = self._request(key, arguments, caller)
        try:
            response = await self._client.send(request, stream=True)
            try:
                return await self._text(response)
            finally:
                await response.aclose()
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout) as error:
            raise self._failed(
                named(error), "not in reach", may_help=True, is_unsent=True
            ) from error
        except httpx.HTTPError as error:
            raise self._failed(named(error), "failed", may_help=True) from error

    def _request(self, key: str, arguments: Mapping[str, Any], caller: Caller) -> httpx.Request:
        left = dict(arguments)
        url = self._pieces[0]
        for name, behind in zip(self._pieces[1::2], self._pieces[2::2], strict=True):
            url += self._in_address(name, left.pop(name, None)) + behind
        headers = dict(self._headers)
        if self._has_effect:
            # A service that knows the header does the same thing once, however it is asked.
            # Source: draft-ietf-httpapi-idempotency-key-header.
            headers["idempotency-key"] = f'"{key}"'
        if self._signer is not None:
            headers[CALLER_HEADER] = self._signer.signed(caller, self._name, time.time())
        if self._method in IN_BODY:
            return self._client.build_request(self._method, url, headers=headers, json=left)
        whole = httpx.URL(url)
        # What the author's address says stays: callers choose much of what the arguments say.
        query = {name: _plain(value) for name, value in left.items() if name not in whole.params}
        whole = whole.copy_merge_params(query)
        return self._client.build_request(self._method, whole, headers=headers)

    def _in_address(self, name: str, value: Any) -> str:
        """An argument as one piece of a path or query: no slash, and not "..", leads out of it."""
        text = _plain(value)
        if value is None or text in ("", ".", "..") or isinstance(value, dict | list):
            raise ToolFailed(
                f"{name}: expected a name or a number, found none",
                told=f"not called: {name} must be a name or a number",
                is_unsent=True,
            )
        return quote(text, safe="")

    async def _text(self, response: httpx.Response) -> str:
        status = response.status_code
        if not response.is_success:
            body, _ = await _read(response, MAX_REASON_BYTES)
            reason = bounded(" ".join(body.split()), MAX_REASON_CHARS)
            # What is wrong with the request the model can mend; a failure within is no caller's.
            told = f"refused ({status}): {reason}" if 400 <= status < 500 else f"failed ({status})"
            raise self._failed(str(status), told, may_help=status in RETRIED_STATUS)
        if response.headers.get("content-encoding", "identity").lower() != "identity":
            raise self._failed("a compressed answer, which was not asked for", "failed")
        kind = response.headers.get("content-type", "text/plain").lower()
        if not (kind.startswith("text/") or "json" in kind or "xml" in kind):
            raise self._failed("no text", "failed")
        text, is_whole = await _read(response, MAX_BODY_BYTES)
        if not is_whole:
            raise self._failed(
                f"an answer of over {MAX_BODY_BYTES} bytes", "the answer was too long"
            )
        return text or json.dumps({"status": status})

    def _failed(
        self, found: str, told: str, *, may_help: bool = False, is_unsent: bool = False
    ) -> ToolFailed:
        message = f"{self.source}: expected an answer, found {found}"
        return ToolFailed(message, told=told, may_help=may_help, is_unsent=is_unsent)


def _address(tool: AgentTool, environment: Mapping[str, str], where: str) -> list[str]:
    """The URL in pieces: text, name of an argument, text, and so on; it begins and ends with text.

    Raises: ConfigError.
    """
    # The variables go in after the cut: what stands in one of them is no argument's place.
    pieces = PLACE.split(VARIABLE.sub("\0\\1\0", tool.request[1]))
    for at in range(0, len(pieces), 2):
        marked = re.sub("\0([^\0]*)\0", r"${\1}", pieces[at])
        pieces[at] = from_environment(marked, environment, where)
    base = pieces[0]
    if len(pieces) == 1 and not re.search(r"://[^/?]*[/?]", base):
        base += "/"  # a host alone
    if not BASE.fullmatch(base):
        wanted = "http:// or https://, a host, and arguments in braces only after its slash"
        raise ConfigError(f"{where}: url: expected {wanted}, found {keyless(repr(tool.url))}")
    pieces[0] = base
    required = tool.parameters.get("required", [])
    for name in pieces[1::2]:
        if name not in required:
            wanted = f"{{{name}}} to be one of the required parameters"
            raise ConfigError(f"{where}: url: expected {wanted}, found {required}")
    return pieces


def _plain(value: Any) -> str:
    """A value as a query has it: text as it is, anything else as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


async def _read(response: httpx.Response, max_bytes: int) -> tuple[str, bool]:
    """The body as text, and whether that is all of it."""
    body = bytearray()
    async for piece in response.aiter_raw():
        body += piece
        if len(body) > max_bytes:
            break
    charset = response.charset_encoding or "utf-8"
    try:
        text = bytes(body[:max_bytes]).decode(charset, "replace")
    except LookupError:
        text = bytes(body[:max_bytes]).decode("utf-8", "replace")
    return text, len(body) <= max_bytes

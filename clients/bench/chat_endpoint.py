"""One chat endpoint, asked for one streamed reply at a time; every token's arrival is stamped.

Speaks ``/v1/chat/completions`` as OpenAI documents it, so that any service will do.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import httpx

from clients.connection import authorization
from clients.errors import EndpointError

CONNECT_S = 10.0
LONGEST_REPLY_S = 900.0  # a service may send a piece now and then for ever
MAX_ANSWER_BYTES = 16 * 1024 * 1024
MAX_LISTING_BYTES = 1024 * 1024
MAX_SHOWN_MODELS = 8
MAX_ERROR_CHARACTERS = 200
UNNAMED_MODEL = "default"  # services of one model take any name, and some of them want one


@dataclass(frozen=True, slots=True)
class ChatSample:
    """One reply. ``n_tokens``: as the service counts, or its pieces where it does not say.

    ms_per_token: of the tokens after the first; None where there was only one piece.
    """

    ttft_ms: float
    total_ms: float
    n_tokens: int
    n_prompt_tokens: int
    n_cached_tokens: int | None
    ms_per_token: float | None


def chat_url(url: str) -> str:
    """The base of ``/chat/completions``, with ``/v1`` if the URL has no path.

    Raises:
        EndpointError: it is no http or https URL, or names no host or no port that is.
    """
    try:
        parts = urlsplit(url)
        is_address = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_address = False
    if not is_address:
        raise EndpointError(f"expected an address as http://host:port/v1, found {url!r}")
    path = parts.path.rstrip("/").removesuffix("/chat/completions")
    return f"{parts.scheme}://{parts.netloc}{path or '/v1'}"


class ChatEndpoint:
    """Opened by `open_endpoint`."""

    def __init__(
        self, client: httpx.AsyncClient, url: str, model: str, clock: Callable[[], float]
    ) -> None:
        self._client = client
        self._clock = clock
        self.url = url
        self.model = model

    async def ask(self, prompt: str, max_tokens: int) -> ChatSample:
        """One reply, to its end.

        Raises:
            EndpointError: it is refused, breaks off, is no chat reply, or has no tokens.
        """
        body = {
            "model": self.model,
            "messages": [{"role": "user", "content": prompt}],
            "max_tokens": max_tokens,
            "temperature": 0.0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        reply, n_bytes = _Reply(), 0
        started_s = self._clock()
        async with _failures(self.url), asyncio.timeout(LONGEST_REPLY_S):
            async with self._client.stream(
                "POST", f"{self.url}/chat/completions", json=body
            ) as response:
                if not response.is_success:
                    raise EndpointError(await _refusal(self.url, response))
                async for line in _lines(response):
                    n_bytes += len(line)
                    if n_bytes > MAX_ANSWER_BYTES:
                        raise EndpointError(
                            f"expected a reply of at most {MAX_ANSWER_BYTES} bytes, found more"
                        )
                    reply.add(line, self._clock())
        return reply.sample(started_s, self._clock())


class _Reply:
    """The sum of the lines of one reply."""

    def __init__(self) -> None:
        self._token_times: list[float] = []
        self._usage: dict[str, Any] = {}
        self._has_ended = False

    def add(self, line: str, at_s: float) -> None:
        """One line of server-sent events. Raises: EndpointError."""
        data = line.removeprefix("data:").strip() if line.startswith("data:") else ""
        if not data or data == "[DONE]":
            return
        try:
            self._add(json.loads(data), at_s)
        except (ValueError, AttributeError, TypeError, KeyError, IndexError, RecursionError) as e:
            raise EndpointError(f"expected a chunk of a chat reply, found {e}") from e

    def _add(self, chunk: dict[str, Any], at_s: float) -> None:
        if chunk.get("error"):
            raise EndpointError(
                f"the reply broke off: {str(chunk['error'])[:MAX_ERROR_CHARACTERS]}"
            )
        self._usage = dict(chunk.get("usage") or self._usage)
        for choice in (chunk.get("choices") or [])[:1]:
            delta = choice.get("delta") or {}
            # What a reasoning model thinks is generated too, under either name.
            names = ("content", "reasoning_content", "reasoning", "tool_calls")
            if any(delta.get(name) for name in names):
                self._token_times.append(at_s)
            self._has_ended |= bool(choice.get("finish_reason"))

    def sample(self, started_s: float, ended_s: float) -> ChatSample:
        """Raises: EndpointError."""
        times = self._token_times
        if not self._has_ended:
            raise EndpointError("expected the reply to its end, found the connection closed before")
        if not times:
            raise EndpointError("expected tokens in the reply, found none")
        try:
            n_tokens = int(self._usage.get("completion_tokens") or len(times))
            details = self._usage.get("prompt_tokens_details") or {}
            cached = details.get("cached_tokens")
            n_cached = None if cached is None else int(cached)
            n_prompt = int(self._usage.get("prompt_tokens") or 0)
        except (ValueError, TypeError, AttributeError) as error:
            raise EndpointError(f"expected numbers in the usage, found {error}") from error
        later_ms = 1000.0 * (times[-1] - times[0])
        return ChatSample(
            ttft_ms=1000.0 * (times[0] - started_s),
            total_ms=1000.0 * (ended_s - started_s),
            n_tokens=n_tokens,
            n_prompt_tokens=n_prompt,
            n_cached_tokens=n_cached,
            ms_per_token=later_ms / (n_tokens - 1) if n_tokens > 1 and len(times) > 1 else None,
        )


@asynccontextmanager
async def open_endpoint(
    url: str,
    *,
    model: str | None = None,
    key: str | None = None,
    timeout_s: float = 60.0,
    clock: Callable[[], float] = time.monotonic,
) -> AsyncIterator[ChatEndpoint]:
    """Connect, and find out which model there is where none is named.

    Raises:
        EndpointError: the address is none, nobody answers, or it has several models.
    """
    base = chat_url(url)
    async with httpx.AsyncClient(
        headers=authorization(key),
        timeout=httpx.Timeout(timeout_s, connect=CONNECT_S),
        limits=httpx.Limits(max_connections=None, max_keepalive_connections=None),
    ) as client:
        async with _failures(base):
            name = model or await _only_model(client, base)
        yield ChatEndpoint(client, base, name, clock)


async def _only_model(client: httpx.AsyncClient, base: str) -> str:
    async with client.stream("GET", f"{base}/models") as response:
        if response.status_code in (401, 403):
            raise EndpointError(await _refusal(base, response))
        text = await _text(response, MAX_LISTING_BYTES)
    try:
        names = [str(model["id"]) for model in json.loads(text)["data"]]
    except (ValueError, KeyError, TypeError, RecursionError):
        names = []  # not every service lists its models
    if len(names) > 1:
        shown = ", ".join(names[:MAX_SHOWN_MODELS]) + ", ..." * (len(names) > MAX_SHOWN_MODELS)
        raise EndpointError(
            f"expected --model with one of the {len(names)} models at {base}: {shown}; found none"
        )
    return names[0] if names else UNNAMED_MODEL


async def _lines(response: httpx.Response) -> AsyncIterator[str]:
    """Lines of a bounded length: a service without line ends must not fill the memory."""
    waiting = ""
    async for piece in response.aiter_text():
        waiting += piece
        *whole, waiting = waiting.split("\n")
        for line in whole:
            yield line
        if len(waiting) > MAX_LISTING_BYTES:
            raise EndpointError(f"expected lines of events, found {len(waiting)} bytes without one")
    if waiting:
        yield waiting


async def _text(response: httpx.Response, n_most: int) -> str:
    found = bytearray()
    async for piece in response.aiter_bytes():
        found += piece
        if len(found) > n_most:
            break
    return found[:n_most].decode("utf-8", "replace")


async def _refusal(url: str, response: httpx.Response) -> str:
    text = await _text(response, MAX_LISTING_BYTES)
    try:
        error = json.loads(text)["error"]
        text = str(error["message"] if isinstance(error, dict) else error)
    except (ValueError, KeyError, TypeError, RecursionError):
        pass  # some say it in plain words
    reason = " ".join(text.split())[:MAX_ERROR_CHARACTERS] or "nothing more"
    return f"expected {url} to answer, found HTTP {response.status_code}: {reason}"


@asynccontextmanager
async def _failures(url: str) -> AsyncIterator[None]:
    """httpx's errors as ours."""
    try:
        yield
    except (httpx.TimeoutException, TimeoutError) as error:
        raise EndpointError(f"expected an answer from {url} in time, found none") from error
    except (httpx.TransportError, httpx.InvalidURL, httpx.DecodingError) as error:
        detail = str(error) or type(error).__name__
        raise EndpointError(f"expected an answer from {url}, found: {detail}") from error

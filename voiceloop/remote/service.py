"""One OpenAI-compatible service over HTTP: connections that stay warm, errors with a type.

Owns how a remote request is sent, retried and told apart when it fails. A request is sent again
only while nothing of its answer has arrived, so no caller hears a reply twice; a service that keeps
failing is left alone for a while (``circuit_breaker.py``). What is asked of the service stands in
``recognizer.py``, ``language.py`` and ``voice.py``.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from time import monotonic
from typing import Any

import httpx

from voiceloop.errors import (
    BackendError,
    BackendRefused,
    BackendTimeout,
    ConfigError,
    PromptTooLong,
)
from voiceloop.remote.circuit_breaker import CircuitBreaker

log = logging.getLogger(__name__)

CONNECT_S = 3.0
# Nothing heard for this long, before or within an answer: the caller has waited long enough.
SILENCE_S = 10.0
RETRY_PAUSES_S = (0.05, 0.4)  # two more tries within half a second: a caller hears a short pause
MAX_RETRY_AFTER_S = 1.0  # a service that asks for a longer pause has refused this turn
# uvicorn closes a connection idle for 5 s: one that is older may be gone when it is needed.
WARM_FOR_S = 4.0
KEEP_ALIVE_S = 120.0
LOOK_AGAIN_S = 2.0
MAX_ERROR_CHARACTERS = 200
MAX_SHOWN_MODELS = 8
UNNAMED_MODEL = "default"  # servers of one model take any name, and some of them want one

# How vLLM, SGLang, llama.cpp and TGI say it, where they do not say OpenAI's code.
TOO_LONG = re.compile(
    r"context (length|window|size)|prompt is too long|too many tokens|tokens. must be <=", re.I
)
RETRIED_STATUS = frozenset({408, 409, 425, 429, 500, 502, 503, 504})


class RemoteService:
    """A base URL ("http://host:8000/v1"), the model to ask for, and the connections to it.

    ``model`` "": the one that the service lists, known after ``start``; services that list none
    are asked for ``default``.
    """

    def __init__(
        self,
        url: str,
        *,
        model: str,
        key: str = "",
        clock: Callable[[], float] = monotonic,
        silence_s: float = SILENCE_S,
    ) -> None:
        self.url = url.rstrip("/")
        self.model = model or UNNAMED_MODEL
        self._is_named = bool(model)
        self.owner = ""  # whom the service names as the owner of its model: "vllm", "openai"
        self._is_known = False  # which models it has
        self._is_there = False  # whether the last request was answered, or might still have been
        headers = {"authorization": f"Bearer {key}"} if key else {}
        self._client = httpx.AsyncClient(
            headers=headers,
            timeout=httpx.Timeout(silence_s, connect=CONNECT_S),
            limits=httpx.Limits(max_keepalive_connections=32, keepalive_expiry=KEEP_ALIVE_S),
        )
        self._clock = clock
        self._breaker = CircuitBreaker(clock)
        self._used_at = -WARM_FOR_S
        self.n_open = 0  # requests that are under way
        self._warming: asyncio.Task[None] | None = None
        self._watch: asyncio.Task[None] | None = None

    @property
    def reachable(self) -> bool:
        """Whether calls may count on it. One slow answer says nothing: one that keeps failing is
        left alone for a while, and is not reachable as long.
        """
        return self._is_there and self._breaker.state != "open"

    async def start(self) -> None:
        """Connect, and look after the connection from now on.

        Raises:
            BackendError: nobody answers.
            ConfigError: the service has several models, and none of them was named.
        """
        self._learn(await self.warm_up())
        self.watch()

    def watch(self) -> None:
        """Look after a service from now on, be it one that is not there yet."""
        self._watch = asyncio.create_task(self._look_again(), name=f"watch {self.url}")

    def _learn(self, response: httpx.Response) -> None:
        """Which models it has. Raises: ConfigError."""
        owners = _owners_by_model(response)
        if owners and not self._is_named:
            self.model = self._only(list(owners))
        # An adapter that SGLang is asked for as MODEL:NAME is not among those it lists.
        self.owner = owners.get(self.model, next(iter(owners.values()), ""))
        self._is_known = True

    def _only(self, listed: list[str]) -> str:
        if len(listed) > 1:
            shown = ", ".join(listed[:MAX_SHOWN_MODELS]) + (
                ", ..." * (len(listed) > MAX_SHOWN_MODELS)
            )
            raise ConfigError(
                f"expected the name of a model at {self.url} (as --llm-model), found none among "
                f"the {len(listed)} it has: {shown}"
            )
        log.info("%s is asked for its model %s", self.url, listed[0])
        return listed[0]

    async def _look_again(self) -> None:
        """Find out when a service that could not be reached is back; calls are kept out until."""
        while True:
            await asyncio.sleep(LOOK_AGAIN_S)
            if not self._is_there:
                await self._warm_quietly()

    async def warm_up(self) -> httpx.Response:
        """Open a connection before it is needed; returns the answer to a request for its models.

        Raises: BackendError when nobody answers.
        """
        async with self._failures():
            response = await self._client.get(f"{self.url}/models")
            # Any answer will do: not every service lists its models.
            if response.status_code in (401, 403):
                raise BackendRefused(f"{self.url} refused the key: {_reason(response)}")
        self._used_at = self._clock()
        self._is_there = True
        return response

    def keep_warm(self) -> None:
        """Called when a request is likely soon: refresh a connection that may have gone cold."""
        is_warm = self._clock() - self._used_at < WARM_FOR_S
        if is_warm or (self._warming is not None and not self._warming.done()):
            return
        self._warming = asyncio.create_task(self._warm_quietly())

    async def _warm_quietly(self) -> None:
        try:
            response = await self.warm_up()
            if not self._is_known:
                self._learn(response)
        except (BackendError, ConfigError) as error:
            log.warning("%s", error)  # the request itself will say so to its stream

    async def close(self) -> None:
        tasks = [task for task in (self._warming, self._watch) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._client.aclose()

    async def post(self, path: str, **content: Any) -> httpx.Response:
        """One answer, whole. Raises: BackendError, BackendRefused, BackendTimeout."""
        async with self.stream(path, **content) as response, self._failures():
            await response.aread()
        return response

    @asynccontextmanager
    async def stream(
        self, path: str, *, is_ahead: bool = False, **content: Any
    ) -> AsyncIterator[httpx.Response]:
        """An answer whose first bytes are there; leaving early closes its connection.

        is_ahead: nobody waits for it, so a service that is busy is not asked a second time.
        Read it through ``lines`` or ``pieces``, which raise the same.
        Raises: BackendError, BackendRefused, BackendTimeout.
        """
        self.n_open += 1
        try:
            with self._breaker.request(self.url):
                response = await self._open(path, content, () if is_ahead else RETRY_PAUSES_S)
            try:
                yield response
            finally:
                self._used_at = self._clock()
                await response.aclose()
        finally:
            self.n_open -= 1

    async def lines(self, response: httpx.Response) -> AsyncGenerator[str, None]:
        async with self._failures(has_answered=True):
            async for line in response.aiter_lines():
                yield line

    async def pieces(self, response: httpx.Response) -> AsyncGenerator[bytes, None]:
        async with self._failures(has_answered=True):
            async for piece in response.aiter_bytes():
                yield piece

    async def _open(
        self, path: str, content: dict[str, Any], pauses_s: tuple[float, ...]
    ) -> httpx.Response:
        for pause_s in (*pauses_s, None):
            try:
                return await self._open_once(path, content)
            except _Retriable as error:
                wait_s = error.retry_after_s if error.retry_after_s is not None else pause_s
                if pause_s is None or wait_s is None or wait_s > MAX_RETRY_AFTER_S:
                    raise BackendError(error.message) from error.__cause__
                await asyncio.sleep(wait_s)
        raise AssertionError("unreachable: the last try returns or raises")

    async def _open_once(self, path: str, content: dict[str, Any]) -> httpx.Response:
        request = self._client.build_request("POST", f"{self.url}{path}", **content)
        try:
            async with self._failures():
                response = await self._client.send(request, stream=True)
        except BackendTimeout:
            raise  # a second wait as long as the first helps no caller
        except BackendError as error:
            raise _Retriable(error.message) from error
        if response.is_success:
            self._is_there = True
            return response
        async with self._failures():
            await response.aread()
        message = f"{self.url}{path} answered {response.status_code}: {_reason(response)}"
        if response.status_code in RETRIED_STATUS:
            raise _Retriable(message, _retry_after_s(response))
        if response.status_code == 400 and _is_too_long(response):
            raise PromptTooLong(message)
        raise BackendRefused(message)

    @asynccontextmanager
    async def _failures(self, *, has_answered: bool = False) -> AsyncIterator[None]:
        """httpx's errors as ours.

        has_answered: an answer that breaks off tells of no service that is gone. llama-cpp-python's
        ends one for another, and whoever asks whether it is there may be that other.
        """
        try:
            yield
        except httpx.TimeoutException as error:
            self._is_there = self._is_there and not isinstance(error, httpx.ConnectTimeout)
            what = "a connection" if isinstance(error, httpx.ConnectTimeout) else "an answer"
            raise BackendTimeout(f"expected {what} from {self.url} in time, found none") from error
        except (httpx.TransportError, httpx.InvalidURL) as error:
            self._is_there = self._is_there and has_answered
            detail = str(error) or type(error).__name__
            raise BackendError(f"expected an answer from {self.url}, found: {detail}") from error


class _Retriable(Exception):
    """Nothing of the answer has arrived, and asking again may help."""

    def __init__(self, message: str, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.retry_after_s = retry_after_s


def _retry_after_s(response: httpx.Response) -> float | None:
    try:
        return max(0.0, float(response.headers["retry-after"]))
    except (KeyError, ValueError):
        return None  # absent, or a date


def _owners_by_model(response: httpx.Response) -> dict[str, str]:
    """The models that a service lists, and whose they are; none where it does not."""
    try:
        models = response.json()["data"]
        return {str(model["id"]): str(model.get("owned_by") or "") for model in models}
    except (ValueError, KeyError, TypeError, AttributeError):
        return {}


def _is_too_long(response: httpx.Response) -> bool:
    """Whether a service refused a prompt for its length: by OpenAI's code, or in its own words."""
    return "context_length_exceeded" in response.text or bool(TOO_LONG.search(_reason(response)))


def _reason(response: httpx.Response) -> str:
    """The service's own words, shortened; they may come as OpenAI's error object."""
    text = response.text
    try:
        error = json.loads(text)["error"]
        text = error["message"] if isinstance(error, dict) else str(error)
    except (ValueError, KeyError, TypeError):
        pass
    return " ".join(text.split())[:MAX_ERROR_CHARACTERS] or "nothing more"

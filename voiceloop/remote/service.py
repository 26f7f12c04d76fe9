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
import socket
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from time import monotonic
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit, urlunsplit

import httpx

from voiceloop.errors import (
    BackendError,
    BackendRefused,
    BackendTimeout,
    ConfigError,
    PromptTooLong,
)
from voiceloop.log_form import LONGEST_CHAIN, named
from voiceloop.remote.circuit_breaker import CircuitBreaker
from voiceloop.remote.dialect import kind_of
from voiceloop.trust import trusted

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
# Of an answer that is read whole: gateways list thousands of models in 2 MB. Of a line of a stream.
MAX_ANSWER_BYTES, MAX_LINE_CHARACTERS = 8 * 2**20, 2**20
UNNAMED_MODEL = "default"  # servers of one model take any name, and some of them want one

# How vLLM, SGLang, llama.cpp and TGI say it, where they do not say OpenAI's code.
TOO_LONG = re.compile(
    r"context (length|window|size)|prompt is too long|too many tokens|tokens. must be <=", re.I
)
# A code as services write it, and no word that a caller says, or a key: `invalid_request_error`,
# `INVALID_ARGUMENT`, `BadRequestError`.
CODE = re.compile(
    r"(?=.{1,64}$)([a-z]{1,16}(_[a-z]{1,16})+|[A-Z]{1,16}(_[A-Z]{1,16})+|([A-Z][a-z]+)+Error)"
)
KINDS = (
    "application/json",
    "application/problem+json",
    "text/event-stream",
    "text/html",
    "text/plain",
)
# How services list the window of a model: vLLM and SGLang; Groq; OpenRouter; Mistral.
WINDOW_KEYS = ("max_model_len", "context_window", "context_length", "max_context_length")
OLLAMA_CONTEXT_TOKENS = 4096  # what it loads a model with where nothing else is said
# A refusal that names it, as vLLM, OpenAI and llama.cpp do.
WINDOW = re.compile(r"(?:context (?:length|window|size)|n_ctx)\D{1,24}(\d{3,8})", re.IGNORECASE)
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
        kind: str = "",
        headers: Mapping[str, str] | None = None,
        clock: Callable[[], float] = monotonic,
        silence_s: float = SILENCE_S,
    ) -> None:
        self._named_kind = kind
        self.kind = kind_of(url, named=kind)
        self.url, query, login = _whole_url(url, self.kind.path)
        self.model = model or UNNAMED_MODEL
        self._is_named = bool(model)
        self.context_tokens: int | None = None  # of the model, where the service tells
        self._is_known = False  # which models it has
        self._is_there = False  # whether the last request was answered, or might still have been
        is_bearer = self.kind.key_header == "authorization"
        own = {self.kind.key_header: f"Bearer {key}" if is_bearer else key} if key else {}
        # Nothing packed: what it unpacks to is the service's choice.
        sent = httpx.Headers({"accept-encoding": "identity"} | own)
        sent.update(headers)  # by name in any case: an operator's own stands over the key's
        self._client = httpx.AsyncClient(
            verify=trusted(),
            headers=sent,
            params=query,
            auth=login,
            timeout=httpx.Timeout(silence_s, connect=CONNECT_S),
            limits=httpx.Limits(max_keepalive_connections=32, keepalive_expiry=KEEP_ALIVE_S),
        )
        self._clock = clock
        self._breaker = CircuitBreaker(clock)
        self._used_at = -WARM_FOR_S
        self.n_open = 0  # requests that are under way
        self._warming: asyncio.Task[None] | None = None
        self._watch: asyncio.Task[None] | None = None
        self._told = ""  # why it is away, as the log has it; "" where it is there

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
        try:
            await self._learn(await self.warm_up())
        except (BackendError, ConfigError) as error:
            self._told = str(error)  # whoever starts it tells
            raise
        self.watch()

    def watch(self) -> None:
        """Look after a service from now on, be it one that is not there yet."""
        self._watch = asyncio.create_task(self._look_again(), name=f"watch {self.url}")

    async def _learn(self, response: httpx.Response) -> None:
        """Learn which service it is, which models it has, and how much they read. Raises:
        ConfigError.
        """
        models = _listed_models(response)
        if models and not self._is_named:
            self.model = self._only(list(models))
        # An adapter that SGLang is asked for as MODEL:NAME is not among those it lists.
        listed = models.get(self.model) or next(iter(models.values()), {})
        owner = str(listed.get("owned_by") or "")
        self.kind = kind_of(self.url, owner, list(response.headers), self._named_kind)
        self.context_tokens = _first_number(listed, WINDOW_KEYS)
        if self.context_tokens is None:
            self.context_tokens = await self._asked_window()
        self._is_known = True

    async def _asked_window(self) -> int | None:
        """The window of a service that tells it beside OpenAI's routes; None where it does not."""
        root = self.url.removesuffix("/v1")
        try:
            match self.kind.name:
                case "llama.cpp":
                    props = (await self._asked("GET", f"{root}/props")).json()
                    return _first_number(props["default_generation_settings"], ("n_ctx",))
                case "ollama":
                    loaded = (await self._asked("GET", f"{root}/api/ps")).json()["models"]
                    named = [one for one in loaded if self.model in (one["name"], one["model"])]
                    if named:
                        return _first_number(named[0], ("context_length",))
                    asked = {"model": self.model}
                    shown = (await self._asked("POST", f"{root}/api/show", json=asked)).json()
                    told = re.search(r"^num_ctx\s+(\d+)", shown.get("parameters") or "", re.M)
                    return int(told[1]) if told else OLLAMA_CONTEXT_TOKENS
        except (
            httpx.HTTPError, BackendError, ValueError, LookupError, TypeError, AttributeError,
        ):  # fmt: skip
            pass
        return None

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
            response = await self._asked("GET", f"{self.url}/models")
            # Any answer will do: not every service lists its models.
            if response.status_code in (401, 403):
                raise BackendRefused(f"{self.url} refused the key: {_codes(response)}")
        self._used_at = self._clock()
        self._is_there = True
        return response

    def keep_warm(self) -> None:
        """Called when a request is likely soon: refresh a connection that may have gone cold."""
        is_warm = self._is_there and self._clock() - self._used_at < WARM_FOR_S
        if is_warm or (self._warming is not None and not self._warming.done()):
            return
        self._warming = asyncio.create_task(self._warm_quietly())

    async def _warm_quietly(self) -> None:
        try:
            response = await self.warm_up()
            if not self._is_known:
                await self._learn(response)
        except (BackendError, ConfigError) as error:
            if str(error) != self._told:  # it is asked again every other second
                log.warning("%s", error)
            self._told = str(error)
            return
        if self._told:
            log.warning("%s answers again", self.url)
        self._told = ""

    async def close(self) -> None:
        tasks = [task for task in (self._warming, self._watch) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._client.aclose()

    async def post(self, path: str, **content: Any) -> httpx.Response:
        """One answer, whole. Raises: BackendError, BackendRefused, BackendTimeout."""
        async with self.stream(path, **content) as response, self._failures():
            return await _whole(response)

    async def _asked(self, method: str, url: str, **content: Any) -> httpx.Response:
        async with self._client.stream(method, url, **content) as response:
            return await _whole(response)

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
            rest = ""
            async for text in response.aiter_text():
                *lines, rest = (rest + text).split("\n")
                for line in lines:
                    yield line.removesuffix("\r")
                if len(rest) > MAX_LINE_CHARACTERS:
                    wanted = f"expected lines of at most {MAX_LINE_CHARACTERS} characters"
                    raise BackendError(f"{wanted} from {self.url}, found a longer one")
            if rest:
                yield rest.removesuffix("\r")

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
            if response.headers.get("content-type", "").startswith("text/html"):
                await response.aclose()
                raise BackendError(  # another service may have its model
                    f"expected an answer of a model at {self.url}{path}, found a page of HTML: "
                    "is the address right, up to /v1?"
                )
            return response
        async with self._failures():
            response = await _whole(response)
        message = f"{self.url}{path} answered {response.status_code}: {_codes(response)}"
        if response.status_code in RETRIED_STATUS:
            raise _Retriable(message, _retry_after_s(response))
        if response.status_code == 400 and _is_too_long(response):
            if self.context_tokens is None and (told := WINDOW.search(_reason(response))):
                self.context_tokens = int(told[1])
            raise PromptTooLong(message)
        raise ServiceRefused(message, response.text)

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
            raise BackendError(
                f"expected an answer from {self.url}, found: {_why(error)}"
            ) from error


def _why(error: BaseException) -> str:
    """As `named`; and of a host that nobody knows, or cannot prove itself, what the system says."""
    cause: BaseException | None = error
    for _ in range(LONGEST_CHAIN):
        match cause:
            case None:
                break
            case socket.gaierror():
                return f"no host of this name ({cause.strerror})"
            case ssl.SSLCertVerificationError():
                return f"a certificate that is not trusted ({cause.verify_message})"
        cause = cause.__cause__ or cause.__context__
    return named(error)


async def _whole(response: httpx.Response) -> httpx.Response:
    """The same, read to its end. Raises: BackendError: it is longer than any answer is."""
    body = bytearray()
    async for piece in response.aiter_bytes():
        body += piece
        if len(body) > MAX_ANSWER_BYTES:
            await response.aclose()
            wanted = f"expected at most {MAX_ANSWER_BYTES} bytes from {response.url.host}"
            raise BackendError(f"{wanted}, found more")
    await response.aclose()
    headers = {k: v for k, v in response.headers.items() if k != "content-encoding"}  # it is undone
    return httpx.Response(
        response.status_code, headers=headers, content=bytes(body), request=response.request
    )


class ServiceRefused(BackendRefused):
    """A request that a service takes exception to. said: its answer, never to be logged."""

    def __init__(self, message: str, said: str) -> None:
        super().__init__(message)
        self.said = said


class _Retriable(Exception):
    """The error after which asking again may help: nothing of the answer has arrived."""

    def __init__(self, message: str, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.retry_after_s = retry_after_s


def _retry_after_s(response: httpx.Response) -> float | None:
    try:
        return max(0.0, float(response.headers["retry-after"]))
    except (KeyError, ValueError):
        return None  # absent, or a date


def _whole_url(url: str, path: str) -> tuple[str, dict[str, str], tuple[str, str] | None]:
    """The address that routes are added to, and errors tell; what stands behind its question mark;
    and a name and password in it.
    """
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    whole = urlunsplit((parts.scheme, host, parts.path.rstrip("/") or path, "", ""))
    login = (unquote(parts.username), unquote(parts.password or "")) if parts.username else None
    return whole, dict(parse_qsl(parts.query)), login


def _listed_models(response: httpx.Response) -> dict[str, dict[str, Any]]:
    """Return what a service lists of each of its models; none where it lists none."""
    try:
        return {str(model["id"]): dict(model) for model in response.json()["data"]}
    except (ValueError, KeyError, TypeError, AttributeError):
        return {}


def _first_number(told: Mapping[str, Any], keys: Sequence[str]) -> int | None:
    """The first of these that is a number above 0."""
    found = (told.get(key) for key in keys)
    return next((n for n in found if type(n) is int and n > 0), None)


def _is_too_long(response: httpx.Response) -> bool:
    """Whether a service refused a prompt for its length: by OpenAI's code, or in its own words."""
    # Behind its own words a service may quote what it was sent: callers say "context window", too.
    return "context_length_exceeded" in response.text or bool(TOO_LONG.search(_reason(response)))


def _error_of(response: httpx.Response) -> Any:
    """OpenAI's error object or whatever stands in its place; None where the answer has none."""
    try:
        return json.loads(response.text)["error"]
    except (ValueError, KeyError, TypeError):
        return None


def codes_of(error: Any) -> str:
    """The codes of OpenAI's error object; "" where it is none, or has none."""
    told = [error.get(key) for key in ("type", "code", "param")] if isinstance(error, dict) else []
    return ", ".join(code for code in told if isinstance(code, str) and CODE.fullmatch(code))


def _codes(response: httpx.Response) -> str:
    """The codes of a refusal. Its sentence is left out, for many a service quotes in it what it
    was sent: what a caller has said.
    """
    if codes := codes_of(_error_of(response)):
        return codes
    kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
    return f"no code, {kind if kind in KINDS else 'of another type' if kind else 'of no type'}"


def _reason(response: httpx.Response) -> str:
    """The service's own words, shortened. Of a request that held a conversation they are read, and
    never logged or raised.
    """
    error = _error_of(response)
    text = error.get("message") if isinstance(error, dict) else error
    return " ".join(str(text or response.text).split())[:MAX_ERROR_CHARACTERS] or "nothing more"

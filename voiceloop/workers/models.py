"""Recognizer, LanguageModel and Voice over workers, whichever process of them is there, and their
streams."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable
from typing import Protocol

from voiceloop.backends import (
    ChatMessage,
    GenerateParams,
    LanguageEvent,
    RecognizerEvent,
    RecognizerOptions,
    Tool,
    VoiceEvent,
    VoiceOptions,
)
from voiceloop.errors import BackendRefused
from voiceloop.workers import messages
from voiceloop.workers.client import WorkerConnection, WorkerStream

DEFAULT_VOICE_RATE_HZ = 24_000
MAX_TOKENIZER_BYTES = 64 * 2**20  # the largest known, of 262,144 tokens, has 33 MB


class WorkerRecognizerStream(WorkerStream[RecognizerEvent]):
    def feed(self, samples: bytes) -> None:
        self.send(messages.FeedAudio(self.stream_id, samples))

    def flush(self) -> None:
        self.send(messages.Flush(self.stream_id))

    def finalize(self) -> None:
        self.send(messages.Finalize(self.stream_id))

    def set_options(self, options: RecognizerOptions) -> None:
        self.send(messages.SetOptions(self.stream_id, options))


class WorkerBranch(WorkerStream[LanguageEvent]):
    """A branch in the worker's engine, which keeps what it said of a preemptive reply.

    So the reply to the same turn begins with it, also where its KV had to make room meanwhile.
    """

    def __init__(self, connection: WorkerConnection, stream_id: str) -> None:
        super().__init__(connection, stream_id)
        self._answered_ahead: tuple[tuple[ChatMessage, ...], GenerateParams] | None = None

    def stage(self, stage_id: int, user_text: str) -> None:
        self.send(messages.Stage(self.stream_id, stage_id, user_text))

    def begin_preemptive(
        self, attempt: int, tail: tuple[ChatMessage, ...], params: GenerateParams
    ) -> None:
        self.send(messages.BeginPreemptive(self.stream_id, attempt, tail, params))
        self._answered_ahead = tail, params

    def draft(self, attempt: int, tail: tuple[ChatMessage, ...], params: GenerateParams) -> None:
        self.send(messages.Draft(self.stream_id, attempt, tail, params))

    def verify(self, attempt: int, tokens: tuple[int, ...]) -> None:
        self.send(messages.Verify(self.stream_id, attempt, tokens))

    def stop_preemptive(self) -> None:
        self.send(messages.StopPreemptive(self.stream_id))

    def commit(self, tail: tuple[ChatMessage, ...], params: GenerateParams) -> bool:
        self.send(messages.Commit(self.stream_id, tail, params))
        answered, self._answered_ahead = self._answered_ahead, None
        return answered == (tail, params)


class WorkerVoiceStream(WorkerStream[VoiceEvent]):
    def feed(self, text: str) -> None:
        self.send(messages.FeedText(self.stream_id, text))

    def finish(self) -> None:
        self.send(messages.FinishText(self.stream_id))


class Workers(Protocol):
    """The workers that take new streams of a model: one worker across its restarts, or one of
    several.
    """

    @property
    def utilization(self) -> float:
        """Share of its time that it computes, 0 to 1; of several, of the least busy."""

    @property
    def ready(self) -> messages.Ready | None:
        """Return what it said when it was loaded; None while there is none."""

    async def alive(self) -> None:
        """Return once there is one that takes streams."""

    async def current(self, stream_id: str, prompt: bytes = b"") -> WorkerConnection:
        """The process for a new stream; prompt: what its conversation has in common with others.

        Raises: WorkerLost when none is ready in time.
        """

    def wire_id(self, stream_id: str) -> str:
        """An id that no other stream has."""

    def tell_each(self, message: messages.ToWorker) -> None:
        """Tell every process there is, and every one that takes its place, before any stream."""


class _WorkerModel:
    """One model of some workers."""

    def __init__(self, client: Workers) -> None:
        self._client = client

    @property
    def utilization(self) -> float:
        return self._client.utilization


class WorkerRecognizer(_WorkerModel):
    """``Recognizer`` over a worker."""

    async def open(self, stream_id: str, options: RecognizerOptions) -> WorkerRecognizerStream:
        connection = await self._client.current(stream_id)
        wire_id = self._client.wire_id(stream_id)
        stream = WorkerRecognizerStream(connection, wire_id, is_batch=options.is_batch)
        stream.send(messages.OpenRecognizer(stream.stream_id, options))
        return stream


class WorkerLanguageModel(_WorkerModel):
    """``LanguageModel`` over a worker.

    adapter: that answers on it; "": none. reads_end: whether it says P(end of turn).
    """

    def __init__(self, client: Workers, adapter: str = "", *, reads_end: bool = True) -> None:
        super().__init__(client)
        self._adapter, self._reads_end = adapter, reads_end

    def adapted(self, adapter: str) -> WorkerLanguageModel:
        """The same workers, answering by an adapter that they were started with."""
        return WorkerLanguageModel(self._client, adapter, reads_end=self._reads_end)

    def unread(self) -> WorkerLanguageModel:
        """As `SparedModel`: the same workers."""
        return WorkerLanguageModel(self._client, self._adapter, reads_end=False)

    def read_ahead(self, history: tuple[ChatMessage, ...], tools: tuple[Tool, ...]) -> None:
        """Have every caller's prompt begin with this already computed, whoever the caller is."""
        stream_id = self._client.wire_id("operator")
        self._client.tell_each(messages.ReadAhead(stream_id, history, tools))

    async def branch(
        self,
        branch_id: str,
        history: tuple[ChatMessage, ...],
        tools: tuple[Tool, ...] = (),
        tenant: str = "",
    ) -> WorkerBranch:
        connection = await self._client.current(branch_id, _prompt(history, tools, tenant))
        stream = WorkerBranch(connection, self._client.wire_id(branch_id))
        opened = messages.OpenBranch(
            stream.stream_id, history, tools, tenant, self._adapter, self._reads_end
        )
        stream.send(opened)
        return stream

    @property
    def tokens(self) -> str:
        """As of `RoleReady`; "" while no worker has said it."""
        ready = self._client.ready
        roles = ready.roles if ready is not None else ()
        return next((role.tokens for role in roles if role.tokens), "")

    @property
    def is_ready(self) -> bool:
        """Whether a worker has said what it holds."""
        return self._client.ready is not None

    async def wait_ready(self) -> None:
        """Return once one has."""
        await self._client.alive()

    def token_counter(self) -> Callable[[str], int] | None:
        """Tokens of a text, by the model's own tokenizer; None where the worker has sent none.

        It takes up to a second to be made, of a large vocabulary.

        Raises: BackendRefused where what it has sent is none.
        """
        ready = self._client.ready
        roles = ready.roles if ready is not None else ()
        packed = next((role.tokenizer for role in roles if role.tokenizer), b"")
        if not packed:
            return None
        from tokenizers import Tokenizer  # only where a model is here, and so is this

        try:
            tokenizer = Tokenizer.from_str(_unpacked(packed).decode())
        except BackendRefused:
            raise
        except Exception as error:  # bare ones of the library's
            raise BackendRefused(f"expected a tokenizer of a worker, found {error}") from None
        tokenizer.no_truncation()
        tokenizer.no_padding()
        return lambda text: len(tokenizer.encode(text, add_special_tokens=False).ids)


def _unpacked(packed: bytes) -> bytes:
    """A worker may be of another machine: what it sends has a bound here too.

    Raises: BackendRefused.
    """
    unpacking = zlib.decompressobj()
    try:
        found = unpacking.decompress(packed, MAX_TOKENIZER_BYTES)
    except zlib.error as error:
        raise BackendRefused(f"expected a packed tokenizer of a worker, found {error}") from None
    if not unpacking.eof:
        raise BackendRefused(
            f"expected a tokenizer of at most {MAX_TOKENIZER_BYTES} bytes, found more, or its half"
        )
    return found


def _prompt(history: tuple[ChatMessage, ...], tools: tuple[Tool, ...], tenant: str) -> bytes:
    """Tells apart what conversations begin with: tenant, instructions and tools."""
    digest = hashlib.blake2b(tenant.encode(), digest_size=16)
    if history and history[0].role == "system":
        digest.update(b"\0" + history[0].content.encode(errors="replace"))
    for tool in tools:
        digest.update(b"\0" + tool.name.encode(errors="replace"))
    return digest.digest()


class WorkerVoice(_WorkerModel):
    """``Voice`` over a worker."""

    def __init__(self, client: Workers) -> None:
        super().__init__(client)
        self._rate_hz = DEFAULT_VOICE_RATE_HZ

    @property
    def rate_hz(self) -> int:
        ready = self._client.ready
        for role in ready.roles if ready is not None else ():
            if role.role == "voice":
                self._rate_hz = role.rate_hz
        return self._rate_hz

    async def open(self, stream_id: str, options: VoiceOptions) -> WorkerVoiceStream:
        connection = await self._client.current(stream_id)
        wire_id = self._client.wire_id(stream_id)
        stream = WorkerVoiceStream(connection, wire_id, is_batch=options.is_batch)
        stream.send(messages.OpenVoice(stream.stream_id, options))
        return stream

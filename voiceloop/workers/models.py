"""Recognizer, LanguageModel and Voice over a worker, whichever process of it is there."""

from __future__ import annotations

import zlib
from collections.abc import Callable

from voiceloop.backends import ChatMessage, RecognizerOptions, Tool, VoiceOptions
from voiceloop.workers import messages
from voiceloop.workers.client import (
    WorkerBranch,
    WorkerClient,
    WorkerRecognizerStream,
    WorkerVoiceStream,
)

DEFAULT_VOICE_RATE_HZ = 24_000


class _WorkerModel:
    """One model of a worker."""

    def __init__(self, client: WorkerClient) -> None:
        self._client = client

    @property
    def utilization(self) -> float:
        return self._client.utilization


class WorkerRecognizer(_WorkerModel):
    """``Recognizer`` over a worker."""

    async def open(self, stream_id: str, options: RecognizerOptions) -> WorkerRecognizerStream:
        connection = await self._client.current()
        wire_id = self._client.wire_id(stream_id)
        stream = WorkerRecognizerStream(connection, wire_id, is_batch=options.is_batch)
        stream.send(messages.OpenRecognizer(stream.stream_id, options))
        return stream


class WorkerLanguageModel(_WorkerModel):
    """``LanguageModel`` over a worker."""

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
        connection = await self._client.current()
        stream = WorkerBranch(connection, self._client.wire_id(branch_id))
        stream.send(messages.OpenBranch(stream.stream_id, history, tools, tenant))
        return stream

    def token_counter(self) -> Callable[[str], int] | None:
        """Tokens of a text, by the model's own tokenizer; None where the worker has sent none.

        It takes up to a second to be made, of a large vocabulary.
        """
        connection = self._client.connection
        roles = connection.ready.roles if connection is not None and connection.ready else ()
        packed = next((role.tokenizer for role in roles if role.tokenizer), b"")
        if not packed:
            return None
        from tokenizers import Tokenizer  # only where a model is here, and so is this

        tokenizer = Tokenizer.from_str(zlib.decompress(packed).decode())
        tokenizer.no_truncation()
        tokenizer.no_padding()
        return lambda text: len(tokenizer.encode(text, add_special_tokens=False).ids)


class WorkerVoice(_WorkerModel):
    """``Voice`` over a worker."""

    def __init__(self, client: WorkerClient) -> None:
        super().__init__(client)
        self._rate_hz = DEFAULT_VOICE_RATE_HZ

    @property
    def rate_hz(self) -> int:
        connection = self._client.connection
        if connection is not None and connection.ready is not None:
            for role in connection.ready.roles:
                if role.role == "voice":
                    self._rate_hz = role.rate_hz
        return self._rate_hz

    async def open(self, stream_id: str, options: VoiceOptions) -> WorkerVoiceStream:
        connection = await self._client.current()
        wire_id = self._client.wire_id(stream_id)
        stream = WorkerVoiceStream(connection, wire_id, is_batch=options.is_batch)
        stream.send(messages.OpenVoice(stream.stream_id, options))
        return stream

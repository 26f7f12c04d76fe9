"""``LanguageModel`` over a speech-to-speech server, whose branches bring their own sound.

Owns the calls by their ids. A branch is a turn of one: it hears while the caller speaks, asks once
the turn is over, and says in text what the server says in sound. Nothing is made ahead there, for
what such a server has begun to answer stands in its conversation.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import monotonic
from urllib.parse import quote, unquote

from websockets.asyncio.client import ClientConnection

from voiceloop.backends import (
    BESIDE,
    ChatMessage,
    GenerateParams,
    LanguageEvent,
    OpenSound,
    Staged,
    Tool,
    Voice,
    VoiceOptions,
)
from voiceloop.errors import (
    BackendError,
    BackendRefused,
    VoiceLoopError,
    error_of,
)
from voiceloop.event_stream import TaskStream
from voiceloop.log_form import keyless
from voiceloop.remote.circuit_breaker import CircuitBreaker
from voiceloop.remote.realtime_session import address_of, set_up
from voiceloop.remote.socket_stream import dial
from voiceloop.remote.upstream.call import UpstreamCall, instructions_of
from voiceloop.remote.upstream.response import UpstreamResponse
from voiceloop.remote.upstream.session import Session
from voiceloop.remote.upstream.voice import UpstreamVoiceStream


class UpstreamModel:
    """``url``: wss://HOST/v1, and behind a # the server's name of a voice, else it chooses."""

    hears = speaks = True

    def __init__(
        self,
        url: str,
        *,
        key: str = "",
        model: str = "",
        clock: Callable[[], float] = monotonic,
    ) -> None:
        address, _, voice = url.partition("#")
        self.url = keyless(address)  # as it is told
        self.name = model
        # OpenAI names the model in the address.
        self._address = address_of(address, f"model={quote(model)}" if model else "")
        self._voice = unquote(voice)
        self._headers = {"authorization": f"Bearer {key}"} if key else {}
        self._breaker = CircuitBreaker(clock)
        self._calls: dict[str, UpstreamCall] = {}
        self._ending: set[asyncio.Task[None]] = set()

    @property
    def reachable(self) -> bool:
        """False while the server is left alone; after that the next call finds out."""
        return self._breaker.state != "open"

    async def start(self) -> None:
        """Find out that a session can be had. Raises: as `dial`; BackendRefused (the session)."""
        socket, session = await self._dial(), Session(self.url, self._voice)
        try:
            told = await set_up(socket, session.settings("", ()), self.url)
            session.observe(told, is_told=True)
        finally:
            await socket.close()

    async def _dial(self) -> ClientConnection:
        with self._breaker.request(self.url):
            return await dial(self._address, self._headers, "a session of the Realtime protocol")

    async def close(self) -> None:
        await asyncio.gather(*(call.close() for call in self._calls.values()), *self._ending)

    def end_call(self, call_id: str) -> None:
        """No more branches come of it."""
        if (call := self._calls.pop(call_id, None)) is not None:
            task = asyncio.create_task(call.close(), name=f"end {call_id} upstream")
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)

    async def branch(
        self,
        branch_id: str,
        history: tuple[ChatMessage, ...],
        tools: tuple[Tool, ...] = (),
        tenant: str = "",
    ) -> UpstreamBranch:
        call_id = branch_id.partition(".")[0]
        if (call := self._calls.get(call_id)) is None:
            session = Session(self.url, self._voice)
            call = self._calls[call_id] = UpstreamCall(call_id, self.url, session, self._dial)
        return UpstreamBranch(branch_id, call, history, tools)


class UpstreamBranch(TaskStream[LanguageEvent]):
    """One turn of a call."""

    def __init__(
        self,
        branch_id: str,
        call: UpstreamCall,
        history: tuple[ChatMessage, ...],
        tools: tuple[Tool, ...],
    ) -> None:
        super().__init__(branch_id)
        self._call = call
        self._messages = history
        self._tools = tools
        self._response: UpstreamResponse | None = None
        self._unheard: UpstreamResponse | None = None  # that no stream of the voice has
        self._streams: list[UpstreamVoiceStream] = []
        self._keep(self._dial(), "dial upstream")

    async def _dial(self) -> None:
        """Dial while the caller speaks; who asks finds out whether that failed."""
        try:
            await self._call.open(instructions_of(self._messages), self._tools)
        except VoiceLoopError:
            pass

    async def close(self) -> None:
        await super().close()
        if self._response is not None:
            self._call.leave(self._response)
        self._call.drop_input(self)

    def hear(self, sound: OpenSound, before: tuple[bytes, ...]) -> None:
        """Sent as it comes; what was said before is there already. Raises: Overloaded."""
        if self._response is None:
            self._call.hear(self, sound)

    def speak(self, stream_id: str, options: VoiceOptions, beside: Voice) -> UpstreamVoiceStream:
        """The sound of the response that was asked for last, or is going to be. beside: the voice
        that says what the server has not.
        """
        stream = UpstreamVoiceStream(stream_id, self._take_response, beside, options)
        self._streams.append(stream)
        return stream

    def _take_response(self) -> UpstreamResponse | None:
        taken, self._unheard = self._unheard, None
        return taken

    def stage(self, stage_id: int, user_text: str) -> None:
        """The server reads sound."""
        self.deliver(Staged(stage_id, 0, 0, None))

    def begin_preemptive(
        self, attempt: int, tail: tuple[ChatMessage, ...], params: GenerateParams
    ) -> None:
        """Raises: BackendRefused."""
        raise BackendRefused("expected to be asked once the turn is over, found it open")

    def stop_preemptive(self) -> None:
        """None was begun."""

    def commit(self, tail: tuple[ChatMessage, ...], params: GenerateParams) -> bool:
        if self.live:
            self._keep(self._reply(tail, params), "reply upstream")
        return False

    async def _reply(self, tail: tuple[ChatMessage, ...], params: GenerateParams) -> None:
        is_turn = bool(tail) and tail[-1].role == "user"
        turn = tail[-1] if is_turn else None
        self._messages += tail[:-1] if is_turn else tail
        try:
            response = await self._asked(turn, params)
        except Exception as error:  # a bug too: somebody waits for this
            self.fail(error_of(error))
            return
        self._messages += (turn,) if turn is not None else ()
        self._messages += (ChatMessage("assistant", response.text, tuple(response.calls)),)

    async def _asked(self, turn: ChatMessage | None, params: GenerateParams) -> UpstreamResponse:
        """The response, at its end. One of which nothing has come is asked for once more, on
        another connection. Raises: BackendError, Overloaded.
        """
        for is_last in (False, True):
            response = await self._call.ask(
                self, self._messages, turn, self._tools, params, self.deliver,
                is_beside=self.stream_id.endswith(BESIDE),
            )  # fmt: skip
            self._response = self._unheard = response
            for stream in self._streams:
                stream.look()
            await response.answered.wait()
            failure = response.failure
            if failure is None:
                self._call.cancel(response)  # where it was cut for its length
                return response
            if is_last or response.has_begun or isinstance(failure, BackendRefused):
                raise failure
        raise BackendError("unreachable: the last response returns or raises")

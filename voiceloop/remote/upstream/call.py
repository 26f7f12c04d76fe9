"""One call's conversation at an upstream server: a connection that is made anew where it is lost.

Owns the connection, what the session there was told, whose sound is in its input buffer, and the
order of its responses: the protocol has one at a time in a conversation. Before each response the
conversation there is brought to what ours holds (`mirror.py`), so that a lost connection costs its
sound of earlier turns and no word.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any

from websockets.asyncio.client import ClientConnection

from audio.frames import BYTES_PER_SAMPLE, RECOGNIZER_HZ, VOICE_HZ
from audio.resample import Resampler
from voiceloop.backends import ChatMessage, GenerateParams, LanguageEvent, OpenSound, Tool
from voiceloop.errors import BackendError, BackendRefused, Overloaded, VoiceLoopError
from voiceloop.remote.realtime_session import appended, code_of
from voiceloop.remote.socket_stream import SocketStream
from voiceloop.remote.upstream.mirror import Entry, Event, Known, Mirror, entries_of, item_of
from voiceloop.remote.upstream.response import UpstreamResponse
from voiceloop.remote.upstream.session import SETTINGS, Session
from voiceloop.remote.upstream.words import MS_PER_LETTER

log = logging.getLogger(__name__)

APPEND_BYTES = RECOGNIZER_HZ * BYTES_PER_SAMPLE // 10  # 100 ms, as clients send
LEAST_BYTES = APPEND_BYTES  # services refuse to commit less
# For a response that nobody reads any more to end, behind its `response.cancel`. A server that goes
# on is left, and another connection made. Chosen: callers speak for longer than that.
CANCEL_S = 1.0
# Some servers' errors name no event of ours. A response that nothing more comes of within that, and
# whose sound is all played, is given up. Chosen: a server that speaks sends its next piece sooner.
ERROR_S = 1.0
COMMIT = "commit"
IN_PASSING = ("bring", "leave", "hear")  # events of ours that no response stands or falls with
IS_BUSY = "conversation_already_has_active_response"  # as OpenAI's servers and ours say it


def instructions_of(messages: Sequence[ChatMessage]) -> str:
    return messages[0].content if messages and messages[0].role == "system" else ""


class UpstreamSocket(SocketStream[Event]):
    """observe: is given each event; may raise BackendError. lost: why there is no more."""

    def __init__(
        self,
        stream_id: str,
        service: str,
        socket: ClientConnection,
        observe: Callable[[Event], None],
        lost: Callable[[VoiceLoopError], None],
    ) -> None:
        self._handle, self._on_lost = observe, lost
        super().__init__(stream_id, service, socket)

    def send(self, event: Event) -> None:
        """Raises: Overloaded."""
        self._post(event)

    def _observe(self, event: Event) -> None:
        self._handle(event)

    def fail(self, error: VoiceLoopError) -> None:
        was_live = self.live
        super().fail(error)
        if was_live:
            self._on_lost(error)


@dataclass(slots=True)
class _Input:
    """The sound and words of an open turn that were sent. at: bytes of it; n_bytes: in the server's
    buffer.
    """

    owner: object
    at: int = 0
    n_bytes: int = 0
    resampler: Resampler = field(default_factory=lambda: Resampler(RECOGNIZER_HZ, VOICE_HZ))


class UpstreamCall:
    """dial: makes a connection; session: how sessions of this server are set up."""

    def __init__(
        self,
        call_id: str,
        service: str,
        session: Session,
        dial: Callable[[], Any],
    ) -> None:
        self.call_id = call_id
        self._service = service
        self._session = session
        self._dial = dial
        self._socket: UpstreamSocket | None = None
        self._mirror = Mirror()
        self._told: Event = {}  # the settings that the session was sent
        self._input: _Input | None = None
        self._commits: deque[Known] = deque()  # of sound: those without an item yet
        self._responses: list[UpstreamResponse] = []  # those that are not over
        self._n_asked = 0
        self._is_over = False
        self._takes_sound = True
        self._ms_per_letter = MS_PER_LETTER  # of this voice
        self._one_at_a_time, self._opening = asyncio.Lock(), asyncio.Lock()
        self._closing: set[asyncio.Task[None]] = set()  # connections that were lost or left

    async def open(self, instructions: str, tools: Sequence[Tool]) -> None:
        """Have a connection, and the session as it is to be. Raises: as `dial`; Overloaded."""
        async with self._opening:
            if self._is_over:
                raise BackendError("expected a call, found that it is over")
            if self._socket is None or not self._socket.live:
                socket = await self._dial()
                self._session.begin()
                self._socket = UpstreamSocket(
                    self.call_id, self._service, socket, self._on_event, self._on_lost
                )
        if (settings := self._session.settings(instructions, tools)) != self._told:
            self._socket.send({**settings, "event_id": SETTINGS})
            self._told = settings

    async def close(self) -> None:
        self._is_over = True
        async with self._opening:
            self._on_lost(BackendError("expected a call, found that it is over"))
        await asyncio.gather(*self._closing)

    # --- heard ---

    def hear(self, owner: object, sound: OpenSound) -> None:
        """More of the open turn of this branch. Raises: Overloaded."""
        if self._socket is None or not self._socket.live or not self._takes_sound:
            return  # what is kept of the turn is sent at its end
        current = self._input
        if current is None or current.owner is not owner or sound.n_bytes < current.at:
            self._clear_input()
            current = self._input = _Input(owner)
        if sound.n_bytes - current.at >= APPEND_BYTES:
            self._append(current, sound.since(current.at))
            current.at = sound.n_bytes

    def drop_input(self, owner: object) -> None:
        """The branch is over: its turn was none, or was committed."""
        if self._input is not None and self._input.owner is owner:
            self._clear_input()

    def _clear_input(self) -> None:
        if self._input is not None and self._input.n_bytes:
            self._tell({"type": "input_audio_buffer.clear", "event_id": "hear"})
        self._input = None

    def _append(self, current: _Input, samples: bytes, *, is_last: bool = False) -> None:
        assert self._socket is not None
        current.n_bytes += len(samples)
        for append in appended(current.resampler, samples, is_last=is_last):
            self._socket.send({**append, "event_id": "hear"})

    # --- asked ---

    async def ask(
        self,
        owner: object,
        messages: Sequence[ChatMessage],
        turn: ChatMessage | None,
        tools: Sequence[Tool],
        params: GenerateParams,
        deliver: Callable[[LanguageEvent], None],
        *,
        is_beside: bool = False,
    ) -> UpstreamResponse:
        """Ask for the response to this turn, or to what came of calls (None), behind the messages.

        owner: the branch, whose turn was heard. is_beside: neither is to be part of the
        conversation. Raises: BackendError, Overloaded.
        """
        async with self._one_at_a_time, self._left_where_full():
            await self._until_free()
            instructions = instructions_of(messages)
            await self.open(instructions, tools)
            assert self._socket is not None
            told = (*messages, turn) if turn is not None else tuple(messages)
            history = entries_of(messages[1:] if instructions else messages)
            is_beside = is_beside or any(not one.is_beside for one in self._responses)
            self._n_asked += 1
            asked: Event = self._session.response(instructions, told, params)
            asked["metadata"] = {"voiceloop": str(self._n_asked)}
            if is_beside:
                turns = [Entry("user", turn.content)] if turn is not None else []
                items = [item_of(entry) for entry in (*history, *turns)]
                asked |= {"conversation": "none", "input": items}
            else:
                self._bring(owner, history, turn)
            response = UpstreamResponse(
                self._n_asked, self._service, self._ms_per_letter, deliver,
                is_beside=is_beside, most_words=params.max_tokens,
            )  # fmt: skip
            self._responses.append(response)
            event_id = f"ask_{self._n_asked}"
            self._socket.send({"type": "response.create", "event_id": event_id, "response": asked})
            return response

    @asynccontextmanager
    async def _left_where_full(self) -> AsyncIterator[None]:
        """Raises: Overloaded, within: nobody knows then what the conversation there holds."""
        try:
            yield
        except Overloaded as error:
            self._on_lost(error)
            raise

    async def _until_free(self) -> None:
        """The response before is over. One that was left and goes on costs the connection."""
        left = [one for one in self._responses if one.is_left and not one.is_beside]
        if not left:
            return
        try:
            async with asyncio.timeout(CANCEL_S):
                for one in left:
                    await one.ended.wait()
        except TimeoutError:
            log.warning(
                "%s goes on with a response that was cancelled: dialled anew", self._service
            )
            self._on_lost(BackendError(f"{self._service} did not end a response"))

    def _bring(self, owner: object, history: list[Entry], turn: ChatMessage | None) -> None:
        """The conversation there holds this, and the turn behind it."""
        assert self._socket is not None
        for event in self._mirror.bring(history, turn.content if turn is not None else ""):
            self._socket.send({**event, "event_id": "bring"})
        if turn is None:
            return
        if not self._send_rest(owner, turn.sound):
            for event in self._mirror.bring((*history, Entry("user", turn.content))):
                self._socket.send({**event, "event_id": "bring"})
            return
        self._input = None
        self._socket.send({"type": "input_audio_buffer.commit", "event_id": COMMIT})
        if not self._mirror.goes_on(turn.content):
            self._mirror.known.append(Known(Entry("user", turn.content)))
        known = self._mirror.known[-1]
        known.entry = replace(known.entry, text=turn.content)
        self._commits.append(known)

    def _send_rest(self, owner: object, sound: Sequence[bytes]) -> bool:
        """Whether the turn's sound is in the input buffer; what was not heard there goes now."""
        whole = b"".join(sound)
        if len(whole) < LEAST_BYTES or not self._takes_sound:
            return False
        current = self._input
        if current is None or current.owner is not owner or current.n_bytes < LEAST_BYTES:
            self._clear_input()
            current = self._input = _Input(owner)
            self._append(current, whole, is_last=True)
        return True

    def leave(self, response: UpstreamResponse) -> None:
        """Leave a response that nobody reads any more; a server that goes on with it is not
        heard.
        """
        response.leave()
        self.cancel(response)

    def cancel(self, response: UpstreamResponse) -> None:
        """Have the server end it, if it has not."""
        if response.is_cancelled or response.ended.is_set():
            return
        response.is_cancelled = True
        named = {"response_id": response.id} if response.id else {}
        self._tell({"type": "response.cancel", "event_id": "leave", **named})

    def _tell(self, event: Event) -> None:
        """Send what may be lost: a server that takes nothing is left in the end."""
        if self._socket is not None and self._socket.live:
            with suppress(Overloaded):
                self._socket.send(event)

    # --- told ---

    def _on_lost(self, error: VoiceLoopError) -> None:
        socket, self._socket = self._socket, None
        if socket is not None:
            closing = asyncio.create_task(socket.close(), name=f"close {self.call_id} upstream")
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)
        self._mirror, self._told, self._input = Mirror(), {}, None
        self._commits.clear()
        lost, self._responses = self._responses, []
        for response in lost:
            response.fail(error)

    def _on_event(self, event: Event) -> None:
        """Raises: BackendError, and whatever a malformed event leads to."""
        match event.get("type"):
            case "session.created" | "session.updated":
                self._session.observe(event["session"], is_told=event["type"].endswith("updated"))
            case "input_audio_buffer.committed" if self._commits:
                self._commits.popleft().item_ids.append(str(event["item_id"]))
            case "response.created":
                self._begin(event["response"])
            case "error":
                self._fail(event["error"])
            case _:
                self._pass_on(event)

    def _begin(self, told: Event) -> None:
        number = (told.get("metadata") or {}).get("voiceloop")
        waiting = [one for one in self._responses if not one.id]
        mine = next((one for one in waiting if str(one.number) == number), None)
        mine = mine or (waiting[0] if waiting and number is None else None)
        if mine is not None:
            mine.id = str(told["id"])
            mine.n_events += 1
            return
        self._session.note("responses", "as asked", "others too")
        self._tell({"type": "response.cancel", "event_id": "leave", "response_id": told["id"]})

    def _pass_on(self, event: Event) -> None:
        told = event.get("response")
        response_id = told.get("id") if isinstance(told, dict) else event.get("response_id")
        response = next((one for one in self._responses if one.id and one.id == response_id), None)
        if response is None:
            return
        response.observe(event, self._session.rate_hz)
        if event["type"] == "response.done":
            self._responses.remove(response)
            self._ms_per_letter = response.words.ms_per_letter
            if not response.is_beside:
                self._mirror.known += response.known()

    def _fail(self, told: Event) -> None:
        """Raises: BackendRefused where the session is not as it was asked for."""
        event_id, code = str(told.get("event_id") or ""), code_of(told)
        if event_id == SETTINGS:
            raise BackendRefused(f"{self._service} refused the session: {code}")
        asked = next((r for r in self._responses if event_id == f"ask_{r.number}"), None)
        if asked is not None and code == IS_BUSY:
            self._on_lost(BackendError(f"{self._service} speaks unasked, and does not stop"))
        elif asked is not None:
            self._responses.remove(asked)
            asked.fail(BackendError(f"{self._service} refused a response: {code}"))
        elif event_id == COMMIT and self._commits:
            self._send_words(code)
        elif event_id in IN_PASSING:
            log.debug("%s reports %s", self._service, code)
        else:
            log.warning("%s reports %s", self._service, code)
            for one in self._responses:
                self._watch(one, code)

    def _send_words(self, code: str) -> None:
        """A turn's sound was refused: its response, which lacks that turn, is asked for anew."""
        log.warning("%s refuses the caller's sound, and is sent words: %s", self._service, code)
        self._takes_sound = False
        self._on_lost(BackendError(f"{self._service} refused a turn's sound: {code}"))

    def _watch(self, response: UpstreamResponse, code: str) -> None:
        args = response, response.n_events, code
        asyncio.get_running_loop().call_later(ERROR_S, self._give_up, *args)

    def _give_up(self, response: UpstreamResponse, n_events: int, code: str) -> None:
        """Give a response up that may be the one that failed, unless more of it has come since.

        One that the server has begun, and nothing has sounded of, may take its time: whoever waits
        for the first token has a limit.
        """
        is_silent = response.n_events == n_events and not response.is_left
        if response not in self._responses or not is_silent:
            return
        if response.sound.is_playing:
            self._watch(response, code)
        elif response.has_begun or not response.id:
            self.cancel(response)
            self._responses.remove(response)
            response.fail(BackendError(f"{self._service} failed in a response: {code}"))

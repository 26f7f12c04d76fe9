"""The sans-I/O session state machine of the OpenAI Realtime protocol (GA names).

Owns the session's settings, ids, the items on the wire and the order of events. Bytes in, commands
out; events wait in a queue until the writer takes them. Pure: no asyncio, no sockets, no clock.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from voiceloop.conversation import Conversation
from voiceloop.errors import VoiceLoopError
from voiceloop.items import Item
from voiceloop.request import ResponseRequest
from voiceloop.response import ResponseHandle
from voiceloop.settings import SessionSettings

# --- commands: what the client asked of the session ----------------------------------------------


@dataclass(frozen=True, slots=True)
class AppendAudio:
    """Audio of the caller in the session's input format (whole samples, decoded from base64)."""

    samples: bytes


@dataclass(frozen=True, slots=True)
class CommitAudio:
    """The client ended its turn. Already acknowledged: ``committed`` and the user item are queued.

    The session finalizes the recognizer and reports with ``transcription_completed(item_id, ..)``.
    No response follows until the client asks.
    """

    item_id: str


@dataclass(frozen=True, slots=True)
class ClearAudio:
    """Forget audio that is not committed. Already acknowledged."""


@dataclass(frozen=True, slots=True)
class CreateResponse:
    """The client wants a response: ``response`` is open (``response.created`` is queued)."""

    response: ResponseHandle


@dataclass(frozen=True, slots=True)
class CancelResponse:
    """Stop this response's work. Its handle is closed already (``response.done`` is queued)."""

    response_id: str


@dataclass(frozen=True, slots=True)
class TruncateItem:
    """The client played only so much of a reply. Already cut in the conversation and acknowledged.

    ``audio_end_ms`` is clamped to what was sent. The playout stops this item if it still plays.
    """

    item_id: str
    content_index: int
    audio_end_ms: int


@dataclass(frozen=True, slots=True)
class SettingsChanged:
    """``session.updated`` is queued; the listener and the next turn take up ``current``."""

    previous: SessionSettings
    current: SessionSettings


@dataclass(frozen=True, slots=True)
class ItemCreated:
    """The client added an item; it is in the conversation and acknowledged."""

    item: Item


@dataclass(frozen=True, slots=True)
class ItemDeleted:
    """The client removed an item; done and acknowledged."""

    item_id: str


Command = (
    AppendAudio
    | CommitAudio
    | ClearAudio
    | CreateResponse
    | CancelResponse
    | TruncateItem
    | SettingsChanged
    | ItemCreated
    | ItemDeleted
)


@dataclass(frozen=True, slots=True)
class Outgoing:
    """One frame for the writer, which may drop a delta whose response has been closed since."""

    data: str
    response_id: str | None = None
    is_delta: bool = False


@dataclass(frozen=True, slots=True)
class ProtocolLimits:
    """Bounds on what one client may send."""

    frame_bytes: int = 2 * 1024 * 1024
    uncommitted_audio_ms: float = 10 * 60_000.0
    out_of_band_responses: int = 4


class Protocol:
    """One session's protocol state.

    ``new_id(prefix)`` makes ids (tests pass a counter). ``expires_at`` is epoch seconds.
    """

    settings: SessionSettings
    conversation: Conversation

    def __init__(
        self,
        settings: SessionSettings,
        *,
        limits: ProtocolLimits | None = None,
        new_id: Callable[[str], str] | None = None,
        expires_at: int = 0,
    ) -> None:
        raise NotImplementedError

    # --- the client's side ---

    def connect(self) -> None:
        """Queue ``session.created``."""

    def receive(self, frame: str | bytes) -> list[Command]:
        """Take one frame. Never raises: a bad frame becomes an ``error`` event in the queue."""
        raise NotImplementedError

    def take_outgoing(self) -> list[Outgoing]:
        """All frames queued since the last call, in order."""
        raise NotImplementedError

    def is_stale(self, frame: Outgoing) -> bool:
        """True for a delta of a response that has been closed since it was queued."""
        raise NotImplementedError

    # --- the listener's side ---

    def speech_started(self, audio_start_ms: float) -> str:
        """The caller speaks (or: is found to barge in). Returns the id of the user's item.

        Queues ``speech_started`` first; then, where the settings allow interruption, closes the
        active default response as cancelled/turn_detected. The caller of this cancels the turn.
        """
        raise NotImplementedError

    def speech_stopped(self, audio_end_ms: float) -> None:
        """The turn of the caller ended there; ``commit_input`` follows."""

    def commit_input(self) -> str:
        """Queue ``committed`` and the user's item (transcript null). Returns its id.

        It is the id that ``speech_started`` gave, or a new one where there was none.
        """
        raise NotImplementedError

    def drop_input(self) -> None:
        """The speech turned out to hold no words: forget the open user item."""

    def transcription_delta(self, item_id: str, text: str) -> None:
        """Words that will not change any more (sent when the session asked for transcription)."""

    def transcription_completed(self, item_id: str, text: str, seconds: float) -> None:
        """The final words: into the conversation always, onto the wire when asked for."""

    def transcription_failed(self, item_id: str, message: str) -> None: ...

    def partial(self, item_id: str, stable: str, unstable: str) -> None:
        """The hypothesis, for clients that switched on ``voiceloop.partial`` events."""

    # --- the turn's side ---

    @property
    def active_response(self) -> ResponseHandle | None:
        """The open response of the default conversation."""
        raise NotImplementedError

    def open_response(self, request: ResponseRequest | None = None) -> ResponseHandle:
        """Queue ``response.created`` at once and hand out the handle.

        Raises:
            InvalidRequest: one is active (``conversation_already_has_active_response``) or too
                many run out of band.
        """
        raise NotImplementedError

    def add_item(self, item: Item, previous_item_id: str | None = None) -> None:
        """The server itself adds an item (a tool answered by the agent file): added and done."""

    def timeline(self, payload: dict[str, Any]) -> None:
        """Send a turn's timeline as ``voiceloop.timeline`` when the client asked for it."""

    def error(self, error: VoiceLoopError, event_id: str | None = None) -> None:
        """Queue an ``error`` event; ``event_id`` is the client event that caused it."""

"""The client's requests to its session, after the protocol has acknowledged them.

Owns the commands: immutable messages from ``Protocol.receive`` to the session. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass

from voiceloop.realtime.items import Item
from voiceloop.realtime.response import ResponseHandle
from voiceloop.realtime.settings import SessionSettings


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
    """Stop this response's work. Its handle is closed already (``response.done`` is queued).

    A response that a sound cut short counts as not active on the wire, yet its reply may wait to go
    on: that is stopped too. response_id: None for whichever it is.
    """

    response_id: str | None


@dataclass(frozen=True, slots=True)
class TruncateItem:
    """The client played only so much of a reply. Already cut in the conversation and acknowledged.

    ``audio_end_ms`` is clamped to what was sent. The playout stops this item if it still plays.
    """

    item_id: str
    audio_end_ms: int


@dataclass(frozen=True, slots=True)
class SettingsChanged:
    """``session.updated`` is queued; the listener and the next reply take up ``current``."""

    previous: SessionSettings
    current: SessionSettings


@dataclass(frozen=True, slots=True)
class ItemCreated:
    """The client added an item; it is in the conversation and acknowledged.

    ``audio``: of a user's message that came without its words, in the session's input format.
    """

    item: Item
    audio: bytes = b""


@dataclass(frozen=True, slots=True)
class ItemDeleted:
    """The client removed an item; done and acknowledged."""

    item_id: str


@dataclass(frozen=True, slots=True)
class ResumeCall:
    """The client goes on with a call that it has a ticket of. Nothing is acknowledged yet."""

    ticket: str


@dataclass(frozen=True, slots=True)
class AnswerConfirmation:
    """The client's yes or no to a call of a tool. Nothing is acknowledged yet."""

    call_id: str
    is_allowed: bool


@dataclass(frozen=True, slots=True)
class PressKey:
    """The caller has pressed this key of a telephone."""

    key: str


Command = (
    AppendAudio
    | PressKey
    | CommitAudio
    | ClearAudio
    | CreateResponse
    | CancelResponse
    | TruncateItem
    | SettingsChanged
    | ItemCreated
    | ItemDeleted
    | ResumeCall
    | AnswerConfirmation
)

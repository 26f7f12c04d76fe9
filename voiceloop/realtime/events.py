"""The server's events of the Realtime protocol as typed messages (GA names).

Owns their shapes. Pure. An event is made once, numbered where it is queued, and encoded; unset
fields stay out of the frame, documented nullables are sent as null.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from voiceloop.errors import VoiceLoopError
from voiceloop.realtime.items import Item

Json = dict[str, Any]


class ServerEvent(msgspec.Struct, kw_only=True, tag_field="type"):
    """Not frozen for one reason: the protocol numbers the event as it queues it."""

    event_id: str = ""


class SessionCreated(ServerEvent, kw_only=True, tag="session.created"):
    session: Json


class SessionUpdated(ServerEvent, kw_only=True, tag="session.updated"):
    session: Json


class ErrorBody(msgspec.Struct, frozen=True, kw_only=True):
    type: str
    code: str
    message: str
    param: str | None = None
    event_id: str | None = None

    @classmethod
    def of(cls, error: VoiceLoopError, event_id: str | None = None) -> ErrorBody:
        """``event_id`` is the client event that caused it."""
        return cls(
            type=error.type,
            code=error.wire_code,
            message=error.message,
            param=error.param,
            event_id=event_id,
        )


class ErrorEvent(ServerEvent, kw_only=True, tag="error"):
    error: ErrorBody


class ItemAdded(ServerEvent, kw_only=True, tag="conversation.item.added"):
    previous_item_id: str | None
    item: Item


class ItemDone(ServerEvent, kw_only=True, tag="conversation.item.done"):
    previous_item_id: str | None
    item: Item


class ItemRetrieved(ServerEvent, kw_only=True, tag="conversation.item.retrieved"):
    item: Item


class ItemDeleted(ServerEvent, kw_only=True, tag="conversation.item.deleted"):
    item_id: str


class ItemTruncated(ServerEvent, kw_only=True, tag="conversation.item.truncated"):
    item_id: str
    content_index: int
    audio_end_ms: int


class TranscriptionDelta(
    ServerEvent, kw_only=True, tag="conversation.item.input_audio_transcription.delta"
):
    item_id: str
    content_index: int = 0
    delta: str


class DurationUsage(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="duration"):
    seconds: float


class TranscriptionCompleted(
    ServerEvent, kw_only=True, tag="conversation.item.input_audio_transcription.completed"
):
    item_id: str
    content_index: int = 0
    transcript: str
    usage: DurationUsage


class TranscriptionFailed(
    ServerEvent, kw_only=True, tag="conversation.item.input_audio_transcription.failed"
):
    item_id: str
    content_index: int = 0
    error: ErrorBody


class SpeechStarted(ServerEvent, kw_only=True, tag="input_audio_buffer.speech_started"):
    audio_start_ms: int
    item_id: str


class SpeechStopped(ServerEvent, kw_only=True, tag="input_audio_buffer.speech_stopped"):
    audio_end_ms: int
    item_id: str


class Committed(ServerEvent, kw_only=True, tag="input_audio_buffer.committed"):
    previous_item_id: str | None
    item_id: str


class Cleared(ServerEvent, kw_only=True, tag="input_audio_buffer.cleared"):
    pass


class KeyReceived(ServerEvent, kw_only=True, tag="input_audio_buffer.dtmf_event_received"):
    """On a telephone line: the caller has pressed this key. received_at: epoch seconds."""

    event: str
    received_at: int


class AnsweredByTold(ServerEvent, kw_only=True, tag="voiceloop.answered_by"):
    """Of a call that the server has placed, where the agent's file asks for it: who is there, and
    at which point of the audio clock that was known.
    """

    by: str
    at_ms: int


class OutputStarted(ServerEvent, kw_only=True, tag="output_audio_buffer.started"):
    """On lines that carry sound alone: its first piece of this response has been sent."""

    response_id: str


class OutputStopped(ServerEvent, kw_only=True, tag="output_audio_buffer.stopped"):
    """The response is over, and all of its sound has been played."""

    response_id: str


class OutputCleared(ServerEvent, kw_only=True, tag="output_audio_buffer.cleared"):
    """The rest of its sound is not sent. ``response_id``: "" where nothing has been played yet."""

    response_id: str


class TimeoutTriggered(ServerEvent, kw_only=True, tag="input_audio_buffer.timeout_triggered"):
    audio_start_ms: int
    audio_end_ms: int
    item_id: str


class ResponseBody(msgspec.Struct, frozen=True, kw_only=True):
    """The response object of ``response.created`` and ``response.done``.

    temperature: the beta tells of it, the protocol since then has no such field.
    """

    id: str
    object: Literal["realtime.response"] = "realtime.response"
    status: Literal["in_progress", "completed", "cancelled", "failed", "incomplete"]
    status_details: Json | None
    output: tuple[Item, ...]
    conversation_id: str | None
    output_modalities: tuple[str, ...]
    max_output_tokens: int | Literal["inf"]
    audio: Json
    usage: Json | None
    metadata: dict[str, str] | None
    temperature: float | None | msgspec.UnsetType = msgspec.UNSET


class ResponseCreated(ServerEvent, kw_only=True, tag="response.created"):
    response: ResponseBody


class ResponseDone(ServerEvent, kw_only=True, tag="response.done"):
    response: ResponseBody


class OutputItemAdded(ServerEvent, kw_only=True, tag="response.output_item.added"):
    response_id: str
    output_index: int
    item: Item


class OutputItemDone(ServerEvent, kw_only=True, tag="response.output_item.done"):
    response_id: str
    output_index: int
    item: Item


class PlacedEvent(ServerEvent, kw_only=True):
    """Where in a response something is."""

    response_id: str
    item_id: str
    output_index: int


class PartEvent(PlacedEvent, kw_only=True):
    content_index: int = 0


class WirePart(msgspec.Struct, frozen=True, kw_only=True):
    """A content part's own names are ``text`` and ``audio``, unlike those inside items."""

    type: Literal["text", "audio"]
    text: str | UnsetType = UNSET
    transcript: str | UnsetType = UNSET


class PartAdded(PartEvent, kw_only=True, tag="response.content_part.added"):
    part: WirePart


class PartDone(PartEvent, kw_only=True, tag="response.content_part.done"):
    part: WirePart


class TextDelta(PartEvent, kw_only=True, tag="response.output_text.delta"):
    delta: str


class TextDone(PartEvent, kw_only=True, tag="response.output_text.done"):
    text: str


class TranscriptDelta(PartEvent, kw_only=True, tag="response.output_audio_transcript.delta"):
    delta: str


class TranscriptDone(PartEvent, kw_only=True, tag="response.output_audio_transcript.done"):
    transcript: str


class AudioDelta(PartEvent, kw_only=True, tag="response.output_audio.delta"):
    delta: bytes  # msgspec writes bytes as base64


class AudioDone(PartEvent, kw_only=True, tag="response.output_audio.done"):
    pass


class ArgumentsDelta(PlacedEvent, kw_only=True, tag="response.function_call_arguments.delta"):
    call_id: str
    delta: str


class ArgumentsDone(PlacedEvent, kw_only=True, tag="response.function_call_arguments.done"):
    call_id: str
    name: str
    arguments: str


# --- tools of MCP servers ------------------------------------------------------------------------


class McpListToolsInProgress(ServerEvent, kw_only=True, tag="mcp_list_tools.in_progress"):
    item_id: str


class McpListToolsCompleted(ServerEvent, kw_only=True, tag="mcp_list_tools.completed"):
    item_id: str


class McpListToolsFailed(ServerEvent, kw_only=True, tag="mcp_list_tools.failed"):
    item_id: str


class McpArgumentsDelta(PlacedEvent, kw_only=True, tag="response.mcp_call_arguments.delta"):
    delta: str


class McpArgumentsDone(PlacedEvent, kw_only=True, tag="response.mcp_call_arguments.done"):
    arguments: str


class McpCallInProgress(ServerEvent, kw_only=True, tag="response.mcp_call.in_progress"):
    item_id: str
    output_index: int


class McpCallCompleted(ServerEvent, kw_only=True, tag="response.mcp_call.completed"):
    item_id: str
    output_index: int


class McpCallFailed(ServerEvent, kw_only=True, tag="response.mcp_call.failed"):
    item_id: str
    output_index: int


# --- VoiceLoop's own, sent only when asked for ---------------------------------------------------


class Timeline(ServerEvent, kw_only=True, tag="voiceloop.timeline"):
    timeline: Json


class SessionExpiring(ServerEvent, kw_only=True, tag="voiceloop.session_expiring"):
    """The session's time is nearly over: ``session_expired`` follows, or the server shuts down."""

    seconds_left: int


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """A passage that the model was given: where in the agent's documents it stands."""

    path: str
    heading: str


class Sources(ServerEvent, kw_only=True, tag="voiceloop.sources"):
    """``item_id``: the user's message that the response answers."""

    response_id: str
    item_id: str
    sources: tuple[Source, ...]


class SlotFilled(ServerEvent, kw_only=True, tag="voiceloop.slot"):
    """What a caller's turn made of a named slot; ``item_id``: the user's message."""

    response_id: str
    item_id: str
    name: str
    kind: str
    value: str
    state: str


class ConfirmationRequested(ServerEvent, kw_only=True, tag="voiceloop.confirmation_requested"):
    """A call of the server's waits for the client's yes. ``question``: what it will do."""

    call_id: str
    name: str
    arguments: str
    question: str


class ResumeTicket(ServerEvent, kw_only=True, tag="voiceloop.resume_ticket"):
    """What the client needs to go on with this call elsewhere; each takes the place of the last.

    ``returns``: for the address that it dials then.
    """

    ticket: str
    returns: str
    expires_at: int


class Resumed(ServerEvent, kw_only=True, tag="voiceloop.resumed"):
    """The call that this ticket was of goes on here: ``session_id`` is what it was called there."""

    session_id: str
    items: int
    last_item_id: str | None


class PartialHeard(ServerEvent, kw_only=True, tag="voiceloop.partial"):
    item_id: str
    stable: str
    unstable: str

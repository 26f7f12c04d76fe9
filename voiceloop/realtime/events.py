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
    """An event of the server, not frozen for one reason: the protocol numbers it as it queues
    it.
    """

    event_id: str = ""


class SessionCreated(ServerEvent, kw_only=True, tag="session.created"):
    """The connection is open. `session` is what the call begins with."""

    session: Json


class SessionUpdated(ServerEvent, kw_only=True, tag="session.updated"):
    """The server took a `session.update` whole. `session` is what holds now."""

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
    """The server did not take an event, or something failed. Mostly the call goes on."""

    error: ErrorBody


class ItemAdded(ServerEvent, kw_only=True, tag="conversation.item.added"):
    """An item is new in the conversation."""

    previous_item_id: str | None
    item: Item


class ItemDone(ServerEvent, kw_only=True, tag="conversation.item.done"):
    """An item is complete."""

    previous_item_id: str | None
    item: Item


class ItemRetrieved(ServerEvent, kw_only=True, tag="conversation.item.retrieved"):
    """Answers `conversation.item.retrieve`."""

    item: Item


class ItemDeleted(ServerEvent, kw_only=True, tag="conversation.item.deleted"):
    """Answers `conversation.item.delete`."""

    item_id: str


class ItemTruncated(ServerEvent, kw_only=True, tag="conversation.item.truncated"):
    """The server cut an item to what the caller heard, on request or after an interruption."""

    item_id: str
    content_index: int
    audio_end_ms: int


class TranscriptionDelta(
    ServerEvent, kw_only=True, tag="conversation.item.input_audio_transcription.delta"
):
    """More words of the caller's turn, once the turn is over."""

    item_id: str
    content_index: int = 0
    delta: str


class DurationUsage(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="duration"):
    seconds: float


class TranscriptionCompleted(
    ServerEvent, kw_only=True, tag="conversation.item.input_audio_transcription.completed"
):
    """All words of the caller's turn."""

    item_id: str
    content_index: int = 0
    transcript: str
    usage: DurationUsage


class TranscriptionFailed(
    ServerEvent, kw_only=True, tag="conversation.item.input_audio_transcription.failed"
):
    """The recognizer failed on the caller's turn. Its words are not known."""

    item_id: str
    content_index: int = 0
    error: ErrorBody


class SpeechStarted(ServerEvent, kw_only=True, tag="input_audio_buffer.speech_started"):
    """The caller speaks. A client that plays sound stops and flushes it."""

    audio_start_ms: int
    item_id: str


class SpeechStopped(ServerEvent, kw_only=True, tag="input_audio_buffer.speech_stopped"):
    """The caller's turn is over."""

    audio_end_ms: int
    item_id: str


class Committed(ServerEvent, kw_only=True, tag="input_audio_buffer.committed"):
    """The caller's turn is closed and becomes an item."""

    previous_item_id: str | None
    item_id: str


class Cleared(ServerEvent, kw_only=True, tag="input_audio_buffer.cleared"):
    """Answers `input_audio_buffer.clear`."""


class KeyReceived(ServerEvent, kw_only=True, tag="input_audio_buffer.dtmf_event_received"):
    """A caller on a telephone pressed a key. `received_at` is in epoch seconds."""

    event: str
    received_at: int


class AnsweredByTold(ServerEvent, kw_only=True, tag="voiceloop.answered_by"):
    """The answer to a call that the server placed: who answered, a person or a machine.

    at_ms: when that was known, by the audio clock. Sent where the agent's file asks for it.
    """

    by: str
    at_ms: int


class OutputStarted(ServerEvent, kw_only=True, tag="output_audio_buffer.started"):
    """The first sound of this response has left, on a line that carries sound."""

    response_id: str


class OutputStopped(ServerEvent, kw_only=True, tag="output_audio_buffer.stopped"):
    """The sound of this response has all been played, on a line that carries sound."""

    response_id: str


class OutputCleared(ServerEvent, kw_only=True, tag="output_audio_buffer.cleared"):
    """The rest of this response's sound is not sent, on a line that carries sound.

    response_id: "" where nothing has been played yet.
    """

    response_id: str


class TimeoutTriggered(ServerEvent, kw_only=True, tag="input_audio_buffer.timeout_triggered"):
    """The caller said nothing for `idle_timeout_ms`. The agent speaks again."""

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
    """A response begins."""

    response: ResponseBody


class ResponseDone(ServerEvent, kw_only=True, tag="response.done"):
    """A response is over. `status` says how."""

    response: ResponseBody


class OutputItemAdded(ServerEvent, kw_only=True, tag="response.output_item.added"):
    """A response begins an item: a message or a tool call."""

    response_id: str
    output_index: int
    item: Item


class OutputItemDone(ServerEvent, kw_only=True, tag="response.output_item.done"):
    """An item of a response is complete."""

    response_id: str
    output_index: int
    item: Item


class PlacedEvent(ServerEvent, kw_only=True):
    """An event with its place in a response."""

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
    """A message begins a part: text or audio."""

    part: WirePart


class PartDone(PartEvent, kw_only=True, tag="response.content_part.done"):
    """A part of a message is complete."""

    part: WirePart


class TextDelta(PartEvent, kw_only=True, tag="response.output_text.delta"):
    """More text of a written reply."""

    delta: str


class TextDone(PartEvent, kw_only=True, tag="response.output_text.done"):
    """The whole text of a written reply."""

    text: str


class TranscriptDelta(PartEvent, kw_only=True, tag="response.output_audio_transcript.delta"):
    """More words of a spoken reply."""

    delta: str


class TranscriptDone(PartEvent, kw_only=True, tag="response.output_audio_transcript.done"):
    """All words of a spoken reply."""

    transcript: str


class AudioDelta(PartEvent, kw_only=True, tag="response.output_audio.delta"):
    """More sound of a spoken reply, in the session's output format."""

    delta: bytes  # msgspec writes bytes as base64


class AudioDone(PartEvent, kw_only=True, tag="response.output_audio.done"):
    """All sound of a spoken reply has been sent."""


class ArgumentsDelta(PlacedEvent, kw_only=True, tag="response.function_call_arguments.delta"):
    """More of a tool call's arguments."""

    call_id: str
    delta: str


class ArgumentsDone(PlacedEvent, kw_only=True, tag="response.function_call_arguments.done"):
    """A tool call is complete. The client answers its own tools now."""

    call_id: str
    name: str
    arguments: str


# --- tools of MCP servers ------------------------------------------------------------------------


class McpListToolsInProgress(ServerEvent, kw_only=True, tag="mcp_list_tools.in_progress"):
    """The server asks an MCP server of the session for its tools."""

    item_id: str


class McpListToolsCompleted(ServerEvent, kw_only=True, tag="mcp_list_tools.completed"):
    """The tools of an MCP server are known. The item names them."""

    item_id: str


class McpListToolsFailed(ServerEvent, kw_only=True, tag="mcp_list_tools.failed"):
    """An MCP server did not answer, or none of its tools fits."""

    item_id: str


class McpArgumentsDelta(PlacedEvent, kw_only=True, tag="response.mcp_call_arguments.delta"):
    """More of the arguments of an MCP call."""

    delta: str


class McpArgumentsDone(PlacedEvent, kw_only=True, tag="response.mcp_call_arguments.done"):
    """The arguments of an MCP call are complete."""

    arguments: str


class McpCallInProgress(ServerEvent, kw_only=True, tag="response.mcp_call.in_progress"):
    """The server calls a tool of an MCP server."""

    item_id: str
    output_index: int


class McpCallCompleted(ServerEvent, kw_only=True, tag="response.mcp_call.completed"):
    """An MCP call has its output."""

    item_id: str
    output_index: int


class McpCallFailed(ServerEvent, kw_only=True, tag="response.mcp_call.failed"):
    """An MCP call has failed. The item has the error."""

    item_id: str
    output_index: int


# --- VoiceLoop's own, sent only when asked for ---------------------------------------------------


class Timeline(ServerEvent, kw_only=True, tag="voiceloop.timeline"):
    """The stages of a turn with their times, sent after the turn."""

    timeline: Json


class SessionExpiring(ServerEvent, kw_only=True, tag="voiceloop.session_expiring"):
    """The call ends soon: its time is over, or the server shuts down."""

    seconds_left: int


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """A passage that the model was given: where in the agent's documents it stands."""

    path: str
    heading: str


class Sources(ServerEvent, kw_only=True, tag="voiceloop.sources"):
    """The passages of the documents that the model got for its answer.

    item_id: the user's message that the response answers.
    """

    response_id: str
    item_id: str
    sources: tuple[Source, ...]


class SlotFilled(ServerEvent, kw_only=True, tag="voiceloop.slot"):
    """The value that the caller's turn gave a named slot.

    item_id: the user's message.
    """

    response_id: str
    item_id: str
    name: str
    kind: str
    value: str
    state: str


class ConfirmationRequested(ServerEvent, kw_only=True, tag="voiceloop.confirmation_requested"):
    """A tool call waits for the client's yes. `question` says what it will do."""

    call_id: str
    name: str
    arguments: str
    question: str


class ResumeTicket(ServerEvent, kw_only=True, tag="voiceloop.resume_ticket"):
    """A ticket with which the client continues this call elsewhere. The newest counts.

    returns: for the address that it dials then.
    """

    ticket: str
    returns: str
    expires_at: int


class Resumed(ServerEvent, kw_only=True, tag="voiceloop.resumed"):
    """The call of the ticket goes on here.

    session_id: what the call was called there.
    """

    session_id: str
    items: int
    last_item_id: str | None


class PartialHeard(ServerEvent, kw_only=True, tag="voiceloop.partial"):
    """The caller's words so far. `stable` ones change no more."""

    item_id: str
    stable: str
    unstable: str

"""The server's events of the GA protocol: their names, required fields, and what may be null.

Plain knowledge of the wire, no code: the tables that the checks of events read.
"""

from __future__ import annotations

_PLACE = ("response_id", "item_id", "output_index", "content_index")
_CALL = ("response_id", "item_id", "output_index", "call_id")
_HEARD = ("item_id", "content_index")

# Every server event, and the fields it must have beside type and event_id.
REQUIRED: dict[str, tuple[str, ...]] = {
    "error": ("error",),
    "session.created": ("session",),
    "session.updated": ("session",),
    "conversation.created": ("conversation",),
    "conversation.item.added": ("item",),
    "conversation.item.done": ("item",),
    "conversation.item.retrieved": ("item",),
    "conversation.item.deleted": ("item_id",),
    "conversation.item.truncated": ("item_id", "content_index", "audio_end_ms"),
    "conversation.item.input_audio_transcription.delta": ("item_id",),
    "conversation.item.input_audio_transcription.completed": (*_HEARD, "transcript", "usage"),
    "conversation.item.input_audio_transcription.failed": (*_HEARD, "error"),
    "conversation.item.input_audio_transcription.segment": (
        *_HEARD, "id", "text", "speaker", "start", "end",
    ),
    "input_audio_buffer.speech_started": ("item_id", "audio_start_ms"),
    "input_audio_buffer.speech_stopped": ("item_id", "audio_end_ms"),
    "input_audio_buffer.committed": ("item_id",),
    "input_audio_buffer.cleared": (),
    "input_audio_buffer.timeout_triggered": ("item_id", "audio_start_ms", "audio_end_ms"),
    "input_audio_buffer.dtmf_event_received": ("event", "received_at"),
    "output_audio_buffer.started": ("response_id",),
    "output_audio_buffer.stopped": ("response_id",),
    "output_audio_buffer.cleared": ("response_id",),
    "response.created": ("response",),
    "response.done": ("response",),
    "response.output_item.added": ("response_id", "output_index", "item"),
    "response.output_item.done": ("response_id", "output_index", "item"),
    "response.content_part.added": (*_PLACE, "part"),
    "response.content_part.done": (*_PLACE, "part"),
    "response.output_text.delta": (*_PLACE, "delta"),
    "response.output_text.done": (*_PLACE, "text"),
    "response.output_audio.delta": (*_PLACE, "delta"),
    "response.output_audio.done": _PLACE,
    "response.output_audio_transcript.delta": (*_PLACE, "delta"),
    "response.output_audio_transcript.done": (*_PLACE, "transcript"),
    "response.function_call_arguments.delta": (*_CALL, "delta"),
    "response.function_call_arguments.done": (*_CALL, "name", "arguments"),
    "rate_limits.updated": ("rate_limits",),
    "mcp_list_tools.in_progress": ("item_id",),
    "mcp_list_tools.completed": ("item_id",),
    "mcp_list_tools.failed": ("item_id",),
    "response.mcp_call_arguments.delta": ("response_id", "item_id", "output_index", "delta"),
    "response.mcp_call_arguments.done": ("response_id", "item_id", "output_index", "arguments"),
    "response.mcp_call.in_progress": ("item_id", "output_index"),
    "response.mcp_call.completed": ("item_id", "output_index"),
    "response.mcp_call.failed": ("item_id", "output_index"),
}  # fmt: skip

# What the protocol documents as nullable; everything else is left out when it is not set.
NULLABLE = frozenset({
    "previous_item_id", "transcript", "status_details", "usage", "metadata", "conversation_id",
    "param", "code", "event_id", "turn_detection", "transcription", "noise_reduction",
    "idle_timeout_ms", "tracing", "prompt", "include",
})  # fmt: skip

# Of an item of a conversation; a null elsewhere in it makes a client lose its history.
ITEM_NULLABLE = frozenset({"transcript"})

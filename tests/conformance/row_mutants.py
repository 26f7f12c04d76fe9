"""One mutant for each row of the fault table: what a server did, and a real client could not bear.

The table was found by breaking one thing at a time and watching real clients.
"""

from __future__ import annotations

from starlette.types import Message

from tests.conformance.mutants import Mutant, after, before, both, drop, leave_out, only_if, put

DETECTION = "session.audio.input.turn_detection"
COMPLETED = "conversation.item.input_audio_transcription.completed"


def no_subprotocol(message: Message) -> Message:
    if message["type"] == "websocket.accept":
        return {**message, "subprotocol": None}
    return message


ROW_MUTANTS = (
    Mutant("no-event-id", "event-ids", "No `event_id`", outgoing=leave_out("*", "event_id")),
    Mutant(
        "metadata-lost",
        "metadata-echoed",
        "`response.metadata` not echoed",
        outgoing=leave_out("*", "response.metadata"),
    ),
    Mutant(
        "reply-not-added",
        "reply-enters-conversation",
        "No `conversation.item.added`",
        outgoing=drop("conversation.item.added"),
    ),
    Mutant(
        "item-not-added",
        "item-added-and-done",
        "No `conversation.item.added`",
        outgoing=drop("conversation.item.added"),
    ),
    Mutant(
        "no-session-created",
        "session-created-first",
        "No session.created",
        outgoing=drop("session.created"),
    ),
    Mutant(
        "no-session-updated",
        "session-update-answered",
        "No session.updated",
        outgoing=drop("session.updated"),
    ),
    Mutant(
        "no-interrupt-flag",
        "turn-detection-flags",
        "`interrupt_response` absent from session echo",
        outgoing=leave_out("*", f"{DETECTION}.interrupt_response"),
    ),
    Mutant(
        "usage-with-nulls",
        "usage-integers",
        "Null integers inside usage",
        outgoing=put("response.done", "response.usage.input_token_details.cached_tokens", None),
    ),
    Mutant(
        "item-with-nulls",
        "items-without-nulls",
        "Null optionals on items (call_id, name…)",
        outgoing=both(put("*", "item.call_id", None), put("*", "response.output.*.name", None)),
    ),
    Mutant(
        "unlisted-code",
        "codes-clients-know",
        "Unlisted error code (e.g. unknown_parameter)",
        outgoing=put("error", "error.code", "unknown_parameter"),
    ),
    Mutant(
        "unknown-setting-refused",
        "unknown-setting-ignored",
        "Unlisted error code (e.g. unknown_parameter)",
        incoming=only_if(
            lambda event: "x_newer_setting" in event.get("session", {}),
            put("session.update", "session.type", "unknown_parameter"),
        ),
    ),
    Mutant(
        "transcription-extra-key",
        "transcription-keys",
        "Extra key in transcription echo",
        outgoing=put("session.updated", "session.audio.input.transcription.engine", "own"),
    ),
    Mutant(
        "other-output-rate",
        "output-rate",
        "output rate ≠24000",
        outgoing=put("*", "session.audio.output.format.rate", 16000),
    ),
    Mutant(
        "mcp-item",
        "no-mcp-items",
        "mcp item",
        outgoing=after(
            "session.updated",
            lambda event: {
                "type": "conversation.item.added",
                "event_id": event["event_id"] + "m",
                "item": {"type": "mcp_list_tools", "id": "mcp_1", "tools": []},
            },
        ),
    ),
    Mutant(
        "arguments-without-name",
        "tool-arguments-named",
        "arguments.done without name",
        outgoing=leave_out("response.function_call_arguments.done", "name"),
    ),
    Mutant(
        "completed-without-usage",
        "transcription-usage",
        "completed without usage",
        outgoing=leave_out(COMPLETED, "usage"),
    ),
    Mutant(
        "part-named-like-item",
        "content-part-types",
        "part.type `output_audio`",
        outgoing=put("*", "part.type", "output_audio"),
    ),
    Mutant(
        "vendor-event",
        "no-vendor-events",
        "vendor event",
        outgoing=before("response.done", {"type": "acme.turn_metrics", "gap_ms": 12}),
    ),
    Mutant(
        "no-subprotocol",
        "subprotocol-selected",
        "No selected subprotocol",
        door=no_subprotocol,
    ),
)

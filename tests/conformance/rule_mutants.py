"""A mutant for each rule that no row of the fault table names, so that no check is idle."""

from __future__ import annotations

import json
from collections.abc import Iterable

from starlette.types import Message, Scope

from clients.connection import typed
from tests.conformance.mutants import (
    Change,
    Json,
    Mutant,
    State,
    after,
    both,
    drop,
    leave_out,
    only_if,
    put,
    swapped,
    twice,
)  # fmt: skip

DETECTION = "session.audio.input.turn_detection"
COMPLETED = "conversation.item.input_audio_transcription.completed"
STARTED = "input_audio_buffer.speech_started"
WORDS = typed("x")


def late_delta(event: Json) -> Json:
    place = {"item_id": "item_late", "output_index": 0, "content_index": 0}
    kind = "response.output_audio.delta"
    return {"type": kind, "event_id": "late", "response_id": event["response"]["id"],
            "delta": "AAAA", **place}  # fmt: skip


def asked(test: str) -> Change:
    """Client events whose JSON holds these words never arrive."""
    return lambda event, state: () if test in json.dumps(event) else (event,)


def replaced(test: str, other: Json) -> Change:
    """A client event whose JSON holds these words arrives as another."""
    return lambda event, state: (other,) if test in json.dumps(event) else (event,)


def halves(kind: str) -> Change:
    """Every second event of a type gets lost."""

    def change(event: Json, state: State) -> Iterable[Json]:
        if event["type"] != kind:
            return (event,)
        state["n"] = state.get("n", 0) + 1
        return (event,) if state["n"] % 2 else ()

    return change


def no_frame(event: Json, state: State) -> Iterable[Json]:
    """What is no JSON object never arrives."""
    return () if "frame" in event else (event,)


def no_typeless(event: Json, state: State) -> Iterable[Json]:
    return (event,) if isinstance(event.get("type", event.get("frame")), str) else ()


def no_lonely_type(event: Json, state: State) -> Iterable[Json]:
    return (event,) if len(event) > 1 else ()


def any_key(scope: Scope) -> None:
    headers = [(n, v) for n, v in scope["headers"] if n != b"authorization"]
    scope["headers"] = [*headers, (b"authorization", b"Bearer conformance-key")]


def answer(status: int | None = None, swap: tuple[bytes, bytes] = (b"", b"")) -> object:
    """An HTTP answer with another status, or with other bytes of the same length in its body."""

    def door(message: Message) -> Message:
        if message["type"] == "http.response.start" and status is not None:
            return {**message, "status": status}
        if message["type"] == "http.response.body" and swap[0]:
            return {**message, "body": message["body"].replace(*swap)}
        return message

    return door


def outgoing(name: str, check: str, change: Change) -> Mutant:
    return Mutant(name, check, outgoing=change)


def incoming(name: str, check: str, change: Change) -> Mutant:
    return Mutant(name, check, incoming=change)


DOOR = (
    outgoing("own-model", "model-echoed", put("*", "session.model", "own-model")),
    Mutant("any-key", "wrong-key-refused", scope=any_key),
    Mutant("any-secret", "client-secret-invented", scope=any_key),
    Mutant("secret-prefix", "client-secret-opens", door=answer(swap=(b'"ek_', b'"sk_'))),  # type: ignore[arg-type]
    Mutant("secret-unbounded", "client-secret-bounded", door=answer(200)),  # type: ignore[arg-type]
    outgoing("both-names", "ga-names", after(
        "response.output_text.done",
        lambda event: {**event, "type": "response.text.done", "event_id": "beta"},
    )),
    outgoing("mixed-names", "beta-names", after(
        "response.text.done",
        lambda event: {**event, "type": "response.output_text.done", "event_id": "ga"},
    )),
    outgoing("shared-items", "sessions-apart", drop("error")),
    outgoing("same-response-id", "interleaved-sessions", both(
        put("*", "response.id", "resp_1"), put("*", "response_id", "resp_1")
    )),
)  # fmt: skip

SESSION = (
    outgoing("no-voice", "session-created-whole", leave_out("*", "session.audio.output.voice")),
    outgoing("own-session-key", "session-no-unknown-keys", put("*", "session.vendor", "x")),
    outgoing("old-echo", "session-update-echoed", put("*", "session.instructions", "Be old.")),
    incoming("update-replaces", "session-update-merges", only_if(
        lambda event: "audio" in event.get("session", {}) and "tools" not in event["session"],
        put("session.update", "session.tools", []),
    )),
    outgoing("defaults-kept", "turn-detection-reseeded",
             put("*", f"{DETECTION}.silence_duration_ms", 900)),
    incoming("any-eagerness", "semantic-vad-eagerness", asked("frantic")),
    outgoing("no-g711", "formats-g711", put("*", "session.audio.input.format.type", "audio/pcm")),
    incoming("nulls-refused", "nulls-accepted", only_if(
        lambda event: event.get("session", {}).get("tools", 0) is None,
        put("session.update", "session.type", "unknown"),
    )),
    incoming("half-an-update", "wrong-setting-refused", both(
        leave_out("session.update", "session.output_modalities"), lambda event, state: (event,)
    )),
    incoming("both-modalities", "both-modalities-refused",
             leave_out("session.update", "session.output_modalities")),
)  # fmt: skip

EVENTS = (
    outgoing("no-content-index", "required-fields", leave_out("*", "content_index")),
    outgoing("null-place", "documented-nulls", put("*", "output_index", None)),
    outgoing("big-frames", "frames-under-1-mib", put("response.done", "padding", "x" * 2**20)),
)

FRAMES = (
    incoming("silent-on-text", "malformed-json", no_frame),
    incoming("silent-on-binary", "binary-frame", no_frame),
    incoming("silent-on-unknown", "unknown-event", asked("frobnicate")),
    incoming("silent-on-typeless", "missing-type", no_typeless),
    incoming("silent-on-missing", "missing-field", no_lonely_type),
    outgoing("flat-error", "error-shape", leave_out("error", "error.message")),
    outgoing("error-of-nobody", "error-names-its-cause", leave_out("error", "error.event_id")),
    incoming("lenient-base64", "bad-base64", asked("not base64")),
    incoming("half-samples", "odd-byte-count", asked('"AAAA"')),
    incoming("silent-on-depth", "deep-json", no_frame),
    outgoing("dies-of-surrogates", "lone-surrogate", drop("session.updated")),
    outgoing("every-second-error", "every-error-answered-once", halves("error")),
)  # fmt: skip

RESPONSES = (
    outgoing("done-twice", "response-brackets", twice("response.done")),
    outgoing("part-before-item", "text-reply-order",
             swapped("response.output_item.added", "response.content_part.added")),
    outgoing("transcript-before-audio", "spoken-reply-order",
             swapped("response.output_audio.done", "response.output_audio_transcript.done")),
    outgoing("item-never-done", "output-items-paired", drop("response.output_item.done")),
    outgoing("part-never-done", "content-parts-paired", drop("response.content_part.done")),
    outgoing("text-lost", "text-deltas-add-up", halves("response.output_text.delta")),
    outgoing("transcript-lost", "transcript-deltas-add-up",
             put("response.output_audio_transcript.done", "transcript", "Something else.")),
    outgoing("odd-audio", "audio-whole-samples",
             put("response.output_audio.delta", "delta", "AAAA")),
    outgoing("wrong-index", "indices-in-order", put("*", "output_index", 1)),
    outgoing("sums-wrong", "usage-adds-up", put("*", "response.usage.total_tokens", 1)),
    outgoing("output-empty", "response-done-whole", put("response.done", "response.output", [])),
    incoming("no-overrides", "response-overrides", leave_out("*", "response.output_modalities")),
    outgoing("cut-unsaid", "max-output-tokens",
             put("response.done", "response.status", "completed")),
)  # fmt: skip

OVERLAP = (
    outgoing("other-words", "cancel-idle", put("error", "error.message", "Nothing to cancel.")),
    incoming("cancel-ignored", "cancel-speaking", drop("response.cancel")),
    outgoing("delta-after-done", "cancel-is-final", after("response.done", late_delta)),
    incoming("cancels-any", "cancel-by-id", leave_out("response.cancel", "response_id")),
    incoming("second-swallowed", "one-active-response", only_if(
        lambda event: event.get("type") == "response.create" and "response" not in event,
        drop("response.create"),
    )),
    incoming("one-after-another", "out-of-band-beside", leave_out("*", "response.conversation")),
    incoming("none-never-read", "out-of-band-isolated", leave_out("*", "response.conversation")),
    outgoing("input-remembered", "out-of-band-input", drop("error")),
    incoming("references-dropped", "unknown-reference", leave_out("*", "response.input")),
)  # fmt: skip

ITEMS = (
    outgoing("all-at-the-end", "item-order", put("*", "previous_item_id", "item_last")),
    incoming("place-ignored", "item-order-unknown", leave_out("*", "previous_item_id")),
    incoming("id-overwritten", "item-id-taken", asked('"second"')),
    outgoing("item-without-words", "item-retrieve",
             put("conversation.item.retrieved", "item.content", [])),
    incoming("delete-ignored", "item-delete", replaced(
        "item.delete", {"type": "conversation.item.retrieve", "item_id": "item_gone"}
    )),
    incoming("any-item", "item-wrong-kind", replaced(
        "poem", {"type": "conversation.item.create", "item": WORDS}
    )),
    outgoing("assistant-by-input", "history-accepted", put(
        "conversation.item.added", "item.content.0.type", "input_text"
    )),
    incoming("user-must-speak-first", "greeting-first",
             replaced("Greet the caller", {"type": "nothing"})),
    incoming("truncate-ignored", "truncate-heard", drop("conversation.item.truncate")),
    outgoing("truncate-not-clamped", "truncate-overshoot", put("*", "audio_end_ms", 3_600_000)),
    incoming("truncates-anything", "truncate-wrong-item", only_if(
        lambda event: event.get("item_id") == "item_user", drop("conversation.item.truncate")
    )),
)  # fmt: skip

TOOLS = (
    incoming("choice-ignored", "tool-choice-required", leave_out("*", "response.tool_choice")),
    outgoing("call-not-added", "tool-call-order",
             leave_out("response.output_item.added", "item.call_id")),
    outgoing("arguments-broken", "tool-arguments-json",
             both(put("*", "arguments", "{day"), put("*", "delta", "{day"),
                  put("*", "item.arguments", "{day"),
                  put("*", "response.output.*.arguments", "{day"))),
    incoming("result-ignored", "tool-round-trip", asked("function_call_output")),
    incoming("tools-always", "tool-choice-none", put("*", "response.tool_choice", "required")),
    incoming("history-unchecked", "tool-history-checked", asked("{not json")),
    incoming("any-schema", "tool-wrong-schema", asked('"parameters": {}')),
)  # fmt: skip

INPUT = (
    outgoing("answers-commits", "commit-by-hand", after(
        "input_audio_buffer.committed",
        lambda event: {"type": "response.created", "event_id": "own", "response": {"id": "own"}},
    )),
    outgoing("append-acknowledged", "append-unanswered", after(
        "session.updated", lambda event: {"type": "rate_limits.updated", "event_id": "rate"},
    )),
    outgoing("other-empty-code", "commit-empty", put("error", "error.code", "invalid_value")),
    incoming("clear-ignored", "clear", drop("input_audio_buffer.clear")),
    incoming("transcribes-unasked", "transcription-off",
             put("session.update", "session.audio.input.transcription", {"model": "own"})),
    outgoing("transcript-preset", "transcript-told-once",
             put("conversation.item.added", "item.content.0.transcript", "Hello.")),
    outgoing("transcript-late", "transcript-retrieved",
             put("conversation.item.retrieved", "item.content.0.transcript", None)),
    outgoing("answers-dictation", "transcription-session", put("*", "session.type", "realtime")),
)  # fmt: skip

SPEECH = (
    outgoing("stopped-lost", "spoken-turn-order", drop("input_audio_buffer.speech_stopped")),
    outgoing("item-renamed", "spoken-turn-item",
             put("input_audio_buffer.committed", "item_id", "item_x")),
    outgoing("started-late", "semantic-vad-turn", drop(STARTED)),
    incoming("always-answers", "create-response-off", put(
        "session.update", "session.audio.input.turn_detection.create_response", True
    )),
    outgoing("transcript-of-another", "spoken-turn-transcribed",
             put(COMPLETED, "item_id", "item_x")),
    outgoing("started-after-the-cut", "barge-in", swapped(STARTED, "response.done")),
    incoming("always-interrupts", "barge-in-off", put(
        "session.update", "session.audio.input.turn_detection.interrupt_response", True
    )),
    outgoing("idle-untold", "idle-timeout", drop("input_audio_buffer.timeout_triggered")),
    outgoing("ticks", "silence-is-silent", after(
        "session.updated", lambda event: {"type": "rate_limits.updated", "event_id": "tick"},
    )),
)  # fmt: skip

# Their fault is that nothing comes: the check ends by its own patience.
BY_SILENCE = frozenset(
    """
    item-not-added no-session-created no-session-updated shared-items any-eagerness half-an-update
    both-modalities
    silent-on-text silent-on-binary silent-on-unknown silent-on-typeless silent-on-missing
    lenient-base64 half-samples silent-on-depth dies-of-surrogates every-second-error cancels-any
    second-swallowed input-remembered references-dropped place-ignored id-overwritten
    delete-ignored any-item truncate-ignored truncates-anything result-ignored history-unchecked
    any-schema clear-ignored
""".split()
)

RULE_MUTANTS = (
    *DOOR, *SESSION, *EVENTS, *FRAMES, *RESPONSES, *OVERLAP, *ITEMS, *TOOLS, *INPUT, *SPEECH,
)  # fmt: skip

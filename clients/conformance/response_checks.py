"""A response from ``response.created`` to ``response.done``: order, pairs, sums, metadata."""

from __future__ import annotations

import base64
import binascii
from collections import Counter

from clients.conformance.check import Checks, Failed, Target, expect, expect_equal, expect_order, of
from clients.conformance.line import session
from clients.conformance.turns import Reply, ask, ask_in_sound, ask_in_text

checks = Checks("responses")

TEXT_ORDER = (
    "response.created", "response.output_item.added", "conversation.item.added",
    "response.content_part.added", "response.output_text.delta", "response.output_text.done",
    "response.content_part.done", "conversation.item.done", "response.output_item.done",
    "response.done",
)  # fmt: skip
SPOKEN_ORDER = (
    "response.created", "response.output_item.added", "conversation.item.added",
    "response.content_part.added", "response.output_audio.delta", "response.output_audio.done",
    "response.output_audio_transcript.done", "response.content_part.done",
    "conversation.item.done", "response.output_item.done", "response.done",
)  # fmt: skip


@checks("response-brackets")
async def brackets(target: Target) -> None:
    """response.created is a response's first event, response.done its last: nothing follows."""
    async with session(target) as line:
        reply = await ask_in_text(line)
        await line.settle()
        own = [e for e in line.events if reply.id in (e.get("response_id"), _response_id(e))]
        kinds = [event["type"] for event in own]
        expect_equal("the first event", "response.created", kinds[0])
        expect_equal("the last event", "response.done", kinds[-1])
        expect_equal("the count of response.done", 1, kinds.count("response.done"))
        expect_equal("the count of response.created", 1, kinds.count("response.created"))


@checks("text-reply-order")
async def text_order(target: Target) -> None:
    """A text reply: item added, part added, deltas, done, part done, item done, response done."""
    async with session(target) as line:
        expect_order((await ask_in_text(line)).types, TEXT_ORDER)


@checks("spoken-reply-order")
async def spoken_order(target: Target) -> None:
    """A spoken reply: the audio is done, then its transcript, its part, its item, the response."""
    async with session(target) as line:
        reply = await ask_in_sound(line)
        expect_order(reply.types, SPOKEN_ORDER)
        kind = "response.output_audio_transcript.delta"
        expect(kind in reply.types, f"{kind} beside the audio", "none")


@checks("output-items-paired")
async def items_paired(target: Target) -> None:
    """Every output item that is added is done, in the response and in the conversation."""
    async with session(target) as line:
        reply = await ask_in_text(line)
        for pair in ("response.output_item", "conversation.item"):
            _paired(reply, pair, "item.id")


@checks("content-parts-paired")
async def parts_paired(target: Target) -> None:
    """Every content part that is added is done, at the same place."""
    async with session(target) as line:
        reply = await ask_in_sound(line)
        _paired(reply, "response.content_part", "item_id")
        _paired(reply, "response.content_part", "content_index")


@checks("content-part-types")
async def part_types(target: Target) -> None:
    """A content part's type is "text" or "audio", although the item's is "output_text" or so."""
    async with session(target) as line:
        for reply, kind in ((await ask_in_text(line), "text"), (await ask_in_sound(line), "audio")):
            for event in reply.of("response.content_part.added"):
                expect_equal("part.type", kind, of(event, "part.type"))
            for event in reply.of("response.content_part.done"):
                expect_equal("part.type", kind, of(event, "part.type"))
            item = reply.item("message")
            expect_equal("the item's content type", f"output_{kind}", of(item, "content.0.type"))


@checks("text-deltas-add-up")
async def text_adds_up(target: Target) -> None:
    """The text deltas, joined, are the text of output_text.done, the part and the item."""
    async with session(target) as line:
        reply = await ask_in_text(line)
        joined = "".join(of(e, "delta") for e in reply.of("response.output_text.delta"))
        expect(joined != "", "some text", "none")
        done = reply.of("response.output_text.done")[0]
        part = reply.of("response.content_part.done")[0]
        expect_equal("output_text.done's text", joined, of(done, "text"))
        expect_equal("content_part.done's text", joined, of(part, "part.text"))
        expect_equal("the item's text", joined, of(reply.item("message"), "content.0.text"))


@checks("transcript-deltas-add-up")
async def transcript_adds_up(target: Target) -> None:
    """The transcript deltas, joined, are the transcript of the done event and of the item."""
    async with session(target) as line:
        reply = await ask_in_sound(line)
        kind = "response.output_audio_transcript"
        joined = "".join(of(event, "delta") for event in reply.of(f"{kind}.delta"))
        expect_equal("the done transcript", joined, of(reply.of(f"{kind}.done")[0], "transcript"))
        item = reply.item("message")
        expect_equal("the item's transcript", joined, of(item, "content.0.transcript"))


@checks("audio-whole-samples")
async def whole_samples(target: Target) -> None:
    """Audio deltas are base64 of whole PCM16 samples, each a piece a client can play at once."""
    async with session(target) as line:
        reply = await ask_in_sound(line)
        for event in reply.of("response.output_audio.delta"):
            try:
                data = base64.b64decode(of(event, "delta"), validate=True)
            except (binascii.Error, TypeError, ValueError):
                raise Failed("expected base64 in an audio delta, found other text") from None
            expect(len(data) % 2 == 0 and len(data) > 0, "whole 16-bit samples", len(data))


@checks("indices-in-order")
async def indices(target: Target) -> None:
    """Events name their place: output_index counts the output, item_id is the output item's."""
    async with session(target) as line:
        reply = await ask_in_text(line)
        item_id = of(reply.item("message"), "id")
        for event in reply.events:
            if "item_id" in event and "output_index" in event:
                found = event["item_id"] == item_id and event["output_index"] == 0
                expect(found, f"{event['type']} to name the output item", event.get("item_id"))


@checks("metadata-echoed")
async def metadata_echoed(target: Target) -> None:
    """A response's metadata comes back in response.created and .done: clients match by it."""
    metadata = {"topic": "hours", "client_event_id": "7"}
    async with session(target) as line:
        reply = await ask_in_text(line, metadata=metadata)
        for event in (reply.events[0], reply.events[-1]):
            expect_equal(
                f"metadata in {event['type']}", metadata, of(event, "response").get("metadata")
            )


@checks("usage-integers")
async def usage_integers(target: Target) -> None:
    """usage holds integers throughout; at one null a client drops response.done, and hangs."""
    async with session(target) as line:
        usage = of((await ask_in_text(line)).done, "usage")
        for path in (
            "total_tokens", "input_tokens", "output_tokens", "input_token_details.text_tokens",
            "input_token_details.audio_tokens", "input_token_details.cached_tokens",
            "output_token_details.text_tokens", "output_token_details.audio_tokens",
        ):  # fmt: skip
            value = of(usage, path)
            counts = isinstance(value, int) and not isinstance(value, bool) and value >= 0
            expect(counts, f"usage.{path}, an integer", value)


@checks("usage-adds-up")
async def usage_adds_up(target: Target) -> None:
    """usage counts what was read and written: total is input plus output, and neither is zero."""
    async with session(target) as line:
        usage = of((await ask_in_text(line)).done, "usage")
        total, given, made = (of(usage, f"{k}_tokens") for k in ("total", "input", "output"))
        expect_equal("total_tokens", given + made, total)
        expect(given > 0 and made > 0, "tokens read and written", f"{given} and {made}")


@checks("response-done-whole")
async def done_whole(target: Target) -> None:
    """response.done carries the whole response: id, status, conversation, output with its words."""
    async with session(target) as line:
        reply = await ask_in_text(line)
        reply.expect_answered()
        expect_equal("object", "realtime.response", of(reply.done, "object"))
        expect(bool(of(reply.done, "conversation_id")), "a conversation_id", "none")
        item = reply.item("message")
        expect_equal("the item's status", of(reply.done, "status"), of(item, "status"))
        expect_equal("its role", "assistant", of(item, "role"))
        started = of(reply.events[0], "response")
        expect_equal("response.created's status", "in_progress", of(started, "status"))
        expect_equal("response.created's output", [], of(started, "output"))


@checks("response-overrides")
async def overrides(target: Target) -> None:
    """The fields of response.create hold for that response alone; the session keeps its own."""
    async with session(target, output_modalities=["audio"]) as line:
        reply = await ask(line, output_modalities=["text"])
        expect("response.output_text.delta" in reply.types, "a reply in text", "none")
        expect("response.output_audio.delta" not in reply.types, "no audio", "some")
        found = of(await line.update(), "output_modalities")
        expect_equal("the session's output_modalities", ["audio"], found)


@checks("max-output-tokens")
async def max_output_tokens(target: Target) -> None:
    """A reply cut at max_output_tokens ends incomplete, with that as its reason."""
    async with session(target) as line:
        reply = await ask_in_text(line, max_output_tokens=2)
        expect_equal("status", "incomplete", of(reply.done, "status"))
        reason = of(reply.done, "status_details.reason")
        expect_equal("status_details.reason", "max_output_tokens", reason)


def _paired(reply: Reply, name: str, path: str) -> None:
    added = Counter(of(event, path) for event in reply.of(f"{name}.added"))
    done = Counter(of(event, path) for event in reply.of(f"{name}.done"))
    for key, count in added.items():
        expect_equal(f"the count of {name}.done for {path} {key}", count, done[key])
    expect_equal(f"the sum of {name}.done", added.total(), done.total())


def _response_id(event: dict[str, object]) -> object:
    response = event.get("response")
    return response.get("id") if isinstance(response, dict) else None

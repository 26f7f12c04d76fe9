"""More than one thing at a time: cancel, a second response, and responses out of band."""

from __future__ import annotations

from clients.conformance.check import Checks, Json, Skipped, Target, expect, expect_equal, of
from clients.conformance.line import Line, session
from clients.conformance.turns import TELL, Reply, ask_in_text, begin, expect_answered, finish, say

checks = Checks("overlap")


async def begin_speaking(line: Line) -> str:
    """A spoken reply that has begun; returns its id. Sound takes its time, so it can be cut."""
    await say(line, TELL)
    response_id = await begin(line, output_modalities=["audio"])
    await line.until("response.output_audio.delta", where={"response_id": response_id})
    return response_id


async def cancelled(line: Line, **fields: str) -> Reply:
    """A reply that was cancelled in mid-speech. Raises: Failed, Skipped."""
    response_id = await begin_speaking(line)
    await line.send("response.cancel", **fields)
    reply = await finish(line, response_id)
    if of(reply.done, "status") == "completed":
        events = await line.settle()
        if any(of(e, "error.code") == "response_cancel_not_active" for e in _errors(events)):
            raise Skipped("the reply was over before it could be cancelled")
    return reply


async def answers_again(line: Line) -> None:
    """The conversation goes on. Raises: Failed."""
    (await ask_in_text(line)).expect_answered()


def _errors(events: list[Json]) -> list[Json]:
    return [event for event in events if event["type"] == "error"]


@checks("cancel-idle")
async def cancel_idle(target: Target) -> None:
    """A cancel with nothing to cancel is the error "Cancellation failed", and harmless."""
    async with session(target) as line:
        event_id = await line.send("response.cancel")
        error = await line.error("a cancel with nothing to cancel")
        expect_equal("error.code", "response_cancel_not_active", error.get("code"))
        message = str(error.get("message"))
        wanted = 'a message that begins with "Cancellation failed"'
        expect(message.startswith("Cancellation failed"), wanted, message)
        expect_equal("error.event_id", event_id, error.get("event_id"))
        await answers_again(line)


@checks("cancel-speaking")
async def cancel_speaking(target: Target) -> None:
    """A cancel in mid-reply ends it as cancelled by the client; what was open is closed first."""
    async with session(target) as line:
        reply = await cancelled(line)
        expect_equal("status", "cancelled", of(reply.done, "status"))
        reason = of(reply.done, "status_details.reason")
        expect_equal("status_details.reason", "client_cancelled", reason)
        item = reply.item("message")
        expect_equal("the item's status", "incomplete", of(item, "status"))
        for name in ("response.content_part", "response.output_item"):
            n_added, n_done = len(reply.of(f"{name}.added")), len(reply.of(f"{name}.done"))
            expect_equal(f"the count of {name}.done", n_added, n_done)


@checks("cancel-is-final")
async def cancel_final(target: Target) -> None:
    """Nothing of a cancelled response follows its response.done, and the next one is answered."""
    async with session(target) as line:
        reply = await cancelled(line)
        late = [e["type"] for e in await line.settle() if e.get("response_id") == reply.id]
        expect(not late, "nothing after response.done", ", ".join(late))
        await answers_again(line)


@checks("cancel-by-id")
async def cancel_by_id(target: Target) -> None:
    """A cancel that names another response does not end the one that runs."""
    async with session(target) as line:
        response_id = await begin_speaking(line)
        await line.send("response.cancel", response_id="resp_of_nobody")
        error = await line.error("a cancel of an unknown response")
        expect_equal("error.code", "response_cancel_not_active", error.get("code"))
        await line.send("response.cancel", response_id=response_id)
        reply = await finish(line, response_id)
        expect(of(reply.done, "status") != "failed", "the response to run on", "failed")


@checks("one-active-response")
async def one_active(target: Target) -> None:
    """The conversation has one response at a time: a second is refused and the first runs on."""
    async with session(target) as line:
        response_id = await begin_speaking(line)
        start = len(line.events)
        event_id = await line.send("response.create")
        error = await line.error("a second response.create")
        wanted = "conversation_already_has_active_response"
        expect_equal("error.code", wanted, error.get("code"))
        expect_equal("error.event_id", event_id, error.get("event_id"))
        expect("response.created" not in line.types(start), "no second response", "one")
        reply = await finish(line, response_id)
        reply.expect_answered()


@checks("out-of-band-beside")
async def out_of_band_beside(target: Target) -> None:
    """conversation "none" runs during the active response and is told apart by its metadata."""
    async with session(target) as line:
        first = await begin_speaking(line)
        fields: Json = {"conversation": "none", "metadata": {"topic": "side"}}
        await line.send("response.create", response={**fields, "output_modalities": ["text"]})
        created = await line.until("response.created")
        expect_equal("its metadata", {"topic": "side"}, of(created, "response").get("metadata"))
        side = of(created, "response.id")
        both = {first, side}
        while both:
            response = of(await line.until("response.done"), "response")
            expect_answered(response)
            both.discard(of(response, "id"))


@checks("out-of-band-isolated")
async def out_of_band_isolated(target: Target) -> None:
    """A response out of band has no conversation_id and leaves no item in the conversation."""
    async with session(target) as line:
        fields = {"conversation": "none", "output_modalities": ["text"]}
        await say(line, "Hello.")
        reply = await finish(line, await begin(line, **fields))
        expect_equal("conversation_id", None, reply.done.get("conversation_id"))
        item_id = of(reply.item("message"), "id")
        added = [
            of(e, "item.id") for e in line.events if e["type"].startswith("conversation.item.")
        ]
        expect(item_id not in added, "no conversation.item event for it", item_id)
        await line.send("conversation.item.retrieve", item_id=item_id)
        error = await line.error("retrieving the item of a response out of band")
        expect_equal("error.code", "item_retrieve_invalid_item_id", error.get("code"))


@checks("out-of-band-input")
async def out_of_band_input(target: Target) -> None:
    """The input of a response out of band is its context, and never enters the conversation."""
    content = [{"type": "input_text", "text": "Say a word."}]
    own: Json = {"id": "item_beside", "type": "message", "role": "user", "content": content}
    async with session(target) as line:
        await say(line, "Hello.", id="item_inside")
        given = [{"type": "item_reference", "id": "item_inside"}, own]
        fields = {"conversation": "none", "output_modalities": ["text"], "input": given}
        reply = await finish(line, await begin(line, **fields))
        reply.expect_answered()
        await line.send("conversation.item.retrieve", item_id="item_beside")
        await line.error("retrieving the input of a response out of band")


@checks("unknown-reference")
async def unknown_reference(target: Target) -> None:
    """An item_reference to an item that does not exist is an error, not an empty prompt."""
    async with session(target) as line:
        given = [{"type": "item_reference", "id": "item_of_nobody"}]
        await line.send("response.create", response={"conversation": "none", "input": given})
        await line.error("a reference to an unknown item")
        await line.is_alive()

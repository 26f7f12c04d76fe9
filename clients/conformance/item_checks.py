"""Items of the conversation: created in order, retrieved, deleted, and cut to what was heard."""

from __future__ import annotations

from clients.conformance.check import Checks, Json, Target, expect, expect_equal, of
from clients.conformance.line import Line, session
from clients.conformance.turns import ask, ask_in_sound, ask_in_text, expect_answered, say

checks = Checks("items")


def message(text: str, **fields: str) -> Json:
    content = [{"type": "input_text", "text": text}]
    return {"type": "message", "role": "user", "content": content, **fields}


async def create(line: Line, item: Json, **fields: str) -> Json:
    """``conversation.item.create``; returns the event that says it was added."""
    await line.send("conversation.item.create", item=item, **fields)
    return await line.until("conversation.item.added")


@checks("item-added-and-done")
async def added_and_done(target: Target) -> None:
    """A created item brings conversation.item.added, then .done, with the same item."""
    async with session(target) as line:
        added = await create(line, message("Hello.", id="item_mine"))
        expect_equal("the added item's id", "item_mine", of(added, "item.id"))
        expect_equal("its object", "realtime.item", of(added, "item.object"))
        done = await line.until("conversation.item.done")
        expect_equal("the done item's id", "item_mine", of(done, "item.id"))
        expect_equal("its words", "Hello.", of(done, "item.content.0.text"))


@checks("reply-enters-conversation")
async def reply_enters(target: Target) -> None:
    """A reply's item enters the conversation: conversation.item.added while it is in progress."""
    async with session(target) as line:
        reply = await ask_in_text(line)
        item = of(reply.of("conversation.item.added")[0], "item")
        expect_equal("its role", "assistant", of(item, "role"))
        expect_equal("its status", "in_progress", of(item, "status"))
        await line.send("conversation.item.retrieve", item_id=of(item, "id"))
        found = of(await line.until("conversation.item.retrieved"), "item")
        status = of(reply.item("message"), "status")
        expect_equal("its status in the end", status, of(found, "status"))


@checks("item-order")
async def item_order(target: Target) -> None:
    """previous_item_id says where: after that item, at the front for "root", else at the end."""
    async with session(target) as line:
        first = await create(line, message("one", id="item_1"))
        await create(line, message("three", id="item_3"))
        expect_equal("the first one's previous_item_id", None, first.get("previous_item_id"))
        second = await create(line, message("two", id="item_2"), previous_item_id="item_1")
        expect_equal("the second's previous_item_id", "item_1", second.get("previous_item_id"))
        front = await create(line, message("zero", id="item_0"), previous_item_id="root")
        expect_equal("the front's previous_item_id", None, front.get("previous_item_id"))
        last = await create(line, message("four", id="item_4"))
        expect_equal("the last one's previous_item_id", "item_3", last.get("previous_item_id"))


@checks("item-order-unknown")
async def order_unknown(target: Target) -> None:
    """A previous_item_id that does not exist is an error, and nothing is added."""
    async with session(target) as line:
        item = message("Hello.", id="item_lost")
        fields = {"item": item, "previous_item_id": "item_of_nobody"}
        await line.send("conversation.item.create", **fields)
        await line.error("an unknown previous_item_id")
        await line.send("conversation.item.retrieve", item_id="item_lost")
        await line.error("retrieving an item that was refused")


@checks("item-id-taken")
async def id_taken(target: Target) -> None:
    """A second item with the same id is refused, and the first stays as it was."""
    async with session(target) as line:
        await create(line, message("first", id="item_twice"))
        await line.send("conversation.item.create", item=message("second", id="item_twice"))
        error = await line.error("a second item with the same id")
        expect_equal("error.code", "item_create_duplicate_item_id", error.get("code"))
        await line.send("conversation.item.retrieve", item_id="item_twice")
        found = await line.until("conversation.item.retrieved")
        expect_equal("its words", "first", of(found, "item.content.0.text"))


@checks("item-retrieve")
async def retrieve(target: Target) -> None:
    """conversation.item.retrieve answers with the current item; unknown ids are an error."""
    async with session(target) as line:
        await create(line, message("Hello.", id="item_kept"))
        await line.send("conversation.item.retrieve", item_id="item_kept")
        found = of(await line.until("conversation.item.retrieved"), "item")
        expect_equal("its id", "item_kept", of(found, "id"))
        expect_equal("its words", "Hello.", of(found, "content.0.text"))
        await line.send("conversation.item.retrieve", item_id="item_of_nobody")
        error = await line.error("retrieving an unknown item")
        expect_equal("error.code", "item_retrieve_invalid_item_id", error.get("code"))


@checks("item-delete")
async def delete(target: Target) -> None:
    """A deleted item is gone: the server sends deleted; a retrieve or a second delete fails."""
    async with session(target) as line:
        await create(line, message("Forget me.", id="item_gone"))
        await line.send("conversation.item.delete", item_id="item_gone")
        deleted = await line.until("conversation.item.deleted")
        expect_equal("item_id", "item_gone", of(deleted, "item_id"))
        await line.send("conversation.item.retrieve", item_id="item_gone")
        await line.error("retrieving a deleted item")
        await line.send("conversation.item.delete", item_id="item_gone")
        await line.error("deleting an item twice")


@checks("item-wrong-kind")
async def wrong_kind(target: Target) -> None:
    """An item of no known type or role, or without what its type needs, is an error."""
    wrong: list[Json] = [
        {"type": "poem", "text": "Roses."},
        {"type": "message", "role": "parrot", "content": []},
        {"type": "function_call", "call_id": "call_1"},
        {"type": "function_call_output", "output": "12"},
    ]
    async with session(target) as line:
        for item in wrong:
            await line.send("conversation.item.create", item=item)
            await line.error(f"the item {item}")
        await line.is_alive()


@checks("history-accepted")
async def history_accepted(target: Target) -> None:
    """A client may bring a history, also with input_text in an assistant's message, and go on."""
    told = {"type": "message", "role": "assistant",
            "content": [{"type": "input_text", "text": "Hi, how can I help?"}]}  # fmt: skip
    async with session(target) as line:
        await say(line, "You are a guide.", "system")
        added = await create(line, told)
        content = of(added, "item.content.0.type")
        expect_equal("the content type of an assistant's message", "output_text", content)
        reply = await ask_in_text(line, "What did you say?")
        reply.expect_answered()


@checks("greeting-first")
async def greeting_first(target: Target) -> None:
    """A response without any item of the user's is answered: the agent may speak first."""
    async with session(target, output_modalities=["text"]) as line:
        await line.send("response.create", response={"instructions": "Greet the caller."})
        done = await line.until("response.done")
        expect_answered(of(done, "response"))
        reply = await ask(line, "Hello to you.")
        reply.expect_answered()


@checks("truncate-heard")
async def truncate_heard(target: Target) -> None:
    """A spoken reply is cut where the client stopped playing it, also after response.done."""
    async with session(target) as line:
        item_id = of((await ask_in_sound(line)).item("message"), "id")
        fields = {"item_id": item_id, "content_index": 0, "audio_end_ms": 40}
        await line.send("conversation.item.truncate", **fields)
        found = await line.until("conversation.item.truncated")
        for key, value in fields.items():
            expect_equal(f"truncated's {key}", value, of(found, key))


@checks("truncate-overshoot")
async def truncate_overshoot(target: Target) -> None:
    """A cut beyond the audio is clamped and acknowledged; clients overshoot by their own clocks."""
    async with session(target) as line:
        item_id = of((await ask_in_sound(line)).item("message"), "id")
        fields = {"item_id": item_id, "content_index": 0, "audio_end_ms": 3_600_000}
        await line.send("conversation.item.truncate", **fields)
        found = of(await line.until("conversation.item.truncated"), "audio_end_ms")
        clamped = isinstance(found, int) and found < 3_600_000
        expect(clamped, "audio_end_ms to be the audio's length", found)


@checks("truncate-wrong-item")
async def truncate_wrong_item(target: Target) -> None:
    """Only the audio of a spoken reply can be cut: another item, part or id is an error."""
    async with session(target) as line:
        await create(line, message("Hello.", id="item_user"))
        item_id = of((await ask_in_sound(line)).item("message"), "id")
        for wrong, index in (("item_user", 0), ("item_of_nobody", 0), (item_id, 7)):
            fields = {"item_id": wrong, "content_index": index, "audio_end_ms": 40}
            await line.send("conversation.item.truncate", **fields)
            await line.error(f"truncating part {index} of {wrong}")
        await line.is_alive()

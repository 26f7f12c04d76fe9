"""Function calls: the model asks, the client answers with the call's id, the model goes on."""

from __future__ import annotations

import json

from clients.conformance.check import (
    Checks,
    Failed,
    Json,
    Target,
    expect,
    expect_equal,
    expect_order,
    of,
)
from clients.conformance.line import session
from clients.conformance.turns import TOOL, ask_in_text, begin, call_tool, finish

checks = Checks("tools")

ORDER = (
    "response.created", "response.output_item.added", "conversation.item.added",
    "response.function_call_arguments.delta", "response.function_call_arguments.done",
    "conversation.item.done", "response.output_item.done", "response.done",
)  # fmt: skip


@checks("tool-choice-required")
async def choice_required(target: Target) -> None:
    """tool_choice "required" and a named function make the model call it, whatever was asked."""
    named = {"type": "function", "name": TOOL["name"]}
    async with session(target, tools=[TOOL]) as line:
        for choice in ("required", named):
            reply = await ask_in_text(line, "Good morning to you.", tool_choice=choice)
            kinds = [item.get("type") for item in of(reply.done, "output")]
            expect("function_call" in kinds, f"a function_call with tool_choice {choice}", kinds)


@checks("tool-call-order")
async def call_order(target: Target) -> None:
    """A call: its item is added with name and call_id, then its arguments, then it is done."""
    async with session(target) as line:
        reply = await call_tool(line)
        call = next(e for e in reply.events if e["type"] == "response.output_item.added")
        if of(call, "item.type") == "function_call":
            expect_order(reply.types, ORDER)
        for event in reply.of("response.output_item.added"):
            if of(event, "item.type") == "function_call":
                expect_equal("the added item's name", TOOL["name"], of(event, "item.name"))
                expect(bool(of(event, "item.call_id")), "a call_id in the added item", "none")


@checks("tool-arguments-named")
async def arguments_named(target: Target) -> None:
    """function_call_arguments.done carries the function's name and its call_id."""
    async with session(target) as line:
        reply = await call_tool(line)
        done = reply.of("response.function_call_arguments.done")[0]
        item = reply.item("function_call")
        expect_equal("its name", TOOL["name"], of(done, "name"))
        expect_equal("its call_id", of(item, "call_id"), of(done, "call_id"))


@checks("tool-arguments-json")
async def arguments_json(target: Target) -> None:
    """The arguments are a JSON object as text, the same in the deltas, the done event, the item."""
    async with session(target) as line:
        reply = await call_tool(line)
        kind = "response.function_call_arguments"
        joined = "".join(of(event, "delta") for event in reply.of(f"{kind}.delta"))
        arguments = of(reply.of(f"{kind}.done")[0], "arguments")
        expect_equal("the joined deltas", arguments, joined)
        expect_equal(
            "the item's arguments", arguments, of(reply.item("function_call"), "arguments")
        )
        try:
            value = json.loads(arguments)
        except (TypeError, ValueError):
            raise Failed(f"expected JSON in the arguments, found {arguments!r}") from None
        expect(isinstance(value, dict), "a JSON object in the arguments", value)


@checks("tool-round-trip")
async def round_trip(target: Target) -> None:
    """The client gives the result as function_call_output and asks again: the reply is in words."""
    async with session(target, tools=[TOOL]) as line:
        call = (await call_tool(line)).item("function_call")
        output: Json = {
            "type": "function_call_output",
            "call_id": of(call, "call_id"),
            "output": '{"open": "9 am", "close": "5 pm"}',
        }
        await line.send("conversation.item.create", item=output)
        added = await line.until("conversation.item.added")
        expect_equal("the added item's type", "function_call_output", of(added, "item.type"))
        fields = {"output_modalities": ["text"], "tool_choice": "none"}
        reply = await finish(line, await begin(line, **fields))
        reply.expect_answered()
        words = of(reply.item("message"), "content.0.text")
        expect(words != "", "words about the result", "none")


@checks("tool-choice-none")
async def choice_none(target: Target) -> None:
    """With tool_choice "none" the model answers in words, whatever tools there are."""
    async with session(target, tools=[TOOL]) as line:
        reply = await ask_in_text(line, tool_choice="none")
        kinds = [item.get("type") for item in of(reply.done, "output")]
        expect("function_call" not in kinds, "no function_call", kinds)


@checks("tool-history-checked")
async def history_checked(target: Target) -> None:
    """A function_call whose arguments are no JSON object is refused as it is created, not later."""
    wrong = {"type": "function_call", "call_id": "call_x", "name": "f", "arguments": "{not json"}
    async with session(target) as line:
        await line.send("conversation.item.create", item=wrong)
        await line.error("a function_call with arguments that are no JSON")
        reply = await ask_in_text(line, "Hello.")
        reply.expect_answered()


@checks("tool-wrong-schema")
async def wrong_schema(target: Target) -> None:
    """A tool without a name, or with a schema that is no object, is an error."""
    wrong: list[Json] = [
        {"type": "function", "parameters": {}},
        {"type": "function", "name": "f", "parameters": "none"},
    ]
    async with session(target) as line:
        for tool in wrong:
            await line.send("session.update", session={"type": "realtime", "tools": [tool]})
            await line.error(f"the tool {tool}")
        await line.is_alive()

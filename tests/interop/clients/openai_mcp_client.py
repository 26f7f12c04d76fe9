"""The stock openai package: a session names an MCP server, asks its tool, and allows a call.

openai_mcp_client.py ws://HOST:PORT http://HOST:PORT/mcp
"""

from __future__ import annotations

import asyncio
import sys

from openai import AsyncOpenAI
from openai.types import realtime as types

LIMIT_S = 30.0
URL, SHOP = sys.argv[1:]


def server(**more):
    return {"type": "mcp", "server_label": "shop", "server_url": SHOP, **more}


async def until(connection, kind, count=1):
    seen = []
    async with asyncio.timeout(LIMIT_S):
        async for event in connection:
            assert event.type != "error", event
            seen.append(event)
            if sum(one.type == kind for one in seen) == count:
                return seen
    raise AssertionError(kind)


async def ask(connection, **more):
    tools = [server(**more)]
    session = {"type": "realtime", "output_modalities": ["text"], "tools": tools}
    await connection.session.update(session=session)
    seen = await until(connection, "mcp_list_tools.completed")
    content = [{"type": "input_text", "text": "ask the shop"}]
    item = {"type": "message", "role": "user", "content": content}
    await connection.conversation.item.create(item=item)
    await connection.response.create()
    return seen


def strict(kind, item):
    """The item as the package's own type, every field of it checked."""
    return kind.model_validate(item.model_dump(exclude_unset=True))


async def called(connection):
    seen = await ask(connection, require_approval="never", allowed_tools=["price"])
    listed = [one.item for one in seen if one.type == "conversation.item.done"]
    (tools,) = [strict(types.RealtimeMcpListTools, item) for item in listed]
    assert [tool.name for tool in tools.tools] == ["price"], tools
    seen = await until(connection, "response.done", 2)
    found = {type(one).__name__ for one in seen}
    assert {
        "ResponseMcpCallArgumentsDelta", "ResponseMcpCallArgumentsDone",
        "ResponseMcpCallInProgress", "ResponseMcpCallCompleted",
    } <= found, found  # fmt: skip
    items = [one.item for one in seen if one.type == "response.output_item.done"]
    call = strict(types.RealtimeMcpToolCall, items[0])
    assert (call.output, call.error, call.server_label) == ("$4.50", None, "shop"), call
    assert seen[-1].response.output[0].content[0].text == "It is $4.50."


async def allowed(connection):
    await ask(connection)
    seen = await until(connection, "response.done")
    items = [one.item for one in seen if one.type == "response.output_item.done"]
    request = strict(types.RealtimeMcpApprovalRequest, items[0])
    answer = {"type": "mcp_approval_response", "id": "yes_1", "approve": True}
    answer["approval_request_id"] = request.id
    await connection.conversation.item.create(item=answer)
    seen = await until(connection, "response.done")
    items = [one.item for one in seen if one.type == "conversation.item.done"]
    (call,) = [strict(types.RealtimeMcpToolCall, i) for i in items if i.type == "mcp_call"]
    assert (call.output, call.approval_request_id) == ("$4.50", request.id), call
    assert seen[-1].response.output[0].content[0].text == "It is $4.50."


async def main():
    client = AsyncOpenAI(base_url=f"{URL}/v1", websocket_base_url=f"{URL}/v1", api_key="none")
    for scenario in (called, allowed):
        async with client.realtime.connect(model="voiceloop") as connection:
            await scenario(connection)
        print("passed", scenario.__name__, flush=True)


asyncio.run(main())

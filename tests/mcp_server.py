"""A real MCP server for tests, of the official package: ``python -m tests.mcp_server [PORT]``.

On its standard output, or over streamable HTTP. Its tools price things, take orders, are slow,
fail, refuse, die, and say too much.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import uvicorn
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import ToolAnnotations

PRICES = {"latte": "$4.50", "muffin": "$3.25"}


def shop() -> MCPServer[Any]:
    server: MCPServer[Any] = MCPServer("shop", log_level="ERROR")
    orders: list[str] = []

    @server.tool(description="Price of one item.", annotations=ToolAnnotations(read_only_hint=True))
    def price(item: str) -> str:
        if item.lower() not in PRICES:
            raise ToolError(f"there is no {item}")
        return PRICES[item.lower()]

    @server.tool(description="Places an order.")
    def order(item: str) -> dict[str, Any]:
        orders.append(item)
        return {"number": len(orders), "token": os.environ.get("SHOP_TOKEN", "")}

    @server.tool(description="What came beside the arguments.")
    def meta(context: Context[Any, Any]) -> dict[str, Any]:
        return dict(context.request_context.meta or {})

    @server.tool(description="Answers after so long.")
    async def slow(seconds: float) -> str:
        await anyio.sleep(seconds)
        return "done"

    @server.tool(description="Says very much.")
    def talk(n_chars: int) -> str:
        return "x" * n_chars

    @server.tool(description="Ends the server.")
    def die() -> str:
        os._exit(3)

    @server.tool(name="no.dots", description="A name that no model here can be given.")
    def dotted() -> str:
        return ""

    return server


@asynccontextmanager
async def serving(port: int) -> AsyncIterator[None]:
    """The shop over streamable HTTP at `/mcp`, in this process."""
    app = shop().streamable_http_app()
    server = uvicorn.Server(uvicorn.Config(app, port=port, log_level="error", lifespan="off"))

    async def serve() -> None:
        async with app.router.lifespan_context(app):
            await server.serve()

    task = asyncio.create_task(serve())
    try:
        while not server.started:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        yield
    finally:
        server.should_exit = server.force_exit = True
        await task


if __name__ == "__main__":
    if len(sys.argv) > 1:
        shop().run("streamable-http", port=int(sys.argv[1]))
    else:
        shop().run("stdio")

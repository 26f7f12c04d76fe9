"""Replies of the shipped agent as the server has them."""

from pathlib import Path

import pytest

from engine.recipes.measuring import measures
from engine.recipes.measuring.served_agent import ServedAgent

pytest.importorskip("llguidance", reason="the optional package llguidance is not installed")

EMBEDDED = Path(__file__).parents[3] / "engine" / "embedded"


def tool(name: str, **properties: dict[str, object]) -> dict[str, object]:
    parameters = {"type": "object", "properties": properties, "required": list(properties)}
    function = {"name": name, "description": "Price of one item.", "parameters": parameters}
    return {"type": "function", "function": function}


def test_a_call_is_bound_to_the_tool_and_what_is_said_is_said() -> None:
    served = ServedAgent(EMBEDDED / "agent", EMBEDDED / "draft")
    system = {"role": "system", "content": "You are Ava at Juniper Cafe. We are closed on Sunday."}
    tools = [tool("get_price", commodity={"enum": ["latte", "muffin"]})]
    asked = [system, {"role": "user", "content": "how much is a latte"}]
    call = measures.parse_tool_call(served.reply(asked, tools))
    assert call == {"name": "get_price", "arguments": {"commodity": "latte"}}
    said = served.reply([system, {"role": "user", "content": "are you open on sunday"}], [])
    assert "closed" in said

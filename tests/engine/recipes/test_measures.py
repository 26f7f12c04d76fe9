"""The measures of the model card on hand-made replies."""

from __future__ import annotations

import pytest

from engine.recipes.measuring import measures

TOOLS = [{"type": "function", "function": {"name": "book", "parameters": {
    "type": "object", "required": ["day", "people"],
    "properties": {"day": {"type": "string"}, "people": {"type": "integer"},
                   "note": {"type": "string"}}}}}]  # fmt: skip


@pytest.mark.parametrize(("reply", "value", "found"), [
    ("We close at 7 pm.", "7 pm", True), ("We close at 17 pm.", "7 pm", False),
    ("That's $4.50.", "$4.50", True), ("That's $4.50.", "$4", False),
    ("Two quiches, please.", "quiche", True), ("At 11:30 am.", "1:30 am", False),
    ("It's $3.", "$3", True), ("It is 9:30 a.m. on Monday", "9:30 a.m.", True),
])  # fmt: skip
def test_a_value_is_found_whole(reply: str, value: str, found: bool) -> None:
    assert measures.says(reply, value) is found


@pytest.mark.parametrize(("reply", "refused"), [
    ("Sorry, I can't help with that. Would you like to order something?", True),
    ("I'm afraid that's not something I can help with. How can I help you?", True),
    ("Sorry, I can't help with that.", False), ("The capital is Paris.", False),
    ("Sure, one latte. Anything else?", False),
])  # fmt: skip
def test_a_refusal_leads_back(reply: str, refused: bool) -> None:
    assert measures.refuses_and_redirects(reply) is refused


def test_tool_calls_are_read_and_checked() -> None:
    body = '{"name": "book", "arguments": {"day": "Friday", "people": 4}}'
    reply = f"One moment.<tool_call>{body}</tool_call>"
    call = measures.parse_tool_call(reply)
    assert call is not None and measures.fits_schema(call, TOOLS)
    assert measures.same_call(call, {"name": "book", "arguments": {"people": 4, "day": "friday"}})
    assert not measures.same_call(call, {"name": "book", "arguments": {"people": 5, "day": "x"}})
    assert measures.parse_tool_call("<tool_call>{broken</tool_call>") is None
    assert not measures.fits_schema({"name": "book", "arguments": {"day": "x"}}, TOOLS)
    assert not measures.fits_schema(
        {"name": "book", "arguments": {"day": "x", "people": "4"}}, TOOLS
    )

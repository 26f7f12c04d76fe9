"""Tools of MCP servers take no more of the context than leaves room for a conversation."""

from __future__ import annotations

from voiceloop.backends import Tool
from voiceloop.capabilities import Capabilities
from voiceloop.realtime.protocol import Protocol
from voiceloop.realtime.settings import SessionSettings


def test_tools_of_servers_are_counted_and_those_without_room_left_out() -> None:
    own = Tool("hours", "When we are open.", {"type": "object"})
    listed = tuple(
        Tool(f"tool_{n}", "word " * 60, {"type": "object"}, server_label="shop") for n in range(40)
    )
    settings = SessionSettings(tools=(own,), instructions="Be kind.")
    protocol = Protocol(settings, capabilities=Capabilities(context_tokens=1792))
    before = protocol.shown.window
    protocol.offer_tools((own, *listed))
    offered, window = protocol.settings.tools, protocol.shown.window
    assert offered[0] is own and 1 < len(offered) < 20
    assert before is not None and window is not None and before.n_tools < window.n_tools
    assert window.room(20) >= 1792 // 2 - 20
    protocol.offer_tools((own,))
    assert protocol.settings.tools == (own,)


def test_a_model_of_unknown_size_is_offered_all() -> None:
    tools = tuple(Tool(f"tool_{n}", "word " * 60, {}, server_label="shop") for n in range(40))
    protocol = Protocol(SessionSettings())
    protocol.offer_tools(tools)
    assert protocol.settings.tools == tools

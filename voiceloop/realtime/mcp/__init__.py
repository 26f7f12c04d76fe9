"""MCP servers that a session names in its settings, as the Realtime protocol has them.

Owns how they are named (`entry.py`) and the life of a call of their tools in a response
(`calls.py`). Pure: who connects to them is `call/mcp/`.
"""

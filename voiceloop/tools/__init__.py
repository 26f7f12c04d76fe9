"""Tools that do things: what the server calls for the agent, and what bounds every such call.

Owns what runs them (HTTP services, Python functions and classes in processes of their own, MCP
servers), and the deadline, retries and number of calls at once that an agent file sets for a tool.
Others may use `toolbox` and `pending`. Knows no caller, no reply and no conversation: a
call comes in with its arguments as text, and text for the model goes out. Start reading at
`toolbox.py`; then `pending.py` (the calls of one session).
"""

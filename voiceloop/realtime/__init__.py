"""The OpenAI Realtime protocol, without a socket: frames in, commands and events out.

Owns the wire's events, the session's settings, the conversation and its responses. Pure: no event
loop, no clock. Start reading at `protocol.py`, then `response.py`. A conversation is two files:
its items and what was heard of the agent's replies (`conversation.py`), and what the language model
is shown (`shown.py`).
"""

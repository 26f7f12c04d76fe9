"""The OpenAI Realtime protocol, without a socket: frames in, commands and events out.

Owns the wire's events, the session's settings, the conversation and its responses. Pure: no event
loop, no clock. Others may use `protocol`, `commands`, `settings`, `response` and `conversation`.
Start reading at `protocol.py`, then `response.py`.
"""

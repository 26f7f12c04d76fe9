"""The Realtime protocol as black-box checks of any server: ``voiceloop conformance URL``.

Each check is one rule of the protocol, written so that reading it teaches the rule. Like every
client it knows the server by the wire alone.
"""

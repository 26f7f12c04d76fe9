"""Telephones over an exchange of the operator's own: Asterisk's WebSocket channel, AudioSocket.

Owns what such an exchange says and wants to hear, and how its calls begin. What a stream is made
of is the carriers' (`carriers/stream.py`). Start reading at `door.py`.
"""

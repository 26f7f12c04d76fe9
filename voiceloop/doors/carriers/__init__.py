"""Telephones over a carrier's WebSocket: one line in several dialects.

Owns what each carrier says and wants to hear (`dialect.py`; one pure file a carrier), how it proves
itself (`signatures.py`), the call's far end over any of them (`stream.py`), and the routes
(`door.py`). Start reading at `door.py`.
"""

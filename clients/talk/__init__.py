"""``voiceloop talk``: a person at a desk who speaks with a running server.

Start reading in ``command.py``. Like every client it knows the server by the wire alone.
"""

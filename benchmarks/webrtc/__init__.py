"""Calls over WebRTC beside the same over a WebSocket, on a good line and on a bad one.

Owns the line that loses and delays (`relay`), libwebrtc as a caller (`ear`), and one call of it in
a process of its own (`call`). Start reading at `__main__.py`.
"""

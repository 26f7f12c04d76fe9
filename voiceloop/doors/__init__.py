"""Lines into a call besides the WebSocket: sound in packets of its own, events beside it.

Owns who gets in by whatever door (`entrance.py`), the routes of calls that begin over HTTP, a
call's line (`line.py`) and who sits beside it, and what such lines are made of (`rtp/`, `webrtc/`).
Telephones come over `carriers/`, `pbx/` and `sip/`. The server may use all of it. Start reading at
`webrtc/door.py`.
"""

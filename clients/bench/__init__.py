"""How fast any endpoint answers: ``voiceloop bench URL``.

A chat endpoint (http://, https://) by its first token and its tokens a second, a Realtime endpoint
(ws://, wss://) by the gap that a caller hears. Start reading at `command.py`.
"""

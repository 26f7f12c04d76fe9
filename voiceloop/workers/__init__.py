"""The processes that hold the models, and the gateway's end of each.

Owns the worker process (`worker`), the roles it drives (`roles/`), the messages on the socket, the
client that implements `voiceloop.backends` over it, and the supervisor that restarts what stops.
Others may use `supervisor`, `client` and `messages`. Start reading at `worker.py`, then
`client.py`.
"""

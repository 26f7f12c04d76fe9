"""The server process: it listens, lets calls in, and ends without cutting anybody off.

Owns the listening socket, signals, the gateway's state (`Gateway`) and the WebSocket transport.
Others may use `process.serve` (the command line) and `app.build_app` (tests, benchmarks).
Start reading at `process.py`, then `app.py`.
"""

"""One call: who speaks now, and what follows from it.

Owns the session (reader, writer, timers), turn-taking, and the replies in progress. Others may use
`session.Session` and `connection` (the transport's contract).
Start reading at `turn_taking.py`, then `session.py`.
"""

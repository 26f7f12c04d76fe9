"""One call: who speaks now, and what follows from it.

Owns the session (reader, writer, timers), turn-taking, and the replies in progress. Others may use
`session.Session`, `call.CallServices` (what a server gives it), `lifetime.Ending` (why it ends) and
`connection` (the transport's contract).
Start reading at `turn_taking.py`, then `call.py` and `session.py`.
"""

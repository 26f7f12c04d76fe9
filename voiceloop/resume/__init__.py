"""Resumes a call on another connection or server, from a signed ticket that its client holds.

Owns the snapshot of a call (`snapshot`), the ticket that carries it (`ticket`), and when a session
sends tickets or starts from one (`resumption`). The first two are pure: time is passed in. Others
may use all of it. Start reading at `resumption.py`.
"""

"""A call that goes on elsewhere: what of it a client holds, signed, and how it is taken up again.

Owns what a call is when it is written down (`snapshot`), the ticket that carries it (`ticket`), and
when a session sends tickets and takes one up (`resumption`). The first two are pure: time is passed
in. Others may use all of it. Start reading at `resumption.py`.
"""

"""A call that goes on elsewhere: what of it a client holds, signed, and how it is taken up again.

Owns what a call is when it is written down (`snapshot`) and the ticket that carries it (`ticket`).
Pure: time is passed in. Others may use both. Start reading at `ticket.py`.
"""

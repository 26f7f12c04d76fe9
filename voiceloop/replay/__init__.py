"""Kept calls played again: the caller's channel into this build, in less time than it took.

One process: a gateway without a socket, models in workers as always, and a clock that skips what
nobody computes in (`clock.py`). A replay is kept as the call was, and the two are compared
(`compare.py`). Start reading at `player.py`; `command.py` is ``voiceloop replay``.
"""

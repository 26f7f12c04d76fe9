"""A call that a person or a program drives turn by turn: ``voiceloop call start|say|events|stop``.

One process in the background holds the call; each command asks it over a socket of this user's.
Start at `held_call.py`, then `line.py`.
"""

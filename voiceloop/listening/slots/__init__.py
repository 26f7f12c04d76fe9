"""What the agent asked for, and how far the caller's answer to it has come.

Owns the kinds of answers whose end can be counted rather than guessed (a number of so many digits,
a name spelled, an address, a date). Who dictates pauses between groups, so a pause there says
little, and the count much. English, as the agents that ship. Pure. Start reading at `question.py`,
then `progress.py`. The values themselves are read in `voiceloop/slots`.
"""

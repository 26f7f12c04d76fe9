"""The sound of one reply on its way to the client: queued, faded, paced.

Owns what was sent and what was heard of it. Knows no text beyond the words that lie in a sound, and
no model. Others may use `playout` and `loudness`. Start reading at `playout.py`.
"""

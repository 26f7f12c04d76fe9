"""Speculative decoding: tokens are guessed ahead, and the engine verifies them in one pass.

Owns who guesses, how many tokens are worth guessing, and what of them stands. Start reading at
``speculation.py``.
"""

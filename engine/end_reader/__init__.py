"""Whether a caller's turn is over, read from the words by a small model: without torch.

Every installation that has the C library can do so, a plain one beside services too. Start at
`reader.py`; the forward pass is the library's (``native_pass.py``).
"""

"""Whether a caller's turn is over, read from the words by a small model: without torch.

Every installation can do so, a plain one beside services too. Others may use `reader.py`; start
there. The forward pass is the C library's (``native_pass.py``) or, where none can be had, numpy's.
"""

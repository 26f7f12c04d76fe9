"""What a long call keeps of what its language model is no longer shown.

Owns the facts of a call that are read from its transcript by rules, and their wording. Pure. Others
may use `ledger`. Start reading there, then at `reading.py`.
"""

"""Memory of a long call: facts from the part that the language model is no longer shown.

Owns the facts of a call that are read from its transcript by rules, and their wording. Pure. Others
may use `ledger`. Start reading there, then at `reading.py`.
"""

"""What a long call keeps of what its language model is no longer shown.

Owns the facts of a call that are read from its transcript by rules, their wording, and the summary
of a model, of which only what stands in the transcript is kept. Pure. Others may use `ledger` and
`summary`. Start reading at `ledger.py`, then `reading.py`.
"""

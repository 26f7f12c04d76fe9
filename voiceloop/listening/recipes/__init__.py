"""How the weights of endpointing are made: recorded and synthesized turns, features, the fit.

Owns the turns, what a recognizer and a language model make of them offline, the fitted hazards and
the operating points of each eagerness. ``python -m benchmarks.endpointing --fit`` runs it; no
server imports it and the wheel does not hold it. Start reading at `endpointing_set.py`, then
`hazard_fit.py`.
"""

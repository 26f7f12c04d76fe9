"""Hearing one caller: voice activity, words, and the end of the turn.

Owns the audio clock, the recognizer's stream, the evidence on whether the caller has finished, and
endpointing with its fitted weights (`endpointing_weights.toml`, made by `recipes/`). Others may use
`listener`, the `events` it returns, `endpointing`, `evidence` and `item_audio`.
Start reading at `listener.py`, then `endpointing.py` and `release.py`.
"""

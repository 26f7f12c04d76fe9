"""Structured answers: what the caller gave for a named slot, and whether they confirmed it.

Owns the values (numbers, letters, e-mail addresses, dates, names) that are read from words, how a
value is said back, how the caller corrects it, and the fold over the conversation that knows where
each slot stands. What a question asks for, and when its answer is complete, is `listening/slots`.
English. Pure. Start reading at `form.py`, then `values.py`.
"""

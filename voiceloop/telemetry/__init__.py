"""Measurements of the server and of each turn.

Owns the record of a turn (`record`) and the Prometheus metrics (`metrics`). Others may
use both.
Start reading at `record.py`.
"""

"""What is measured of the server and of each turn.

Owns the timeline of a turn (`timeline`) and the Prometheus metrics (`metrics`). Others may
use both.
Start reading at `timeline.py`.
"""

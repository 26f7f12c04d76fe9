"""A call kept as it was heard: both voices on one clock, and beside them what happened and why.

A call is told of by a tap (`tap.py`), which puts messages into a bounded inbox; one thread of the
process writes them (`writer.py`). What has consent from whom stands in `consent.py`, where a
sample lies in `timeline.py`, what is left out in `hidden.py`, the kept files in `shelf.py`.
Others use `recorder.Recorder`. Start reading at `tap.py`, then `timeline.py`.
"""

"""A second set of workers tried on a share of the calls: what is counted, and what follows of it.

Owns the counts of turns by variant (`turns`), the judge that compares them (`judge`, pure) and the
trial of one server (`trial`). Who gives a canary its share, this server or a cluster's directory,
asks the judge and takes the share back. Start reading at `judge.py`.
"""

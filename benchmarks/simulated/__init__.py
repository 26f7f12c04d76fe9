"""A cluster under a virtual clock: the product's own admission and pool, and fitted costs.

`python -m benchmarks.cluster_sim` runs it. Start reading at `cell.py`.
"""

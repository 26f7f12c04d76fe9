"""Owns where KV lies besides the pool: in the machine's memory, and on its disk.

Start at `host_tier.py`; which block lies where is `prefix_tree.py`'s to know.
"""

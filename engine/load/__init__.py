"""The way from a checkpoint's files to the modules that run: reading, packing, quantizing,
assembling.

Owns what only happens before the first request. Start reading at ``assembly.py``.
"""

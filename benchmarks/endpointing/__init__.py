"""Endpointing, offline: ``python -m benchmarks.endpointing`` measures what the recipe fitted."""

"""Owns steps on a GPU as graphs over `kernels`: what a step holds, the step ahead, late draws.

Start reading at ``graph_runner.py``.
"""

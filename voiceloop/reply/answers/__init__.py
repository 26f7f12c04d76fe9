"""Answers without the model: one file for each table of the agent file that gives them.

A new one is one file here, which `reply/answerers.py` finds, and the key that it reads. Start
reading at `crisis.py`.
"""

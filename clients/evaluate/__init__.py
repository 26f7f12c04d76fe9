"""Judging an agent: callers play scenarios to it, rules and perhaps a model judge what it did.

Start at `scenario.py` (what a file of scenarios says), then `command.py`.
"""

"""Calls that are made up, and dialogues that are read: what the models learn from, as words."""

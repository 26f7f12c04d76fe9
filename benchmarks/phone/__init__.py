"""Telephones: carriers and exchanges as scripted peers, and what each part of a phone call costs.

A part is a module with `async def measure(chosen) -> Part`; `__main__.py` names them.
"""

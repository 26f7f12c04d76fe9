"""The models of a server, their place on disk, and how they get there.

Owns the catalog, the presets, the cache, and the step from a configuration to running backends.
Others may use `opening.open_backends`, `preset_check` and the `voiceloop models` commands.
Start reading at `catalog.py`, then `presets.py`.
"""

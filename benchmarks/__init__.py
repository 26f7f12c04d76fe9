"""Benchmarks of VoiceLoop; each is a module with a ``--check`` that fails when a bar is missed."""

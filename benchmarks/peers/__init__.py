"""VoiceLoop beside other runtimes, on the same stubs and audio: ``python -m benchmarks.peers``."""

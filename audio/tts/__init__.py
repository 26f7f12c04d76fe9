"""Voices, one a file; each implements `audio.stream.VoiceModel`."""

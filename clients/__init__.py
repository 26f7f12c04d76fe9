"""Clients of the VoiceLoop wire: they know the server only by its protocol."""

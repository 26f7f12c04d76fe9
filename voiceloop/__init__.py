"""VoiceLoop: a real-time voice-agent runtime that answers before the silence feels like one."""

__version__ = "0.1.0"

"""Audio in and out: frames, codecs, resampling, voice activity, recognizers and voices.

Everything here is synchronous and in process; nothing imports asyncio, `engine` or `voiceloop`.
Audio inside is mono int16; recognizers and the detector run at 16 kHz, voices give 24 kHz.
"""

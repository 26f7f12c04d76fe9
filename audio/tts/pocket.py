"""Pocket TTS (Kyutai): 100M parameters, six languages, faster than real time on a CPU.

Weights CC-BY; any voice from a few seconds of recording. The streaming is `latent_voice`'s.
"""

from .latent_voice import LatentVoice


class PocketVoice(LatentVoice):
    """`LatentVoice` over a checkpoint of `pocket_tts`."""

    class_name = "PocketTTSForConditionalGeneration"

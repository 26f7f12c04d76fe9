"""Phonon (Gradium): 31M parameters, English, the smallest voice that streams by frames.

Apache-2.0. Its voices are latents of Gradium's own speaker codec, so they come stored, not from a
recording. The streaming is `latent_voice`'s.
"""

from .latent_voice import LatentVoice


class PhononVoice(LatentVoice):
    """`LatentVoice` over a checkpoint of `gradium_phonon_tts`."""

    class_name = "GradiumPhononTTSForConditionalGeneration"

"""Pocket TTS (Kyutai): 100M parameters, six languages, faster than real time on a CPU.

Weights CC-BY; any voice from a few seconds of recording. The streaming is `latent_voice`'s.
"""

from pathlib import Path

from .latent_voice import LatentVoice


class PocketVoice(LatentVoice):
    """A Hugging Face folder of `pocket_tts`, its audio tokenizer and its voices.

    folder: on disk. codec_folder: None for folder/audio_tokenizer. voices_folder: None for
    folder/voices. device: "cpu", "cuda" or "auto". seed: the same text in the same voice gives
    the same samples.

    Raises: AudioError if a package, a folder or the device is absent; it names the remedy.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        codec_folder: str | Path | None = None,
        voices_folder: str | Path | None = None,
        device: str = "auto",
        seed: int = 0,
    ) -> None:
        super().__init__(
            "PocketTTSForConditionalGeneration",
            Path(folder),
            codec_folder=None if codec_folder is None else Path(codec_folder),
            voices_folder=None if voices_folder is None else Path(voices_folder),
            device=device,
            seed=seed,
        )

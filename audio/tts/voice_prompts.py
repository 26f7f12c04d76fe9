"""The voices of a latent model on disk: recordings, latents or stored keys, one a file.

`voices/NAME.safetensors` holds either one tensor of voice latents [n_frames, width], or the keys
and values of a voice's prompt, one tensor a layer whose name has the layer's number and "key" or
"value". `voices/NAME.wav` is a recording, encoded by the codec where it has an encoder.
"""

import re
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import AudioError
from .latent_model import LatentModel, VoicePrefix

STORED_KEY = re.compile(r"(\d+)\D*(key|value)")
LONGEST_RECORDING_S = 30.0


class VoicePrompts:
    """The files of a voices folder; the keys of each are computed at its first use and kept.

    Raises: AudioError if the folder holds no voice.
    """

    def __init__(self, torch: Any, folder: Path, model: LatentModel, codec_model: Any) -> None:
        self._torch = torch
        self._model = model
        self._codec_model = codec_model
        files = sorted([*folder.glob("*.safetensors"), *folder.glob("*.wav")])
        # A checkpoint with one voice of its own keeps it beside its weights.
        files = files or sorted(folder.parent.glob("*-voice.safetensors"))
        if not files:
            raise AudioError(
                f"expected voices (*.safetensors or *.wav) in {folder}, found none; "
                "remedy: voiceloop models pull NAME, or put a recording of 5 to 15 s there"
            )
        self._files = {path.stem: path for path in reversed(files)}  # tensors before recordings
        self.names = tuple(sorted(self._files))
        self._prefixes: dict[str, VoicePrefix] = {}

    def prefix(self, name: str) -> VoicePrefix:
        """Raises: AudioError if the voice's file cannot be read, or is of another model."""
        if name not in self._prefixes:
            path = self._files[name]
            if path.suffix == ".wav":
                self._prefixes[name] = self._model.voice_prefix(self._encode(path))
            else:
                self._prefixes[name] = self._load(path)
        return self._prefixes[name]

    def _load(self, path: Path) -> VoicePrefix:
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        try:
            tensors = load_file(str(path))
        except (OSError, SafetensorError) as error:
            raise AudioError(f"expected a safetensors file at {path}, found: {error}") from error
        stored: dict[str, dict[int, Any]] = {"key": {}, "value": {}}
        for name, tensor in tensors.items():
            match = STORED_KEY.search(name)
            if match is not None:
                stored[match.group(2)][int(match.group(1))] = tensor
        if stored["key"] and stored["key"].keys() == stored["value"].keys():
            layers = sorted(stored["key"])
            keys, values = (
                self._torch.stack([_without_batch(stored[kind][layer]) for layer in layers])
                for kind in ("key", "value")
            )
            return self._model.check_prefix(keys, values)
        if len(tensors) == 1:
            return self._model.voice_prefix(_without_batch(next(iter(tensors.values()))))
        raise AudioError(
            f"expected one tensor of latents, or keys and values by layer, in {path}, "
            f"found {', '.join(sorted(tensors)[:4]) or 'no tensor'}"
        )

    def _encode(self, path: Path) -> Any:
        """A recording's latents [n_frames, latent_dim]."""
        import soundfile

        from ..resample import Resampler

        codec = self._codec_model
        if codec.encoder is None:
            raise AudioError(
                f"expected a codec with an encoder for the recording {path}, found one without; "
                "remedy: use a voice stored as latents"
            )
        try:
            wave, rate_hz = soundfile.read(str(path), dtype="int16", always_2d=True)
        except (OSError, RuntimeError) as error:
            raise AudioError(f"expected a WAV file at {path}, found: {error}") from error
        samples = wave[: round(LONGEST_RECORDING_S * rate_hz), 0]
        resampler = Resampler(rate_hz, codec.config.sampling_rate)
        samples = np.concatenate((resampler.push(samples), resampler.flush()))
        frame = codec.config.frame_size
        padded = np.zeros(-(-max(1, len(samples)) // frame) * frame, np.float32)
        padded[: len(samples)] = samples / np.float32(32768.0)
        weight = codec.latent_proj.weight
        inputs = self._torch.from_numpy(padded)[None, None].to(weight.device, weight.dtype)
        with self._torch.inference_mode():
            return codec.encode(inputs).latents[0].float()


def _without_batch(tensor: Any) -> Any:
    return tensor[0] if tensor.ndim in (3, 4) and tensor.shape[0] == 1 else tensor

"""Moonshine, the one that does not stream, as a Hugging Face folder: English, in torch.

The same networks as in `onnx_network` from the files their authors publish, for a GPU, and for
sizes that lie in no package. Attention sees the whole window, so each is encoded by itself, at its
exact length: silence that filled it would be heard.
"""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...checkpoint import load_checkpoint, torch_device
from ...errors import AudioError
from ..speech_level import VoicedLevel
from ..window_recognizer import WindowRecognizer
from .decoder import HELD_BACK, N_EARLY, UPDATE_MS, MoonshineDecoder
from .vocabulary import N_LOGITS


class MoonshineTorchRecognizer(WindowRecognizer):
    """A Hugging Face folder of `moonshine`, with its tokenizer.json.

    folder: on disk. device: "cpu", "cuda" or "auto". update_ms: how much new audio makes a partial
    due.

    Raises: AudioError if a package, the folder, a file or the device is absent; it names the
    remedy.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        device: str = "auto",
        update_ms: float = UPDATE_MS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        network = TorchNetwork(Path(folder), device)
        super().__init__(
            MoonshineDecoder(network, Path(folder)),
            update_ms=update_ms,
            n_early=N_EARLY,
            n_held_back=HELD_BACK,
            level=VoicedLevel,
            clock=clock,
        )


class TorchNetwork:
    """`MoonshineNetwork` of a Hugging Face folder."""

    def __init__(self, folder: Path, device: str) -> None:
        self._torch, self._device = torch_device(device, "Moonshine")
        model = load_checkpoint("MoonshineForConditionalGeneration", folder)
        if model.config.vocab_size != N_LOGITS:
            raise AudioError(
                f"expected a Moonshine of {N_LOGITS} tokens in {folder}, "
                f"found one of {model.config.vocab_size}"
            )
        self._model = model.to(self._device).eval()

    def encode(self, wave: NDArray[np.float32]) -> Any:
        with self._torch.inference_mode():
            inputs = self._torch.from_numpy(wave)[None].to(self._device, self._model.dtype)
            return self._model.model.encoder(inputs).last_hidden_state

    def rows(self, context: Any) -> NDArray[np.float32]:
        rows: NDArray[np.float32] = context[0].float().cpu().numpy()
        return rows

    def step(
        self, context: Any, states: Any, tokens: Sequence[int]
    ) -> tuple[NDArray[np.float32], Any]:
        with self._torch.inference_mode():
            output = self._model.model.decoder(
                input_ids=self._torch.tensor([list(tokens)], device=self._device),
                encoder_hidden_states=context,
                past_key_values=states,
                use_cache=True,
            )
            logits = self._model.proj_out(output.last_hidden_state[0])
            return logits.float().cpu().numpy(), output.past_key_values

    def cut_back(self, states: Any, n_tokens: int) -> Any:
        own = states.self_attention_cache
        own.crop(n_tokens - own.get_seq_length())  # below 0: so many fewer
        return states

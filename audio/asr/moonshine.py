"""Moonshine streaming as a recognizer: small models for CPUs, one language a checkpoint.

The encoder sees a sliding window of sound (320 ms back, 80 ms ahead) and costs what the speech
lasts, no 30 s of padding; the decoder writes the words anew with each update, so the streaming is
`window_recognizer`'s. Windows of several streams are encoded as one batch and decoded one after
the other with a key-value cache.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..checkpoint import load_checkpoint, torch_device
from ..frames import RECOGNIZER_HZ
from .local_agreement import HypothesisWord
from .window_decoder import DecodedWindow, DecodeRequest, max_new_tokens, proportional_spans
from .window_recognizer import WindowRecognizer

UPDATE_MS = 250.0
# A window is filled with silence to whole buckets, so that windows of several streams share a
# batch without padding of different lengths, which the encoder's convolutions would let through.
BUCKET = RECOGNIZER_HZ // 2
WORD_MARK = "\u2581"  # SentencePiece's sign of the space before a word


class MoonshineRecognizer(WindowRecognizer):
    """A Hugging Face folder of `moonshine_streaming`.

    folder: on disk. device: "cpu", "cuda" or "auto". language: what the checkpoint was trained
    on, its folder does not say. update_ms: how much new audio makes a partial due.

    Raises: AudioError if a package, the folder or the device is absent; it names the remedy.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        device: str = "auto",
        language: str = "en",
        update_ms: float = UPDATE_MS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        decoder = MoonshineDecoder(Path(folder), device, language)
        super().__init__(decoder, update_ms=update_ms, clock=clock)


class MoonshineDecoder:
    """The model over one window; hotwords and earlier text are not known to it."""

    def __init__(self, folder: Path, device: str, language: str) -> None:
        self._torch, self._device = torch_device(device, "Moonshine")
        model = load_checkpoint("MoonshineStreamingForConditionalGeneration", folder)
        self._model = model.to(self._device).eval()
        self._tokenizer = load_checkpoint("MoonshineStreamingProcessor", folder).tokenizer
        self._specials = frozenset(self._tokenizer.all_special_ids)
        config = model.config
        self.languages = (language,)
        self._start: int = config.decoder_start_token_id or config.bos_token_id
        end = config.eos_token_id
        self._ends = frozenset(end if isinstance(end, list) else [end])

    def encode_text(self, text: str) -> tuple[int, ...]:
        return ()

    def decode(self, requests: Sequence[DecodeRequest]) -> list[DecodedWindow]:
        results: dict[int, DecodedWindow] = {}
        groups: dict[int, list[int]] = defaultdict(list)
        for i, request in enumerate(requests):
            groups[-(-max(1, len(request.samples)) // BUCKET)].append(i)
        with self._torch.inference_mode():
            for n_buckets, members in groups.items():
                encoded = self._encode([requests[i] for i in members], n_buckets * BUCKET)
                for row, i in enumerate(members):
                    results[i] = self._decode(requests[i], encoded[row : row + 1])
        return [results[i] for i in range(len(requests))]

    def _encode(self, requests: Sequence[DecodeRequest], n_samples: int) -> Any:
        """Encoder rows [batch, n_samples / 320, hidden] of windows with silence behind them."""
        torch = self._torch
        waves = np.zeros((len(requests), n_samples), np.float32)
        for row, request in enumerate(requests):
            waves[row, : len(request.samples)] = request.samples / np.float32(32768.0)
        inputs = torch.from_numpy(waves).to(self._device, self._model.dtype)
        # Without a mask the encoder would look at the whole window instead of its sliding one.
        mask = torch.ones(inputs.shape, dtype=torch.long, device=self._device)
        return self._model.model.encoder(inputs, attention_mask=mask).last_hidden_state

    def _decode(self, request: DecodeRequest, encoded: Any) -> DecodedWindow:
        torch, model = self._torch, self._model
        forced = [token for word in request.prefix for token in word.tokens]
        ids = torch.tensor([[self._start, *forced]], device=self._device)
        cache, tokens = None, list[int]()
        while len(tokens) + len(forced) < max_new_tokens(request):
            output = model.model.decoder(
                input_ids=ids,
                encoder_hidden_states=encoded.clone(),  # the decoder adds positions in place
                past_key_values=cache,
                use_cache=True,
            )
            cache = output.past_key_values
            token = int(model.proj_out(output.last_hidden_state[:, -1]).argmax())
            if token in self._ends:
                break
            tokens.append(token)
            ids = torch.tensor([[token]], device=self._device)
        tail = self._words(tokens)
        if not request.with_times:
            return DecodedWindow(tail)
        spoken = (*request.prefix, *tail)
        return DecodedWindow(tail, proportional_spans(spoken, len(request.samples)))

    def _words(self, tokens: Sequence[int]) -> tuple[HypothesisWord, ...]:
        groups: list[list[int]] = []
        for token in tokens:
            if token in self._specials:
                continue
            piece = self._tokenizer.convert_ids_to_tokens(token) or ""
            if not groups or piece.startswith(WORD_MARK):
                groups.append([])
            groups[-1].append(token)
        words = [HypothesisWord(self._tokenizer.decode(g).strip(), tuple(g)) for g in groups]
        return tuple(word for word in words if word.text)

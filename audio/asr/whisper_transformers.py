"""Whisper through transformers: the fallback where CTranslate2 finds no CUDA libraries it knows.

Encodes the windows of all streams as one batch and decodes each greedily with a key-value cache.
transformers' encoder takes exactly 30 s, so short windows cost as much as long ones here. Word
times are proportional to the words' lengths: no alignment heads are read.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..checkpoint import load_checkpoint, torch_device
from .whisper_decoder import (
    PADDED_FRAMES,
    WhisperText,
    mel_features,
    start_tokens,
)
from .window_decoder import DecodedWindow, DecodeRequest, max_new_tokens, proportional_spans


class TransformersDecoder:
    """A Hugging Face folder of Whisper on torch.

    Raises: AudioError if torch or transformers is absent, the folder is no Whisper, or the device
    is not there.
    """

    def __init__(self, folder: Path, device: str) -> None:
        from faster_whisper.feature_extractor import FeatureExtractor

        self._torch, on = torch_device(device, "Whisper")
        self.device: str = on.type
        dtype = self._torch.float16 if self.device == "cuda" else self._torch.float32
        self._text = WhisperText(folder)
        self.languages = self._text.languages
        model = load_checkpoint("WhisperForConditionalGeneration", folder, dtype=dtype)
        self._model = model.to(on).eval()
        self._features = FeatureExtractor(feature_size=model.config.num_mel_bins)
        begin = model.generation_config.begin_suppress_tokens or []
        self._never = self._mask(model.generation_config.suppress_tokens or [], specials=True)
        self._never_first = self._mask(begin, specials=False)

    def encode_text(self, text: str) -> tuple[int, ...]:
        return self._text.encode(text)

    def decode(self, requests: Sequence[DecodeRequest]) -> list[DecodedWindow]:
        torch = self._torch
        features = np.stack(
            [mel_features(self._features, r.samples, PADDED_FRAMES[-1]) for r in requests]
        )
        with torch.inference_mode():
            mels = torch.from_numpy(features).to(self.device, self._model.dtype)
            encoded = self._model.model.encoder(mels).last_hidden_state
            return [
                self._decode_one(request, encoded[i : i + 1]) for i, request in enumerate(requests)
            ]

    def _decode_one(self, request: DecodeRequest, encoded: Any) -> DecodedWindow:
        torch = self._torch
        n_prefix = sum(len(word.tokens) for word in request.prefix)
        ids = torch.tensor([start_tokens(self._text, request)], device=self.device)
        cache, tokens = None, list[int]()
        while len(tokens) + n_prefix < max_new_tokens(request):
            output = self._model(
                encoder_outputs=(encoded,),
                decoder_input_ids=ids,
                past_key_values=cache,
                use_cache=True,
            )
            cache = output.past_key_values
            logits = output.logits[0, -1].float() + self._never
            if not tokens and not n_prefix:
                logits = logits + self._never_first
            token = int(logits.argmax())
            if token == self._text.end_of_text:
                break
            tokens.append(token)
            ids = torch.tensor([[token]], device=self.device)
        tail = self._text.words(tokens, request.language)
        if not request.with_times:
            return DecodedWindow(tail)
        return DecodedWindow(
            tail, proportional_spans((*request.prefix, *tail), len(request.samples))
        )

    def _mask(self, tokens: Sequence[int], *, specials: bool) -> Any:
        """float32 [vocabulary]: -inf at tokens, and at every special one but the end of text."""
        mask = self._torch.zeros(self._model.config.vocab_size, device=self.device)
        mask[list(tokens)] = float("-inf")
        if specials:
            mask[self._text.end_of_text + 1 :] = float("-inf")
        return mask

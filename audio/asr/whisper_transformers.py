"""Whisper through transformers: the fallback where CTranslate2 finds no CUDA libraries it knows.

The windows of all streams are one batch, encoded and decoded greedily with a key-value cache.
transformers' encoder takes exactly 30 s, so short windows cost as much as long ones here. Word
times are proportional to the words' lengths: no alignment heads are read.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..checkpoint import load_checkpoint, torch_device
from ..errors import MissingExtra
from .whisper_decoder import (
    PADDED_FRAMES,
    WhisperText,
    mel_features,
    start_tokens,
    without_loop,
)
from .window_decoder import (
    MAX_BATCH,
    DecodedWindow,
    DecodeRequest,
    max_new_tokens,
    proportional_spans,
)


class TransformersDecoder:
    """A Hugging Face folder of Whisper on torch.

    Raises: AudioError if torch or transformers is absent, the folder is no Whisper, or the device
    is not there.
    """

    max_batch = MAX_BATCH

    def __init__(self, folder: Path, device: str) -> None:
        try:
            from faster_whisper.feature_extractor import FeatureExtractor
        except ImportError:
            raise MissingExtra("faster-whisper", "Whisper", "whisper") from None
        self._torch, on = torch_device(device, "Whisper")
        self.device = str(on)
        dtype = self._torch.float16 if on.type == "cuda" else self._torch.float32
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
            tokens = self._decode_batch(requests, encoded)
        return [self._window(request, said) for request, said in zip(requests, tokens, strict=True)]

    def _decode_batch(self, requests: Sequence[DecodeRequest], encoded: Any) -> list[list[int]]:
        """The greedy tokens behind each request's start; encoded [n_requests, 1500, size].

        Starts differ in length, so they stand against the right with a mask on their left, and
        positions count from each row's own first token: a row's words do not depend on the others.
        """
        torch = self._torch
        starts = [start_tokens(self._text, request) for request in requests]
        n_longest = max(map(len, starts))
        pads = torch.tensor([n_longest - len(start) for start in starts], device=self.device)
        rows = [[self._text.end_of_text] * (n_longest - len(start)) + start for start in starts]
        ids = torch.tensor(rows, device=self.device)
        columns = torch.arange(n_longest, device=self.device)
        last = self._model.config.max_target_positions - 1
        positions = (columns - pads[:, None]).clamp(0, last)
        mask = (columns >= pads[:, None]).long()
        budgets = [_n_tokens_left(request) for request in requests]
        said: list[list[int]] = [[] for _ in requests]
        active = {row for row, budget in enumerate(budgets) if budget > 0}
        has_prefix = torch.tensor([bool(r.prefix) for r in requests], device=self.device)
        first = torch.where(has_prefix[:, None], 0.0, self._never_first)
        cache = None
        while active:
            output = self._model(
                encoder_outputs=(encoded,),
                decoder_input_ids=ids,
                decoder_attention_mask=mask,
                decoder_position_ids=positions,
                past_key_values=cache,
                use_cache=True,
            )
            logits = output.logits[:, -1].float() + self._never
            if cache is None:
                logits = logits + first
            cache = output.past_key_values
            ids = logits.argmax(dim=-1, keepdim=True)
            for row in list(active):
                token = int(ids[row, 0])
                if token != self._text.end_of_text:
                    said[row].append(token)
                if token == self._text.end_of_text or len(said[row]) >= budgets[row]:
                    active.discard(row)
            # A row that has ended stands still while others are decoded, and must not run out.
            positions = (positions[:, -1:] + 1).clamp(max=last)
            mask = torch.cat((mask, mask.new_ones(len(requests), 1)), dim=1)
        return said

    def _window(self, request: DecodeRequest, tokens: list[int]) -> DecodedWindow:
        prefix = [token for word in request.prefix for token in word.tokens]
        tail = self._text.words(without_loop([*prefix, *tokens])[len(prefix) :], request.language)
        if not request.with_times:
            return DecodedWindow(tail)
        return DecodedWindow(tail, proportional_spans((*request.prefix, *tail), request.samples))

    def _mask(self, tokens: Sequence[int], *, specials: bool) -> Any:
        """float32 [vocabulary]: -inf at tokens, and at every special one but the end of text."""
        mask = self._torch.zeros(self._model.config.vocab_size, device=self.device)
        mask[list(tokens)] = float("-inf")
        if specials:
            mask[self._text.end_of_text + 1 :] = float("-inf")
        return mask


def _n_tokens_left(request: DecodeRequest) -> int:
    return max_new_tokens(request) - sum(len(word.tokens) for word in request.prefix)

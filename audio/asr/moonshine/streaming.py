"""Moonshine streaming as a recognizer: small models for CPUs, one language a checkpoint.

Each layer of the encoder sees a sliding window of sound (320 ms back, 80 ms ahead), so what it
made of a window stays true while more comes behind it: only the last two seconds or so are encoded
again with an update. The decoder writes the words anew, so the streaming is `window_recognizer`'s.
Windows of several streams are encoded as one batch and decoded one after the other with a
key-value cache.
"""

import time
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...checkpoint import load_checkpoint, torch_device
from ...frames import RECOGNIZER_HZ
from ..local_agreement import HypothesisWord
from ..window_decoder import (
    MAX_BATCH,
    DecodedWindow,
    DecodeRequest,
    max_new_tokens,
    proportional_spans,
)
from ..window_recognizer import WindowRecognizer

UPDATE_MS = 250.0
# A window is filled with silence to whole buckets, so that windows of several streams share a
# batch without padding of different lengths, which the encoder's convolutions would let through.
BUCKET_ROWS = 25
ROW = RECOGNIZER_HZ // 50  # samples of an encoder row: 20 ms, four frames of 5 ms
FRAME = ROW // 4
CONVOLUTION_ROWS = 3  # rows back that the two convolutions before the layers see
MAX_KEPT = 32  # windows whose rows are kept: far more than callers a CPU serves
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
        decoder = MoonshineStreamingDecoder(Path(folder), device, language)
        super().__init__(decoder, update_ms=update_ms, clock=clock)


class MoonshineStreamingDecoder:
    """The model over one window; hotwords and earlier text are not known to it."""

    max_batch = MAX_BATCH

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
        windows = config.encoder_config.sliding_windows
        self._rows_back = CONVOLUTION_ROWS + sum(back - 1 for back, _ in windows)
        self._rows_ahead = sum(max(0, ahead - 1) for _, ahead in windows)
        self._kept: OrderedDict[str, Any] = OrderedDict()  # final rows [n, hidden] by window

    def encode_text(self, text: str) -> tuple[int, ...]:
        return ()

    def decode(self, requests: Sequence[DecodeRequest]) -> list[DecodedWindow]:
        with self._torch.inference_mode():
            encoded = self._encode(requests)
            return [self._decode(r, rows) for r, rows in zip(requests, encoded, strict=True)]

    def _encode(self, requests: Sequence[DecodeRequest]) -> list[Any]:
        """Encoder rows [1, n, hidden] of each window, silence filling its last bucket."""
        torch = self._torch
        kept = [self._kept.get(request.window_id) for request in requests]
        starts = [self._first_row(rows) for rows in kept]
        totals = [_bucket_rows(len(request.samples)) for request in requests]
        groups: dict[int, list[int]] = defaultdict(list)
        for i, (start, total) in enumerate(zip(starts, totals, strict=True)):
            groups[total - start].append(i)
        encoded: list[Any] = [None] * len(requests)
        for n_rows, members in groups.items():
            waves = np.zeros((len(members), n_rows * ROW), np.float32)
            for row, i in enumerate(members):
                samples = requests[i].samples[starts[i] * ROW :]
                waves[row, : len(samples)] = samples / np.float32(32768.0)
            fresh = self._encode_waves(waves)
            for row, i in enumerate(members):
                rows, known = fresh[row], kept[i]
                if known is not None and starts[i] > 0:
                    rows = torch.cat((known, rows[len(known) - starts[i] :]))
                self._keep(requests[i], rows)
                encoded[i] = rows[None]
        return encoded

    def _encode_waves(self, waves: NDArray[np.float32]) -> Any:
        inputs = self._torch.from_numpy(waves).to(self._device, self._model.dtype)
        # Without a mask the encoder would look at the whole window instead of its sliding one.
        mask = self._torch.ones(inputs.shape, dtype=self._torch.long, device=self._device)
        return self._model.model.encoder(inputs, attention_mask=mask).last_hidden_state

    def _first_row(self, kept: Any) -> int:
        """Where to encode from, a whole bucket: all rows behind the kept ones come out right."""
        if kept is None:
            return 0
        return max(0, len(kept) - self._rows_back) // BUCKET_ROWS * BUCKET_ROWS

    def _keep(self, request: DecodeRequest, rows: Any) -> None:
        """Keeps the rows that sound still to come cannot change."""
        if not request.window_id:
            return
        n_final = (len(request.samples) - FRAME) // ROW + 1 - self._rows_ahead
        self._kept[request.window_id] = rows[: max(0, n_final)]
        self._kept.move_to_end(request.window_id)
        while len(self._kept) > MAX_KEPT:
            self._kept.popitem(last=False)

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
        return DecodedWindow(tail, proportional_spans(spoken, request.samples))

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


def _bucket_rows(n_samples: int) -> int:
    """Encoder rows of a window filled to whole buckets."""
    return -(-max(1, n_samples) // (BUCKET_ROWS * ROW)) * BUCKET_ROWS

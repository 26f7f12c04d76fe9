"""VITS through transformers (MMS voices and their like), decoded in chunks.

Encoder, durations and flow run over a whole fragment at once (cheap, and the noise is sampled
once); the HiFi-GAN decoder, which costs most, runs in chunks that equal the whole decode (see
`hifigan`). Chunks of several streams share a batch where their lengths agree. Word times come
from the model's own durations.
"""

import zlib
from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..checkpoint import load_checkpoint, torch_device
from ..frames import duration_ms
from ..stream import Event, failed
from .hifigan import HifiGanShape, chunk_bounds
from .reply import Fragment, Reply, Waveform, WordSpan, proportional_spans
from .reply_voice import ReplyVoice

MAX_BATCH = 16


@dataclass(slots=True)
class _Decode:
    """A fragment under way: latents [1, flow_size, n_frames] and the chunks still to decode."""

    latents: Any
    speaker: Any
    chunks: deque[tuple[int, int]]
    spans: Sequence[WordSpan]


class VitsVoice(ReplyVoice[_Decode]):
    """A Hugging Face folder of `VitsModel` and its tokenizer.

    folder: on disk. device: "cpu", "cuda" or "auto". seed: the same text in the same voice gives
    the same samples.

    Raises: AudioError if a package, the folder or the device is absent; it names the remedy.
    """

    def __init__(self, folder: str | Path, *, device: str = "auto", seed: int = 0) -> None:
        self._torch, self._device = torch_device(device, "a VITS voice")
        self._model = load_checkpoint("VitsModel", Path(folder)).to(self._device).eval()
        self._tokenizer = load_checkpoint("VitsTokenizer", Path(folder))
        config = self._model.config
        self._shape = HifiGanShape(
            tuple(config.upsample_rates),
            tuple(config.upsample_kernel_sizes),
            tuple(config.resblock_kernel_sizes),
            tuple(tuple(dilations) for dilations in config.resblock_dilation_sizes),
        )
        self._seed = seed
        n_speakers = config.num_speakers
        voices = tuple(str(i) for i in range(n_speakers)) if n_speakers > 1 else ("default",)
        super().__init__(voices, config.sampling_rate)
        self._decoder = self._model.decoder
        # The model's own forward then ends with the latents; we decode them in chunks.
        self._model.decoder = _latents_only(self._torch)

    def step(self) -> list[Event]:
        """One chunk of every stream that has text."""
        events = self._take_up()
        groups: dict[int, list[str]] = defaultdict(list)
        for stream_id, decode in self._under_way.items():
            low, high = self._run(decode)
            groups[high - low].append(stream_id)
        for members in groups.values():
            for i in range(0, len(members), MAX_BATCH):
                events += self._decode_chunks(members[i : i + MAX_BATCH])
        return events

    def _begin(self, fragment: Fragment, reply: Reply) -> list[Event]:
        decode = self._latents(fragment, reply)
        if decode is not None:
            self._under_way[reply.stream_id] = decode
        return []

    def _latents(self, fragment: Fragment, reply: Reply) -> _Decode | None:
        """None if the model's alphabet has none of the fragment's characters."""
        torch = self._torch
        ids = self._tokenizer(fragment.text, return_tensors="pt").input_ids.to(self._device)
        if ids.shape[1] <= 1:
            return None
        speaker_id = int(reply.voice) if len(self.voices) > 1 else None
        durations: list[Any] = []
        hook = self._model.duration_predictor.register_forward_hook(
            lambda module, inputs, output: durations.append(output)
        )
        rate = self._model.config.speaking_rate * reply.speed
        devices = [self._device] if self._device.type == "cuda" else []
        try:
            with torch.inference_mode(), torch.random.fork_rng(devices=devices):
                torch.manual_seed(self._seed ^ zlib.crc32(fragment.text.encode()))
                output = self._model(ids, speaker_id=speaker_id, speaking_rate=rate)
        finally:
            hook.remove()
        frames = torch.ceil(torch.exp(durations[0]) / rate).flatten().tolist()
        n_frames = int(output.spectrogram.shape[-1])
        return _Decode(
            output.spectrogram,
            self._model.decoder.conditioning,
            deque(chunk_bounds(n_frames)),
            self._word_spans(fragment, frames, n_frames),
        )

    def _word_spans(
        self, fragment: Fragment, token_frames: Sequence[float], n_frames: int
    ) -> list[WordSpan]:
        """When each word is spoken, from the frames of each token."""
        prepare = self._tokenizer.prepare_for_tokenization
        lengths = []
        if not self._tokenizer.phonemize:
            lengths = [len(prepare(word.text)[0]) for word in fragment.words]
        blank = 2 if self._tokenizer.add_blank else 1
        n_characters = sum(lengths) + len(lengths) - 1
        has_all = all(lengths) and n_characters * blank + blank - 1 == len(token_frames)
        if not has_all:
            total_ms = duration_ms(n_frames * self._shape.hop, self._model_hz)
            return proportional_spans(fragment.words, total_ms)
        ends = np.concatenate(([0.0], np.cumsum(token_frames))) * self._shape.hop
        spans, at = [], 0
        for word, length in zip(fragment.words, lengths, strict=True):
            first, last = at * blank, (at + length) * blank
            start_ms, end_ms = (1000.0 * ends[i] / self._model_hz for i in (first, last))
            spans.append(WordSpan(word, float(start_ms), float(end_ms)))
            at += length + 1
        return spans

    def _run(self, decode: _Decode) -> tuple[int, int]:
        """The frames to decode for the next chunk, margins included."""
        low, high = self._shape.frames_needed(*decode.chunks[0])
        return max(0, low), min(int(decode.latents.shape[-1]), high)

    def _decode_chunks(self, members: list[str]) -> list[Event]:
        """The next chunk of each member; all their runs are equally long."""
        torch, hop = self._torch, self._shape.hop
        decodes = [self._under_way[stream_id] for stream_id in members]
        runs = [self._run(decode) for decode in decodes]
        latents = torch.cat(
            [d.latents[..., low:high] for d, (low, high) in zip(decodes, runs, strict=True)]
        )
        has_speakers = decodes[0].speaker is not None
        speakers = torch.cat([d.speaker for d in decodes]) if has_speakers else None
        try:
            with torch.inference_mode():
                waves = self._decoder(latents, speakers).squeeze(1).float().cpu().numpy()
        except Exception as error:  # the device is out of memory, most likely
            for stream_id in members:
                self.close(stream_id)
            return [failed(stream_id, error) for stream_id in members]
        events: list[Event] = []
        for stream_id, decode, (low, _), wave in zip(members, decodes, runs, waves, strict=True):
            start, end = decode.chunks.popleft()
            samples: Waveform = wave[(start - low) * hop : (end - low) * hop]
            events += self._replies[stream_id].say(samples, decode.spans)
            decode.spans = ()
            if not decode.chunks:
                del self._under_way[stream_id]
        return events


def _latents_only(torch: Any) -> Any:
    """A module in the decoder's place that keeps the speaker's embedding and decodes nothing."""

    class LatentsOnly(torch.nn.Module):
        conditioning: Any = None

        def forward(self, latents: Any, conditioning: Any = None) -> Any:
            self.conditioning = conditioning
            return latents[:, :1, :1]

    return LatentsOnly()

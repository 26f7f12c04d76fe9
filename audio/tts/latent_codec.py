"""The decoder of Pocket TTS's codec (Mimi's architecture), one latent frame at a time.

transformers decodes a whole utterance; its convolutions are causal, so what each layer needs of
the frames before is a short run of inputs, kept here for each stream. A frame of 80 ms decoded
this way equals the same samples of the whole. Streams of any age share a batch.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import AudioError
from ..key_window import KeyWindow


@dataclass(frozen=True, slots=True)
class CodecState:
    """What one stream's decoder keeps; tensors without a batch axis, never written to.

    contexts: inputs that each convolution, in the order of the decoder, reads again. keys,
    values: [n_layers, heads, sliding window - 1, head_dim], the newest last. n_steps: positions
    of the transformer so far.
    """

    contexts: tuple[Any, ...]
    keys: Any
    values: Any
    n_steps: int


class LatentCodec:
    """model: transformers' PocketTTSAudioTokenizerModel.

    Raises: AudioError if it has no decoder, or one that is not causal.
    """

    def __init__(self, torch: Any, model: Any) -> None:
        config = model.config
        if model.decoder is None:
            raise AudioError("expected an audio tokenizer with a decoder, found one without")
        if not config.use_causal_conv or config.pad_mode != "constant":
            raise AudioError(
                "expected a causal codec padded with zeros, found "
                f"use_causal_conv={config.use_causal_conv}, pad_mode={config.pad_mode!r}"
            )
        self._torch = torch
        self._model = model
        self._decoder = model.decoder
        self.frame_size: int = config.frame_size
        self.rate_hz: int = config.sampling_rate
        self._n_window: int = config.sliding_window - 1
        self._dtype = model.latent_proj.weight.dtype
        self._device = model.latent_proj.weight.device
        with torch.inference_mode():
            self.initial = self._first_state()

    def decode(self, states: Sequence[CodecState], latents: Any) -> tuple[list[CodecState], Any]:
        """One frame of each stream: latents [batch, latent_dim] -> float32 [batch, frame_size]."""
        torch, decoder = self._torch, self._decoder
        with torch.inference_mode():
            walk = _Walk(torch, [state.contexts for state in states])
            latents = latents[:, :, None].to(self._device, self._dtype)
            rows = walk.transposed(decoder.upsample.conv, self._model.latent_proj(latents))
            rows, (keys, values) = self._transform(states, rows.transpose(1, 2))
            rows = self._synthesize(walk, rows.transpose(1, 2))
            n_new = keys_per_frame(self._model)
            after = [
                CodecState(
                    tuple(context[i] for context in walk.after),
                    keys[i],
                    values[i],
                    state.n_steps + n_new,
                )
                for i, state in enumerate(states)
            ]
            return after, rows[:, 0].float()

    def _first_state(self) -> CodecState:
        torch, transformer = self._torch, self._decoder.decoder_transformer
        config = self._model.config
        options = {"device": self._device, "dtype": self._dtype}
        keys = torch.zeros(
            len(transformer.layers),
            config.num_key_value_heads,
            self._n_window,
            config.head_dim,
            **options,
        )
        walk = _Walk(torch, None)
        latent = torch.zeros(1, config.latent_dim, 1, **options)
        rows = walk.transposed(self._decoder.upsample.conv, self._model.latent_proj(latent))
        self._synthesize(walk, rows)
        return CodecState(tuple(torch.zeros_like(c[0]) for c in walk.after), keys, keys, 0)

    def _transform(self, states: Sequence[CodecState], rows: Any) -> tuple[Any, tuple[Any, Any]]:
        """The transformer over rows [batch, n, hidden] that follow each stream's window."""
        torch, transformer = self._torch, self._decoder.decoder_transformer
        n_new = rows.shape[1]
        n_before = torch.tensor([state.n_steps for state in states], device=self._device)
        positions = n_before[:, None] + torch.arange(n_new, device=self._device)
        query = torch.arange(n_new, device=self._device)[:, None]
        key = torch.arange(self._n_window + n_new, device=self._device)[None]
        # Query i stands at n_window + i and sees itself and the n_window keys before it.
        in_window = (key <= self._n_window + query) & (key >= query)
        exists = key >= self._n_window - n_before[:, None].clamp(max=self._n_window)
        mask = in_window[None] & exists[:, None]
        bias = torch.zeros(mask.shape, dtype=rows.dtype, device=self._device)
        bias = bias.masked_fill(~mask, float("-inf"))[:, None]
        window = KeyWindow(torch, [s.keys for s in states], [s.values for s in states])
        rotary = transformer.rotary_emb(rows, positions)
        for layer in transformer.layers:
            rows = layer(
                rows,
                attention_mask=bias,
                position_ids=positions,
                past_key_values=window,
                position_embeddings=rotary,
            )
        return rows, window.windows()

    def _synthesize(self, walk: "_Walk", rows: Any) -> Any:
        """The SEANet decoder over rows [batch, hidden, n]."""
        for layer in self._decoder.decoder_seanet.layers:
            rows = self._layer(walk, layer, rows)
        return rows

    def _layer(self, walk: "_Walk", layer: Any, rows: Any) -> Any:
        if hasattr(layer, "block"):  # a residual block
            residual = rows
            for part in layer.block:
                rows = self._layer(walk, part, rows)
            return self._layer(walk, layer.shortcut, residual) + rows
        if hasattr(layer, "trim_right_ratio"):
            return walk.transposed(layer.conv, rows)
        if hasattr(layer, "padding_total"):
            return walk.causal(layer.conv, rows)
        return layer(rows)  # an activation


class _Walk:
    """One pass over the decoder's convolutions with the contexts of a batch of streams.

    before: the contexts of each stream, None for zeros; after: those of the batch.
    """

    def __init__(self, torch: Any, before: Sequence[tuple[Any, ...]] | None) -> None:
        self._torch = torch
        self._before = before
        self.after: list[Any] = []

    def causal(self, conv: Any, rows: Any) -> Any:
        """A causal convolution of stride 1: reads (kernel - 1) * dilation inputs again."""
        return conv(self._with_context(rows, (conv.kernel_size[0] - 1) * conv.dilation[0]))

    def transposed(self, conv: Any, rows: Any) -> Any:
        """A transposed convolution: each input reaches kernel / stride - 1 inputs ahead."""
        kernel, stride = conv.kernel_size[0], conv.stride[0]
        n_again = -(-kernel // stride) - 1
        n_new = rows.shape[-1]
        wide = conv(self._with_context(rows, n_again))
        return wide[..., n_again * stride : (n_again + n_new) * stride]

    def _with_context(self, rows: Any, n_again: int) -> Any:
        if self._before is None:
            context = rows.new_zeros((*rows.shape[:2], n_again))
        else:
            place = len(self.after)
            context = self._torch.stack([contexts[place] for contexts in self._before])
        rows = self._torch.cat((context, rows), dim=-1)
        self.after.append(rows[..., rows.shape[-1] - n_again :])
        return rows


def keys_per_frame(model: Any) -> int:
    """Positions of the codec's transformer in one latent frame."""
    n: int = model.config.latent_stride
    return n

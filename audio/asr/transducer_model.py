"""A cache-aware streaming transducer (Nemotron ASR) as one batched step over immutable states.

transformers streams this model inside `generate`, one thread a stream. Here a state goes in with
the next chunk of features and a new state comes out, so streams of any age share a batch, and a
state can be tried with silence behind it and thrown away. The modules are transformers' own; the
caches are ours: attention keys of a fixed length with a mask, and the convolutions' left context.

Source: Noroozi et al. 2023, "Stateful Conformer with Cache-based Inference for Streaming ASR";
greedy transducer decoding after Graves 2012, looking for the next token in all frames at once.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..checkpoint import load_checkpoint, torch_device
from ..errors import AudioError

CLASSES = {
    "nemotron_asr_streaming": ("NemotronAsrStreamingForRNNT", "NemotronAsrStreamingProcessor"),
    "nemotron3_5_asr": ("Nemotron3_5AsrForRNNT", "Nemotron3_5AsrProcessor"),
}


@dataclass(frozen=True, slots=True)
class TransducerState:
    """Everything that one stream has heard; tensors without a batch axis, never written to.

    subsampling: left context of each strided convolution, None before the first chunk.
    context: [n_layers, hidden, kernel - 1]. keys, values: [n_layers, heads, n_cached_max,
    head_dim], the newest last. hidden, cell: [n_lstm_layers, hidden]; prediction: [1, hidden].
    """

    subsampling: tuple[Any, ...] | None
    context: Any
    keys: Any
    values: Any
    n_cached: int
    hidden: Any
    cell: Any
    prediction: Any
    n_frames: int


@dataclass(frozen=True, slots=True)
class EmittedToken:
    """A token and the encoder frame (80 ms) of the stream at which it was said."""

    token: int
    frame: int


class TransducerModel:
    """A folder of `nemotron_asr_streaming` or `nemotron3_5_asr`.

    n_lookahead: encoder frames of right context, one of those the checkpoint was trained with;
    a chunk is n_lookahead + 1 frames of 80 ms.

    Raises: AudioError if transformers lacks the class, or the folder does not hold it.
    """

    def __init__(self, folder: Path, kind: str, device: str, n_lookahead: int | None) -> None:
        self.torch, self.device = torch_device(device, "a transducer")
        model_class, processor_class = CLASSES[kind]
        dtype = self.torch.bfloat16 if self.device.type == "cuda" else self.torch.float32
        model = load_checkpoint(model_class, folder, dtype=dtype)
        self._model = model.to(self.device).eval()
        self.processor = load_checkpoint(processor_class, folder)
        supported = list(self.processor.supported_num_lookahead_tokens)
        if n_lookahead is None:
            # The next to shortest right context: 160 to 320 ms, most of the accuracy of 1.1 s.
            n_lookahead = sorted(supported)[min(1, len(supported) - 1)]
        if n_lookahead not in supported:
            raise AudioError(
                f"expected a lookahead of {supported} frames of 80 ms, found {n_lookahead}"
            )
        config = model.config.encoder_config
        self.n_chunk = n_lookahead + 1  # encoder frames a chunk
        self.subsampling_factor: int = config.subsampling_factor
        # A query sees its own chunk and as many whole chunks before it as the window holds.
        self._n_keys = (config.sliding_window - 1) // self.n_chunk * self.n_chunk
        self.prompts: dict[str, int] = dict(getattr(self.processor, "prompt_dictionary", {}))
        self._n_prompts: int = getattr(model.config, "num_prompts", 0)
        self._blank: int = model.config.blank_token_id
        self._max_symbols: int = model.max_symbols_per_step
        with self.torch.inference_mode():
            self._initial = self._first_state()

    @property
    def initial(self) -> TransducerState:
        return self._initial

    def n_mels(self, state: TransducerState) -> int:
        """Feature frames (10 ms) of the next chunk: the first one lacks the left context."""
        if state.subsampling is None:
            return 1 + self.subsampling_factor * (self.n_chunk - 1)
        return self.subsampling_factor * self.n_chunk

    def advance(
        self, states: Sequence[TransducerState], mels: Sequence[Any], prompts: Sequence[int]
    ) -> list[tuple[TransducerState, list[EmittedToken]]]:
        """One chunk of each stream: mels[i] float32 [n_mels(states[i]), n_bins].

        prompts: the language slot of each stream, ignored by a model of one language.
        """
        torch = self.torch
        with torch.inference_mode():
            embedded, contexts = self._subsample(states, mels)
            encoded, (keys, values), context = self._encode(states, embedded)
            if self._n_prompts:
                slots = torch.tensor(prompts, device=self.device)
                one_hot = torch.nn.functional.one_hot(slots, self._n_prompts).to(encoded.dtype)
                one_hot = one_hot[:, None].expand(-1, encoded.shape[1], -1)
                encoded = self._model.prompt_projector(torch.cat((encoded, one_hot), dim=-1))
            projected = self._model.encoder_projector(encoded)
            tokens, hidden, cell, prediction = self._decode(states, projected)
            results = []
            for i, state in enumerate(states):
                emitted = [EmittedToken(t, state.n_frames + frame) for t, frame in tokens[i]]
                following = TransducerState(
                    subsampling=contexts[i],
                    context=context[i],
                    keys=keys[i],
                    values=values[i],
                    n_cached=min(self._n_keys, state.n_cached + self.n_chunk),
                    hidden=hidden[:, i],
                    cell=cell[:, i],
                    prediction=prediction[i],
                    n_frames=state.n_frames + self.n_chunk,
                )
                results.append((following, emitted))
        return results

    def _first_state(self) -> TransducerState:
        torch, encoder, decoder = self.torch, self._model.encoder, self._model.decoder
        config = encoder.config
        options = {"device": self.device, "dtype": self._model.dtype}
        n_left = encoder.layers[0].conv.depthwise_conv.left_pad
        head_dim = encoder.layers[0].self_attn.head_dim
        keys = torch.zeros(
            config.num_hidden_layers, config.num_attention_heads, self._n_keys, head_dim, **options
        )
        context = torch.zeros(config.num_hidden_layers, config.hidden_size, n_left, **options)
        blank = torch.tensor([[self._blank]], device=self.device)
        output, (hidden, cell) = decoder.lstm(decoder.embedding(blank))
        prediction = decoder.decoder_projector(output)
        return TransducerState(
            None, context, keys, keys, 0, hidden[:, 0], cell[:, 0], prediction[0], 0
        )

    def _subsample(
        self, states: Sequence[TransducerState], mels: Sequence[Any]
    ) -> tuple[Any, list[tuple[Any, ...]]]:
        """Encoder inputs [batch, n_chunk, hidden]; first chunks and later ones apart."""
        torch, encoder = self.torch, self._model.encoder
        embedded: list[Any] = [None] * len(states)
        contexts: list[tuple[Any, ...]] = [()] * len(states)
        for is_first in (True, False):
            members = [i for i, s in enumerate(states) if (s.subsampling is None) == is_first]
            if not members:
                continue
            before = [states[i].subsampling for i in members]
            pads = _SubsamplingPads(torch, before)
            batch = torch.stack([mels[i] for i in members]).to(self.device, self._model.dtype)
            rows = encoder.subsampling(batch, None, padding_cache=pads) * encoder.input_scale
            for row, i in enumerate(members):
                embedded[i] = rows[row]
                contexts[i] = tuple(context[row] for context in pads.after)
        return torch.stack(embedded), contexts

    def _encode(
        self, states: Sequence[TransducerState], embedded: Any
    ) -> tuple[Any, tuple[Any, Any], Any]:
        torch, encoder = self.torch, self._model.encoder
        window = _KeyWindow(torch, [s.keys for s in states], [s.values for s in states])
        pads = _ContextPads(torch, states)
        n_valid = torch.tensor([state.n_cached for state in states], device=self.device)
        places = torch.arange(self._n_keys + self.n_chunk, device=self.device)
        mask = places[None] >= self._n_keys - n_valid[:, None]  # keys before the stream: zeros
        mask = mask[:, None, None].expand(-1, 1, self.n_chunk, -1)
        positions = encoder.encode_positions(embedded, cached_frames=self._n_keys)
        rows = embedded
        for layer in encoder.layers:
            rows = layer(
                rows,
                attention_mask=mask,
                position_embeddings=positions,
                past_key_values=window,
                padding_cache=pads,
            )
        pads.finish()
        return rows, window.windows(), pads.context

    def _decode(
        self, states: Sequence[TransducerState], projected: Any
    ) -> tuple[list[list[tuple[int, int]]], Any, Any, Any]:
        """Greedy tokens (token, frame in the chunk) of each stream, and its predictor's state."""
        torch, decoder, joint = self.torch, self._model.decoder, self._model.joint
        hidden = torch.stack([state.hidden for state in states], dim=1)
        cell = torch.stack([state.cell for state in states], dim=1)
        prediction = torch.stack([state.prediction for state in states])
        tokens: list[list[tuple[int, int]]] = [[] for _ in states]
        at = [0] * len(states)  # the frame each stream has come to
        n_symbols = [0] * len(states)  # emitted at that frame
        active = list(range(len(states)))
        while active:
            logits = joint(
                decoder_hidden_states=prediction[active], encoder_hidden_states=projected[active]
            )
            best = logits.argmax(dim=-1).tolist()
            emitting, said = [], []
            for row, i in zip(best, active, strict=True):
                frame = next((f for f in range(at[i], self.n_chunk) if row[f] != self._blank), None)
                if frame is None:
                    continue
                n_symbols[i] = n_symbols[i] + 1 if frame == at[i] else 1
                at[i] = frame
                if n_symbols[i] >= self._max_symbols:
                    at[i], n_symbols[i] = frame + 1, 0
                tokens[i].append((row[frame], frame))
                emitting.append(i)
                said.append(row[frame])
            if emitting:
                ids = torch.tensor(said, device=self.device)[:, None]
                memory = (hidden[:, emitting].contiguous(), cell[:, emitting].contiguous())
                output, (new_hidden, new_cell) = decoder.lstm(decoder.embedding(ids), memory)
                hidden[:, emitting], cell[:, emitting] = new_hidden, new_cell
                prediction[emitting] = decoder.decoder_projector(output)
            active = [i for i in emitting if at[i] < self.n_chunk]
        return tokens, hidden, cell, prediction


class _KeyWindow:
    """transformers' cache interface over the last keys and values of streams that share a batch.

    Each brings a window of one length, the newest last and zeros where nothing was yet (the
    caller's mask hides those), and takes a new one away; the tensors given are never written to.

    keys, values: one a stream, [n_layers, heads, n_window, head_dim].
    """

    def __init__(self, torch: Any, keys: Sequence[Any], values: Sequence[Any]) -> None:
        self._torch = torch
        self._keys, self._values = torch.stack(list(keys)), torch.stack(list(values))
        self._new: list[tuple[Any, Any]] = []

    def update(self, keys: Any, values: Any, layer: int) -> tuple[Any, Any]:
        """Keys and values [batch, heads, n_window + n_new, head_dim] of one layer."""
        keys = self._torch.cat((self._keys[:, layer], keys), dim=2)
        values = self._torch.cat((self._values[:, layer], values), dim=2)
        start = keys.shape[2] - self._keys.shape[3]
        self._new.append((keys[:, :, start:], values[:, :, start:]))
        return keys, values

    def windows(self) -> tuple[Any, Any]:
        """The windows after every layer's update: keys and values, each [batch, n_layers, ...]."""
        keys = self._torch.stack([keys for keys, _ in self._new], dim=1)
        values = self._torch.stack([values for _, values in self._new], dim=1)
        return keys, values


class _ContextPads:
    """transformers' padding cache over the conformer convolutions' left context."""

    def __init__(self, torch: Any, states: Sequence[TransducerState]) -> None:
        self._torch = torch
        self.context = torch.stack([state.context for state in states])
        self._new: list[Any] = []

    def update(self, rows: Any, cache_key: str, conv_module: Any) -> Any:
        padded = self._torch.cat((self.context[:, len(self._new)], rows), dim=-1)
        self._new.append(padded[..., padded.shape[-1] - self.context.shape[-1] :])
        return padded

    def finish(self) -> None:
        self.context = self._torch.stack(self._new, dim=1)


class _SubsamplingPads:
    """transformers' padding cache over the strided convolutions; before: None for first chunks."""

    def __init__(self, torch: Any, before: Sequence[tuple[Any, ...] | None]) -> None:
        self._torch = torch
        self._before = before
        self.after: list[Any] = []

    def update(self, rows: Any, cache_key: str, conv_module: Any) -> Any:
        layer = len(self.after)
        if self._before[0] is None:
            left = rows.new_zeros((*rows.shape[:2], conv_module.left_pad_init, rows.shape[3]))
        else:
            left = self._torch.stack([contexts[layer] for contexts in self._before if contexts])
        padded = self._torch.cat((left, rows), dim=2)
        self.after.append(padded[:, :, padded.shape[2] - conv_module.left_pad :])
        return padded

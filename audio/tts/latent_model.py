"""Pocket TTS's backbone and flow head, one latent frame of many replies at a time.

transformers generates inside `generate`, one batch from prompt to end. Here every reply keeps its
own keys, so replies of any age share a frame's forward pass, and the keys of a voice's prompt are
computed once and shared by all that speak in it. Gradium's phonon has the same interface.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import AudioError

# The released checkpoints' values where neither the caller nor the generation config names one.
TEMPERATURE, N_FLOW_STEPS, EOS_THRESHOLD, MIN_FRAMES = 0.7, 1, -4.0, 6


@dataclass(frozen=True, slots=True)
class VoicePrefix:
    """Keys and values of a voice's prompt: [n_layers, heads, n_positions, head_dim] each."""

    keys: Any
    values: Any

    @property
    def n_positions(self) -> int:
        n: int = self.keys.shape[2]
        return n


class LatentReply:
    """One fragment under way; mutable, owned by the stream that speaks it.

    Its keys stand in buffers that hold the whole fragment, filled up to n_keys.
    """

    def __init__(self, keys: Any, values: Any, n_keys: int, noise: Any, n_after_eos: int) -> None:
        self.keys = keys
        self.values = values
        self.n_keys = n_keys
        self.noise = noise  # float32 [max_frames, latent_dim], drawn once
        self.n_after_eos = n_after_eos
        self.hidden: Any = None  # of the position the next frame is sampled from
        self.n_frames = 0
        self.n_frames_left: int | None = None  # once the end of speech was seen


class LatentModel:
    """model: transformers' PocketTTSForConditionalGeneration or the phonon class."""

    def __init__(self, torch: Any, model: Any, frames_after_eos: tuple[int, int, int]) -> None:
        self._torch = torch
        self._model = model
        self._config = model.config
        self._device = model.device
        self._dtype = model.model.audio_latent_proj.weight.dtype
        self._short_words, self._after_short, self._after = frames_after_eos
        generation = model.generation_config
        settings = (
            ("temperature", TEMPERATURE),
            ("num_flow_steps", N_FLOW_STEPS),
            ("eos_threshold", EOS_THRESHOLD),
            ("min_frames_before_eos", MIN_FRAMES),
        )
        values = [
            default if (found := getattr(generation, name, None)) is None else found
            for name, default in settings
        ]
        self._noise_scale = math.sqrt(values[0])
        self._n_flow_steps, self._eos_threshold, self._min_frames = values[1:]

    @property
    def prompt_dim(self) -> int:
        """Width of a voice's latents."""
        dim: int = self._model.model.audio_prompt_proj.in_features
        return dim

    def voice_prefix(self, latents: Any) -> VoicePrefix:
        """The keys of a voice. latents: float32 [n_frames, prompt_dim].

        Raises: AudioError if the latents are of another width.
        """
        torch, config = self._torch, self._config
        if latents.ndim != 2 or latents.shape[1] != self.prompt_dim or not len(latents):
            raise AudioError(
                f"expected voice latents [n_frames, {self.prompt_dim}], found {list(latents.shape)}"
            )
        # Phonon's configuration has no such token, and says so with an AttributeError.
        opening = getattr(config, "audio_prompt_bos_token_id", None)
        ids = [] if not isinstance(opening, int) else [opening]
        ids += [config.audio_prompt_token_id] * len(latents)
        cache = _FragmentKeys(torch, [], 0)
        with torch.inference_mode():
            self._forward(
                torch.tensor([ids], device=self._device),
                cache,
                torch.arange(len(ids), device=self._device)[None],
                _causal(torch, len(ids), 0, self._dtype, self._device),
                audio_prompt_latents=latents[None].to(self._device, torch.float32),
            )
        return VoicePrefix(*cache.prefix())

    def check_prefix(self, keys: Any, values: Any) -> VoicePrefix:
        """A stored prefix. Raises: AudioError if it is of another model."""
        config = self._config
        wanted = [config.num_hidden_layers, config.num_key_value_heads, config.head_dim]
        found = [keys.shape[0], keys.shape[1], keys.shape[3]] if keys.ndim == 4 else []
        if found != wanted or keys.shape != values.shape:
            raise AudioError(
                f"expected a voice's keys of [layers, heads, head_dim] = {wanted}, found {found}"
            )
        options = {"device": self._device, "dtype": self._dtype}
        return VoicePrefix(keys.to(**options), values.to(**options))

    def begin(
        self, prefix: VoicePrefix, text_ids: Sequence[int], n_words: int, seed: int
    ) -> LatentReply:
        """Reads a fragment's prompt, which ends with the audio's first position."""
        torch, config = self._torch, self._config
        n_prompt = prefix.n_positions + len(text_ids)
        # The original runtime's budget; the prompt's last position is no text.
        max_frames = math.ceil(((len(text_ids) - 1) / 3 + 2) * config.frame_rate)
        shape = list(prefix.keys.shape)
        shape[2] = n_prompt + max_frames
        keys = torch.zeros(shape, device=self._device, dtype=self._dtype)
        values = torch.zeros_like(keys)
        keys[:, :, : prefix.n_positions] = prefix.keys
        values[:, :, : prefix.n_positions] = prefix.values
        generator = torch.Generator().manual_seed(seed)
        noise = torch.randn(max_frames, config.latent_dim, generator=generator)
        n_after = self._after_short if n_words <= self._short_words else self._after
        reply = LatentReply(keys, values, prefix.n_positions, noise * self._noise_scale, n_after)
        cache = _FragmentKeys(torch, [reply], len(text_ids))
        positions = torch.arange(prefix.n_positions, n_prompt, device=self._device)[None]
        with torch.inference_mode():
            mask = _causal(torch, len(text_ids), prefix.n_positions, self._dtype, self._device)
            rows = self._forward(
                torch.tensor([list(text_ids)], device=self._device), cache, positions, mask
            )
        reply.n_keys = n_prompt
        reply.hidden = rows[0, -1]
        return reply

    def frame(self, replies: Sequence[LatentReply]) -> tuple[Any, list[bool]]:
        """The next latent of each reply, [batch, latent_dim] for the codec, and whether it ends."""
        torch, model = self._torch, self._model
        with torch.inference_mode():
            hidden = torch.stack([reply.hidden for reply in replies])
            end_scores = model.eos_head(hidden)[:, 0].float().tolist()
            noise = torch.stack([reply.noise[reply.n_frames] for reply in replies])
            noise = noise.to(self._device, hidden.dtype)
            latents = model.sample_latent(hidden, noise, self._n_flow_steps)
            ended = [
                self._ends(reply, score) for reply, score in zip(replies, end_scores, strict=True)
            ]
            going = [i for i, is_last in enumerate(ended) if not is_last]
            if going:
                self._read_back([replies[i] for i in going], latents[going])
            return model.denormalize_latents(latents), ended

    def _ends(self, reply: LatentReply, end_score: float) -> bool:
        """Counts the frame; whether it is the reply's last."""
        can_end = reply.n_frames >= self._min_frames
        reply.n_frames += 1
        if reply.n_frames_left is None:
            if can_end and end_score > self._eos_threshold:
                reply.n_frames_left = reply.n_after_eos
        else:
            reply.n_frames_left -= 1
        return reply.n_frames_left == 0 or reply.n_frames >= len(reply.noise)

    def _read_back(self, replies: Sequence[LatentReply], latents: Any) -> None:
        """The backbone reads the latents it gave: what the next frame is sampled from."""
        torch = self._torch
        ids = torch.full((len(replies), 1), self._config.audio_latent_token_id, device=self._device)
        n_before = torch.tensor([reply.n_keys for reply in replies], device=self._device)
        longest = int(n_before.max()) + 1
        places = torch.arange(longest, device=self._device)
        mask = torch.zeros((len(replies), longest), dtype=self._dtype, device=self._device)
        mask = mask.masked_fill(places[None] > n_before[:, None], float("-inf"))
        cache = _FragmentKeys(torch, replies, 1)
        rows = self._forward(
            ids, cache, n_before[:, None], mask[:, None, None], audio_latents=latents[:, None]
        )
        for reply, row in zip(replies, rows, strict=True):
            reply.n_keys += 1
            reply.hidden = row[-1]

    def _forward(self, ids: Any, cache: Any, positions: Any, mask: Any, **audio: Any) -> Any:
        output = self._model.model(
            input_ids=ids,
            past_key_values=cache,
            position_ids=positions,
            attention_mask=mask,
            use_cache=True,
            **audio,
        )
        return output.last_hidden_state


class _FragmentKeys:
    """transformers' cache interface over the replies' buffers; without replies it only collects."""

    def __init__(self, torch: Any, replies: Sequence[LatentReply], n_new: int) -> None:
        self._torch = torch
        self._replies = replies
        self._n_new = n_new
        self._collected: list[tuple[Any, Any]] = []

    def update(self, keys: Any, values: Any, layer: int) -> tuple[Any, Any]:
        """Writes the new keys behind each reply's own; all of them, padded to the longest."""
        if not self._replies:
            self._collected.append((keys[0], values[0]))
            return keys, values
        longest = max(reply.n_keys for reply in self._replies) + self._n_new
        all_keys = keys.new_zeros((*keys.shape[:2], longest, keys.shape[3]))
        all_values = self._torch.zeros_like(all_keys)
        for row, reply in enumerate(self._replies):
            end = reply.n_keys + self._n_new
            reply.keys[layer, :, reply.n_keys : end] = keys[row]
            reply.values[layer, :, reply.n_keys : end] = values[row]
            all_keys[row, :, :end] = reply.keys[layer, :, :end]
            all_values[row, :, :end] = reply.values[layer, :, :end]
        return all_keys, all_values

    def prefix(self) -> tuple[Any, Any]:
        """What was collected: keys and values [n_layers, heads, n_positions, head_dim]."""
        keys = self._torch.stack([keys for keys, _ in self._collected])
        values = self._torch.stack([values for _, values in self._collected])
        return keys, values


def _causal(torch: Any, n_queries: int, n_before: int, dtype: Any, device: Any) -> Any:
    """Additive mask [1, 1, n_queries, n_before + n_queries]."""
    query = torch.arange(n_queries, device=device)[:, None] + n_before
    key = torch.arange(n_before + n_queries, device=device)[None]
    mask = torch.zeros(query.shape[0], key.shape[1], dtype=dtype, device=device)
    return mask.masked_fill(key > query, float("-inf"))[None, None]

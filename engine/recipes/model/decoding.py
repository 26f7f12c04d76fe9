"""A plain batched greedy decoder and scorer for evaluation, independent of the engine.

It reads an exported model folder, so that what is measured is what is shipped.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import Tensor

from engine.load.gguf import is_gguf

from .agent_model import AgentConfig, AgentModel, KeyValueCache
from .base_model import load_base
from .chat_format import ChatEncoder
from .chatml import CHATML_FORMAT


def load_agent(folder: Path, adapter: Path | None = None) -> tuple[AgentModel, ChatEncoder]:
    """Load an exported folder in bf16, or a GGUF file with the adapter that taught it our calls.

    Raises:
        FileNotFoundError: the folder holds no exported model.
        CheckpointError: the file is no such model.
    """
    if is_gguf(folder):
        model, tokenizer = load_base(folder, adapter)
        return model.eval(), ChatEncoder(tokenizer, CHATML_FORMAT)
    if not (folder / "config.json").exists():
        raise FileNotFoundError(f"expected an exported model in {folder}, found no config.json")
    data = json.loads((folder / "config.json").read_text())
    config = AgentConfig(
        data["vocab_size"],
        data["hidden_size"],
        data["intermediate_size"],
        data["num_hidden_layers"],
        data["num_attention_heads"],
        data["num_key_value_heads"],
        data["max_position_embeddings"],
        data["rope_theta"],
        data["rms_norm_eps"],
    )
    model = AgentModel(config)
    weights: dict[str, Tensor] = {}
    for shard in sorted(folder.glob("model*.safetensors")):
        weights |= load_file(shard)
    model.load_state_dict(weights)
    # The RoPE frequencies stay in float32: they are no parameters.
    for parameter in model.parameters():
        parameter.data = parameter.data.to(torch.bfloat16)
    return model.eval(), ChatEncoder(Tokenizer.from_file(str(folder / "tokenizer.json")))


@torch.inference_mode()
def generate_replies(
    model: AgentModel,
    prompts: Sequence[Sequence[int]],
    end: int,
    max_tokens: int = 72,
    batch_size: int = 16,
) -> list[list[int]]:
    """Greedy replies, without the end token, in the order of the prompts.

    A prompt that begins another, as the turns of one call do, is read together with it.
    """
    replies: list[list[int]] = [[] for _ in prompts]
    read: list[tuple[int, KeyValueCache, Tensor]] = []  # of a batch: prompt, its cache, last state

    def answer() -> None:
        found = _generate_batch(model, [(cache, last) for _, cache, last in read], end, max_tokens)
        for (index, _, _), reply in zip(read, found, strict=True):
            replies[index] = reply
        read.clear()

    for chain in sorted(_chains(prompts), key=lambda chain: len(prompts[chain[-1]])):
        cache, states = _read(model, prompts[chain[-1]])
        for index in chain:
            size = len(prompts[index])
            read.append((index, cache.first(size), states[size - 1]))
            if len(read) == batch_size:
                answer()
    if read:
        answer()
    return replies


def _chains(prompts: Sequence[Sequence[int]]) -> list[list[int]]:
    """Indices of prompts, grouped so that each one of a group begins the next."""
    chains: list[list[int]] = []
    for index in sorted(range(len(prompts)), key=lambda index: list(prompts[index])):
        before = prompts[chains[-1][-1]] if chains else None
        if before is not None and list(prompts[index][: len(before)]) == list(before):
            chains[-1].append(index)
        else:
            chains.append([index])
    return chains


def _read(model: AgentModel, prompt: Sequence[int]) -> tuple[KeyValueCache, Tensor]:
    """The cache of a prompt, and its states [tokens, hidden]."""
    n_tokens = len(prompt)
    cache = KeyValueCache(model.config.n_layers)
    mask = torch.ones(1, 1, n_tokens, n_tokens, dtype=torch.bool).tril()
    states = model(torch.tensor([list(prompt)]), torch.arange(n_tokens)[None], mask, cache)
    return cache, states[0]


def _generate_batch(
    model: AgentModel, read: Sequence[tuple[KeyValueCache, Tensor]], end: int, max_tokens: int
) -> list[list[int]]:
    """Caches are padded on the left; the padding is masked and takes no positions.

    read: of each prompt its cache and its last state [hidden].
    """
    sizes = [cache.n_tokens for cache, _ in read]
    longest = max(sizes)
    real = torch.arange(longest) >= longest - torch.tensor(sizes)[:, None]
    cache = KeyValueCache.padded([cache for cache, _ in read], longest)
    hidden = torch.stack([last for _, last in read])[:, None]
    replies: list[list[int]] = [[] for _ in read]
    alive = torch.ones(len(read), dtype=torch.bool)
    position = torch.tensor(sizes)[:, None] - 1
    for _ in range(max_tokens):
        following = model.logits(hidden)[:, 0].argmax(-1)
        alive &= following != end
        if not alive.any():
            break
        for row in alive.nonzero().flatten().tolist():
            replies[row].append(int(following[row]))
        real = torch.cat((real, torch.ones(len(read), 1, dtype=torch.bool)), dim=1)
        position = position + 1
        hidden = model(following[:, None], position, real[:, None, None, :], cache)
    return replies


@torch.inference_mode()
def states_and_logits(model: AgentModel, tokens: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Final states [tokens, hidden] and logits [tokens, vocabulary] after each token, float32."""
    n_tokens = len(tokens)
    mask = torch.ones(1, 1, n_tokens, n_tokens, dtype=torch.bool).tril()
    hidden = model(torch.tensor([tokens]), torch.arange(n_tokens)[None], mask)
    return hidden[0].float(), model.logits(hidden)[0].float()


def log_probabilities(model: AgentModel, tokens: Sequence[int]) -> Tensor:
    """Log-probabilities [tokens, vocabulary] after each token, float32."""
    return states_and_logits(model, tokens)[1].log_softmax(-1)

"""Tiny random checkpoints, written to disk as Hugging Face writes them."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from engine.engine import Engine
from engine.types import EngineConfig

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # read when triton first comes, for all of a process

CORPUS = (
    "Good morning, you have reached the front desk. How can I help you today?",
    "I would like to book a table for four on Friday evening at seven, please.",
    "Certainly. May I have your name and a telephone number, in case we must call you back?",
    "Yes, the name is Müller and the number is 0 5 5 1 7 7 2. Thank you – see you then! ☎",
    'The tool was called with {"name": "book_table", "arguments": {"people": 4}}.',
)

TEMPLATE = (
    "{%- if tools %}<|im_start|>system\nTools: {{ tools | tojson }}"
    " Call with <tool_call>.<|im_end|>\n{% endif -%}"
    "{%- for message in messages %}"
    "<|im_start|>{{ message.role }}\n{{ message.content or '' }}"
    "{%- for call in message.tool_calls or [] %}<tool_call>\n"
    "{{ call.function | tojson }}\n</tool_call>{% endfor -%}"
    "<|im_end|>\n{% endfor -%}"
    "{%- if add_generation_prompt %}<|im_start|>assistant\n{% endif -%}"
)

SIZES: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
}


def write_tokenizer(folder: Path) -> int:
    """A byte-level BPE with ChatML's special tokens; returns its size."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=380,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_tokens([AddedToken("<tool_call>"), AddedToken("</tool_call>")])
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"chat_template": TEMPLATE, "eos_token": "<|im_end|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return int(tokenizer.get_vocab_size())


def random_tensors(config: dict[str, Any], seed: int) -> dict[str, torch.Tensor]:
    """Random weights under the names of a Llama checkpoint."""
    generator = torch.Generator().manual_seed(seed)
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    head_dim = hidden // config["num_attention_heads"]
    kv_size = config["num_key_value_heads"] * head_dim

    def weight(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator) * 3 / shape[-1] ** 0.5

    tensors = {
        "model.embed_tokens.weight": torch.randn(config["vocab_size"], hidden, generator=generator),
        "model.norm.weight": 1 + 0.1 * torch.randn(hidden, generator=generator),
        "lm_head.weight": weight(config["vocab_size"], hidden),
    }
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        for name, n_out, n_in in (
            ("self_attn.q_proj", hidden, hidden),
            ("self_attn.k_proj", kv_size, hidden),
            ("self_attn.v_proj", kv_size, hidden),
            ("self_attn.o_proj", hidden, hidden),
            ("mlp.gate_proj", inner, hidden),
            ("mlp.up_proj", inner, hidden),
            ("mlp.down_proj", hidden, inner),
        ):
            tensors[f"{prefix}{name}.weight"] = weight(n_out, n_in)
        for name in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{prefix}{name}.weight"] = torch.ones(hidden)
    return tensors


WriteCheckpoint = Callable[..., Path]


@pytest.fixture(scope="session")
def write_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> WriteCheckpoint:
    """Write a tiny Llama folder; keyword arguments change its config.json."""

    def write(seed: int = 0, **changes: Any) -> Path:
        folder = tmp_path_factory.mktemp("checkpoint")
        n_vocab = write_tokenizer(folder)
        config = {**SIZES, "vocab_size": n_vocab, **changes}
        config.setdefault("eos_token_id", 2)
        (folder / "config.json").write_text(json.dumps(config))
        save_file(random_tensors(config, seed), folder / "model.safetensors")
        return folder

    return write


@pytest.fixture(scope="session")
def tiny_model(write_checkpoint: WriteCheckpoint) -> Path:
    return write_checkpoint()


@pytest.fixture(scope="session")
def shallow_model(write_checkpoint: WriteCheckpoint) -> Path:
    """The tiny model's first layer between its embedding and head: it drafts right now and then."""
    return write_checkpoint(num_hidden_layers=1)


@pytest.fixture
def make_engine(tiny_model: Path) -> Callable[..., Engine]:
    """An exact (float64) engine on the tiny model; keyword arguments change its config."""

    def make(model_dir: Path = tiny_model, **changes: Any) -> Engine:
        settings = {"dtype": "fp64", "kv_tokens": 2048, "poison": True, **changes}
        return Engine.load(model_dir, EngineConfig(**settings))

    return make

"""The models the engine's benchmark runs: the embedded one, or random weights of a given shape.

Random weights serve speed alone; whatever depends on what a model says needs the trained one.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

EMBEDDED = Path(__file__).parents[2] / "engine" / "embedded"

TEMPLATE = (
    "{%- for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor -%}"
    "{%- if add_generation_prompt %}<|assistant|>{% endif -%}"
)
DRAFTED = 32000  # tokens that a published EAGLE-3 head knows
SPECIAL = ["<|pad|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>"]


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of a decoder of a family. head_dim: 0 for hidden / heads. sliding_window: 0: none."""

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    vocab_size: int = 4096
    max_position_embeddings: int = 4096
    head_dim: int = 0
    family: str = "Llama"
    sliding_window: int = 0
    tie_word_embeddings: bool = True


SHAPES = {
    "12m": Shape(384, 896, 8, 6, 2),  # the embedded target
    "28m": Shape(512, 1408, 8, 8, 4),
    "1b": Shape(2048, 8192, 16, 32, 8, 128256, 32768),
    "4b": Shape(2560, 9728, 36, 20, 4, 151936, 32768),
    "8b": Shape(4096, 14336, 32, 32, 8, 128256, 32768),
    "qwen3-4b": Shape(2560, 9728, 36, 32, 8, 151936, 40960, 128, family="Qwen3"),
    "qwen3-8b": Shape(
        4096, 12288, 36, 32, 8, 151936, 40960, 128, family="Qwen3", tie_word_embeddings=False
    ),
    "smollm2-135m": Shape(576, 1536, 30, 9, 3, 49152, 8192),
    "qwen2.5-7b": Shape(3584, 18944, 28, 28, 4, 152064, 32768, family="Qwen2"),
    "mistral-7b": Shape(
        4096, 14336, 32, 32, 8, 32000, 32768, family="Mistral", sliding_window=4096
    ),
}


def embedded_model(name: str = "agent") -> Path | None:
    """The folder of a trained embedded model, None where it has not been made yet."""
    folder = EMBEDDED / name
    return folder if (folder / "config.json").is_file() else None


def write_random_model(folder: Path, shape: Shape, seed: int = 0) -> Path:
    """A bf16 Llama checkpoint with random weights and a byte-level tokenizer."""
    write_folder(folder, shape)
    save_file(dict(_tensors(shape, seed)), folder / "model.safetensors", {"format": "pt"})
    return folder


def write_folder(folder: Path, shape: Shape) -> Path:
    """All of such a checkpoint but its weights."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=len(SPECIAL) + 256,
        special_tokens=SPECIAL,
        initial_alphabet=alphabet,
        show_progress=False,
    )
    tokenizer.train_from_iterator([], trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE}))
    (folder / "config.json").write_text(json.dumps(config_of(shape)))
    return folder


class RandomCheckpoint:
    """Weights made on the device as they are asked for: 8B parameters need not cross a disk."""

    def __init__(self, model_dir: Path, device: str) -> None:
        self.source, self._device = model_dir, device

    def __contains__(self, name: str) -> bool:
        return True

    def tensor(self, name: str, shape: tuple[int, ...] | None = None) -> torch.Tensor:
        assert shape is not None
        if len(shape) == 1:
            return torch.ones(shape, dtype=torch.bfloat16, device=self._device)
        weight = torch.randn(shape, dtype=torch.bfloat16, device=self._device)
        return weight.mul_(shape[-1] ** -0.5)


class RandomHead(RandomCheckpoint):
    """The same of an EAGLE-3 head that knows the first tokens of the vocabulary."""

    def __contains__(self, name: str) -> bool:
        return name == "midlayer.hidden_norm.weight"


def head_of(shape: Shape) -> dict[str, Any]:
    """What a published head for such a model says in its config.json."""
    n_layers = shape.num_hidden_layers
    # Of few layers there are no three in the middle: what goes into them, and what comes out.
    named = {} if n_layers >= 8 else {"eagle_aux_hidden_state_layer_ids": [-1, 0, n_layers - 1]}
    return {
        **config_of(shape),
        "architectures": ["LlamaForCausalLMEagle3"],
        "num_hidden_layers": 1,
        "draft_vocab_size": min(DRAFTED, shape.vocab_size),
        "eagle_config": named,
    }


def config_of(shape: Shape) -> dict[str, Any]:
    sizes = asdict(shape)
    family, window = sizes.pop("family"), sizes.pop("sliding_window") or None
    head_dim = sizes.pop("head_dim") or shape.hidden_size // shape.num_attention_heads
    return {
        "architectures": [f"{family}ForCausalLM"],
        "model_type": family.lower(),
        **sizes,
        "sliding_window": window,
        "head_dim": head_dim,
        "rms_norm_eps": 1e-5,
        "hidden_act": "silu",
        "eos_token_id": 1,
        "torch_dtype": "bfloat16",
    }


def _tensors(shape: Shape, seed: int) -> list[tuple[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    hidden, inner = shape.hidden_size, shape.intermediate_size
    kv_size = hidden // shape.num_attention_heads * shape.num_key_value_heads

    def weight(n_out: int, n_in: int) -> torch.Tensor:
        return (torch.randn(n_out, n_in, generator=generator) * n_in**-0.5).bfloat16()

    one = torch.ones(hidden, dtype=torch.bfloat16)
    tensors = [
        ("model.embed_tokens.weight", weight(shape.vocab_size, hidden)),
        ("model.norm.weight", one.clone()),
    ]
    for layer in range(shape.num_hidden_layers):
        sizes = {
            "self_attn.q_proj": (hidden, hidden),
            "self_attn.k_proj": (kv_size, hidden),
            "self_attn.v_proj": (kv_size, hidden),
            "self_attn.o_proj": (hidden, hidden),
            "mlp.gate_proj": (inner, hidden),
            "mlp.up_proj": (inner, hidden),
            "mlp.down_proj": (hidden, inner),
        }
        prefix = f"model.layers.{layer}."
        tensors += [(f"{prefix}{name}.weight", weight(*size)) for name, size in sizes.items()]
        for name in ("input_layernorm", "post_attention_layernorm"):
            tensors.append((f"{prefix}{name}.weight", one.clone()))
    return tensors


def sources() -> str:
    """A digest of the engine's files: a copy of the tree without its history has no commit."""
    folder = Path(__file__).parents[2] / "engine"
    digest = hashlib.sha256()
    for path in sorted((*folder.rglob("*.py"), *folder.rglob("*.c"))):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]

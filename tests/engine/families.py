"""The families that are loaded: a tiny random checkpoint of each, its chat template, its calls.

What `tests/engine/test_families.py` checks, and `benchmarks.models_people_have` prints as the table
of MODELS.md. Templates are short forms of the published ones, with the marks, the roles and the way
that calls are written; a checkpoint brings its own.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

SIZES: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "initializer_range": 0.3,
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
LINEAR_ROPE = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}
YARN_ROPE = {
    "rope_type": "yarn", "rope_theta": 500.0, "factor": 4.0, "beta_fast": 8.0,
    "original_max_position_embeddings": 32,
}  # fmt: skip
# 12 rotated entries of 16: six factors each.
LONG_ROPE = {
    "rope_type": "longrope", "rope_theta": 500.0, "partial_rotary_factor": 0.75,
    "short_factor": [1.0, 1.1, 1.2, 1.3, 1.4, 1.5], "long_factor": [1.0, 1.5, 2.0, 3.0, 4.0, 6.0],
    "original_max_position_embeddings": 32,
}  # fmt: skip
GEMMA_ROPES = {
    "full_attention": {"rope_type": "linear", "rope_theta": 5000.0, "factor": 8.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 500.0},
}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama2": ("Llama", {"num_key_value_heads": 4}),
    "llama2-linear-rope": ("Llama", {"rope_parameters": LINEAR_ROPE}),
    "llama3-tied": ("Llama", {"rope_parameters": LLAMA3_ROPE, "tie_word_embeddings": True}),
    "llama-biases": ("Llama", {"attention_bias": True, "mlp_bias": True}),
    "smollm": ("Llama", {"num_key_value_heads": 1, "tie_word_embeddings": True}),
    "qwen2": ("Qwen2", {}),
    "qwen2-windowed-layers": (
        "Qwen2",
        {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1},
    ),
    "qwen3": ("Qwen3", {"head_dim": 16, "tie_word_embeddings": True}),
    "mistral": ("Mistral", {"sliding_window": 7}),
    "mistral-unwindowed": ("Mistral", {"sliding_window": None}),
    "mistral-yarn": ("Mistral", {"sliding_window": None, "rope_parameters": YARN_ROPE}),
    "phi-4": ("Phi3", {"pad_token_id": 0}),
    "phi-4-mini": (
        "Phi3",
        {
            "pad_token_id": 0,
            "rope_parameters": LONG_ROPE,
            "hidden_size": 64,
            "original_max_position_embeddings": 32,
            "tie_word_embeddings": True,
        },
    ),
    "phi-3-windowed": ("Phi3", {"pad_token_id": 0, "sliding_window": 7}),
    "gemma-3": (
        "Gemma3",
        {
            "head_dim": 16,
            "sliding_window": 7,
            "query_pre_attn_scalar": 24,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            "rope_parameters": GEMMA_ROPES,
            "final_logit_softcapping": 5.0,
        },
    ),
    "gemma-3-of-six": (  # as llama.cpp has it: the sixth layer sees all, queries by their size
        "Gemma3",
        {
            "num_hidden_layers": 7,
            "head_dim": 16,
            "sliding_window": 7,
            "query_pre_attn_scalar": 16,
            "rope_parameters": GEMMA_ROPES,
        },
    ),
    "smollm3-of-four": (
        "SmolLM3",
        {"num_hidden_layers": 5, "pad_token_id": 0, "tie_word_embeddings": True},
    ),
    "smollm3": ("SmolLM3", {"no_rope_layers": [1, 0, 1], "pad_token_id": 0}),
    "granite": (
        "Granite",
        {
            "embedding_multiplier": 12.0,
            "residual_multiplier": 0.22,
            "logits_scaling": 8.0,
            "attention_multiplier": 0.125,
            "tie_word_embeddings": True,
        },
    ),
}


def reference(family: str, folder: Path, tokens: list[int], **more: Any) -> torch.Tensor:
    """Save a random model of this family; its logits are the truth."""
    import transformers

    name, changes = FAMILIES[family]
    torch.manual_seed(7)
    kind = f"{name}TextConfig" if name == "Gemma3" else f"{name}Config"
    config = getattr(transformers, kind)(**{**SIZES, **changes, **more})
    config._attn_implementation = "eager"
    model = getattr(transformers, f"{name}ForCausalLM")(config).eval().float()
    for parameter in model.parameters():  # biases and norms start at 0 and 1: make them count
        parameter.data += 0.05 * torch.randn_like(parameter)
    model.save_pretrained(folder, max_shard_size="1GB" if more else "60KB")
    with torch.inference_mode():
        logits: torch.Tensor = model(torch.tensor([tokens])).logits[0]
    return logits


CORPUS = (
    "Good morning, you have reached the front desk. How can I help you today?",
    "I would like to book a table for four on Friday evening at seven, please.",
    'The tool was called with {"name": "book_table", "arguments": {"people": 4}}.',
)
SENTENCEPIECE = "SentencePiece"
SYSTEM, ASKED = "You answer the phone.", "A table for four?"
TOOL: dict[str, Any] = {
    "name": "book_table",
    "description": "Books a table.",
    "parameters": {
        "type": "object", "properties": {"people": {"type": "integer"}}, "required": ["people"],
    },
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table. model: of `FAMILIES`. arch: of GGUF, with how its text is split.

    ends: tokens that end a reply, the one behind a turn first. called: a call as the model writes
    it, behind the opening mark; "" where the family has no notation of its own.
    """

    name: str
    checkpoints: str
    model: str
    arch: str
    split: str
    template: str
    ends: tuple[str, ...]
    marks: tuple[str, ...] = ()
    opening: str = ""
    called: str = ""
    bos: str = ""

    @property
    def specials(self) -> list[str]:
        return [one for one in ("<pad>", self.bos, *self.ends, *self.marks) if one]


_CHATML = (
    "{%- if tools %}<|im_start|>system\n# Tools\n"
    "{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}"
    "For each call answer <tool_call>\n{...}\n</tool_call><|im_end|>\n{% endif -%}"
    "{%- for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content or '' }}"
    "{%- for call in m.tool_calls or [] %}\n<tool_call>\n{{ call.function | tojson }}\n</tool_call>"
    "{% endfor -%}<|im_end|>\n{% endfor -%}"
    "{%- if add_generation_prompt %}<|im_start|>assistant\n{% endif -%}"
)
_HERMES = {
    "marks": ("<|im_start|>", "<tool_call>", "</tool_call>"), "opening": "<tool_call>",
    "called": '\n{"name": "book_table", "arguments": {"people": 4}}\n</tool_call>',
}  # fmt: skip
_MISTRAL = (
    "{{- bos_token }}{%- set ns = namespace(n=0) %}"
    "{%- if messages[0].role == 'system' %}[SYSTEM_PROMPT]{{ messages[0].content }}"
    "[/SYSTEM_PROMPT]{% set messages = messages[1:] %}{% endif -%}"
    "{%- for m in messages %}"
    "{%- if m.role == 'user' or (m.role == 'assistant' and not m.tool_calls) %}"
    "{%- if (m.role == 'user') != (ns.n % 2 == 0) %}"
    "{{- raise_exception('conversation roles must alternate') }}{% endif -%}"
    "{%- set ns.n = ns.n + 1 %}{% endif -%}"
    "{%- if m.role == 'user' %}{%- if tools and loop.last %}[AVAILABLE_TOOLS]{{ tools | tojson }}"
    "[/AVAILABLE_TOOLS]{% endif -%}[INST]{{ m.content }}[/INST]"
    "{%- elif m.tool_calls %}CALLS{{ eos_token }}"
    "{%- elif m.role == 'tool' %}"
    "{%- if m.tool_call_id | length != 9 %}{{ raise_exception('ids of 9') }}{% endif -%}"
    "[TOOL_RESULTS]{{ m.content }}[/TOOL_RESULTS]"
    "{%- else %}{{ m.content }}{{ eos_token }}{% endif -%}{% endfor -%}"
)
_MISTRAL_MARKS = (
    "[INST]", "[/INST]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[AVAILABLE_TOOLS]",
    "[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]", "[TOOL_CALLS]",
)  # fmt: skip
_LIST = (
    "[TOOL_CALLS] [{% for c in m.tool_calls %}{%- if c.id | length != 9 %}"
    "{{ raise_exception('ids of 9') }}{% endif -%}{{ c.function | tojson }}"
    "{%- if not loop.last %}, {% endif -%}{% endfor %}]"
)
_ARGS = (
    "{% for c in m.tool_calls %}[TOOL_CALLS]{{ c.function.name }}[CALL_ID]{{ c.id }}"
    "[ARGS]{{ c.function.arguments | tojson }}{% endfor %}"
)
_PHI = (
    "{% for message in messages %}{% if message['role'] == 'system' and 'tools' in message and "
    "message['tools'] is not none %}{{ '<|' + message['role'] + '|>' + message['content'] + "
    "'<|tool|>' + message['tools'] + '<|/tool|>' + '<|end|>' }}{% else %}"
    "{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
_GRANITE = (
    "{%- if tools %}<|start_of_role|>system<|end_of_role|>Respond only with <|tool_call|> followed "
    "by a JSON list of tools used.<|end_of_text|>\n<|start_of_role|>available_tools<|end_of_role|>"
    "{{ tools | tojson }}<|end_of_text|>\n{% endif -%}"
    "{%- for m in messages %}<|start_of_role|>{{ m.role }}<|end_of_role|>{{ m.content }}"
    "<|end_of_text|>\n{% endfor -%}"
    "{%- if add_generation_prompt %}<|start_of_role|>assistant<|end_of_role|>{% endif -%}"
)
_GEMMA = (
    "{{ bos_token }}{%- if messages[0].role == 'system' %}"
    "{%- set first = messages[0].content + '\n\n' %}{%- set turns = messages[1:] %}"
    "{%- else %}{%- set first = '' %}{%- set turns = messages %}{% endif -%}"
    "{%- for m in turns %}{%- if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate') }}{% endif -%}"
    "<start_of_turn>{{ 'model' if m.role == 'assistant' else m.role }}\n"
    "{{ first if loop.first else '' }}{{ m.content | trim }}<end_of_turn>\n{% endfor -%}"
    "{%- if add_generation_prompt %}<start_of_turn>model\n{% endif -%}"
)
_LLAMA = (
    "{{ bos_token }}{%- for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n"
    "{%- if m.tool_calls %}{%- set c = m.tool_calls[0].function %}"
    '{"name": "{{ c.name }}", "parameters": {{ c.arguments | tojson }}}'
    "{%- else %}{%- if tools and loop.index0 == 1 %}"
    'Respond in the format {"name": function name, "parameters": dictionary}.'
    "{{ tools | tojson }}\n\n{% endif -%}{{ m.content }}{% endif -%}<|eot_id|>{% endfor -%}"
    "{%- if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif -%}"
)
_PHI4 = (
    "{% for m in messages %}<|im_start|>{{ m.role }}<|im_sep|>{{ m.content }}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant<|im_sep|>{% endif %}"
)

_CALL = '{"name": "book_table", "arguments": {"people": 4}}'
ROWS = (
    Row(
        "Llama", "2 to 3.3, SmolLM2", "llama3-tied", "llama", "llama-bpe", _LLAMA,
        ("<|eot_id|>", "<|end_of_text|>", "<|eom_id|>"),
        ("<|start_header_id|>", "<|end_header_id|>", "<|python_tag|>"), "",
        '{"name": "book_table", "parameters": {"people": 4}}', "<|begin_of_text|>",
    ),
    Row(
        "Mistral", "7B, Nemo, Small 3", "mistral", "llama", "tekken",
        _MISTRAL.replace("CALLS", _LIST), ("</s>",), _MISTRAL_MARKS, "[TOOL_CALLS]", f" [{_CALL}]",
        "<s>",
    ),
    Row(
        "Mistral Small 3.1, 3.2", "the text tower", "mistral-yarn", "llama", "tekken",
        _MISTRAL.replace("CALLS", _ARGS), ("</s>",), (*_MISTRAL_MARKS, "[ARGS]", "[CALL_ID]"),
        "[TOOL_CALLS]", 'book_table[CALL_ID]a1b2c3d4e[ARGS]{"people": 4}', "<s>",
    ),
    Row("Qwen2", "Qwen2, Qwen2.5", "qwen2", "qwen2", "qwen2", _CHATML,
        ("<|im_end|>", "<|endoftext|>"), **_HERMES),
    Row("Qwen3", "dense, not thinking", "qwen3", "qwen3", "qwen2", _CHATML,
        ("<|im_end|>", "<|endoftext|>"), **_HERMES),
    Row("Phi-3, Phi-4", "not the MoE", "phi-4", "phi3", "dbrx", _PHI4,
        ("<|im_end|>", "<|endoftext|>"), ("<|im_start|>", "<|im_sep|>")),
    Row(
        "Phi-4-mini", "LongRoPE", "phi-4-mini", "phi3", "gpt-4o", _PHI,
        ("<|end|>", "<|endoftext|>"),
        ("<|system|>", "<|user|>", "<|assistant|>", "<|tool|>", "<|/tool|>", "<|tool_call|>",
         "<|/tool_call|>"), "<|tool_call|>", f"[{_CALL}]<|/tool_call|>",
    ),
    Row("Gemma 3", "1B to 27B, text alone", "gemma-3-of-six", "gemma3", SENTENCEPIECE, _GEMMA,
        ("<end_of_turn>", "<eos>"), ("<start_of_turn>",), bos="<bos>"),
    Row("SmolLM3", "not thinking", "smollm3-of-four", "smollm3", "smaug-bpe",
        _CHATML.replace("if tools", "if xml_tools").replace("in tools", "in xml_tools"),
        ("<|im_end|>", "<|end_of_text|>"), **_HERMES),
    Row(
        "Granite", "3.0 to 3.3", "granite", "granite", "refact", _GRANITE, ("<|end_of_text|>",),
        ("<|start_of_role|>", "<|end_of_role|>", "<|tool_call|>"), "<|tool_call|>", f"[{_CALL}]",
    ),
)  # fmt: skip


def write_text(row: Row, folder: Path) -> int:
    """A byte-level BPE with the family's special tokens, and its template; returns its size."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=330, special_tokens=row.specials, show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )  # fmt: skip
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    words = {"chat_template": row.template, "eos_token": row.ends[0], "bos_token": row.bos}
    (folder / "tokenizer_config.json").write_text(json.dumps(words))
    return int(tokenizer.get_vocab_size())

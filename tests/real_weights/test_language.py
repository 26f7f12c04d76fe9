"""Trained language models in the engine: the words of transformers on the same weights."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from engine.engine import Engine
from engine.types import Done, EngineConfig, Event, SamplingParams, TextDelta
from tests.real_weights.packages import QWEN_CODER, SMOLLM2, Weights

pytestmark = [pytest.mark.real_weights, pytest.mark.timeout(600)]

N_TOKENS = 24
SAID = (
    "What is the capital of France?",
    "I'd like a table for 4 at 7:30 p.m. \u2013 is that $12.50 each?",
)


def greedy_reply(engine: Engine, tokens: list[int]) -> str:
    branch = engine.branch("asked")
    branch.commit(tokens, SamplingParams(max_tokens=N_TOKENS))
    events: list[Event] = []
    while engine.has_work():
        events += engine.step()
    branch.close()
    assert any(isinstance(event, Done) for event in events)
    return "".join(event.text for event in events if isinstance(event, TextDelta))


@pytest.mark.parametrize(
    ("weights", "dtype"),
    [
        pytest.param(SMOLLM2, "fp32", id="smollm2"),
        # In fp32 each of the two would take 6 GB.
        pytest.param(QWEN_CODER, "bf16", id="qwen-coder", marks=pytest.mark.large),
    ],
)
def test_greedy_words_are_those_of_transformers(
    weights: Weights, dtype: str, fetched: Callable[[Weights], Path]
) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = fetched(weights)
    [name] = weights.files
    engine = Engine.load(folder / name, EngineConfig(dtype=dtype, kv_tokens=1024))
    prompts = [
        engine.text.encode_chat([{"role": "user", "content": said}], add_generation_prompt=True)
        for said in SAID
    ]
    ours = [greedy_reply(engine, tokens) for tokens in prompts]
    del engine
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=name)
    model = AutoModelForCausalLM.from_pretrained(
        folder, gguf_file=name, dtype=torch.float32 if dtype == "fp32" else torch.bfloat16
    ).eval()
    for said, tokens, reply in zip(SAID, prompts, ours, strict=True):
        chat = [{"role": "user", "content": said}]
        theirs = tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
        assert tokens == tokenizer(theirs, add_special_tokens=False)["input_ids"]
        with torch.inference_mode():
            said_by_it = model.generate(
                torch.tensor([tokens]), max_new_tokens=N_TOKENS, do_sample=False
            )[0, len(tokens) :]
        expected = tokenizer.decode(said_by_it, skip_special_tokens=True)
        assert reply.strip() and reply.strip() == expected.strip()

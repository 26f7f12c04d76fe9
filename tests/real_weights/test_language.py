"""Trained language models in the engine: the words of transformers, and the formats served."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.engine.formats import measure
from benchmarks.engine.real_weights import (
    N_WORDS,
    callers_lines,
    greedy_replies,
    n_alike,
    prompts_of,
    transformers_replies,
)
from engine.engine import Engine
from engine.load.adapter import fingerprint
from engine.load.source import open_source
from engine.quality import Format
from engine.recipes.measuring.served_agent import ServedAgent
from engine.recipes.passages import own_replies
from engine.types import EngineConfig
from tests.real_weights.packages import QWEN_CODER, SMOLLM2, Weights
from voiceloop.models.catalog import SMOLLM2 as PACKAGED
from voiceloop.models.gates import bar, gates
from voiceloop.models.resolve import shipped_adapter

pytestmark = [pytest.mark.real_weights, pytest.mark.timeout(900)]


@pytest.mark.parametrize(
    ("weights", "dtype", "n_prompts"),
    [
        pytest.param(SMOLLM2, "fp32", 50, id="smollm2"),
        # In fp32 each of the two would take 6 GB.
        pytest.param(QWEN_CODER, "bf16", 2, id="qwen-coder", marks=pytest.mark.large),
    ],
)
def test_greedy_tokens_are_those_of_transformers(
    weights: Weights, dtype: str, n_prompts: int, fetched: Callable[[Weights], Path]
) -> None:
    from transformers import AutoTokenizer

    folder = fetched(weights)
    [name] = weights.files
    engine = Engine.load(folder / name, EngineConfig(dtype=dtype, kv_tokens=1024))
    prompts = prompts_of(engine)[:n_prompts]
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=name)
    for line, tokens in zip(callers_lines(), prompts, strict=False):
        chat = [{"role": "user", "content": line}]
        theirs = tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
        assert tokens == tokenizer(theirs, add_special_tokens=False)["input_ids"]
    ours = greedy_replies(engine, prompts, N_WORDS)
    del engine
    assert n_alike(ours, transformers_replies(folder / name, prompts, N_WORDS, dtype)) == n_prompts


def test_formats_are_what_their_gates_say(fetched: Callable[[Weights], Path]) -> None:
    """On fewer dialogues than the gate itself reads."""
    [name] = SMOLLM2.files
    path = fetched(SMOLLM2) / name
    told = {
        Format(gate.weights, {"bf16": "plain"}.get(gate.kv, gate.kv)): gate
        for gate in gates()
        if gate.model == "smollm2-135m"
    }
    base = EngineConfig(kv_tokens=16384, max_draft_tokens=0)
    try:
        found = list(
            measure(
                lambda one: Engine.load(path, one.config(base)),
                list(told),
                lambda engine: own_replies(engine, 8, 3000),
            )
        )
    except FileNotFoundError as missing:
        pytest.skip(str(missing))
    assert len(found) == 3
    for one, runs, quality in found:
        assert "native" in runs  # the figures are of those layers
        assert quality.kl_nats <= bar().kl_nats, one
        # Some 600 places: three standard errors of 97 %.
        assert quality.top1_agreement >= told[one].agreement - 0.02, one


PRICE = {
    "name": "get_price",
    "description": "Look up what something on the menu costs.",
    "parameters": {
        "type": "object",
        "properties": {"item": {"type": "string"}},
        "required": ["item"],
    },
}


def test_the_adapter_that_ships_teaches_this_file_to_call_tools(
    fetched: Callable[[Weights], Path],
) -> None:
    """As it is served; what share of calls is right its card tells."""
    [name] = SMOLLM2.files
    path = fetched(SMOLLM2) / name
    # tests/engine/recipes/test_adapter.py holds the adapter to this.
    norm = open_source(path).checkpoint.tensor("model.norm.weight")
    assert fingerprint(norm).startswith("b1c3b88d13d30d19")
    adapter = shipped_adapter(PACKAGED)
    if adapter is None:
        pytest.skip("no adapter ships yet")
    agent = ServedAgent(path, adapter=adapter)
    menu = "You are Mia at Corner Bakery. We sell: rye bread, plum cake and black tea."
    messages = [{"role": "system", "content": menu}]
    messages.append({"role": "user", "content": "hi how much is a plum cake please"})
    tools = [{"type": "function", "function": PRICE}]
    reply = agent.reply(messages, tools)
    call = '<tool_call>{"name": "get_price", "arguments": {"item": "plum cake"}}</tool_call>'
    assert reply.endswith(call)
    messages.append({"role": "assistant", "content": reply.replace(call, "")})
    messages[-1]["tool_calls"] = [
        {"function": {"name": "get_price", "arguments": {"item": "plum cake"}}}
    ]
    messages.append({"role": "tool", "content": '{"price": "$3.80"}'})
    assert "$3.80" in agent.reply(messages, tools)

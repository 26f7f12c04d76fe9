"""The recipe end to end at toy size: format, packing, resuming, export."""

from __future__ import annotations

import gzip
import json
import random
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers.decoders import DecodeStream

from engine.recipes.conversations.dialogues import SOURCES, mask
from engine.recipes.model.agent_model import SIZES, AgentModel, document_mask
from engine.recipes.model.chat_format import (
    END,
    PAD,
    USER,
    ChatEncoder,
    render_chat,
    train_tokenizer,
)
from engine.recipes.model.decoding import generate_replies, load_agent, log_probabilities
from engine.recipes.training.corpus import Rows, pack_rows
from engine.recipes.training.distillation import Distiller
from engine.recipes.training.train_options import TrainOptions, learning_rate_scale, short_run
from engine.recipes.training.trainer import Trainer

MESSAGES = [
    {"role": "system", "content": "You are Ava. Open at 7 am."},
    {"role": "user", "content": "hello there"},
    {"role": "assistant", "content": "", "tool_calls": [
        {"type": "function", "function": {"name": "book", "arguments": {"n": 2, "who": "Zoë"}}}]},
    {"role": "tool", "content": '{"ok":true}'},
    {"role": "assistant", "content": "You're all set."},
]  # fmt: skip
TOOLS = [{"type": "function", "function": {"name": "book", "description": "Book.", "parameters": {
    "type": "object", "required": ["n"],
    "properties": {"n": {"type": "integer"}, "who": {"type": "string"},
                   "days": {"type": "array", "items": {"type": "string"}}}}}}]  # fmt: skip


@pytest.fixture(scope="module")
def encoder() -> ChatEncoder:
    return ChatEncoder(train_tokenizer([render_chat(MESSAGES, TOOLS)] * 3, 320))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    (folder / "dialogues").mkdir()
    for source in SOURCES:
        with gzip.open(folder / "dialogues" / f"{source}.jsonl.gz", "wt") as lines:
            for number in range(4):
                turns = [
                    {"role": "user", "text": f"A table for {number + 2} at 7:30, please."},
                    {"role": "assistant", "text": "Sure, your table is booked."},
                ]
                record = {
                    "id": f"{source}/{number}",
                    "source": source,
                    "domain": "restaurants",
                    "split": "train",
                    "turns": turns,
                }
                lines.write(json.dumps(record) + "\n")
    return folder


def options(data: Path, out: Path, n_tokens: int) -> TrainOptions:
    return TrainOptions(
        data,
        out,
        "tiny",
        "cpu",
        n_tokens,
        rows_per_step=4,
        rows_per_part=2,
        shard_conversations=60,
        vocab_size=400,
        threads=2,
        tokenizer_conversations=100,
    )


@pytest.fixture(scope="module")
def trained(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Trainer:
    """A short run that has ended; its model is exported into the folder `tiny`."""
    trainer = Trainer(options(data, tmp_path_factory.mktemp("trained"), 3000))
    trainer.run()
    return trainer


def test_template_writes_signatures_calls_and_results() -> None:
    text = render_chat(MESSAGES, TOOLS)
    assert text == (
        "<|system|>You are Ava. Open at 7 am.<|tools|>book(n: integer, who?: string, days?: "
        "[string]): Book.<|end|><|user|> hello there<|end|><|assistant|><tool_call>"
        '{"name": "book", "arguments": {"n": 2, "who": "Zoë"}}</tool_call><|end|><|tool|>'
        '{"ok":true}<|end|><|assistant|>You\'re all set.<|end|>'
    )
    assert render_chat(MESSAGES[:2], (), True).endswith("<|end|><|assistant|>")


def test_tokenizer_is_lossless_and_splits_digits(encoder: ChatEncoder) -> None:
    text = "Zoë's $12.50 <tool_call> at 7:30"
    ids = encoder.tokenizer.encode(text, add_special_tokens=False).ids
    assert encoder.tokenizer.decode(ids, skip_special_tokens=True) == text
    assert None not in [encoder.tokenizer.token_to_id(mark) for mark in (END, USER, PAD)]
    assert len(encoder.tokenizer.encode("2024").ids) == 4


def test_a_reply_weighs_more_the_more_of_the_callers_words_it_says(encoder: ChatEncoder) -> None:
    turn = {"role": "user", "content": "i would like a table for seven on friday at nine thirty"}
    replies = ("No.", "A table?", "A table for seven on Friday at nine thirty, I would like.")

    def weight_of_end(reply: str) -> float:
        ((_, weights),) = encoder.encode_batch(
            [([turn, {"role": "assistant", "content": reply}], [], set())]
        )
        return weights[-1]

    none, some, all_of_it = map(weight_of_end, replies)
    assert 1.0 <= none < some < all_of_it == encoder.MAX_REPLY_WEIGHT


def test_a_word_has_the_same_tokens_in_speech_and_in_a_tool_call() -> None:
    words = "the maria maria lamp lamp Maria Maria"
    call_text = render_chat(MESSAGES, TOOLS)
    tokenizer = train_tokenizer([words, call_text, 'a: ["a", "b"]'] * 9, 400)
    call = '<tool_call>{"name": "maria", "arguments": {"lamp": "maria", "b": ["lamp", "Maria"]}}'
    encoding = tokenizer.encode(call + "</tool_call>", add_special_tokens=False)
    assert encoding.tokens.count("Ġmaria") == 1  # the argument; the name of the tool is bare
    assert encoding.tokens.count("Ġlamp") == 1 and encoding.tokens.count("ĠMaria") == 1
    assert tokenizer.decode(encoding.ids, skip_special_tokens=True) == call + "</tool_call>"
    stream = DecodeStream(skip_special_tokens=True)
    streamed = "".join(stream.step(tokenizer, token) or "" for token in encoding.ids)
    assert streamed == call + "</tool_call>"


def test_packing_keeps_every_token_and_separates_conversations() -> None:
    rng = random.Random(0)
    encoded = [([index + 1] * rng.randint(3, 30), [1.0]) for index in range(40)]
    encoded = [(tokens, [1.0] * len(tokens)) for tokens, _ in encoded]
    rows = pack_rows(encoded, pad=0, rng=rng, row_tokens=64)
    values, counts = np.unique(rows.tokens[rows.documents >= 0], return_counts=True)
    assert dict(zip(values.tolist(), counts.tolist(), strict=True)) == {
        tokens[0]: len(tokens) for tokens, _ in encoded
    }
    changes = rows.documents[:, 1:] != rows.documents[:, :-1]
    assert not rows.target_weights[changes].any()
    mask_of_row = document_mask(torch.from_numpy(rows.documents[:1]))[0, 0]
    same = rows.documents[0][:, None] == rows.documents[0][None]
    assert torch.equal(mask_of_row, torch.from_numpy(same).tril())


def test_resumed_run_equals_an_unbroken_one(data: Path, tmp_path: Path) -> None:
    # The schedule depends on the total, so both runs know it from the start.
    whole = Trainer(options(data, tmp_path / "whole", 6000))
    whole.run()
    half = Trainer(options(data, tmp_path / "halves", 6000))
    update = half.update

    def update_and_stop(rows: Rows, at: slice) -> tuple[float, float]:
        if half.step == 1:
            half.stop()
        return update(rows, at)

    half.update = update_and_stop  # type: ignore[method-assign]
    half.run()
    resumed = Trainer(options(data, tmp_path / "halves", 6000))
    assert resumed.step == 2
    resumed.run()
    assert resumed.n_seen == whole.n_seen >= 6000
    for name, parameter in whole.model.named_parameters():
        torch.testing.assert_close(dict(resumed.model.named_parameters())[name], parameter)
    assert (tmp_path / "whole" / "tiny_loss.png").exists()


def test_exported_folder_gives_the_trained_logits(trained: Trainer) -> None:
    folder = trained.options.out / "tiny"
    model, encoder = load_agent(folder)
    tokens = encoder.tokenizer.encode(render_chat(MESSAGES, TOOLS)).ids
    found = log_probabilities(model, tokens)
    reference = AgentModel(trained.config)
    reference.load_state_dict({name: t.bfloat16().float() for name, t in trained.average.items()})
    expected = log_probabilities(reference, tokens)
    assert (found - expected).abs().max() < 0.15
    # Neither left padding nor reading one prompt within another changes more than the last bits.
    prompts = [tokens[:30], tokens[5:17], tokens[:12], tokens[2:30]]
    assert generate_replies(reference, prompts, encoder.end, 4, batch_size=3) == [
        generate_replies(reference, [prompt], encoder.end, 4)[0] for prompt in prompts
    ]
    config = json.loads((folder / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLM"] and config["tie_word_embeddings"]


def test_a_run_goes_on_from_an_exported_model(data: Path, trained: Trainer, tmp_path: Path) -> None:
    folder = trained.options.out / "tiny"
    given = short_run(replace(options(data, tmp_path, 3000), start=folder))
    trainer = Trainer(replace(given, shard_conversations=60))
    shipped, encoder = load_agent(folder)
    assert (
        trainer.step == 0 and trainer.options.warmup_steps < options(data, folder, 0).warmup_steps
    )
    assert trainer.tokenizer.to_str() == encoder.tokenizer.to_str()
    for name, parameter in shipped.named_parameters():
        started = dict(trainer.model.named_parameters())[name]
        assert torch.equal(started, parameter.float())
        assert torch.equal(trainer.average[name], parameter.float())
    trainer.run()  # and learns: nothing is frozen
    assert not torch.equal(
        trainer.model.model.embed_tokens.weight, shipped.model.embed_tokens.weight
    )


def test_a_run_grows_twice(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SIZES, "tiny", replace(SIZES["tiny"], n_layers=6))
    given = replace(options(data, tmp_path, 9000), grow_at=(1500, 5000))
    trainer = Trainer(replace(given, n_tokens=2500))
    assert trainer.config.n_layers == SIZES["tiny"].n_layers - 4
    trainer.run()
    assert trainer.config.n_layers == SIZES["tiny"].n_layers - 2
    resumed = Trainer(given)
    resumed.run()
    assert resumed.config.n_layers == SIZES["tiny"].n_layers


def test_a_draft_is_cut_from_its_target_and_learns_from_it(
    data: Path, trained: Trainer, tmp_path: Path
) -> None:
    shutil.copytree(trained.options.out, tmp_path, dirs_exist_ok=True)
    (tmp_path / "tiny").rename(tmp_path / "target")
    given = replace(options(data, tmp_path, 14000), size="tiny_draft", warmup_steps=1)
    draft = Distiller(given)
    first = trained.model.model.layers[0].self_attn.q_proj.weight
    assert draft.config.n_layers < trained.config.n_layers
    torch.testing.assert_close(
        draft.model.model.layers[0].self_attn.q_proj.weight, first, atol=0.1, rtol=0.1
    )
    draft.run()
    losses = np.loadtxt(tmp_path / "tiny_draft_loss.csv", delimiter=",")[:, 2]
    assert losses[-2:].mean() < losses[:2].mean()


def test_cached_decoding_equals_a_full_pass() -> None:
    torch.manual_seed(0)
    model = AgentModel(SIZES["tiny"]).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    prompt = [5, 9, 300, 7]
    (reply,) = generate_replies(model, [prompt], end=-1, max_tokens=6)
    for count in range(len(reply)):
        scores = log_probabilities(model, prompt + reply[:count])
        assert int(scores[-1].argmax()) == reply[count]


def test_learning_rate_warms_up_holds_and_falls(tmp_path: Path) -> None:
    given = TrainOptions(None, tmp_path, n_tokens=1000, warmup_steps=10, decay_share=0.25)
    scale = [
        learning_rate_scale(seen, step, given)
        for seen, step in ((0, 0), (0, 20), (700, 20), (875, 20), (1000, 20))
    ]
    assert scale == [0.1, 1.0, 1.0, 0.5, 0.0]


@pytest.mark.parametrize("text", [
    "Call 415-555-2671.", "It's at 1201 Market Street.", "Their number is (650) 253 0000.",
    "You find it at 25 N. First St, in San Jose.",
])  # fmt: skip
def test_numbers_and_addresses_are_masked(text: str) -> None:
    masked = mask(text, random.Random(0))
    assert masked != text
    assert not any(part in masked for part in ("2671", "1201", "253", "First St"))

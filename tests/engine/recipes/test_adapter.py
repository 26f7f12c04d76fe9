"""The adapter that is trained is the one that is served; a run goes on where it stopped."""

from pathlib import Path
from typing import Any

import pytest
import torch

from engine.load.source import adapted, open_source
from engine.recipes.model.base_model import load_base
from engine.recipes.model.chat_format import ChatEncoder
from engine.recipes.model.chatml import CHATML_FORMAT, CHATML_TEMPLATE
from engine.recipes.model.lora import adapt, save_adapter
from engine.recipes.training.adapter_data import ADAPTER_MIXTURE
from engine.recipes.training.adapter_trainer import AdapterOptions, AdapterTrainer
from engine.text.text import Text
from engine.text.tool_calls import notation_of
from tests.engine.conftest import WriteCheckpoint
from tests.engine.load.gguf_files import write_gguf

MESSAGES: list[dict[str, Any]] = [
    {"role": "system", "content": "You are Ava."},
    {"role": "user", "content": "a table please"},
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"function": {"name": "book", "arguments": {"n": 2}}}],
    },
    {"role": "tool", "content": '{"ok":true}'},
    {"role": "assistant", "content": "Booked."},
]
TOOLS: list[dict[str, Any]] = [
    {
        "function": {
            "name": "book",
            "description": "Book.",
            "parameters": {"properties": {"n": {"type": "integer"}}, "required": ["n"]},
        }
    }
]


@pytest.fixture(scope="module")
def base(write_checkpoint: WriteCheckpoint, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_checkpoint(tie_word_embeddings=True, max_position_embeddings=1024)
    path = tmp_path_factory.mktemp("gguf") / "base.gguf"
    return write_gguf(folder, path)


def test_the_template_writes_signatures_calls_and_results(base: Path) -> None:
    assert CHATML_FORMAT.render(MESSAGES, TOOLS) == (
        "<|im_start|>system\nYou are Ava.\nTools:\nbook(n: integer): Book.<|im_end|>\n"
        "<|im_start|>user\na table please<|im_end|>\n"
        '<|im_start|>assistant\n<tool_call>{"name": "book", "arguments": {"n": 2}}</tool_call>'
        '<|im_end|>\n<|im_start|>tool\n{"ok":true}<|im_end|>\n'
        "<|im_start|>assistant\nBooked.<|im_end|>\n"
    )
    assert CHATML_FORMAT.render(MESSAGES[1:2], (), True) == (
        "<|im_start|>user\na table please<|im_end|>\n<|im_start|>assistant\n"
    )
    assert notation_of(CHATML_TEMPLATE) is not None


def test_the_engine_renders_what_training_rendered(base: Path, tmp_path: Path) -> None:
    model, tokenizer = load_base(base)
    save_adapter(tmp_path, adapt(model), CHATML_TEMPLATE)
    text = Text(adapted(open_source(base), tmp_path).text)
    assert text.render(MESSAGES, TOOLS, True) == CHATML_FORMAT.render(MESSAGES, TOOLS, True)
    encoder = ChatEncoder(tokenizer, CHATML_FORMAT)
    ((tokens, _),) = encoder.encode_batch([(MESSAGES, TOOLS, set())])
    assert text.encode_chat(MESSAGES, TOOLS) == tokens


def test_headers_weigh_nothing_and_each_message_its_end(base: Path) -> None:
    _, tokenizer = load_base(base)
    encoder = ChatEncoder(tokenizer, CHATML_FORMAT, user_weight=0.1)
    ((tokens, weights),) = encoder.encode_batch([(MESSAGES, TOOLS, set())])
    spans = encoder.spans(tokens)
    assert [span.role for span in spans] == ["system", "user", "assistant", "tool", "assistant"]
    learned = {place for span in spans for place in range(span.first, span.stop)}
    assert all(weight == 0 for at, weight in enumerate(weights) if at not in learned)
    ends = [weights[span.stop - 1] for span in spans]
    assert ends[:2] == [0.0, 0.1] and ends[2] >= 1.0 and ends[3] == 0.0 and ends[4] >= 1.0
    said = tokenizer.decode(tokens[spans[4].first : spans[4].stop], skip_special_tokens=False)
    assert said == "Booked.<|im_end|>"


def test_a_conversation_that_is_cut_keeps_its_last_message(base: Path) -> None:
    _, tokenizer = load_base(base)
    encoder = ChatEncoder(tokenizer, CHATML_FORMAT)
    tokens = encoder.encode_batch([(MESSAGES[:2], [], set())])[0][0]
    last = encoder.spans(tokens[:-3])[-1]
    assert last.role == "user" and last.stop == len(tokens) - 3


def test_what_is_saved_merges_into_what_was_trained(base: Path, tmp_path: Path) -> None:
    torch.manual_seed(1)
    model, _ = load_base(base)
    tokens = torch.tensor([[5, 40, 77, 9, 300]])
    before = model(tokens, torch.arange(5)[None], None)
    adapter = adapt(model, rank=4, alpha=8)
    assert torch.equal(model(tokens, torch.arange(5)[None], None), before)  # B is zero
    with torch.no_grad():
        for parameter in adapter.values():
            parameter.normal_(std=0.3)
    save_adapter(tmp_path, adapter, CHATML_TEMPLATE, rank=4, alpha=8)
    merged, _ = load_base(base, tmp_path)
    plain, _ = load_base(base)
    x = torch.randn(9, 32).bfloat16()
    for index, layer in enumerate(model.model.layers):
        trained = layer.self_attn.k_proj(x)
        found = merged.model.layers[index].self_attn.k_proj(x)
        before_it = plain.model.layers[index].self_attn.k_proj(x)
        assert (found - trained).norm() < 0.05 * (trained - before_it).norm()


def test_conversations_that_share_a_part_have_the_gradients_of_each(
    base: Path, dialogues: Path, tmp_path: Path
) -> None:
    trainer = AdapterTrainer(AdapterOptions(base, tmp_path, dialogues, threads=1))
    with torch.no_grad():
        for parameter in trainer.adapter.values():
            parameter.normal_(std=0.05)
    batch = trainer.data.shard("some", 3, ADAPTER_MIXTURE)
    together, loss, _, n_agent = trainer._gradients(batch)
    apart = [trainer._gradients([one]) for one in batch]
    assert loss == pytest.approx(sum(one[1] for one in apart), rel=1e-2)
    assert n_agent == sum(one[3] for one in apart) > 0
    for found, *parts in zip(together, *(one[0] for one in apart), strict=True):
        assert (found - sum(parts)).norm() < 0.1 * found.norm()


def test_a_new_run_may_start_from_an_exported_adapter(
    base: Path, dialogues: Path, tmp_path: Path
) -> None:
    first = AdapterTrainer(AdapterOptions(base, tmp_path / "a", dialogues, threads=1))
    with torch.no_grad():
        for parameter in first.adapter.values():
            parameter.normal_()
    save_adapter(tmp_path / "exported", first.adapter, CHATML_TEMPLATE)
    options = AdapterOptions(base, tmp_path / "b", dialogues, tmp_path / "exported", threads=1)
    for name, parameter in AdapterTrainer(options).adapter.items():
        assert torch.equal(parameter, first.adapter[name].bfloat16().float())


def test_the_rate_warms_up_holds_and_falls(base: Path, dialogues: Path, tmp_path: Path) -> None:
    trainer = AdapterTrainer(AdapterOptions(base, tmp_path, dialogues, n_tokens=1000, threads=1))
    scales = []
    for step, n_seen in ((0, 0), (29, 100), (80, 700), (90, 850), (99, 1000)):
        trainer.step, trainer.n_seen = step, n_seen
        scales.append(round(trainer._rate_scale(), 3))
    assert scales == [0.033, 1.0, 1.0, 0.5, 0.0]


def test_a_run_learns_saves_and_goes_on_where_it_stopped(
    base: Path, dialogues: Path, tmp_path: Path
) -> None:
    options = AdapterOptions(
        base, tmp_path, dialogues, n_tokens=2500, shard_conversations=6, threads=1
    )
    first = AdapterTrainer(options)
    first.run()
    assert first.step >= 1 and first.n_seen >= 2500
    second = AdapterTrainer(options)
    assert (second.step, second.n_seen, second.place) == (first.step, first.n_seen, first.place)
    for name, parameter in second.adapter.items():
        assert torch.equal(parameter, first.adapter[name])
    assert all(bool(p.any()) for name, p in second.adapter.items() if "lora_B" in name)
    plain = open_source(base)
    name = "model.layers.0.self_attn.q_proj.weight"
    found = adapted(plain, tmp_path / "adapter").checkpoint.tensor(name)
    assert not torch.equal(found, plain.checkpoint.tensor(name))

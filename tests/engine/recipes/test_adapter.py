"""The adapter that is trained is the one that is served; a run goes on where it stopped."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from engine.engine import Engine
from engine.load.adapter import BASE_KEY, fingerprint
from engine.load.description import describe
from engine.load.source import adapted, open_source
from engine.quality import log_probabilities
from engine.recipes.model.adapted_model import AdaptedModel
from engine.recipes.model.agent_model import AgentModel
from engine.recipes.model.base_model import load_base
from engine.recipes.model.chat_format import ChatEncoder
from engine.recipes.model.chatml import CHATML_FORMAT, CHATML_TEMPLATE
from engine.recipes.model.lora import RANK, TARGETS, exported, save_adapter
from engine.recipes.model.shared_attention import Segment, shared_attention
from engine.recipes.reduce_adapter import reduced
from engine.recipes.training.adapter_data import ADAPTER_MIXTURE, MAX_TOKENS
from engine.recipes.training.adapter_trainer import AdapterOptions, AdapterTrainer
from engine.recipes.training.family import Encoded, Family, in_rows
from engine.text.text import Text
from engine.text.tool_calls import notation_of
from engine.types import CheckpointError, EngineConfig
from tests.engine.conftest import WriteCheckpoint
from tests.engine.load.gguf_files import write_gguf

SHIPPED = Path(__file__).resolve().parents[3] / "engine/embedded/smollm2-135m"
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
    """As the published one: its head is its embedding, its numbers are those of bf16."""
    folder = write_checkpoint(tie_word_embeddings=True, max_position_embeddings=1024)
    tensors = load_file(folder / "model.safetensors")
    del tensors["lm_head.weight"]
    rounded = {name: tensor.bfloat16().float() for name, tensor in tensors.items()}
    save_file(rounded, folder / "model.safetensors", metadata={"format": "pt"})
    path = tmp_path_factory.mktemp("gguf") / "base.gguf"
    return write_gguf(folder, path)


def test_a_model_that_the_recipe_would_misread_is_refused(tiny_model: Path) -> None:
    with pytest.raises(CheckpointError, match="expected a Llama whose head is its embedding"):
        load_base(tiny_model)


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
    save_adapter(tmp_path, weights_of(AdaptedModel(model)), CHATML_TEMPLATE, base_of(model))
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


def weights_of(model: AdaptedModel) -> dict[str, Tensor]:
    return exported(model.adapters, [parameter.detach() for parameter in model.parameters()])


def base_of(model: AgentModel) -> str:
    return fingerprint(model.model.norm.weight)


def shake(model: AdaptedModel, std: float) -> None:
    """Give every adapter something to say."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=std)
    model.merge()


def nats(found: Tensor, expected: Tensor) -> float:
    """KL of log probabilities [tokens, vocabulary], the mean over tokens."""
    return float((expected.exp() * (expected - found)).sum(-1).mean().detach())


def test_what_is_saved_is_served_with_the_likelihoods_it_was_trained_to(
    base: Path, tmp_path: Path
) -> None:
    torch.manual_seed(3)
    plain, _ = load_base(base)
    model = AdaptedModel(plain, rank=4, alpha=8)
    shake(model, 0.1)
    save_adapter(tmp_path, weights_of(model), CHATML_TEMPLATE, base_of(plain), rank=4, alpha=8)
    tokens = [5, 40, 77, 9, 300, 12]
    model.float()
    hidden = model(torch.tensor(tokens), torch.arange(6), [Segment(0, 6, 0, 0)])
    trained = model.logits(hidden).log_softmax(-1)
    served = EngineConfig(dtype="fp32", kv_tokens=256, adapter_dir=tmp_path)
    engine = Engine.load(base, served)
    assert nats(log_probabilities(engine, tokens), trained) < 0.002
    without = Engine.load(base, replace(served, adapter_dir=None))
    assert nats(log_probabilities(without, tokens), trained) > 0.5
    assert notation_of(CHATML_TEMPLATE) == engine.notation is not None
    assert f"the adapter {tmp_path} merged" in describe(engine)


def test_what_ships_for_smollm2_is_of_that_model_and_of_this_format() -> None:
    if not (SHIPPED / "adapter_model.safetensors").is_file():
        pytest.skip("no adapter ships yet")
    assert sum(path.stat().st_size for path in SHIPPED.iterdir()) <= 12_000_000
    config = json.loads((SHIPPED / "adapter_config.json").read_text())
    # Of the final norm in the package's file, as tests.real_weights checks that.
    assert config[BASE_KEY].startswith("b1c3b88d13d30d19")
    assert (SHIPPED / "chat_template.jinja").read_text() == CHATML_TEMPLATE
    tensors = load_file(SHIPPED / "adapter_model.safetensors")
    assert len(tensors) == 30 * len(TARGETS) * 2
    assert all(bool(t.any()) and bool(t.isfinite().all()) for t in tensors.values())


def plain_gradients(
    model: AgentModel, adapter: dict[str, Tensor], conversations: list[Encoded], scale: float
) -> tuple[list[Tensor], float]:
    """By torch alone, in fp32, each conversation by itself: W + scale B A, one loss."""
    leaves = {name: tensor.float().requires_grad_() for name, tensor in adapter.items()}
    weights = {name: parameter.float() for name, parameter in model.named_parameters()}
    for name in leaves:
        if name.endswith("lora_A.weight"):
            other = name.replace("lora_A", "lora_B")
            of = name.removeprefix("base_model.model.").replace("lora_A.", "")
            weights[of] = weights[of] + scale * leaves[other] @ leaves[name]
    total = torch.zeros(())
    for tokens, loss_weights in conversations:
        row = torch.tensor([tokens])
        places = torch.arange(len(tokens))[None]
        hidden = torch.func.functional_call(model, weights, (row, places, None))
        logits = hidden[0, :-1] @ weights["model.embed_tokens.weight"].t()
        losses = torch.nn.functional.cross_entropy(logits, row[0, 1:], reduction="none")
        total = total + (losses * torch.tensor(loss_weights[1:])).sum()
    return list(torch.autograd.grad(total, list(leaves.values()))), float(total.detach())


def conversations_of(family: Family) -> list[Encoded]:
    return [
        (family.shared + tokens, [0.0] * len(family.shared) + weights)
        for tokens, weights in family.rests
    ]


def test_the_gradients_are_those_of_each_whole_conversation_by_itself(
    base: Path, dialogues: Path, tmp_path: Path
) -> None:
    trainer = AdapterTrainer(AdapterOptions(base, tmp_path, dialogues, threads=1))
    trainer.model.float()
    shake(trainer.model, 0.05)
    adapter = {name: tensor.clone() for name, tensor in weights_of(trainer.model).items()}
    families = trainer.data.shard("some", 6, ADAPTER_MIXTURE)
    assert any(family.shared and len(family.rests) > 1 for family in families)
    (row,) = in_rows(families, 100_000)
    loss, _, n_agent = trainer._backward(row, total_weight=1.0)
    gradients = [parameter.grad for parameter in trainer.parameters]
    assert all(gradient is not None for gradient in gradients)
    found = exported(trainer.model.adapters, [g for g in gradients if g is not None])
    whole = [one for family in families for one in conversations_of(family)]
    expected, expected_loss = plain_gradients(load_base(base)[0], adapter, whole, scale=2.0)
    assert loss == pytest.approx(expected_loss, rel=1e-4)
    assert n_agent == sum(weight >= 1 for _, weights in whole for weight in weights[1:]) > 0
    for name, one in zip(adapter, expected, strict=True):
        assert (found[name] - one).norm() < 1e-3 * one.norm(), name


def test_a_conversation_sees_neither_its_sibling_nor_another_family() -> None:
    torch.manual_seed(2)
    q, k, v = torch.randn(4, 300, 16), torch.randn(2, 300, 16), torch.randn(2, 300, 16)
    segments = [Segment(0, 40, 0, 0), Segment(40, 190, 0, 40), Segment(190, 280, 0, 40)]
    segments.append(Segment(280, 300, 280, 280))
    found = shared_attention(q, k, v, segments)
    for first, stop, shared, shared_stop in segments:
        places = [*range(shared, shared_stop), *range(first, stop)]
        keys, values = (x[:, places].repeat_interleave(2, 0) for x in (k, v))
        alone = torch.nn.functional.scaled_dot_product_attention(
            q[:, places], keys, values, is_causal=True
        )
        torch.testing.assert_close(found[:, first:stop], alone[:, shared_stop - shared :])


def test_calls_about_one_business_share_its_prompt_and_say_other_things(
    base: Path, dialogues: Path, tmp_path: Path
) -> None:
    trainer = AdapterTrainer(AdapterOptions(base, tmp_path, dialogues, threads=1))
    mixture = {"calls": 1, "counter": 1, "front_desk": 1, "desk": 1}
    families = trainer.data.shard("several", 12, mixture)
    shared = [family for family in families if family.shared]
    assert len(shared) >= 8
    for family in shared:
        assert len({tuple(tokens) for tokens, _ in family.rests}) > 1
        assert all(len(one[0]) <= MAX_TOKENS for one in conversations_of(family))
    again = trainer.data.shard("several", 12, mixture)
    assert again == families


def products(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """B A of each layer."""
    ups = [name for name in weights if name.endswith("lora_B.weight")]
    return {up: weights[up] @ weights[up.replace("lora_B", "lora_A")] for up in ups}


def test_a_reduced_adapter_is_the_nearest_of_its_rank(base: Path) -> None:
    model = AdaptedModel(load_base(base)[0])
    shake(model, 1.0)
    weights = weights_of(model)
    whole, part = products(weights), {}
    for rank in (RANK, 3):
        part, left = reduced(weights, rank)
        of_all = sum(float(t.square().sum()) for t in whole.values())
        lost = sum(float((whole[name] - t).square().sum()) for name, t in products(part).items())
        assert lost / of_all == pytest.approx(1.0 - left, abs=1e-5)
        assert left == pytest.approx(1.0) if rank == RANK else 0.2 < left < 0.999
        least = sum(float(torch.linalg.svdvals(t)[rank:].square().sum()) for t in whole.values())
        assert lost == pytest.approx(least, rel=1e-3, abs=1e-5)
    with pytest.raises(ValueError, match="expected a rank of 4 or more, found 3"):
        reduced(part, 4)


def test_a_run_learns_saves_and_goes_on_where_it_stopped(
    base: Path, dialogues: Path, tmp_path: Path
) -> None:
    options = AdapterOptions(base, tmp_path, dialogues, n_tokens=2500, shard_families=4, threads=1)
    first = AdapterTrainer(options)
    first.run()
    assert first.step >= 1 and first.n_seen >= 2500
    second = AdapterTrainer(options)
    assert (second.step, second.n_seen, second.place) == (first.step, first.n_seen, first.place)
    assert second.seconds == first.seconds > 0 and 0 < second.n_learned < second.n_seen
    learned = weights_of(second.model)
    for name, tensor in weights_of(first.model).items():
        assert torch.equal(tensor, learned[name])
    assert all(bool(tensor.any()) for name, tensor in learned.items() if "lora_B" in name)
    plain = open_source(base)
    name = "model.layers.0.self_attn.q_proj.weight"
    found = adapted(plain, tmp_path / "adapter").checkpoint.tensor(name)
    assert not torch.equal(found, plain.checkpoint.tensor(name))

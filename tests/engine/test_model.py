"""Every model family against transformers, in fp32, on tiny random checkpoints."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.kv_cache import KvPool
from engine.load.loader import FolderCheckpoint, read_config
from engine.model import N_REFINED, N_REFINED_INT4, Decoder
from engine.prefix_tree import PrefixTree
from engine.runner import Extension, Runner
from engine.sequence import Sequence
from engine.types import UnsupportedArchitecture
from tests.engine.families import FAMILIES, reference
from tests.engine.products import rounded


class Bench:
    """The engine's decoder on one checkpoint, sequences extended by hand."""

    def __init__(self, folder: Path, context_length: int = 128) -> None:
        config = read_config(folder)
        decoder = Decoder(
            FolderCheckpoint(folder),
            config,
            dtype="fp32",
            quant=None,
            device="cpu",
            context_length=context_length,
        )
        self.pool = KvPool(
            n_layers=config.n_layers,
            n_kv_heads=config.n_kv_heads,
            head_dim=config.head_dim,
            n_blocks=8,
            dtype=torch.float32,
            poison=True,
        )
        self.runner = Runner(decoder, self.pool)

    def sequence(self, tokens: list[int]) -> Sequence:
        sequence = Sequence(self.pool, PrefixTree(self.pool))
        sequence.tokens = list(tokens)
        return sequence

    def extend(self, *parts: tuple[Sequence, int]) -> list[torch.Tensor]:
        """One step: each sequence by so many tokens; the logits of each."""
        for sequence, n_rows in parts:
            sequence.reserve(n_rows)
        logits = self.runner.run([Extension(s, n_rows, n_logits=n_rows) for s, n_rows in parts])
        assert logits is not None
        for sequence, n_rows in parts:
            sequence.n_resident += n_rows
        return list(logits.split([n_rows for _, n_rows in parts]))


def relative_error(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found - expected).abs().max() / expected.abs().max())


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_equal_those_of_transformers(family: str, tmp_path: Path) -> None:
    tokens = torch.randint(97, (40,), generator=torch.Generator().manual_seed(3)).tolist()
    expected = reference(family, tmp_path, tokens)
    bench = Bench(tmp_path)
    for chunks in ([40], [1] * 40, [17, 1, 20, 2]):
        sequence = bench.sequence(tokens)
        found = torch.cat([bench.extend((sequence, n_rows))[0] for n_rows in chunks])
        error = relative_error(found, expected)
        assert error <= 1e-4, f"{family} in chunks {chunks}: relative error {error:.2e}"
        sequence.release()
    long, short = bench.sequence(tokens), bench.sequence(tokens)
    bench.extend((long, 30), (short, 19))
    for step in range(10):  # two sequences of different lengths in one batch
        first, second = bench.extend((long, 1), (short, 1))
        assert relative_error(first[0], expected[30 + step]) <= 1e-4
        assert relative_error(second[0], expected[19 + step]) <= 1e-4


@pytest.mark.parametrize("prefixes", [("language_model.model.", "language_model.lm_head."),
                                      ("model.language_model.", "lm_head.")])  # fmt: skip
def test_a_text_tower_is_read_out_of_a_model_that_also_sees(
    tmp_path: Path, prefixes: tuple[str, str]
) -> None:
    tokens = list(range(3, 43))
    expected = reference("mistral-yarn", tmp_path, tokens)
    values = json.loads((tmp_path / "config.json").read_text())
    outer = {"architectures": ["Mistral3ForConditionalGeneration"], "text_config": values}
    tensors: dict[str, torch.Tensor] = {"vision_tower.patch_conv.weight": torch.zeros(3)}
    for path in tmp_path.glob("*.safetensors"):
        tensors |= load_file(path)
        path.unlink()
    (tmp_path / "model.safetensors.index.json").unlink()
    (tmp_path / "config.json").write_text(json.dumps(outer))
    model, head = prefixes
    renamed = {
        name.replace("lm_head.", head) if name.startswith("lm_head.")
        else model + name.removeprefix("model.") if name.startswith("model.") else name: tensor
        for name, tensor in tensors.items()
    }  # fmt: skip
    save_file(renamed, tmp_path / "model.safetensors")
    bench = Bench(tmp_path)
    found = bench.extend((bench.sequence(tokens), 40))[0]
    assert relative_error(found, expected) <= 1e-4


def test_longrope_is_short_where_the_served_context_is(tmp_path: Path) -> None:
    tokens = list(range(3, 33))  # within the original context
    expected = reference("phi-4-mini", tmp_path, tokens)
    for context_length, is_short in ((32, True), (128, False)):
        bench = Bench(tmp_path, context_length)
        found = bench.extend((bench.sequence(tokens), 30))[0]
        assert (relative_error(found, expected) <= 1e-4) == is_short


@pytest.mark.parametrize("name", ["Qwen3MoeForCausalLM", "GptOssForCausalLM"])
def test_what_is_not_read_is_refused_with_what_serves_it(
    write_checkpoint: Callable[..., Path], name: str
) -> None:
    folder = write_checkpoint(architectures=[name])
    with pytest.raises(UnsupportedArchitecture, match=rf"{name} is not read here.*llm_url"):
        read_config(folder)


def test_the_likeliest_tokens_are_not_tied_by_bf16(write_checkpoint: Callable[..., Path]) -> None:
    folder = write_checkpoint(tie_word_embeddings=True)
    decoder = Decoder(
        FolderCheckpoint(folder), read_config(folder), dtype="bf16", quant="int8", device="cpu",
        context_length=32, make_linear=rounded,
    )  # fmt: skip
    states = 20 * torch.randn(7, 32, generator=torch.Generator().manual_seed(3))
    truth = states @ decoder.embedding.float().T
    error = (decoder.logits(states) - truth).abs()
    likely = decoder.head(states.bfloat16()).float().topk(N_REFINED).indices
    assert error.gather(1, likely).max() < 1e-3
    assert error.max() > 0.1


@pytest.mark.parametrize("quant", [None, "int8"])
def test_of_tokens_that_bf16_ties_each_row_chooses_its_likeliest(
    write_checkpoint: Callable[..., Path], quant: str | None
) -> None:
    folder = write_checkpoint(tie_word_embeddings=True)
    decoder = Decoder(
        FolderCheckpoint(folder), read_config(folder), dtype="bf16", quant=quant, device="cpu",
        context_length=32, make_linear=rounded,
    )  # fmt: skip
    first, second = 40, 70
    wanted = torch.tensor([[16.0, 16.01], [16.01, 16.0]])
    pair = decoder.embedding[[first, second]].float()
    near = wanted @ torch.linalg.pinv(pair).T
    # A row of another length between them, with likely tokens of its own.
    states = torch.stack((near[0], 9 * decoder.embedding[7].float(), near[1]))
    assert (wanted.bfloat16() == 16).all()
    assert decoder.logits(states).argmax(-1).tolist() == [second, 7, first]


@pytest.mark.parametrize("dtype", ["fp32", "fp64"])
def test_exact_dtypes_read_likely_tokens_from_the_head_that_serves(
    write_checkpoint: Callable[..., Path], dtype: str
) -> None:
    folder = write_checkpoint(tie_word_embeddings=True)
    decoder = Decoder(
        FolderCheckpoint(folder), read_config(folder), dtype=dtype, quant="int8", device="cpu",
        context_length=32, make_linear=rounded,
    )  # fmt: skip
    states = 20 * torch.randn(7, 32, generator=torch.Generator().manual_seed(3))
    states = states.to(decoder.dtype)
    truth = states @ decoder.embedding.T
    likely = decoder.head(states).topk(N_REFINED).indices
    error = (decoder.logits(states) - truth).abs()
    assert error.gather(1, likely).max() < 1e-3
    assert error.max() > 0.1


@pytest.mark.parametrize(("is_tied", "int4_head", "kept"), [
    (True, True, "int4"), (True, False, "int8"), (False, True, "int8"),
])  # fmt: skip
def test_a_head_has_four_bits_only_where_its_likely_tokens_are_computed_again(
    write_checkpoint: Callable[..., Path], is_tied: bool, int4_head: bool, kept: str
) -> None:
    folder = write_checkpoint(tie_word_embeddings=is_tied, vocab_size=200)
    decoder = Decoder(
        FolderCheckpoint(folder), read_config(folder), dtype="fp32", quant="int4", device="cpu",
        context_length=32, int4_head=int4_head, make_linear=rounded,
    )  # fmt: skip
    assert decoder.head.kept == kept
    assert decoder.n_refined == (N_REFINED_INT4 if kept == "int4" else N_REFINED * is_tied)
    states = 20 * torch.randn(7, 32, generator=torch.Generator().manual_seed(3))
    if is_tied:
        likely = decoder.head(states).topk(decoder.n_refined).indices
        error = (decoder.logits(states) - states @ decoder.embedding.T).abs()
        assert error.gather(1, likely).max() < 1e-3
        assert error.max() > 0.1


def test_a_vocabulary_smaller_than_what_is_computed_again_has_logits(
    write_checkpoint: Callable[..., Path],
) -> None:
    folder = write_checkpoint(tie_word_embeddings=True, vocab_size=5)
    decoder = Decoder(
        FolderCheckpoint(folder), read_config(folder), dtype="bf16", quant=None, device="cpu",
        context_length=32,
    )  # fmt: skip
    states = torch.randn(3, 32, generator=torch.Generator().manual_seed(3))
    assert torch.allclose(decoder.logits(states), states @ decoder.embedding.float().T, atol=1e-5)

"""A GGUF file is the model that its folder was; a hostile one is refused with a sentence."""

import json
import random
import shutil
import struct
from dataclasses import replace
from math import inf, nan
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.engine import Engine
from engine.kept_files import model_files
from engine.layer import rope_frequencies
from engine.load.gguf_file import MAX_ITEMS, GgufFile
from engine.load.source import open_source
from engine.quality import log_probabilities
from engine.text.text import Text
from engine.types import (
    CheckpointError,
    EngineConfig,
    EngineError,
    MissingTensor,
    UnsupportedArchitecture,
    UnsupportedQuantization,
)
from tests.engine.conftest import WriteCheckpoint
from tests.engine.load.gguf_files import llama3_divisors, write_gguf
from tests.tables import each_row

CONFIG = EngineConfig(dtype="fp32", kv_tokens=512)
SAYS = "I would like a table for 14 at 7:30, Zoë’s – please <|im_end|> now"


def logits(path: Path) -> torch.Tensor:
    return log_probabilities(Engine.load(path, CONFIG), [5, 40, 77, 300, 12, 9])


def with_tensors(folder: Path, to: Path, **shapes: tuple[int, ...]) -> Path:
    """A copy of a model folder with random vectors at each layer's names."""
    shutil.copytree(folder, to)
    tensors = load_file(to / "model.safetensors")
    generator = torch.Generator().manual_seed(1)
    for name, shape in shapes.items():
        for layer in range(2):
            full = f"model.layers.{layer}.self_attn.{name.replace('__', '.')}"
            tensors[full] = 1 + 0.3 * torch.randn(shape, generator=generator)
    save_file(tensors, to / "model.safetensors")
    return to


def test_a_file_is_the_model_of_its_folder(tiny_model: Path, tmp_path: Path) -> None:
    path = write_gguf(tiny_model, tmp_path / "model.gguf")
    ours, theirs = open_source(path), open_source(tiny_model)
    assert ours.config == replace(theirs.config, norm_eps=ours.config.norm_eps)
    assert ours.config.norm_eps == pytest.approx(theirs.config.norm_eps)
    for name in load_file(tiny_model / "model.safetensors"):
        assert name in ours.checkpoint
        assert torch.equal(ours.checkpoint.tensor(name), theirs.checkpoint.tensor(name))
    assert torch.allclose(logits(path), logits(tiny_model), atol=1e-4)


def test_a_file_of_llama_3_1_has_its_folders_frequencies(
    write_checkpoint: WriteCheckpoint, tmp_path: Path
) -> None:
    """The converter writes them in place of `rope_scaling`."""
    scaling = {
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,
    }  # fmt: skip
    folder = write_checkpoint(rope_scaling=scaling, rope_theta=500.0)
    head_dim = open_source(folder).config.head_dim
    divisors = llama3_divisors(head_dim, 500.0, 8.0, 32)
    assert 1 < len(set(divisors)) and max(divisors) > 1
    path = write_gguf(folder, tmp_path / "model.gguf", rope_freqs=divisors)
    ours, theirs = (rope_frequencies(open_source(p).config.rope, head_dim) for p in (path, folder))
    assert torch.allclose(ours, theirs, rtol=1e-6)
    assert torch.allclose(logits(path), logits(folder), atol=1e-4)
    plain = write_gguf(folder, tmp_path / "plain.gguf")
    assert not torch.allclose(logits(plain), logits(folder), atol=1e-3)


@pytest.mark.parametrize("wrong", [[1.0], [nan], [0.0], [-8.0]])
def test_frequencies_that_make_no_sense_are_named(
    tiny_model: Path, tmp_path: Path, wrong: list[float]
) -> None:
    n = open_source(tiny_model).config.head_dim // 2
    numbers = [1.0] * (n - 1) + wrong if wrong != [1.0] else wrong
    path = write_gguf(tiny_model, tmp_path / "model.gguf", rope_freqs=numbers)
    with pytest.raises(CheckpointError, match=r"expected rope_freqs.weight of shape"):
        Engine.load(path, CONFIG)


def test_a_file_without_a_head_has_the_embedding_for_one(
    write_checkpoint: WriteCheckpoint, tmp_path: Path
) -> None:
    folder = write_checkpoint(tie_word_embeddings=True)
    tensors = load_file(folder / "model.safetensors")
    del tensors["lm_head.weight"]
    save_file(tensors, folder / "model.safetensors")
    path = write_gguf(folder, tmp_path / "model.gguf")
    assert open_source(path).config.tied_head
    assert torch.allclose(logits(path), logits(folder), atol=1e-4)


def test_qwen_files_have_biases_or_norms_and_rows_in_order(
    write_checkpoint: WriteCheckpoint, tmp_path: Path
) -> None:
    qwen2 = with_tensors(
        write_checkpoint(architectures=["Qwen2ForCausalLM"]), tmp_path / "qwen2",
        q_proj__bias=(32,), k_proj__bias=(16,), v_proj__bias=(16,),
    )  # fmt: skip
    qwen3 = with_tensors(
        write_checkpoint(architectures=["Qwen3ForCausalLM"]), tmp_path / "qwen3",
        q_norm__weight=(8,), k_norm__weight=(8,),
    )  # fmt: skip
    for arch, folder in (("qwen2", qwen2), ("qwen3", qwen3)):
        path = write_gguf(folder, tmp_path / f"{arch}.gguf", arch)
        assert torch.allclose(logits(path), logits(folder), atol=1e-4)


def test_text_is_encoded_as_the_folder_encodes_it(tiny_model: Path, tmp_path: Path) -> None:
    ours = open_source(write_gguf(tiny_model, tmp_path / "model.gguf"))
    theirs = Text.read(tiny_model, ours.config.eos_ids)
    text = Text(ours.text, ours.config.eos_ids)
    assert text.encode(SAYS) == theirs.encode(SAYS)
    turn = [{"role": "user", "content": "Hello"}]
    assert text.encode_chat(turn) == theirs.encode_chat(turn)
    assert (text.stop_ids, text.special) == (theirs.stop_ids, theirs.special)


SPLIT_FIGURES = {"smollm": 4, "qwen2": 4, "llama-bpe": 2, "refact": 4, "tekken": 4, "gpt-4o": 2,
                 "dbrx": 2, "smaug-bpe": 2}  # fmt: skip


@each_row("split", SPLIT_FIGURES)
def test_every_split_that_is_known_gives_the_text_back(
    tiny_model: Path, tmp_path: Path, split: str
) -> None:
    path = write_gguf(tiny_model, tmp_path / "model.gguf", **{"tokenizer.ggml.pre": split})
    text = Text(open_source(path).text)
    assert text.tokenizer.decode(text.encode(SAYS), skip_special_tokens=False) == SAYS
    figures = text.tokenizer.pre_tokenizer.pre_tokenize_str("1234")
    assert len(figures) == SPLIT_FIGURES[split]
    words = text.tokenizer.pre_tokenizer.pre_tokenize_str("HelloWorld it's")
    assert len(words) == (4 if split == "tekken" else 3)  # gpt-4o: capitals part, 's stays


_STRAYS = {"Q4": 0.1, "Q5": 0.05}


@pytest.mark.parametrize("name", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "F16", "BF16"])
def test_weights_of_every_simple_format_come_close(
    write_checkpoint: WriteCheckpoint, tmp_path: Path, name: str
) -> None:
    folder = write_checkpoint()
    form = gguf.GGMLQuantizationType[name]
    ours = open_source(write_gguf(folder, tmp_path / "model.gguf", form=form)).checkpoint
    theirs = open_source(folder).checkpoint
    for layer in ("self_attn.q_proj", "self_attn.v_proj", "mlp.down_proj"):
        exact = theirs.tensor(f"model.layers.1.{layer}.weight").float()
        found = ours.tensor(f"model.layers.1.{layer}.weight")
        assert (found - exact).std() < _STRAYS.get(name[:2], 0.01) * exact.std()


@pytest.mark.parametrize("name", ["Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS"])
def test_blocks_of_256_are_read_row_by_row(tmp_path: Path, name: str) -> None:
    form = gguf.GGMLQuantizationType[name]
    n_bytes = gguf.GGML_QUANT_SIZES[form][1]
    blocks = np.random.default_rng(1).integers(0, 60, (3, 2 * n_bytes), np.uint8)
    writer = gguf.GGUFWriter(tmp_path / "k.gguf", "llama")
    writer.add_tensor("w", blocks, raw_dtype=form)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    found = GgufFile(tmp_path / "k.gguf").read("w")
    rows = [gguf.quants.dequantize(row, form) for row in blocks.reshape(3, 2, n_bytes)]
    assert found.shape == (3, 2 * gguf.GGML_QUANT_SIZES[form][0])
    assert np.array_equal(found, np.stack([row.ravel() for row in rows]), equal_nan=True)


@each_row(
    ("changes", "error", "says"),
    [
        ({"llama.block_count": 3}, MissingTensor, r"blk\.2\.attn_norm"),
        ({"llama.block_count": 1 << 31}, CheckpointError, "at most 1024 layers"),
        ({"llama.context_length": 1 << 31}, CheckpointError, "positions"),
        ({"llama.embedding_length": None}, CheckpointError, "hidden_size"),
        ({"llama.attention.head_count": "four"}, CheckpointError, "integer at .*head_count"),
        ({"llama.attention.head_count": [4, 4]}, CheckpointError, "integer at .*head_count"),
        ({"llama.attention.head_count": True}, CheckpointError, "integer at .*head_count"),
        ({"llama.attention.key_length": 1 << 20}, CheckpointError, "head_dim up to 1024"),
        ({"llama.attention.sliding_window": "x"}, CheckpointError, "integer at .*sliding_window"),
        ({"llama.attention.layer_norm_rms_epsilon": nan}, CheckpointError, "rms_norm_eps"),
        ({"llama.block_count": nan}, CheckpointError, r"block_count, found nan"),
        ({"llama.block_count": inf}, CheckpointError, r"block_count, found inf"),
        ({"llama.rope.freq_base": "x"}, CheckpointError, "a number at .*freq_base, found 'x'"),
        ({"llama.rope.freq_base": inf}, CheckpointError, "'rope_theta', found inf"),
        ({"llama.rope.scaling.type": [1, 2]}, CheckpointError, "a text at .*scaling.type"),
        ({"llama.rope.scaling.type": "linear"}, CheckpointError, "'factor', found None"),
        ({"llama.rope.dimension_count": [8, 8]}, CheckpointError, "integer at .*dimension_count"),
        ({"llama.expert_count": [8, 8]}, CheckpointError, "integer at .*expert_count"),
        ({"general.architecture": ["a", "b"]}, CheckpointError, "a text at general.architecture"),
        ({"general.alignment": [32, 32]}, CheckpointError, "integer at general.alignment"),
        ({"split.count": [1, 1]}, CheckpointError, "integer at split.count"),
        ({"tokenizer.ggml.pre": ["a", "b"]}, CheckpointError, "a text at tokenizer.ggml.pre"),
        ({"tokenizer.chat_template": 7}, CheckpointError, "a text at tokenizer.chat_template"),
        ({"llama.rope.scaling.type": "dynamic"}, UnsupportedArchitecture, "dynamic"),
        ({"llama.rope.dimension_count": 4}, UnsupportedArchitecture, "dimensions of a head"),
        ({"llama.expert_count": 8}, UnsupportedArchitecture, "experts"),
        ({"general.architecture": "mamba"}, UnsupportedArchitecture, "mamba"),
        ({"split.count": 4}, CheckpointError, "first part to be named"),
        ({"general.alignment": 0}, CheckpointError, "alignment"),
        ({"tokenizer.ggml.model": "llama"}, CheckpointError, "a score for each"),
        ({"tokenizer.ggml.model": "rwkv"}, CheckpointError, "kind gpt2"),
        ({"tokenizer.ggml.pre": "falcon"}, CheckpointError, "falcon"),
        ({"tokenizer.ggml.tokens": ["a", "a"]}, CheckpointError, "a type for each"),
        ({"tokenizer.ggml.merges": ["no such"]}, CheckpointError, "no such"),
        ({"tokenizer.ggml.merges": 7}, CheckpointError, "list of merges"),
        ({"tokenizer.ggml.eos_token_id": 1 << 30}, CheckpointError, "eos_token_id"),
    ],
)
def test_metadata_that_is_wrong_is_named(
    tiny_model: Path, tmp_path: Path, changes: dict[str, Any], error: type[Exception], says: str
) -> None:
    path = write_gguf(tiny_model, tmp_path / "model.gguf", **changes)
    with pytest.raises(error, match=says):
        Engine.load(path, CONFIG)


def test_a_model_in_several_files_is_the_one_in_one_file(tiny_model: Path, tmp_path: Path) -> None:
    whole = write_gguf(tiny_model, tmp_path / "model.gguf")
    names = list(load_file(tiny_model / "model.safetensors"))
    tensors = load_file(tiny_model / "model.safetensors")
    for number in range(3):
        part = tmp_path / f"part{number}"
        shutil.copytree(tiny_model, part)
        own = {name: tensors[name] for name in names[number::3]}
        save_file(own, part / "model.safetensors")
        of_split = {"split.no": number, "split.count": 3, "split.tensors.count": len(names)}
        write_gguf(part, tmp_path / f"m-0000{number + 1}-of-00003.gguf", **of_split)
    first = tmp_path / "m-00001-of-00003.gguf"
    assert torch.equal(logits(first), logits(whole))
    assert [path.name[2:7] for path in model_files(first)] == ["00001", "00002", "00003"]
    assert model_files(whole) == [whole]
    with pytest.raises(CheckpointError, match="expected the first of at most 512 parts"):
        GgufFile(tmp_path / "m-00002-of-00003.gguf")
    second = tmp_path / "m-00002-of-00003.gguf"
    shutil.copy(tmp_path / "m-00003-of-00003.gguf", second)
    with pytest.raises(CheckpointError, match="expected part 1 with tensors of its own"):
        GgufFile(first)
    second.unlink()
    with pytest.raises(CheckpointError, match="expected a GGUF file at .*00002"):
        GgufFile(first)


def test_a_vocabulary_of_sentencepiece_encodes_as_its_own_library_does(
    tiny_model: Path, tmp_path: Path
) -> None:
    """Merges by score, bytes for what is in no token, the space in front of the text."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    kinds = [2, 3, 3, *[6] * 256]
    words = ["\u2581", "h", "e", "l", "o", "w", "r", "d", "he", "ll", "llo", "\u2581hello",
             "\u2581w", "or", "ld", "\u2581wor", "\u2581world", "hello"]  # fmt: skip
    scores = [0.0] * len(pieces) + [-float(i) for i in range(len(words))]
    tokens = pieces + words
    path = write_gguf(
        tiny_model, tmp_path / "model.gguf",
        **{
            "tokenizer.ggml.model": "llama", "tokenizer.ggml.tokens": tokens,
            "tokenizer.ggml.token_type": kinds + [1] * len(words),
            "tokenizer.ggml.scores": scores, "tokenizer.ggml.eos_token_id": 2,
            "tokenizer.ggml.pre": "default",
        },
    )  # fmt: skip
    tokenizer = open_source(path).text.tokenizer
    for said, expected in (
        ("hello world", ["\u2581hello", "\u2581world"]),
        ("hello</s>hello", ["\u2581hello", "</s>", "hello"]),
        ("h\u00e9", ["\u2581", "h", "<0xC3>", "<0xA9>"]),
    ):
        found = tokenizer.encode(said, add_special_tokens=False)
        assert found.tokens == expected
        assert tokenizer.decode(found.ids, skip_special_tokens=False) == said


def header(*parts: bytes, version: int = 3, n_tensors: int = 0, n_keys: int = 1) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, n_tensors, n_keys) + b"".join(parts)


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()


HUGE = (1 << 64) - 1
TENSOR = text("w") + struct.pack("<I", 1)


@each_row(
    ("content", "says"),
    [
        (b"", "GGUF file"),
        (b"GGUX" + bytes(32), "GGUF file"),
        (header(version=1), "version 1"),
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "little-endian"),
        (header(n_keys=HUGE), "keys of metadata"),
        (header(n_tensors=HUGE), "tensors"),
        (header(struct.pack("<Q", HUGE)), "bytes of text"),
        (header(struct.pack("<Q", 60_000)), "60000 bytes"),
        (header(struct.pack("<Q", 1) + b"\xff"), "UTF-8"),
        (header(text("a") + struct.pack("<I", 13)), "type of metadata"),
        (header(text("a") + struct.pack("<IIQ", 9, 0, HUGE)), "items of arrays"),
        (header(text("a") + struct.pack("<IIQ", 9, 0, MAX_ITEMS)), f"{MAX_ITEMS} bytes"),
        (header(text("a") + struct.pack("<IIQ", 9, 8, MAX_ITEMS)), "8 bytes"),
        (header(text("a") + struct.pack("<IIQ", 9, 9, 1)), "numbers or texts"),
        (header(text("w") + struct.pack("<I", HUGE >> 32), n_tensors=1, n_keys=0), "dimensions"),
        (header(TENSOR + struct.pack("<QIQ", 8, 999, 0), n_tensors=1, n_keys=0), "number 999"),
        (header(TENSOR + struct.pack("<QIQ", 33, 2, 0), n_tensors=1, n_keys=0), "blocks of 32"),
        (header(TENSOR + struct.pack("<QIQ", 0, 0, 0), n_tensors=1, n_keys=0), "shape"),
        (header(TENSOR + struct.pack("<QIQ", 8, 0, HUGE), n_tensors=1, n_keys=0), "w of 32 bytes"),
        (header(TENSOR + struct.pack("<QIQ", HUGE, 0, 0), n_tensors=1, n_keys=0), "w of"),
    ],
)
def test_a_forged_number_is_refused(tmp_path: Path, content: bytes, says: str) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=says):
        GgufFile(path)


def test_a_format_that_is_not_read_is_named(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(
        header(TENSOR + struct.pack("<QIQ", 256, 16, 0), bytes(84), n_tensors=1, n_keys=0)
    )
    with pytest.raises(UnsupportedQuantization, match="IQ2_XXS"):
        GgufFile(path)


def test_a_damaged_file_is_read_or_refused_and_nothing_else(
    tiny_model: Path, tmp_path: Path
) -> None:
    whole = write_gguf(tiny_model, tmp_path / "model.gguf").read_bytes()
    rng, path = random.Random(5), tmp_path / "damaged.gguf"
    n_refused = 0
    for attempt in range(150):
        content = bytearray(whole[: rng.randrange(len(whole))] if attempt % 3 == 0 else whole)
        for _ in range(rng.choice((0, 1, 3)) if attempt % 3 == 0 else 2):
            place = rng.randrange(min(len(content), 1500))
            content[place] = rng.randrange(256)
        path.write_bytes(content)
        try:
            source = open_source(path)
            source.checkpoint.tensor("model.layers.0.self_attn.q_proj.weight")
        except EngineError:
            n_refused += 1
    assert n_refused > 50


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"GGUF file at .*none\.gguf"):
        Engine.load(tmp_path / "none.gguf", CONFIG)


def test_metadata_is_json_alike(tiny_model: Path, tmp_path: Path) -> None:
    file = GgufFile(write_gguf(tiny_model, tmp_path / "model.gguf"))
    words = json.loads((tiny_model / "tokenizer_config.json").read_text())
    assert file.metadata["tokenizer.chat_template"] == words["chat_template"]
    assert file.metadata["llama.block_count"] == 2

"""A model of the size that a small server runs, with random weights: what a token of it takes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.engine.models import RandomCheckpoint, Shape, write_folder
from benchmarks.engine.setting import Setting, drain, median, ms_per_token, reply_of
from benchmarks.harness.harness import Bar
from engine.device import open_device
from engine.engine import Engine
from engine.load.loader import read_config
from engine.model import Decoder
from engine.text.text import Text
from engine.types import EngineConfig

# Qwen3-0.6B: 28 layers of 1024, 16 heads of 128 on 8, norms of queries and keys, and its words.
SHAPE = Shape(1024, 3072, 28, 16, 8, 151936, 2048)
HEAD_DIM = 128
N_PROMPT = 200
BARS_MS = {"int8": 26.0, "int4": 26.0}


def true_size(setting: Setting) -> list[Bar]:
    """ms per token after the first, layer by layer made and rounded: 3 GB at the most."""
    bars = list[Bar]()
    for quant, bar_ms in BARS_MS.items():
        engine, found = _engine(setting, quant), list[float]()
        for i in range(setting.repeats):
            branch = engine.branch(f"b{i}", setting.words(N_PROMPT, i))
            drain(engine)
            found.append(ms_per_token(reply_of(engine, branch, [17, 18])))
            branch.close()
        del engine  # before the next one is made
        setting.tell(f"0.6B {quant}: {median(found):.1f} ms/token, least {min(found):.1f}")
        bars.append(Bar(f"ms/token of 0.6B, {quant}, one thread", median(found), bar_ms))
    return bars


def _engine(setting: Setting, quant: str) -> Engine:
    config = EngineConfig(quant=quant, threads=setting.threads, kv_tokens=1024, max_draft_tokens=0)
    device = open_device(config)
    with TemporaryDirectory() as folder:
        model_dir = write_folder(Path(folder), SHAPE)
        model = replace(read_config(model_dir), head_dim=HEAD_DIM, qk_norm=True)
        decoder = Decoder(
            RandomCheckpoint(model_dir, device.torch_name), model, dtype="bf16", quant=quant,
            device=device.torch_name, context_length=model.context_length,
            make_linear=device.make_linear, int4_head=device.int4_head,
        )  # fmt: skip
        return Engine(Text.read(model_dir, model.eos_ids), decoder, config)

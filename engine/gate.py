"""Owns the quality gate of one format: what is asked of a model in bf16 and in that format.

The text ships (`gate.toml`): what the model itself answers to fifty callers, read in both formats,
and a tool call for each of them, made in both. Likeliest tokens and divergence are the bar, and the
calls that came out otherwise are counted beside them.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from .engine import Engine
from .load.description import served_by
from .quality import BF16, FP32, Format, Quality, Reference, answers, spoken
from .text.tool_calls import MalformedToolCall, ParsedCall, ToolCallParser
from .types import EngineConfig, SamplingParams, TemplateError

# For those who are answered in the same steps: prompts of half a thousand tokens with the tools.
KV_TOKENS = 24576
CALL_TOKENS = 64  # of a call at most

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Verdict:
    """The findings about one format. layers: what ran it. n_calls: that were made, 0 where the
    model has no notation for calls; n_same: of those the same as in bf16.
    """

    layers: str
    quality: Quality
    n_calls: int
    n_same: int
    of_fp32: float | None = None


@cache
def _asked() -> dict[str, Any]:
    return tomllib.loads((files(__package__) / "gate.toml").read_text(encoding="utf-8"))


def run(model: Path, one: Format, base: EngineConfig, *, exact: bool, tell: Tell) -> Verdict:
    """Compare `one` with bf16 of the same checkpoint. exact: fp32 too.

    Raises: CheckpointError, ConfigError, TemplateError.
    """

    def load(form: Format) -> Engine:
        tell(f"{form.name}: reading")
        return Engine.load(model, form.config(base))

    with TemporaryDirectory() as folder:
        engine = load(BF16)
        tell(f"{BF16.name}: answering {len(_asked()['callers'])} callers, and calling")
        reference = Reference(engine, spoken(engine, list(_prompts(engine))), Path(folder))
        expected, of_fp32 = _calls(engine), None
        if exact:
            del engine
            engine = load(FP32)
            of_fp32 = reference.compare(engine).top1_agreement
        del engine
        engine = load(one)
        tell(f"{one.name}: reading the same, and calling")
        quality, found = reference.compare(engine), _calls(engine)
    n_same = sum(a == b for a, b in zip(expected, found, strict=True))
    return Verdict(served_by(engine)["layers"], quality, len(expected), n_same, of_fp32)


def _prompts(engine: Engine, tools: list[dict[str, Any]] | None = None) -> Iterator[list[int]]:
    """A turn of each caller, with the instructions where the template takes any."""
    system = {"role": "system", "content": _asked()["instructions"]}
    for said in _asked()["callers"]:
        turn = {"role": "user", "content": said}
        try:
            yield engine.text.encode_chat([system, turn], tools or (), add_generation_prompt=True)
        except TemplateError:
            yield engine.text.encode_chat([turn], tools or (), add_generation_prompt=True)


def _calls(engine: Engine) -> list[ParsedCall | None]:
    """The call for each caller, one of the tools; None for what is no call. None at all where the
    model has no notation for them, or nothing binds it.
    """
    notation, tools = engine.notation, _asked()["tools"]
    if notation is None or not engine.text.takes_tools:
        return []
    params = SamplingParams(max_tokens=CALL_TOKENS, forced_tools=json.dumps(tools))
    offered = [{"type": "function", "function": tool} for tool in tools]
    found = list[ParsedCall | None]()
    for tokens in answers(engine, list(_prompts(engine, offered)), params):
        written = engine.text.tokenizer.decode(tokens, skip_special_tokens=False)
        parser = ToolCallParser(notation)
        try:
            output = [*parser.feed(written), *parser.finish(is_cut_off=True)]
        except MalformedToolCall:
            output = []
        found.append(next((one for one in output if isinstance(one, ParsedCall)), None))
    return found

"""Owns how an engine's parts are put together from a model folder and a config.

Target, drafters, tokenizer: read, checked against each other, and quantized as asked.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..device import open_device
from ..drafting.drafters import Drafter, GrammarDrafter, ModelDrafter, NgramDrafter
from ..end_of_turn import read_head
from ..model import Decoder
from ..route import read_route_head
from ..text.text import Text
from ..types import CheckpointError, EngineConfig, EngineError
from .eagle import read_eagle
from .loader import ModelConfig
from .source import adapted, open_source, taught_by


@contextmanager
def _named_by(field: str) -> Iterator[None]:
    """An error of what lies in a folder beside the model's begins with the field that names it."""
    try:
        yield
    except EngineError as error:
        raise type(error)(f"{field}: {error}") from error


def read_model(
    model_dir: Path, config: EngineConfig, *, is_draft: bool = False
) -> tuple[Text, Decoder]:
    """Tokenizer and decoder of one model, fitting each other; no words are staged for a draft.

    Raises: CheckpointError, TemplateError, ConfigError.
    """
    source = open_source(model_dir)
    if config.adapter_dir is not None and not is_draft:
        with _named_by("adapter_dir"):
            source = adapted(source, config.adapter_dir)
    beside = () if is_draft else config.adapters
    with _named_by("adapters"):
        source = taught_by(source, beside)
    checkpoint, model = source.checkpoint, source.config
    text = Text(source.text, model.eos_ids)
    if text.vocab_size > model.vocab_size:
        raise CheckpointError(
            f"{model_dir}: expected a tokenizer of at most {model.vocab_size} tokens, "
            f"found {text.vocab_size}"
        )
    length = context_length(model, config)
    device = open_device(config)
    folder = None if is_draft else source.folder
    head = read_head(folder, model.hidden_size, device.torch_name)
    packed = device.open_packed(model_dir, config) if device.open_packed is not None else None
    decoder = Decoder(
        checkpoint, model, dtype=config.dtype, quant=config.quant, device=device.torch_name,
        context_length=length, make_linear=device.make_linear,
        end_head=head, int4_head=device.int4_head, packed=packed,
    )  # fmt: skip
    if config.route_file is not None and not is_draft:
        with _named_by("route_file"):
            decoder.route_head = read_route_head(
                config.route_file, decoder.norm.weight, device.torch_name
            )
    if packed is not None and not packed.is_here:
        packed.keep(decoder.products(), decoder.embedding)
    if beside:
        with _named_by("adapters"):
            decoder.adapters = device.open_adapters(checkpoint, decoder, beside)
    if config.eagle_dir is not None and config.max_draft_tokens and not is_draft:
        with _named_by("eagle_dir"):
            decoder.eagle = read_eagle(config.eagle_dir, decoder, config.quant, device.make_linear)
    return text, decoder


def context_length(model: ModelConfig, config: EngineConfig) -> int:
    """The config's bound on prompt and reply, never above what the model was trained for."""
    return min(config.context_length or model.context_length, model.context_length)


def make_drafters(text: Text, decoder: Decoder, config: EngineConfig) -> Iterator[Drafter]:
    """The drafters a config asks for, the cheapest first."""
    if not config.max_draft_tokens:
        return
    device = open_device(config)
    yield GrammarDrafter()
    if config.ngram_draft and (not device.drafts_inside or config.draft_dir is not None):
        yield NgramDrafter()
    length = context_length(decoder.config, config)
    if config.draft_dir is not None:
        with _named_by("draft_dir"):
            draft = _read_draft(config.draft_dir, text, decoder, config)
        draft.settle()
        yield ModelDrafter(draft, config, length, device.make_runner)


def _read_draft(folder: Path, text: Text, decoder: Decoder, config: EngineConfig) -> Decoder:
    """The small model that drafts for `decoder`. Raises: CheckpointError."""
    draft_text, draft = read_model(folder, config, is_draft=True)
    if draft_text.tokenizer.get_vocab() != text.tokenizer.get_vocab():
        raise CheckpointError(f"{folder}: expected the target's tokenizer, found another")
    if draft.config.vocab_size > decoder.config.vocab_size:  # its guesses index target rows
        raise CheckpointError(
            f"{folder}: expected at most the target's {decoder.config.vocab_size} vocabulary "
            f"rows, found {draft.config.vocab_size}"
        )
    return draft

"""Owns where a model's parts come from: a Hugging Face folder, a GGUF file, an adapter on either.

Whatever the format, what is assembled sees one `ModelSource`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ..text.gguf_tokenizer import read_gguf_text
from ..text.text import TextSource, read_template, read_text_source
from ..types import CheckpointError
from .adapter import AdaptedCheckpoint
from .gguf import GgufCheckpoint, is_gguf, read_gguf_config
from .gguf_file import GgufFile
from .loader import Checkpoint, FolderCheckpoint, ModelConfig, read_config


@dataclass(frozen=True, slots=True)
class ModelSource:
    """One model before it is assembled.

    folder: where its end-of-turn head lies, if it has one; None for a lone file.
    """

    checkpoint: Checkpoint
    config: ModelConfig
    text: TextSource
    folder: Path | None


def open_source(path: Path) -> ModelSource:
    """A model folder or a GGUF file. Raises: CheckpointError."""
    if is_gguf(path):
        file = GgufFile(path)
        config = read_gguf_config(file)
        return ModelSource(GgufCheckpoint(file, config), config, read_gguf_text(file), None)
    checkpoint = FolderCheckpoint(path)
    return ModelSource(checkpoint, read_config(path), read_text_source(path), path)


def adapted(source: ModelSource, folder: Path) -> ModelSource:
    """Return the source with an adapter merged; its chat template is the one that it was trained
    with.

    The end-of-turn head is the adapter's alone: the model's own was made for other states.
    Raises: CheckpointError.
    """
    source = taught_by(source, [folder])
    return replace(source, checkpoint=AdaptedCheckpoint(source.checkpoint, folder), folder=folder)


def taught_by(source: ModelSource, folders: Sequence[Path]) -> ModelSource:
    """Return the source with the chat template that adapters have together, where they have one.

    Raises: CheckpointError where they have several.
    """
    found = {template for folder in folders if (template := read_template(folder)) is not None}
    if len(found) > 1:
        named = ", ".join(map(str, folders))
        raise CheckpointError(f"expected one chat template for {named}, found {len(found)}")
    return replace(source, text=replace(source.text, template=found.pop())) if found else source

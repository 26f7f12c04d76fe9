"""Owns where a model's parts come from: a Hugging Face folder, a GGUF file, an adapter on either.

Whatever the format, what is assembled sees one `ModelSource`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from ..text.gguf_tokenizer import read_gguf_text
from ..text.text import TextSource, read_template, read_text_source
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
    """With an adapter merged; its chat template is the one that it was trained with.

    The end-of-turn head is the adapter's alone: the model's own was made for other states.
    Raises: CheckpointError.
    """
    template = read_template(folder)
    text = source.text if template is None else replace(source.text, template=template)
    return replace(
        source, checkpoint=AdaptedCheckpoint(source.checkpoint, folder), text=text, folder=folder
    )

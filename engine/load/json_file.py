"""Owns the reading of a JSON object from a file of a model folder."""

import json
from pathlib import Path
from typing import Any

from ..types import CheckpointError


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file. Raises: CheckpointError."""
    if not path.is_file():
        raise CheckpointError(f"expected a file {path.name} in {path.parent}, found none")
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise CheckpointError(f"{path}: expected JSON, found {error}") from None
    if not isinstance(value, dict):
        raise CheckpointError(f"{path}: expected a JSON object, found {type(value).__name__}")
    return value

"""The model names that a preset may use lead to classes that exist."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from voiceloop.workers.roles.speech import RECOGNIZERS, VOICES

ROOT = Path(__file__).resolve().parents[3]
PLACES = {**RECOGNIZERS, **VOICES}


@pytest.mark.parametrize("name", PLACES)
def test_every_model_a_preset_can_name_is_there(name: str) -> None:
    module, _, class_name = PLACES[name].partition(":")
    tree = ast.parse((ROOT / module.replace(".", "/")).with_suffix(".py").read_text("utf-8"))
    assert class_name in {node.name for node in tree.body if isinstance(node, ast.ClassDef)}

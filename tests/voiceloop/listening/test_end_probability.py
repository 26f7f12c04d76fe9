"""The answers of a checkpoint are kept for as long as the engine computes the same."""

from __future__ import annotations

from itertools import count
from pathlib import Path

import pytest

from engine import kept_files
from voiceloop.listening.recipes.end_probability import EndProbability


@pytest.mark.parametrize(("changed", "is_asked_anew"), [
    ("engine.py", True), ("native/decoder.c", True), ("kernels/norm.py", True),
    ("drafting/verification.py", True), ("text/text.py", True),
    ("recipes/passages.py", False), ("recipes/training/shards.py", False), ("README.md", False),
])  # fmt: skip
def test_an_answer_is_kept_until_the_engines_code_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changed: str, is_asked_anew: bool
) -> None:
    code, model = tmp_path / "engine", tmp_path / "model"
    file = code / changed
    for folder in (model, file.parent):
        folder.mkdir(parents=True, exist_ok=True)
    file.write_text("before")
    answers = count(1)
    monkeypatch.setenv("VOICELOOP_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(kept_files, "CODE", code)
    monkeypatch.setattr(EndProbability, "_ask", lambda *_: next(answers))

    def asked() -> float:
        return EndProbability(model).after((), ("yes",))

    assert asked() == asked() == 1
    file.write_text("after")
    assert asked() == (2 if is_asked_anew else 1)

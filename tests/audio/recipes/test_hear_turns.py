"""Turns are spoken, heard and written down as pairs; a stopped run goes on."""

import json
from pathlib import Path

import numpy as np
import pytest

from audio.recipes import hear_turns


class Deaf:
    """A recognizer whose words depend on nothing."""

    def __init__(self, _: str) -> None: ...


def test_a_stopped_run_goes_on_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoken: list[str] = []

    def speak(text: str, voice: str, _: object) -> np.ndarray:
        spoken.append(f"{voice}: {text}")
        return np.zeros(16, np.int16)

    monkeypatch.setattr(hear_turns, "PocketsphinxRecognizer", Deaf)
    monkeypatch.setattr(hear_turns, "speak", speak)
    monkeypatch.setattr(hear_turns, "recognize", lambda *_: ("heard",))
    turns, out = tmp_path / "turns.txt", tmp_path / "pairs.jsonl"
    turns.write_text("one\ntwo\nthree\n")
    hear_turns.main(["--turns", str(turns), "--out", str(out), "--most", "2"])
    hear_turns.main(["--turns", str(turns), "--out", str(out)])
    pairs = [json.loads(line) for line in out.read_text().splitlines()]
    assert pairs == [{"said": word, "heard": "heard"} for word in ("one", "two", "three")]
    assert [text.split(": ")[1] for text in spoken] == ["one", "two", "three"]
    assert len({text.split(":")[0] for text in spoken}) == 3

"""The head's training: it reads what the engine serves, learns, and is folded without loss."""

from __future__ import annotations

import random
import stat
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.end_of_turn import HEAD_FILE, read_head
from engine.engine import Engine
from engine.recipes import evaluate_end_of_turn, train_end_of_turn
from engine.recipes.conversations.calls import generate_call
from engine.recipes.train_end_of_turn import Places, Reader, figures, train
from engine.recipes.training import word_ends
from engine.recipes.training.corpus import Corpus
from engine.recipes.training.state_head import StateHead
from engine.recipes.training.word_ends import SOURCES, STYLES, conversations
from engine.types import EngineConfig, Staged
from tests.stepping import drain

HIDDEN = 32  # of the tiny model
STYLE_NAMES = list(STYLES)


def places(seed: int, n_places: int = 800, noise: float = 0.5) -> Places:
    """States on either side of a plane, off the origin and of uneven scale; some beyond noise."""
    draw = torch.Generator().manual_seed(seed)
    states = torch.randn(n_places, HIDDEN, generator=draw)
    score = states[:, 0] - states[:, 1] + noise * torch.randn(n_places, generator=draw)
    scale = torch.logspace(-1, 1.5, HIDDEN)
    return Places(
        (states * scale + 3 * scale).half(),
        (score > 1).float(),
        torch.randint(len(STYLES), (n_places,), generator=draw),
    )


@pytest.fixture(scope="module")
def model(write_checkpoint: Callable[..., Path]) -> Path:
    return write_checkpoint()


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many steps for a few places as a real training has for many."""
    monkeypatch.setattr(train_end_of_turn, "BATCH_PLACES", 16)
    monkeypatch.setattr(train_end_of_turn, "LEARNING_RATE", 5e-3)


def load(model: Path) -> Engine:
    return Engine.load(model, EngineConfig(dtype="fp32", threads=1, kv_tokens=4096))


def test_what_is_learned_from_is_what_the_engine_asks_with(
    model: Path, dialogues: Path, tmp_path: Path
) -> None:
    """P of the head at the states read is P that the engine tells after the same words."""
    folder = tmp_path / "model"
    copytree(model, folder)
    torch.manual_seed(0)
    save_file(
        StateHead(torch.zeros(HIDDEN), torch.ones(HIDDEN), 8, 1).tensors(), folder / HEAD_FILE
    )
    engine = load(folder)
    drawn = conversations(Corpus(dialogues), engine.text, random.Random(1), 400)
    batch = list(islice(drawn, 4))
    n_places = sum(len(found.places) for found in batch)
    read = Reader(engine).places(iter(batch * 20), 1)
    head = engine.runner.decoder.end_head
    assert head is not None and n_places > 20
    found = head(read.states)[:n_places, 0].tolist()
    told = []
    for number, one in enumerate(batch):
        for place in one.places:
            branch = engine.branch(f"{number}/{place}")
            branch.stage(one.tokens[: place + 1])
            events = drain(engine)
            told += [e.p_end_of_turn for e in events if isinstance(e, Staged)]
            branch.close()
    assert found == pytest.approx(told, abs=2e-3)
    assert max(told) - min(told) > 0.05
    assert read.is_last[:n_places].bool().tolist() == [x for one in batch for x in one.is_last]
    styles = [STYLE_NAMES.index(one.style) for one in batch for _ in one.places]
    assert read.styles[:n_places].tolist() == styles


@pytest.mark.usefixtures("small_batches")
def test_a_head_learns_and_the_same_seed_gives_the_same_one() -> None:
    known, held_out = places(0), places(1)
    first, second, other = (train(known, held_out, n_inner=16, seed=s) for s in (0, 0, 1))
    with torch.no_grad():
        scores = first(held_out.states)[:, 0]
    areas = [area for _, area, _ in figures(scores, held_out)]
    assert len(areas) == len(STYLES) + 1 and min(areas) > 0.8
    assert torch.equal(first.inner.weight, second.inner.weight)
    assert not torch.equal(first.inner.weight, other.inner.weight)


def test_the_commands_write_a_head_and_measure_it(
    model: Path,
    dialogues: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    asked = list[bool]()

    def noted(*given: Any, **named: Any) -> Any:
        asked.append(generate_call(*given, **named).held_out)
        return generate_call(*given, **named)

    monkeypatch.setattr(word_ends, "generate_call", noted)
    monkeypatch.setattr(train_end_of_turn, "VALID_SHARE", 1.0)
    for source in SOURCES:
        monkeypatch.setitem(SOURCES, source, 1 + (source == "calls"))
    folder = tmp_path / "model"
    copytree(model, folder)
    command = ["", "--model", str(folder), "--data", str(dialogues), "--threads", "1"]
    monkeypatch.setattr("sys.argv", [*command, "--places", "600", "--inner", "8"])
    train_end_of_turn.main()
    # Calls with held-out names choose the epoch; none is learned from.
    assert True in asked and False in asked and asked == sorted(asked)
    assert read_head(folder, HIDDEN, "cpu") is not None
    assert load_file(folder / HEAD_FILE)["inner.weight"].shape == (8, HIDDEN)
    assert stat.S_IMODE((folder / HEAD_FILE).stat().st_mode) == 0o644
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == [*STYLES, "all"]
    assert all("of the valid split" in line for line in lines)

    del asked[:]
    monkeypatch.setattr("sys.argv", [*command, "--places", "600"])
    evaluate_end_of_turn.main()
    lines = capsys.readouterr().out.splitlines()
    expected = [
        f"{reading} {style}" for reading in ("tokens", "head") for style in (*STYLES, "all")
    ]
    assert [" ".join(line.split()[:2]) for line in lines] == expected
    assert set(asked) == {True} and all("of the test split" in line for line in lines)

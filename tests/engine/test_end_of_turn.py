"""P(end of turn): by the checkpoint's own head, else by tokens that end a turn or a sentence."""

from collections.abc import Callable
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

import engine.load.loader
from engine.end_of_turn import HEAD_FILE, end_ids
from engine.engine import Engine
from engine.types import CheckpointError, EngineConfig, SamplingParams, Staged
from tests.stepping import drain

MakeEngine = Callable[..., Engine]
HIDDEN = 32


def head_tensors(n_inner: int = 8, hidden: int = HIDDEN) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = {
        "inner.weight": (n_inner, hidden),
        "inner.bias": (n_inner,),
        "outer.weight": (1, n_inner),
        "outer.bias": (1,),
    }
    return {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}


def with_head(tiny_model: Path, folder: Path, tensors: dict[str, torch.Tensor]) -> Path:
    copytree(tiny_model, folder / "model")
    save_file(tensors, folder / "model" / HEAD_FILE)
    return folder / "model"


def staged(engine: Engine) -> list[float]:
    """P(end of turn) after each of some stagings: a prompt's worth, a word, a revision."""
    branch, found = engine.branch("b", range(5, 40)), []
    for words in (list(range(40, 60)), list(range(40, 61)), [40, 41]):
        branch.stage(words)
        while engine.has_work():
            found += [e.p_end_of_turn for e in engine.step() if isinstance(e, Staged)]
    return found


def test_the_tokens_that_end_a_turn_or_a_sentence_are_found(make_engine: MakeEngine) -> None:
    text = make_engine().text
    ids = end_ids(text)
    assert text.end_of_turn_id in ids
    marks = {text.decode([token]).strip() for token in ids} - {""}
    assert {".", "?", "!"} <= marks <= {".", "?", "!", "..."}


def test_the_head_of_a_checkpoint_is_asked(
    make_engine: MakeEngine, tiny_model: Path, tmp_path: Path
) -> None:
    tensors = head_tensors()
    engine = make_engine(with_head(tiny_model, tmp_path, tensors))
    decoder, seen = engine.runner.decoder, list[torch.Tensor]()
    read = decoder.end_head
    assert read is not None

    def noted(states: torch.Tensor) -> torch.Tensor:
        seen.append(states)
        return read(states)

    decoder.end_head = noted  # type: ignore[assignment]
    found = staged(engine)
    x = torch.cat(seen).float()
    inner = torch.nn.functional.gelu(x @ tensors["inner.weight"].T + tensors["inner.bias"])
    expected = (inner @ tensors["outer.weight"][0] + tensors["outer.bias"]).sigmoid()
    assert found == pytest.approx(expected.tolist(), rel=1e-5)
    assert found != pytest.approx(staged(make_engine()))


def test_only_replies_get_logits_where_a_head_reads_staged_words(
    make_engine: MakeEngine, tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine(with_head(tiny_model, tmp_path, head_tensors()), share_steps=True)
    decoder, n_rows = engine.runner.decoder, list[int]()
    logits_of = decoder.logits

    def counted(states: torch.Tensor) -> torch.Tensor:
        n_rows.append(len(states))
        return logits_of(states)

    monkeypatch.setattr(decoder, "logits", counted)
    replies, events = [engine.branch(name) for name in "acd"], []
    for branch in replies:
        branch.commit([5, 6, 7], SamplingParams(max_tokens=3, ignore_eos=True))
    speaker = engine.branch("b")
    for word in range(3):
        speaker.stage([5, 6, 7 + word])
        events += engine.step()
    assert n_rows == [3, 3, 3]
    assert sum(isinstance(event, Staged) for event in events) == 3
    speaker.stage([5])
    drain(engine)
    assert len(n_rows) == 3
    alone = make_engine()
    branch = alone.branch("a")
    branch.commit([5, 6, 7], SamplingParams(max_tokens=3, ignore_eos=True))
    drain(alone)
    assert [reply.sequence.tokens for reply in replies] == [branch.sequence.tokens] * 3


def test_graphs_ask_the_head_too(tiny_model: Path, tmp_path: Path) -> None:
    pytest.importorskip("triton", reason="the GPU path needs triton")
    folder = with_head(tiny_model, tmp_path, head_tensors())
    settings = {"dtype": "fp32", "kv_tokens": 1024, "max_branches": 2, "step_tokens": 32}
    found = [
        staged(Engine.load(folder, EngineConfig(device=device, **settings)))  # type: ignore[arg-type]
        for device in ("cpu", "reference")
    ]
    assert len(found[0]) == 3
    assert found[1] == pytest.approx(found[0], rel=1e-4)


@pytest.mark.parametrize(
    ("tensors", "complaint"),
    [
        (head_tensors(hidden=HIDDEN + 1), "expected inner.weight of shape"),
        (head_tensors(n_inner=0), "expected inner.weight of shape"),
        (head_tensors() | {"outer.weight": torch.ones(2, 8)}, "expected outer.weight of shape"),
        (head_tensors() | {"inner.bias": torch.tensor(1.0)}, "expected inner.bias of shape"),
        ({"inner.bias": torch.ones(8)}, "expected a tensor inner.weight"),
        (head_tensors() | {"inner.weight": torch.tensor(1.0)}, "expected inner.weight of shape"),
        (head_tensors() | {"inner.weight": torch.ones(8, 32, 1)}, "expected inner.weight of shape"),
        (head_tensors() | {"outer.bias": torch.tensor([torch.nan])}, "expected finite numbers"),
        (head_tensors() | {"inner.bias": torch.full((8,), torch.inf)}, "expected finite numbers"),
        (None, "expected safetensors"),
    ],
)
def test_a_malformed_head_is_refused(
    make_engine: MakeEngine,
    tiny_model: Path,
    tmp_path: Path,
    tensors: dict[str, torch.Tensor] | None,
    complaint: str,
) -> None:
    folder = with_head(tiny_model, tmp_path, tensors or head_tensors())
    if tensors is None:
        (folder / HEAD_FILE).write_bytes(b"not tensors")
    with pytest.raises(CheckpointError, match=complaint):
        make_engine(folder)


def test_a_head_that_cannot_be_read_is_named(
    make_engine: MakeEngine, tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = with_head(tiny_model, tmp_path, head_tensors())

    opened = engine.load.loader.safe_open

    def denied(path: Path, framework: str) -> Any:
        if path.name == HEAD_FILE:
            raise PermissionError(13, "Permission denied", str(path))
        return opened(path, framework=framework)

    monkeypatch.setattr(engine.load.loader, "safe_open", denied)
    with pytest.raises(CheckpointError, match=r"end_of_turn.*expected safetensors, found .*denied"):
        make_engine(folder)


def test_nobody_reads_the_head_of_a_draft_model(
    make_engine: MakeEngine, tiny_model: Path, tmp_path: Path
) -> None:
    folder = with_head(tiny_model, tmp_path, head_tensors())
    (folder / HEAD_FILE).write_bytes(b"not tensors")
    engine = make_engine(draft_dir=folder)
    assert engine.runner.decoder.end_head is None

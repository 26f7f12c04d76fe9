"""What a route head reads of staged words."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from engine.engine import Engine
from engine.recipes import train_route
from engine.route import base_of
from engine.types import CheckpointError, RouteSigns, Staged, WrongShape

MakeEngine = Callable[..., Engine]
HIDDEN = 32


def head_file(
    folder: Path, hidden: int = HIDDEN, n_ranks: int = 50, base: torch.Tensor | None = None
) -> Path:
    generator = torch.Generator().manual_seed(0)
    shapes = {"inner.weight": (8, hidden), "inner.bias": (8,), "outer.weight": (3, 8)}
    tensors = {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    ranks = torch.linspace(0, 1, n_ranks)
    more = {} if base is None else {"base": base}
    save_file({**tensors, "outer.bias": torch.zeros(3), "ranks": ranks, **more}, folder / "head")
    return folder / "head"


def staged(engine: Engine, reads_end: bool = True) -> list[RouteSigns | None]:
    branch, found = engine.branch("b", range(5, 40), reads_end=reads_end), []
    for words in (list(range(40, 60)), list(range(40, 61)), [40, 41]):
        branch.stage(words)
        while engine.has_work():
            found += [e.route for e in engine.step() if isinstance(e, Staged)]
    return found


def test_the_head_reads_the_state_behind_the_words_beside_the_end(
    make_engine: MakeEngine, tmp_path: Path
) -> None:
    assert staged(make_engine()) == [None] * 3
    engine = make_engine(route_file=head_file(tmp_path))
    # Also where another model reads the end.
    found, again = staged(engine), staged(make_engine(route_file=tmp_path / "head"), False)
    assert found == again and len(set(found)) == 3
    for one in found:
        assert one is not None
        assert 0.0 <= one.large_rank <= 1.0 and 0.0 < one.tool < 1.0 and 0.0 < one.retrieval < 1.0


def test_a_rank_is_the_share_of_calibrated_turns_below(
    make_engine: MakeEngine, tmp_path: Path
) -> None:
    head = make_engine(route_file=head_file(tmp_path, n_ranks=1000)).runner.decoder.route_head
    assert head is not None
    states = torch.randn(20, HIDDEN)
    inner = torch.nn.functional.gelu(states @ head.layers.inner_weight.T + head.layers.inner_bias)
    p_large = (inner @ head.layers.outer_weight[0] + head.layers.outer_bias[0]).sigmoid()
    assert torch.allclose(head(states)[:, 0], p_large, atol=2e-3)


@pytest.mark.parametrize(
    ("hidden", "n_ranks", "error", "words"),
    [
        (HIDDEN + 1, 50, WrongShape, r"route_file: .*inner.weight of shape \[1 or more, 32\]"),
        (HIDDEN, 20_000, WrongShape, "expected 1 to 10000 ranks"),
        (0, 0, CheckpointError, "route_file: expected a route head, found no file"),
    ],
)
def test_a_head_that_does_not_fit_is_refused_by_name(
    make_engine: MakeEngine, tmp_path: Path, hidden: int, n_ranks: int,
    error: type[CheckpointError], words: str,
) -> None:  # fmt: skip
    path = head_file(tmp_path, hidden, n_ranks) if hidden else tmp_path / "nowhere"
    with pytest.raises(error, match=words):
        make_engine(route_file=path)


def test_a_head_of_another_model_of_the_same_width_is_refused(
    make_engine: MakeEngine, tmp_path: Path
) -> None:
    own = base_of(make_engine().runner.decoder.norm.weight)
    assert None not in staged(make_engine(route_file=head_file(tmp_path, base=own)))
    with pytest.raises(CheckpointError, match="expected a head of this model, found another's"):
        make_engine(route_file=head_file(tmp_path, base=own + 1))


def test_where_the_head_of_a_single_file_goes_is_asked_before_it_is_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "model.gguf").touch()
    monkeypatch.setattr("sys.argv", ["train_route", "--model", str(tmp_path / "model.gguf")])
    with pytest.raises(SystemExit):
        train_route.main()
    assert "--out: expected a file for the head of a model in one file" in capsys.readouterr().err


PRICES = "Soup is $11.20, tea $3. We open at 9:30 am. Boots and long trousers are worn. No dogs."


@pytest.mark.parametrize(
    ("gold", "reply", "is_right"),
    [
        ("The soup is $11.20. Would you like one?", "It costs $11.20.", True),
        ("The soup is $11.20.", "The soup is $11.50.", False),
        ("We open at 9:30 am.", "Tea is $3.", False),
        ("You wear boots and long trousers.", "Boots and trousers, please.", True),
        ("You wear boots and long trousers.", "You wear a hat.", False),
        ("Sorry, we don't take dogs.", "No dogs, I'm sorry.", True),
        ("Sorry, we don't take dogs.", "Yes, dogs are welcome.", False),
        ("Yes, tea is $3.", "No, tea is not here.", False),
        ("I'm afraid I don't know that.", "I'm sorry, I don't know that.", True),
        ("The soup is $11.20.", "I'm afraid I don't know that.", False),
        ("No problem. Anything else?", "Sure.", True),
    ],
)
def test_an_answer_is_judged_by_its_figures_its_words_and_whether_it_denies(
    gold: str, reply: str, is_right: bool
) -> None:
    before = [{"role": "system", "content": PRICES}]
    turn = train_route.Turn(before, "And?", [], {"role": "assistant", "content": gold})
    assert turn.is_answered(reply, ()) == is_right

"""How processes of a cluster give way to others while they load."""

from __future__ import annotations

from pathlib import Path

import pytest

from voiceloop.cluster.control.session_weight import LOADING, SERVING, SessionWeights


def process(proc: Path, pid: int, *children: int) -> Path:
    """Returns the file of its session's nice value."""
    folder = proc / str(pid) / "task" / str(pid)
    folder.mkdir(parents=True)
    (folder / "children").write_text(" ".join(map(str, children)))
    weight = proc / str(pid) / "autogroup"
    weight.write_text("/autogroup-7 nice 0")
    return weight


def test_a_process_and_all_that_it_has_started_get_another_weight_and_their_own_back(
    tmp_path: Path,
) -> None:
    files = [process(tmp_path, 10, 11, 12), process(tmp_path, 11), process(tmp_path, 12, 13)]
    files.append(process(tmp_path, 13))
    stranger = process(tmp_path, 14)
    weights = SessionWeights(tmp_path)
    assert weights.set(10, LOADING)
    assert [file.read_text()[:2] for file in files] == ["10"] * 4
    files.append(process(tmp_path, 15))
    (tmp_path / "13/task/13/children").write_text("15")
    assert weights.set(10, LOADING)  # one that was started since
    assert files[-1].read_text()[:2] == "10"
    assert weights.set(10, SERVING)
    assert [file.read_text()[0] for file in files] == ["0"] * 5
    assert stranger.read_text() == "/autogroup-7 nice 0"


def test_what_the_kernel_puts_off_is_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = process(tmp_path, 10)
    weights = SessionWeights(tmp_path)
    with monkeypatch.context() as busy:
        busy.setattr(Path, "open", _refuse)
        assert not weights.set(10, LOADING)
    assert weights.set(10, LOADING) and file.read_text()[:2] == "10"


def _refuse(*given: object, **named: object) -> None:
    raise BlockingIOError


def test_where_processors_are_not_shared_by_sessions_nothing_is_waited_for(tmp_path: Path) -> None:
    process(tmp_path, 10).unlink()
    assert SessionWeights(tmp_path).set(10, LOADING)
    assert SessionWeights(tmp_path).set(11, LOADING)  # gone

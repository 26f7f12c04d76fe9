"""Places that cannot be written are told before the work begins."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from clients.errors import OutputError
from clients.outputs import check_file, prepare_folder, writing


def test_a_folder_is_made_with_its_parents_and_left_empty(tmp_path: Path) -> None:
    prepare_folder(tmp_path / "a" / "b")
    assert list((tmp_path / "a" / "b").iterdir()) == []


@pytest.mark.parametrize("place", ["file", "file/below", "/proc/none", "/dev/null"])
def test_a_folder_that_cannot_be_is_refused(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match="expected a folder that can be written into at .*found"):
        prepare_folder(tmp_path / place)


def test_checking_a_file_leaves_what_is_there_and_nothing_where_nothing_was(tmp_path: Path) -> None:
    (tmp_path / "old").write_text("kept")
    check_file(tmp_path / "old")
    check_file(tmp_path / "new")
    assert (tmp_path / "old").read_text() == "kept"
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("place", ["missing/file", "folder", "/proc/none"])
def test_a_file_that_cannot_be_is_refused(tmp_path: Path, place: str) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(OutputError, match="expected a file that can be written at .*found"):
        check_file(tmp_path / place)


def test_a_pipe_is_not_opened_to_see_whether_it_can_be(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    check_file(tmp_path / "pipe")  # opening it would wait for a reader
    check_file(Path("/dev/null"))


def test_what_fails_while_it_is_written_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="found: No space left on device"):
        with writing(Path("/dev/full")), Path("/dev/full").open("w") as file:
            file.write("x")
            file.flush()

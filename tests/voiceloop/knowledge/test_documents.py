"""A folder of documents: what is read, what is left out, and what is refused with its place."""

from __future__ import annotations

from pathlib import Path

import pytest

from voiceloop.errors import ConfigError
from voiceloop.knowledge import documents
from voiceloop.knowledge.documents import read_folder
from voiceloop.knowledge.passages import MAX_PASSAGE_WORDS, passages_of


def write(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        path = folder / name.replace("__", "/").replace("_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return folder


def test_markdown_is_cut_at_its_headings_and_keeps_those_above(tmp_path: Path) -> None:
    text = (
        "Intro.\n# Returns\n## Refunds ##\nFive days.\n```\n# no heading\n```\n# Gifts\nNone.\n#tag"
    )
    (document,) = read_folder(write(tmp_path, a_md=text))
    assert document.sections == (
        ("", "Intro."),
        ("Returns > Refunds", "Five days.\n```\n# no heading\n```"),
        ("Gifts", "None.\n#tag"),
    )


def test_a_row_of_a_table_is_told_with_the_names_of_its_columns(tmp_path: Path) -> None:
    (document,) = read_folder(write(tmp_path, prices_csv='item,price\n"Tea, green", 3.20\nMilk,\n'))
    assert document.sections == (("", "item: Tea, green. price: 3.20"), ("", "item: Milk"))


def test_documents_come_in_order_and_hidden_or_other_files_do_not(tmp_path: Path) -> None:
    write(tmp_path, b__z_txt="z", b__a_md="a", c_TXT="c", d_png="d")
    write(tmp_path, **{"_git__x_md": "x", "b___h_txt": "h"})
    assert [document.path for document in read_folder(tmp_path)] == ["c.TXT", "b/a.md", "b/z.txt"]


def test_a_link_out_of_the_folder_is_not_followed(tmp_path: Path) -> None:
    inside, outside = tmp_path / "in", tmp_path / "out"
    write(inside, a_md="a")
    write(outside, secret_md="s")
    (inside / "s.md").symlink_to(outside / "secret.md")
    (inside / "more").symlink_to(outside)
    (inside / "again.md").symlink_to(inside / "a.md")
    assert [document.path for document in read_folder(inside)] == ["a.md", "again.md"]


@pytest.mark.parametrize(
    "name, data, told",
    [
        ("a.md", b"caf\xe9", "a.md: expected UTF-8, found another byte at 3"),
        ("a.csv", b"x,y\n1,2,3\n", "a.csv: expected 2 values in row 2, found 3"),
        ("a.csv", b'x\n"open\n', "a.csv: expected CSV, found an error"),
        ("a.png", b"", "expected .md, .txt, .csv files, found none"),
        ("a.txt", b"x" * 101, "expected at most 100 bytes, found more"),
    ],
)
def test_a_file_that_cannot_be_read_is_told_with_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, data: bytes, told: str
) -> None:
    monkeypatch.setattr(documents, "MAX_FILE_BYTES", 100)
    (tmp_path / name).write_bytes(data)
    with pytest.raises(ConfigError, match=told):
        read_folder(tmp_path)


@pytest.mark.parametrize(
    "bound, most, told",
    [
        ("MAX_FILES", 2, "at most 2 files"),
        ("MAX_FOLDER_BYTES", 5, "at most 5 bytes"),
        ("MAX_CSV_ROWS", 1, "at most 1 rows"),
    ],
)
def test_a_folder_is_read_within_bounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bound: str, most: int, told: str
) -> None:
    write(tmp_path, a_md="aa", b_md="bb", c_csv="x\n1\n2\n")
    assert len(read_folder(tmp_path)) == 3
    monkeypatch.setattr(documents, bound, most)
    with pytest.raises(ConfigError, match=told):
        read_folder(tmp_path)


def test_no_folder_is_an_error_and_not_an_agent_that_knows_nothing(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="expected a folder, found none at .*nowhere"):
        read_folder(tmp_path / "nowhere")


# --- passages ---


def pieces(folder: Path, text: str) -> list[str]:
    return [passage.text for passage in passages_of(read_folder(write(folder, a_txt=text)))]


def test_paragraphs_are_joined_as_long_as_they_fit_and_nothing_is_lost(tmp_path: Path) -> None:
    paragraphs = [" ".join(f"w{n}.{word}" for word in range(25)) for n in range(5)]
    cut = pieces(tmp_path, "\n\n".join(paragraphs))
    assert [len(piece.split()) for piece in cut] == [50, 50, 25]
    assert " ".join(cut).split() == " ".join(paragraphs).split()


def test_a_long_paragraph_is_cut_after_a_sentence_and_a_long_sentence_after_a_word(
    tmp_path: Path,
) -> None:
    sentence = "It is " + "very " * 37 + "long."
    cut = pieces(tmp_path, f"{sentence} {sentence}")
    assert cut == [sentence, sentence]
    cut = pieces(tmp_path, "word " * 150 + "x" * 500)
    assert all(len(piece.split()) <= MAX_PASSAGE_WORDS for piece in cut)
    assert sum(len(piece.split()) for piece in cut) == 153


def test_passages_are_numbered_over_all_documents(tmp_path: Path) -> None:
    found = list(passages_of(read_folder(write(tmp_path, a_md="# A\na\n# B\nb", b_txt="c"))))
    assert [(one.number, one.path, one.heading, one.text) for one in found] == [
        (0, "a.md", "A", "a"),
        (1, "a.md", "B", "b"),
        (2, "b.txt", "", "c"),
    ]

"""A folder of the operator's documents, read within bounds: Markdown, plain text and CSV.

Owns which files count, how large they may be, and what of a file is its title. Blocking: it is read
once, before the server answers.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from voiceloop.errors import ConfigError

SUFFIXES = (".md", ".txt", ".csv")
# Chosen: ten times the largest folder that is measured, and what an index holds in a few seconds.
MAX_FILES = 10_000
MAX_FILE_BYTES = 4 * 1024 * 1024
MAX_FOLDER_BYTES = 64 * 1024 * 1024
MAX_CSV_ROWS = 100_000


@dataclass(frozen=True, slots=True)
class Document:
    """One file: its path within the folder with `/`, and its text as sections.

    sections: pairs of a heading ("Returns > Refunds"; empty where there is none) and the text below
    it. A row of a CSV file is a section of its own: "column: value" in the order of the columns.
    """

    path: str
    sections: tuple[tuple[str, str], ...]


def read_folder(folder: Path) -> tuple[Document, ...]:
    """Every document below `folder`, by name, files first; hidden files and folders are left out.

    A link is followed only where it leads to a file within the folder: what is indexed is told to
    callers, and a link is an easy way to tell them more than was meant.

    Raises:
        ConfigError: there is no such folder, no document in it, one that is not UTF-8 or not CSV,
            or more than MAX_FILES files, MAX_FILE_BYTES in one, or MAX_FOLDER_BYTES in all.
    """
    if not folder.is_dir():
        raise ConfigError(f"knowledge: expected a folder, found none at {folder}")
    root = folder.resolve()
    documents: list[Document] = []
    n_bytes = 0
    for path in _files(root):
        if len(documents) == MAX_FILES:
            raise _too_much(folder, f"at most {MAX_FILES} files", "more")
        text, size = _read(path, root)
        n_bytes += size
        if n_bytes > MAX_FOLDER_BYTES:
            raise _too_much(folder, f"at most {MAX_FOLDER_BYTES} bytes", "more")
        name = path.relative_to(root).as_posix()
        documents.append(Document(name, tuple(_sections(path, name, text))))
    if not documents:
        kinds = ", ".join(SUFFIXES)
        raise ConfigError(f"knowledge: expected {kinds} files, found none in {folder}")
    return tuple(documents)


def _files(root: Path) -> Iterator[Path]:
    for folder, names, files in os.walk(root):
        names[:] = sorted(name for name in names if not name.startswith("."))
        for name in sorted(files):
            path = Path(folder, name)
            if name.startswith(".") or path.suffix.lower() not in SUFFIXES:
                continue
            if path.is_file() and path.resolve().is_relative_to(root):
                yield path


def _read(path: Path, root: Path) -> tuple[str, int]:
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise ConfigError(
            f"knowledge: expected a readable file, found {path}: {error.strerror}"
        ) from None
    if len(data) > MAX_FILE_BYTES:
        raise _too_much(path.relative_to(root), f"at most {MAX_FILE_BYTES} bytes", "more")
    try:
        return data.decode("utf-8-sig"), len(data)
    except UnicodeDecodeError as error:
        place = path.relative_to(root)
        raise ConfigError(
            f"knowledge: {place}: expected UTF-8, found another byte at {error.start}"
        ) from None


def _too_much(where: object, wanted: str, found: str) -> ConfigError:
    return ConfigError(f"knowledge: {where}: expected {wanted}, found {found}")


def _sections(path: Path, name: str, text: str) -> Iterator[tuple[str, str]]:
    match path.suffix.lower():
        case ".csv":
            yield from _rows(name, text)
        case ".md":
            yield from _markdown(text)
        case _:
            yield "", text


def _rows(name: str, text: str) -> Iterator[tuple[str, str]]:
    """Each row with the names of its columns: alone, "12.50" answers nothing."""
    rows = csv.reader(text.splitlines(), strict=True)
    try:
        columns = [column.strip() for column in next(rows, [])]
        for number, row in enumerate(rows, start=2):
            if number > MAX_CSV_ROWS:
                raise _too_much(name, f"at most {MAX_CSV_ROWS} rows", "more")
            if len(row) > len(columns):
                raise ConfigError(
                    f"knowledge: {name}: expected {len(columns)} values in row {number}, "
                    f"found {len(row)}"
                )
            pairs = zip(columns, row, strict=False)
            said = [f"{column}: {value.strip()}" for column, value in pairs if value.strip()]
            if said:
                yield "", ". ".join(said)
    except csv.Error as error:
        raise ConfigError(f"knowledge: {name}: expected CSV, found an error: {error}") from None


def _markdown(text: str) -> Iterator[tuple[str, str]]:
    """Text by the headings above it; `#` inside fenced code is no heading."""
    headings: list[str] = []
    lines: list[str] = []
    fence = ""
    for line in text.splitlines():
        mark = line.lstrip()[:3]
        if mark in ("```", "~~~") and (not fence or mark == fence):
            fence = "" if fence else mark
        level = len(line) - len(line.lstrip("#"))
        if fence or not 1 <= level <= 6 or line[level : level + 1] != " ":
            lines.append(line)
            continue
        if any(part.strip() for part in lines):
            yield " > ".join(filter(None, headings)), "\n".join(lines)
        lines = []
        headings[level - 1 :] = [line[level:].strip().rstrip("#").rstrip()]
    if any(part.strip() for part in lines):
        yield " > ".join(filter(None, headings)), "\n".join(lines)

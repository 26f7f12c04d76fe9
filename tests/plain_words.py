"""How long the sentences and cells of a page are: ``python -m tests.plain_words [PAGE ...]``."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path

MOST_WORDS = 25  # of a sentence
MOST_CELL_WORDS = 20
# How no docstring begins: the thing itself comes first, or what is done ("Return who ...").
NO_BEGINNING = re.compile(
    r"(?:Of|Where|Who|What|Which|Whose|Whom|When|Why|That|Those|These|This|Its|It|They|There|Nothing"
    r"|Nobody|Somebody|By|For|With|Without|Up|Until|Since|From|So)\b"
)
_FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
_CODE = re.compile(r"`[^`]*`")
_MARKUP = re.compile(r"^#+ .*$|<!--.*?-->|^\s*(?:[-*]|\d+\.) ", re.MULTILINE)
_END = re.compile(r"(?<=[.!?:])\s+|\n\s*\n|\n(?=\x00)")


@dataclass(frozen=True, slots=True)
class Words:
    """The words of each sentence, and of each cell of a table."""

    sentences: tuple[str, ...]
    cells: tuple[str, ...]

    @property
    def mean(self) -> float:
        return sum(len(one.split()) for one in self.sentences) / max(1, len(self.sentences))

    @property
    def long_sentences(self) -> list[str]:
        return [one for one in self.sentences if len(one.split()) > MOST_WORDS]

    @property
    def long_cells(self) -> list[str]:
        return [one for one in self.cells if len(one.split()) > MOST_CELL_WORDS]


def words_of(text: str) -> Words:
    """Code, headings and links' targets are no words; what stands in backticks is one."""
    text = _CODE.sub("code", _LINK.sub(r"\1", _FENCE.sub("\n\n", text)))
    rows = [line for line in text.splitlines() if line.startswith("|")]
    cells = [cell.strip() for row in rows for cell in row.strip("|").split("|")]
    prose = "\n".join("" if line.startswith("|") else line for line in text.splitlines())
    prose = _MARKUP.sub("\n\n", prose)
    sentences = [" ".join(one.split()) for one in _END.split(prose)]
    return Words(
        tuple(one for one in sentences if re.search(r"[a-z]", one)),
        tuple(cell for cell in cells if re.search(r"[a-z]", cell)),
    )


def main() -> None:
    root = Path(__file__).resolve().parents[1]
    pages = [Path(page) for page in sys.argv[1:]] or [
        root / "README.md",
        root / "CONTRIBUTING.md",
        *sorted((root / "voiceloop" / "docs").glob("*.md")),
    ]
    for page in pages:
        words = words_of(page.read_text(encoding="utf-8"))
        n, n_cells = len(words.sentences), len(words.cells)
        print(
            f"{words.mean:5.1f} words a sentence, {len(words.long_sentences):3d} of {n:4d} over "
            f"{MOST_WORDS}, {len(words.long_cells):3d} of {n_cells:4d} cells over "
            f"{MOST_CELL_WORDS}  {page.name}"
        )
        if len(pages) == 1:
            print(*words.long_sentences, *words.long_cells, sep="\n  ")


if __name__ == "__main__":
    main()

"""The words of a text as they are compared, said or written. Pure."""

from __future__ import annotations

import re

WORD = re.compile(r"[^\W_]+(?:['\u2019][^\W_]+)*")


def words_of(text: str) -> list[str]:
    """The words of a text in small letters, without what stands between them."""
    return [word.replace("\u2019", "'") for word in WORD.findall(text.lower())]

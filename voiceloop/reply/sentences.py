"""The words of a reply sentence by sentence, for who wants some of them said otherwise."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable

# What ends a sentence, and the space behind it; Chinese and Japanese write none.
END = re.compile(r"(?:[.!?…]+[\"'”’)\]]*\s+|[。！？]+|\n)\s*")
# A sentence that has none by then goes on without: some 20 s of speech.
LONGEST = 320


class Sentences:
    """The sentences of one version of a reply: `feed` and `finish` return what may be said by then.

    said: what is said in place of a sentence.
    """

    def __init__(self, said: Callable[[str], Awaitable[str]]) -> None:
        self._said = said
        self._text = ""  # that no sentence has ended yet

    async def feed(self, text: str) -> str:
        """Raises: as `said`."""
        self._text += text
        given = ""
        while (end := END.search(self._text)) is not None or len(self._text) > LONGEST:
            at = end.end() if end is not None else LONGEST
            sentence, self._text = self._text[:at], self._text[at:]
            given += await self._of(sentence)
        return given

    async def finish(self) -> str:
        """No more of it comes now. Raises: as `said`."""
        text, self._text = self._text, ""
        return await self._of(text)

    async def _of(self, text: str) -> str:
        """Return it with the space around it."""
        if not (bare := text.strip()):
            return text
        said = await self._said(bare)
        return text.replace(bare, said, 1) if said else ""

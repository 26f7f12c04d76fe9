"""Owns the encoding of a turn that is still being spoken: what stands before it is read once.

With every partial the caller's words change and the conversation does not. The template is asked
once, with the first words; where it writes them as they are at the end of what it gives, later
words are encoded behind the same tokens, and cost what they are long. What a template makes of
other words is not asked again before the turn is committed: what is staged is a guess anyway.
"""

from __future__ import annotations

from collections.abc import Sequence

from .text import Message, Text


class OpenTurn:
    """A conversation, and the words behind it as they stand. Not for other messages or tools."""

    def __init__(
        self, text: Text, messages: Sequence[Message], tools: Sequence[Message], words: str
    ) -> None:
        """words: the first that were heard. Raises: TemplateError, PromptTooLong."""
        self._text, self._messages, self._tools = text, messages, tools
        rendered = text.render_open(messages, tools, words)
        said = text.spoken(words)
        self._lead = ""
        self.before: list[int] = []  # tokens, to the last that no later words can change
        self.follows = rendered.endswith(said)  # else every words are a whole conversation again
        if self.follows:
            lead = rendered.removesuffix(said)
            place = text.last_seam(lead)
            self.before, self._lead = text.encode(lead[:place]), lead[place:]
        self._n_before = len(rendered) - len(said)

    def behind(self, words: str) -> list[int]:
        """Tokens after `before` once these words were said.

        Raises: TemplateError, PromptTooLong.
        """
        if not self.follows:
            return self._text.encode(self._text.render_open(self._messages, self._tools, words))
        said = self._text.spoken(words)
        self._text.check_length(self._n_before + len(said))
        return self._text.encode(self._lead + said)

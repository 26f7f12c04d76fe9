"""How much of a long conversation the language model is shown, in tokens that are guessed.

Owns that guess, for the gateway has no tokenizer, and the bounds that follow from it. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import msgspec

from voiceloop.backends import Tool
from voiceloop.errors import InvalidRequest

# English is near 4 characters a token, a small vocabulary near 3.5; roles and markers come on top.
CHARS_PER_TOKEN = 3
TOKENS_PER_MESSAGE = 6
OVERESTIMATE = 1.5  # the most by which that guess is too high
NO_BOUND = 2**31
MOST_CHARACTERS_A_TOKEN = 16  # words have four; what has more fits no context
UNKNOWN_CONTEXT_TOKENS = 128 * 1024  # of a remote model that nobody has described


def guess_tokens(text: str) -> int:
    """Tokens of a message, guessed high: the gateway has no tokenizer."""
    return len(text) // CHARS_PER_TOKEN + TOKENS_PER_MESSAGE


@dataclass(frozen=True, slots=True)
class Window:
    """How much of a long conversation the model is shown.

    Over ``n_tokens`` (instructions and ``n_tools`` of tools included) the oldest items go, until
    what follows the instructions fills ``retention_ratio`` of its room: seldom and much at once,
    because each time the model's cache of the history is lost.
    """

    n_tokens: int
    retention_ratio: float = 0.8
    n_after_instructions: int | None = None  # the client's own bound, on what follows these
    n_tools: int = 0

    @classmethod
    def of(
        cls, truncation: str | dict[str, Any], n_tokens: int, tools: Iterable[Tool] = ()
    ) -> Window | None:
        """The window that a session's ``truncation`` asks for; 0 tokens: no bound is known."""
        n_tools = sum(guess_tokens(msgspec.json.encode(tool).decode()) for tool in tools)
        if not isinstance(truncation, dict):
            is_bound = n_tokens and truncation != "disabled"
            return cls(n_tokens, n_tools=n_tools) if is_bound else None
        n_most = truncation.get("token_limits", {}).get("post_instructions")
        if not n_tokens and n_most is None:
            return None
        return cls(n_tokens or NO_BOUND, truncation["retention_ratio"], n_most, n_tools)

    def room(self, n_instructions: int) -> int:
        """Tokens that may follow the instructions."""
        left = self.n_tokens - self.n_tools - n_instructions
        return left if self.n_after_instructions is None else min(left, self.n_after_instructions)

    def check(self, instructions: str) -> None:
        """Raises InvalidRequest where instructions and tools surely leave no room for a turn."""
        n_fixed = guess_tokens(instructions) + self.n_tools
        if n_fixed > OVERESTIMATE * self.n_tokens:
            raise InvalidRequest(
                f"expected instructions and tools that fit the model's {self.n_tokens} tokens, "
                f"found about {int(n_fixed / OVERESTIMATE)}",
                param="session.instructions",
            )


def most_characters(n_context_tokens: int) -> int:
    """The most that a prompt may have, whoever counts its tokens; 0 tokens: not known."""
    return MOST_CHARACTERS_A_TOKEN * (n_context_tokens or UNKNOWN_CONTEXT_TOKENS)

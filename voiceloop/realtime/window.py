"""How much of a long conversation the language model is shown, in tokens.

Owns how they are counted (by the model's tokenizer where that is here, else guessed, and the guess
corrected by what the model says of its prompts), and the bounds that follow from it. Pure.
"""

from __future__ import annotations

import string
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import msgspec

from voiceloop.backends import ChatMessage, Tool
from voiceloop.errors import InvalidRequest

# English is near 4 characters a token, a small vocabulary near 3.5; roles and markers come on top.
CHARS_PER_TOKEN = 3
# Of these. Digits and marks are mostly a token each, and other alphabets up to one a byte: the
# embedded tokenizer has 1.0 characters a token in digits, 1.35 in JSON.
_IN_WORDS = (string.ascii_letters + " \n").encode()
TOKENS_PER_MESSAGE = 6
# Between a model's own count and the guess; beyond that something else is wrong with either.
LEAST_RATIO, MOST_RATIO = 0.5, 4.0
MOST_CHARACTERS_ON_AVERAGE = 4.5  # a token, in any text that is meant to be read
NO_BOUND = 2**31
MOST_CHARACTERS_A_TOKEN = 16  # words have four; what has more fits no context
# While nobody speaks the window slides where this share of its room is taken, and keeps so much of
# it: the next slide is then some ten minutes of talk away at 8,000 tokens.
NEARLY_FULL, KEPT_AHEAD = 0.85, 0.6
# Notes of what has left the window take so much of the room at most, and no more than a page of it:
# a window as small as the embedded model's (1,792 tokens) then holds some 20 facts.
MEMORY_SHARE, MOST_MEMORY_TOKENS = 0.3, 1000
# A longer text is guessed: counting it would hold up all calls for more than some 10 ms.
MAX_COUNTED_CHARS = 16_000
# Of what the model takes, that instructions and tools may fill before those of a session's MCP
# servers are left out: these are written by others, and what remains is the conversation's.
TOOLS_SHARE = 0.5
MAX_REMEMBERED_COUNTS = 1024  # texts of one conversation: an hour has some hundred
UNKNOWN_CONTEXT_TOKENS = 128 * 1024  # of a remote model that nobody has described


def guess_tokens(text: str) -> int:
    """Tokens of a message, guessed high: the gateway has no tokenizer."""
    utf8 = text.encode(errors="replace")
    n_others = len(utf8.translate(None, _IN_WORDS))
    return (len(utf8) - n_others) // CHARS_PER_TOKEN + n_others + TOKENS_PER_MESSAGE


@dataclass(slots=True, eq=False)
class TokenCount:
    """Tokens of a message.

    exact: of a text, by the model's tokenizer; None: it is not here. ratio: tokens for each that
    was guessed, as the model's own counts have shown.
    """

    exact: Callable[[str], int] | None = None
    ratio: float = 1.0

    def __call__(self, text: str) -> int:
        """Return what a message of this text takes, its role and markers included."""
        if self.exact is None or len(text) > MAX_COUNTED_CHARS:
            return int(guess_tokens(text) * self.ratio)
        return self.exact(text) + TOKENS_PER_MESSAGE

    def at_least(self, text: str) -> int:
        """Return what it surely takes."""
        if self.exact is None or len(text) > MAX_COUNTED_CHARS:
            return int(len(text) / MOST_CHARACTERS_ON_AVERAGE)
        return self(text)

    def of_part(self, text: str) -> int:
        """Return what a piece of a message takes."""
        return self(text) - TOKENS_PER_MESSAGE

    def remembering(self) -> TokenCount:
        """The same for one conversation, whose texts are asked for again at every turn."""
        exact = self.exact
        return TokenCount(exact and lru_cache(MAX_REMEMBERED_COUNTS)(exact))

    def learn(self, n_tokens: int, prompt: Iterable[ChatMessage], tools: Iterable[Tool]) -> None:
        """The model has counted this prompt: guesses are corrected by it. 0: it did not.

        The newest is believed: a conversation is most of the next prompt too.
        """
        if self.exact is not None:
            return
        texts = [message.content + message.behind for message in prompt]
        texts += [c.name + c.arguments for message in prompt for c in message.tool_calls]
        texts += [msgspec.json.encode(tool).decode() for tool in tools]
        n_guessed = sum(map(guess_tokens, texts))
        if n_tokens > 0 and n_guessed > 0:
            self.ratio = min(MOST_RATIO, max(LEAST_RATIO, n_tokens / n_guessed))


@dataclass(frozen=True, slots=True)
class Window:
    """How much of a long conversation the model is shown.

    Over ``n_tokens`` (instructions and ``n_tools`` of tools included) the oldest items go, until
    what follows the instructions fills ``retention_ratio`` of its room: seldom and much at once,
    because each time the model's cache of the history is lost. ``kept_ahead``: the same of a slide
    before that, while nobody speaks.
    """

    n_tokens: int
    retention_ratio: float = 0.8
    n_after_instructions: int | None = None  # the client's own bound, on what follows these
    n_tools: int = 0
    kept_ahead: float = KEPT_AHEAD
    count: TokenCount = field(default_factory=TokenCount)
    n_least_tools: int = 0  # tokens that the tools surely take

    @classmethod
    def of(
        cls,
        truncation: str | dict[str, Any],
        n_tokens: int,
        tools: Iterable[Tool] = (),
        count: TokenCount | None = None,
    ) -> Window | None:
        """The window that a session's ``truncation`` asks for; 0 tokens: no bound is known."""
        count = (count or TokenCount()).remembering()
        written = [msgspec.json.encode(tool).decode() for tool in tools]
        # All tools of a session count as one long text would: a client may name a hundred.
        of_tools = count if sum(map(len, written)) <= MAX_COUNTED_CHARS else TokenCount()
        n_tools, n_least = sum(map(of_tools, written)), sum(map(of_tools.at_least, written))
        if not isinstance(truncation, dict):
            if not n_tokens or truncation == "disabled":
                return None
            return cls(n_tokens, n_tools=n_tools, count=count, n_least_tools=n_least)
        n_most = truncation.get("token_limits", {}).get("post_instructions")
        if not n_tokens and n_most is None:
            return None
        ratio = truncation["retention_ratio"]
        kept_ahead = NEARLY_FULL * ratio
        return cls(n_tokens or NO_BOUND, ratio, n_most, n_tools, kept_ahead, count, n_least)

    def room(self, n_instructions: int) -> int:
        """Tokens that may follow the instructions."""
        left = self.n_tokens - self.n_tools - n_instructions
        return left if self.n_after_instructions is None else min(left, self.n_after_instructions)

    @staticmethod
    def n_notes(room: int) -> int:
        """Tokens that notes of what has left the window may take of this room."""
        return max(0, min(int(room * MEMORY_SHARE), MOST_MEMORY_TOKENS))

    def check(self, instructions: str) -> None:
        """Raises InvalidRequest where instructions and tools surely leave no room for a turn."""
        if len(instructions.encode(errors="replace")) + self.n_tools <= self.n_tokens:
            return  # a token has a byte at least: nothing has to be counted
        n_fixed = self.count.at_least(instructions) + self.n_least_tools
        if n_fixed > self.n_tokens:
            raise InvalidRequest(
                f"expected instructions and tools that fit the model's {self.n_tokens} tokens, "
                f"found about {n_fixed}",
                param="session.instructions",
            )


@dataclass(frozen=True, slots=True)
class Slide:
    """The window has moved on. is_ahead: before it had to, while nobody spoke.

    n_items: that are no longer shown. n_facts: known of all that have left it.
    """

    is_ahead: bool
    n_items: int
    n_facts: int = 0


def fitting_tools(
    tools: tuple[Tool, ...], instructions: str, n_tokens: int, count: TokenCount
) -> tuple[Tool, ...]:
    """The tools without those of a session's MCP servers that leave no room for a conversation.

    n_tokens: what the model takes; 0: not known, all fit.
    """
    if not n_tokens:
        return tools
    written = [msgspec.json.encode(tool).decode() for tool in tools]
    of_tools = count if sum(map(len, written)) <= MAX_COUNTED_CHARS else TokenCount()
    n_left = int(n_tokens * TOOLS_SHARE) - count(instructions)
    n_left -= sum(
        of_tools(text) for tool, text in zip(tools, written, strict=True) if not tool.server_label
    )
    fitting = []
    for tool, text in zip(tools, written, strict=True):
        n_tool = of_tools(text) if tool.server_label else 0
        if n_tool <= max(0, n_left):
            fitting.append(tool)
            n_left -= n_tool
    return tuple(fitting)


def most_characters(n_context_tokens: int) -> int:
    """The most that a prompt may have, whoever counts its tokens; 0 tokens: not known."""
    return MOST_CHARACTERS_A_TOKEN * (n_context_tokens or UNKNOWN_CONTEXT_TOKENS)

"""A service's prefix cache, guessed: the prompts that it most likely still has, and the cost of
reading.

Such a service says at most afterwards how much of a prompt it had cached. What it was sent is known
here, though, and how long its first token took: together they tell whether a request made ahead of
its time, only so that the prompt is read, would spare the caller a wait. Pure: times are passed in.
"""

from __future__ import annotations

import os
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

from voiceloop.backends import ChatMessage
from voiceloop.remote.heard_turn import read_text

# Prompts older than this may have made room for others. A wrong guess costs one token.
KEPT_S = 30.0
MAX_KNOWN = 8192  # beginnings of prompts: 64 calls of 64 turns, twice over
LEAST_COSTS = 3
MAX_COSTS = 16  # of the latest requests: a service that gets busier or faster is noticed
# Requests with less to read than this tell what a first token takes by itself, others what reading
# takes. vLLM caches blocks of 16 tokens, some 64 characters: less cannot be read ahead at all.
SHORT_CHARACTERS = 200
LEAST_CHARACTERS = 64
# A caller does not hear less, and a request has a price of its own.
LEAST_SAVED_MS = 10.0


@dataclass(frozen=True, slots=True)
class Prompt:
    """``tools``: as JSON, which stands before the messages in every chat template."""

    tenant: str
    tools: str
    messages: tuple[ChatMessage, ...]

    def beginnings(self) -> list[tuple[int, int]]:
        """Return each beginning, that without a message first: its key, the characters it adds."""
        found = [(hash((self.tenant, self.tools)), len(self.tools))]
        for message in self.messages:
            n_characters = len(read_text(message)) + len(message.behind)
            n_characters += sum(len(c.name) + len(c.arguments) for c in message.tool_calls)
            found.append((hash((found[-1][0], message)), n_characters))
        return found


@dataclass(slots=True)
class _Known:
    """A beginning that was read; ``open_turn``: the longest text read as the caller's after it."""

    at_s: float
    open_turn: str = ""


class PromptCache:
    """One service's, over all calls."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._known: OrderedDict[int, _Known] = OrderedDict()
        self._costs: deque[tuple[int, float]] = deque(maxlen=MAX_COSTS)

    def n_unread(self, prompt: Prompt) -> int:
        """Characters that the service would have to read before its first token."""
        beginnings = prompt.beginnings()
        since_s = self._clock() - KEPT_S
        n_unread = 0
        for n_messages in reversed(range(len(beginnings))):
            key, n_characters = beginnings[n_messages]
            known = self._known.get(key)
            if known is not None and known.at_s >= since_s:
                if n_messages < len(prompt.messages):
                    texts = [known.open_turn, read_text(prompt.messages[n_messages])]
                    n_unread -= len(os.path.commonprefix(texts))
                break
            n_unread += n_characters
        return n_unread

    def pays(self, prompt: Prompt) -> bool:
        """Whether reading this ahead would spare a wait that can be heard."""
        n_unread = self.n_unread(prompt)
        if n_unread < LEAST_CHARACTERS:
            return False
        cost = self.ms_per_character
        return cost is None or cost * n_unread >= LEAST_SAVED_MS

    @property
    def ms_per_character(self) -> float | None:
        """Return what reading costs, of the latest requests; None before there was a long one."""
        short = [ms for n_unread, ms in self._costs if n_unread < SHORT_CHARACTERS]
        # None are, where each turn has its sound: then the quickest of several stands for them.
        known = short or [ms for _, ms in self._costs if len(self._costs) >= LEAST_COSTS]
        base_ms = min(known, default=0.0)
        costs = [
            max(0.0, ms - base_ms) / n_unread
            for n_unread, ms in self._costs
            if n_unread >= SHORT_CHARACTERS
        ]
        return median(costs) if costs else None

    def observe(self, prompt: Prompt, n_unread: int, ttft_ms: float) -> None:
        """The service has read this prompt, of which it had not read so much before."""
        self._costs.append((n_unread, ttft_ms))
        self.add(prompt)

    def add(self, prompt: Prompt) -> None:
        """The service has just had all of this prompt in its cache."""
        now_s = self._clock()
        keys = [key for key, _ in prompt.beginnings()]
        for key in keys:
            self._known.setdefault(key, _Known(now_s)).at_s = now_s
            self._known.move_to_end(key)
        last = prompt.messages[-1] if prompt.messages else None
        if last is not None and last.role == "user":
            self._known[keys[-2]].open_turn = read_text(last)
        while len(self._known) > MAX_KNOWN:
            self._known.popitem(last=False)

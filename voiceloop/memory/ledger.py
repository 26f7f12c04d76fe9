"""The ledger of one call: the facts of what has left the window, as the model is told of them.

Owns the facts, what replaces which, and which of them go into how many tokens. Items are written
into it in the order in which they leave. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import NamedTuple

from voiceloop.memory.facts import Fact, FactKind, quote
from voiceloop.memory.reading import Asked, confirmed, facts_of_agent, facts_of_caller

MAX_FACTS = 200  # an hour of talk has some hundred; the least dear and oldest go first
MAX_OPEN_CALLS = 32  # of tools, whose result has not left the window yet

OPENING = "\n\n[Notes from earlier in this call, not said now:"
CLOSING = "]"


class _OpenCall(NamedTuple):
    item_id: str
    text: str


class Ledger:
    """Written by `observe_*`; `text` is what the model reads."""

    def __init__(self) -> None:
        self._facts: list[Fact] = []
        self._asked = Asked()  # the end of the agent's turn, which the caller's next answers
        self._asked_in = ""  # the item of that turn
        self._calls: dict[str, _OpenCall] = {}  # tool calls without a result, by id

    def __len__(self) -> int:
        return len(self._facts)

    # --- written ---

    def observe_caller(self, item_id: str, text: str) -> None:
        """A turn of the caller."""
        agreed = confirmed(text, self._asked)
        asked, self._asked = self._asked, Asked()
        if agreed is not None:
            self._add((agreed,), item_id, self._asked_in)
            asked = Asked()  # what else they say is no answer to it
        said = frozenset(facts_of_caller(text, Asked()))  # whatever was asked
        for fact in facts_of_caller(text, asked):
            self._add((fact,), item_id, *(() if fact in said else (self._asked_in,)))

    def observe_agent(self, item_id: str, text: str) -> None:
        """Take in what was heard of a turn of the agent."""
        self._add(facts_of_agent(text), item_id)
        self._asked, self._asked_in = Asked.of(text), item_id

    def observe_call(self, item_id: str, call_id: str, name: str, arguments: str) -> None:
        """A call of a tool; it is a fact once its result is known."""
        self._calls.pop(call_id, None)
        self._calls[call_id] = _OpenCall(item_id, f"{name} {arguments}")
        while len(self._calls) > MAX_OPEN_CALLS:
            del self._calls[next(iter(self._calls))]

    def observe_result(self, item_id: str, call_id: str, output: str) -> None:
        """Take in the result of a tool's call."""
        called = self._calls.pop(call_id, None)
        if called is not None and '"error"' not in output:
            told = f"Done: {quote(called.text)} gave {quote(output)}"
            self._add((Fact(FactKind.CALL, told, called.text),), called.item_id, item_id)

    def forget(self, item_id: str) -> bool:
        """The client has deleted an item: returns whether the model was told anything of it."""
        if item_id == self._asked_in:
            self._asked = Asked()
        self._calls = {id_: one for id_, one in self._calls.items() if one.item_id != item_id}
        kept = [fact for fact in self._facts if item_id not in fact.sources]
        had_any = len(kept) < len(self._facts)
        self._facts = kept
        return had_any

    def _add(self, facts: Iterable[Fact], *item_ids: str) -> None:
        for fact in facts:
            same = (fact.kind, fact.key)
            if fact.kind is FactKind.NAME and self._is_part_of_name(fact):
                continue
            self._facts = [one for one in self._facts if (one.kind, one.key) != same]
            self._facts.append(replace(fact, sources=frozenset(item_ids)))
        while len(self._facts) > MAX_FACTS:
            dearest_last = max(self._facts, key=lambda fact: fact.kind)  # of equals the oldest
            self._facts.remove(dearest_last)

    def _is_part_of_name(self, fact: Fact) -> bool:
        """ "Lopez" behind "Maria Lopez" is nobody else."""
        known = next((one.text for one in self._facts if one.kind is FactKind.NAME), "")
        return set(fact.text.lower().split()) < set(known.lower().split())

    # --- read ---

    def text(self, n_most_tokens: int, count: Callable[[str], int]) -> str:
        """The facts that fit, the dearest and newest first, told in the order of the call.

        "" where there are none. count: tokens of a text.
        """
        n_left = n_most_tokens - count(OPENING + CLOSING)
        kept: list[int] = []
        newest_first = range(len(self._facts) - 1, -1, -1)
        for at in sorted(newest_first, key=lambda at: self._facts[at].kind):
            n_line = count(f"\n{self._facts[at].text}")
            if n_line <= n_left:
                kept.append(at)
                n_left -= n_line
        lines = [self._facts[at].text for at in sorted(kept)]
        return "\n".join((OPENING, *lines)) + CLOSING if lines else ""

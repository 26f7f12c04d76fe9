"""The ledger of one call: the facts of what has left the window, as the model is told of them.

Owns the facts, what replaces which, and which of them go into how many tokens. Items are written
into it in the order in which they leave. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from voiceloop.memory.facts import Fact, FactKind, quote
from voiceloop.memory.reading import Asked, confirmed, facts_of_agent, facts_of_caller

MAX_FACTS = 200  # an hour of talk has some hundred; the least dear and oldest go first
MAX_OPEN_CALLS = 32  # of tools, whose result has not left the window yet

OPENING = "\n\n[Notes from earlier in this call, not said now:"
CLOSING = "]"
SUMMARY = "In short: "


@dataclass(frozen=True, slots=True)
class Memory:
    """What the model is told of a long call's beginning, which its window does not hold any more.

    facts: names, numbers, answers, promises and what tools did, quoted from the transcript.
    summary: and what the model itself makes of it, as far as the transcript bears it out.
    """

    facts: bool = False
    summary: bool = False


class Ledger:
    """Written by `observe_*`; `text` is what the model reads.

    keeps_facts: else only a summary is kept. wants_summary: a model is to be asked for one.
    """

    def __init__(self, *, keeps_facts: bool = True, wants_summary: bool = False) -> None:
        self.wants_summary = wants_summary
        self._keeps_facts = keeps_facts
        self._facts: list[Fact] = []
        self._asked = Asked()  # the end of the agent's turn, which the caller's next answers
        self._calls: dict[str, str] = {}  # tool calls without a result, by id
        self._summary = ""

    def __len__(self) -> int:
        return len(self._facts)

    @classmethod
    def of(cls, memory: Memory, *, writes: bool) -> Ledger | None:
        """As the agent wants it; writes: whether the model can. None where nothing is kept."""
        wants_summary = memory.summary and writes
        if not memory.facts and not wants_summary:
            return None
        return cls(keeps_facts=memory.facts, wants_summary=wants_summary)

    @property
    def summary(self) -> str:
        return self._summary

    # --- written ---

    def observe_caller(self, item_id: str, text: str) -> None:
        """A turn of the caller."""
        agreed = confirmed(text, self._asked)
        asked, self._asked = self._asked, Asked()
        if agreed is not None:
            self._add(item_id, (agreed,))
            asked = Asked()  # what else they say is no answer to it
        self._add(item_id, facts_of_caller(text, asked))

    def observe_agent(self, item_id: str, text: str) -> None:
        """What was heard of a turn of the agent."""
        self._add(item_id, facts_of_agent(text))
        self._asked = Asked.of(text)

    def observe_call(self, call_id: str, name: str, arguments: str) -> None:
        """A call of a tool; it is a fact once its result is known."""
        self._calls.pop(call_id, None)
        self._calls[call_id] = f"{name} {arguments}"
        while len(self._calls) > MAX_OPEN_CALLS:
            del self._calls[next(iter(self._calls))]

    def observe_result(self, item_id: str, call_id: str, output: str) -> None:
        """What came of a call."""
        called = self._calls.pop(call_id, None)
        if called is not None and '"error"' not in output:
            told = f"Done: {quote(called)} gave {quote(output)}"
            self._add(item_id, (Fact(FactKind.CALL, told, called),))

    def summarize(self, summary: str) -> None:
        """What a model makes of all that has left; it takes the place of the one before."""
        self._summary = " ".join(summary.split())

    def forget(self, item_id: str) -> bool:
        """The client has deleted an item: returns whether anything of it was kept."""
        kept = [fact for fact in self._facts if fact.source != item_id]
        had_any = len(kept) < len(self._facts) or bool(self._summary)
        self._facts, self._summary = kept, ""  # nobody knows what a summary was made of
        return had_any

    def _add(self, item_id: str, facts: Iterable[Fact]) -> None:
        for fact in facts if self._keeps_facts else ():
            same = (fact.kind, fact.key)
            if fact.kind is FactKind.NAME and self._is_part_of_name(fact):
                continue
            self._facts = [one for one in self._facts if (one.kind, one.key) != same]
            self._facts.append(replace(fact, source=item_id))
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
        head = ""
        if self._summary:
            line = f"{SUMMARY}{self._summary}"
            n_line = count(line)
            if n_line <= n_left:
                head, n_left = line, n_left - n_line
        kept: list[int] = []
        newest_first = range(len(self._facts) - 1, -1, -1)
        for at in sorted(newest_first, key=lambda at: self._facts[at].kind):
            n_line = count(f"\n{self._facts[at].text}")
            if n_line <= n_left:
                kept.append(at)
                n_left -= n_line
        lines = [self._facts[at].text for at in sorted(kept)]
        if not lines and not head:
            return ""
        return "\n".join((OPENING, *filter(None, (head,)), *lines)) + CLOSING

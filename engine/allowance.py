"""Owns how much each session may still speculate: what it threw away against what it used.

A speculated token costs time that other sessions could have used. Every session may waste a few
turns' worth; beyond that it must have used as much of its drafts as it wasted.
"""

from collections import OrderedDict
from dataclasses import dataclass

MAX_SESSIONS = 4096  # remembered; the one that speculated longest ago is forgotten first


@dataclass(slots=True)
class Account:
    """Speculated tokens of one session that are settled."""

    n_used: int = 0
    n_wasted: int = 0


class Allowances:
    """The accounts of all sessions. n_free: tokens a session may waste unconditionally."""

    def __init__(self, n_free: int) -> None:
        self._n_free = n_free
        self._accounts: OrderedDict[str, Account] = OrderedDict()

    def allows(self, session: str) -> bool:
        account = self._accounts.get(session)
        return account is None or account.n_wasted < self._n_free + account.n_used

    def settle(self, session: str, n_used: int, n_wasted: int) -> None:
        """Book tokens of a draft, once it is known what became of them."""
        account = self._accounts.setdefault(session, Account())
        account.n_used += n_used
        account.n_wasted += n_wasted
        self._accounts.move_to_end(session)
        if len(self._accounts) > MAX_SESSIONS:
            self._accounts.popitem(last=False)

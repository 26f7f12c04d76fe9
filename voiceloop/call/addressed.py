"""Whom a caller's words are for: the agent, who is asked to wait, or somebody in the room.

Owns the wording: English beside the words of the agent's file. How loud a voice is and what it
sounds like is judged elsewhere. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from voiceloop.slots.numbers import FILLERS

# Who is called so stands in the room with the caller. Only over the agent: "thanks, dear" is said
# to agents, too.
NAMES = frozenset(
    "honey hun sweetie sweetheart darling dear baby babe buddy kiddo kids mom mommy mum mummy mama "
    "dad daddy papa grandma grandpa".split()
)
# Said to somebody who does not hear the call. What an agent may be told as well ("leave it at the
# door", "tell her I called") is not among it.
ASIDE = re.compile(
    r"\b(?:(?:i'm|i am|we're|we are) (?:still )?(?:on the (?:phone|telephone)|on a call)|"
    r"(?:i'm|i am) talking to (?:someone|somebody)|(?:i'll|i will) be right (?:there|over)|"
    r"ask your (?:mother|father|mom|mum|dad|sister|brother))\b"
)
# An answer to a question of the agent's, unless it is said over the agent.
OVER_AGENT = re.compile(r"\b(?:not (?:right )?now|come here)\b")
LONGEST_ASIDE = 10  # words: who says more to somebody else has put the telephone down
# All that stands beside a request to wait: nothing of its own, or what the caller goes to do.
SOFTENERS = (
    FILLERS
    | NAMES
    | frozenset(
        "a an the for me please ok okay sorry oh no yes yeah can could would you second seconds "
        "sec minute minutes moment so there just give and".split()
    )
)
FETCHES = re.compile(
    r"^(?:and |while )?(?:i|i'm|i'll|i am|let me)\b.*\b"
    r"(?:find|get|grab|check|look|ask|see|pull|open|think)(?:ing)?\b"
)


def asks_to_wait(words: Sequence[str], hold_words: Sequence[str]) -> bool:
    """Whether these words (small letters) are a request to wait and hardly more."""
    line = f" {' '.join(words)} "
    asked = [phrase for phrase in hold_words if f" {phrase} " in line]
    for phrase in sorted(asked, key=len, reverse=True):
        line = line.replace(f" {phrase} ", " ")
    beside = [word for word in line.split() if word not in SOFTENERS]
    return bool(asked) and (not beside or FETCHES.search(" ".join(beside)) is not None)


def is_aside(words: Sequence[str], *, over_agent: bool) -> bool:
    """Whether the words (small letters) show that somebody else is spoken to."""
    said = [word for word in words if word not in FILLERS]
    if not said or len(said) > LONGEST_ASIDE:
        return False
    line = " ".join(said)
    calls = not NAMES.isdisjoint((said[0], said[-1])) or OVER_AGENT.search(line) is not None
    return (over_agent and calls) or ASIDE.search(line) is not None

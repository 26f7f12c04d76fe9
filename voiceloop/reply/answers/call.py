"""`[call]` and `[[transfers]]`: a farewell ends the call, and who asks for a person gets one."""

from __future__ import annotations

import json

from voiceloop.reply.answerers import Heard, SaidWithCall
from voiceloop.slots.values import words_said


def answer(heard: Heard) -> SaidWithCall | str | None:
    """Only with a tool that the agent has on this line. `call.screening` is empty in calls that
    came to us.
    """
    agent, words = heard.agent, words_said(heard.turn)
    said = f" {' '.join(words)} "
    if agent.tool("end_call") is not None and _is_made_of(words, agent.call.end_words):
        return SaidWithCall(agent.call.goodbye, "end_call", "{}")
    if agent.call.screening and any(f" {phrase} " in said for phrase in ASKS_WHO):
        return agent.call.screening
    if agent.tool("transfer") is None:
        return None
    for one in agent.transfers:
        if any(f" {phrase.lower()} " in said for phrase in one.words):
            told = {"to": one.name, "summary": heard.turn}
            return SaidWithCall(agent.call.transferring, "transfer", json.dumps(told))
    return None


def _is_made_of(words: list[str], phrases: tuple[str, ...]) -> bool:
    """Whether the words are such phrases, one or several, and politeness."""
    left = f" {' '.join(words)} "
    for phrase in sorted(phrases, key=len, reverse=True):
        left = left.replace(f" {phrase.lower()} ", "  ")
    return len(left.split()) < len(words) and set(left.split()) <= POLITE


ASKS_WHO = (
    "who is calling", "who's calling", "your name and", "state your name", "say your name",
    "reason for your call", "reason for calling", "why you are calling", "why you're calling",
    "record your name",
)  # fmt: skip
POLITE = frozenset("ok okay thanks thank you very much so well then no that's that is all".split())

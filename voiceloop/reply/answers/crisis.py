"""`[crisis]`: words of danger have a fixed answer."""

from __future__ import annotations

from voiceloop.reply.answerers import Heard


def answer(heard: Heard) -> str | None:
    """Return the crisis answer; its words count also where they stand apart from the rest of the
    turn.
    """
    crisis = heard.agent.crisis
    return crisis.answer if any(map(crisis.answers, (heard.turn, *heard.pieces))) else None

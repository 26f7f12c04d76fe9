"""`[[answer]]`: a question that an author has answered word for word."""

from __future__ import annotations

from voiceloop.reply.answerers import Heard


def answer(heard: Heard) -> str | None:
    approved = heard.approved.find(heard.turn)
    return approved.text if approved is not None else None

"""`[recording]` of the server's file: the caller was asked whether the call may be recorded."""

from __future__ import annotations

from voiceloop.reply.answerers import Heard


def answer(heard: Heard) -> str | None:
    """Return what is said to a yes, a no, or neither; the greeting is behind the first two."""
    return heard.consent.answer(heard.turn)

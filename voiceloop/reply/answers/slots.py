"""`[[slots]]`: a value is said back, or asked for again."""

from __future__ import annotations

from voiceloop.reply.answerers import Heard


def answer(heard: Heard) -> str | None:
    return heard.form.line or None

"""What a client sends of a turn that is typed."""

from __future__ import annotations

from typing import Any


def typed(text: str) -> dict[str, Any]:
    """The item: a message of the caller."""
    content = [{"type": "input_text", "text": text}]
    return {"type": "message", "role": "user", "content": content}

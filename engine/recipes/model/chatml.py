"""The chat format of a SmolLM2 that was taught our calls: ChatML, with tools and their results.

SmolLM2's own template knows neither. Tools are written as the short signatures of the embedded
agent's format, a call in the notation that the engine reads, so that one data recipe serves both.
"""

from __future__ import annotations

from .chat_format import EMBEDDED, ChatFormat

START, END, PAD = "<|im_start|>", "<|im_end|>", "<|endoftext|>"

CHATML_TEMPLATE = (EMBEDDED / "smollm2-135m" / "chat_template.jinja").read_text()

CHATML_FORMAT = ChatFormat(
    CHATML_TEMPLATE,
    {role: f"{START}{role}\n" for role in ("system", "user", "assistant", "tool")},
    END,
    PAD,
)

"""The arguments of a call: from the model's text to a bounded JSON object, and to one spelling.

Pure. A model may write anything here, and callers choose much of what it writes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NoReturn

from voiceloop.tools.executor import ToolFailed

# A reply has at most 4096 tokens (`limits.max_reply_tokens`), of some 4 characters in English: what
# is longer was written by no model of ours.
MAX_ARGUMENTS_CHARS = 16_384


def read_arguments(text: str) -> dict[str, Any]:
    """The arguments as an object; no text at all is a call without arguments.

    Raises:
        ToolFailed: it is no JSON object, or a longer one than a reply can hold.
    """
    if len(text) > MAX_ARGUMENTS_CHARS:
        raise _refused(f"at most {MAX_ARGUMENTS_CHARS} characters", str(len(text)))
    if not text.strip():
        return {}
    try:
        value = json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        raise _refused("a JSON object", "a text that is none") from None
    if not isinstance(value, dict):
        raise _refused("a JSON object", f"a {type(value).__name__}")
    return value


def canonical(arguments: Mapping[str, Any]) -> str:
    """The one spelling of these arguments: names in order, no space between."""
    return json.dumps(arguments, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"expected a value that JSON has, found {name}")


def _refused(wanted: str, found: str) -> ToolFailed:
    message = f"arguments: expected {wanted}, found {found}"
    return ToolFailed(message, told=message, is_unsent=True)

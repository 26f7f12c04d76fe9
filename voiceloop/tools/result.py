"""The part of a tool's answer that the model is given: the fields that are kept, and no more than
so much.

Pure. Every token of a result is prefilled while the caller waits, stays in the prompt of all later
turns, and is text from outside; cutting it before the model first sees it costs no cached prefix.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from voiceloop.tools.executor import ToolFailed

Tree = dict[str, "Tree"]
_NOTHING = object()
MAX_RESULT_CHARS = 4000  # some 1,000 tokens, a quarter of an embedded model's window


def shaped(text: str, keep: Iterable[str], max_chars: int) -> str:
    """The answer with the fields of ``keep`` alone (none: all of it), cut after ``max_chars``.

    A field is named by the names that lead to it, as ``order.items.price``; a list is passed
    through, each of its entries by itself.

    Raises:
        ToolFailed: fields are to be kept of an answer that is no JSON.
    """
    paths = tuple(keep)
    if paths:
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            raise ToolFailed(
                f"expected JSON, of which to keep {', '.join(paths)}, found another text",
                told="the answer was not in the form that was expected",
            ) from None
        kept = _kept(value, _tree(paths))
        text = json.dumps({} if kept is _NOTHING else kept, ensure_ascii=False)
    return bounded(text, max_chars)


def bounded(text: str, max_chars: int) -> str:
    """The text, or its beginning and a note of how much is missing."""
    n_over = len(text) - max_chars
    return text if n_over <= 0 else f"{text[:max_chars]} [cut: {n_over} more characters]"


def _tree(paths: Iterable[str]) -> Tree:
    """The paths as a tree; an empty one below a name: all that is there."""
    root: Tree = {}
    whole: set[tuple[str, ...]] = set()
    # The shorter first: "order" keeps what "order.id" would only keep a part of.
    for names in sorted((tuple(path.split(".")) for path in paths), key=len):
        if any(names[:n] in whole for n in range(1, len(names))):
            continue
        whole.add(names)
        tree = root
        for name in names:
            tree = tree.setdefault(name, {})
    return root


def _kept(value: Any, tree: Tree) -> Any:
    if not tree:
        return value
    if isinstance(value, list):
        entries = [_kept(entry, tree) for entry in value]
        return [entry for entry in entries if entry is not _NOTHING]
    if not isinstance(value, dict):
        return _NOTHING  # a field further in was asked for
    fields = {name: _kept(value[name], below) for name, below in tree.items() if name in value}
    return {name: field for name, field in fields.items() if field is not _NOTHING}

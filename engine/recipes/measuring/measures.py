"""The measures of the model card: what counts as obeyed, refused, degenerate, repeated.

Pure functions on text and numbers; `evaluate_agent` draws the cases and runs the model.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from ..conversations.wording import STOP_WORDS
from ..model.chat_format import CALL_CLOSE, CALL_OPEN

_REFUSAL = re.compile(
    r"(can't|cannot|can not|not able to|unable to) (help|answer|do)|only help|can only help|outside"
    r" what|not something i can|beyond me|not my area|don't know about|i'm afraid|don't have "
    r"(any )?information|don't know that|i only help|really don't know|don't have that",
    re.I,
)
_REDIRECT = re.compile(r"\?|\b(I|we) can help|only help|happy to help", re.I)


def words_of(text: str) -> list[str]:
    """Lower-case words and figures."""
    return re.findall(r"[a-z0-9']+", text.lower())


def says(reply: str, expected: str) -> bool:
    """Whether a reply holds a value: at a word's start, and no figure is prolonged."""
    pattern = r"(?<![\w:])" + re.escape(expected.lower().rstrip(".")) + r"(?!\d|:\d|\.\d)"
    return re.search(pattern, reply.lower()) is not None


def says_all(reply: str, expected: Iterable[str]) -> bool:
    return all(says(reply, word) for word in expected)


def is_refusal(reply: str) -> bool:
    return _REFUSAL.search(reply) is not None


def refuses_and_redirects(reply: str) -> bool:
    return is_refusal(reply) and _REDIRECT.search(reply) is not None


def is_degenerate(reply: str) -> bool:
    """Empty, longer than 40 words, or a loop: some four words in a row stand there three times."""
    words = words_of(reply)
    if not words or len(words) > 40:
        return True
    runs = [tuple(words[at : at + 4]) for at in range(len(words) - 3)]
    return any(runs.count(run) >= 3 for run in set(runs))


def parse_tool_call(reply: str) -> dict[str, Any] | None:
    """The first tool call of a reply, or None when there is none that is valid JSON."""
    _, opened, rest = reply.partition(CALL_OPEN)
    body, closed, _ = rest.partition(CALL_CLOSE)
    if not opened or not closed:
        return None
    try:
        value = json.loads(body)
    except json.JSONDecodeError:
        return None
    return value if isinstance(value, dict) and "name" in value and "arguments" in value else None


def fits_schema(call: dict[str, Any], tools: Sequence[dict[str, Any]]) -> bool:
    """Whether a call names a tool and its arguments have the schema's names and types."""
    kinds: dict[str, Any] = {
        "string": str,
        "integer": int,
        "number": (int, float),
        "boolean": bool,
        "array": list,
    }
    for tool in tools:
        function = tool["function"]
        if function["name"] != call["name"]:
            continue
        spec = function["parameters"]
        given = call["arguments"]
        return (
            isinstance(given, dict)
            and set(spec.get("required", ())) <= set(given) <= set(spec["properties"])
            and all(
                isinstance(value, kinds.get(spec["properties"][name].get("type"), object))
                for name, value in given.items()
            )
        )
    return False


def same_call(call: dict[str, Any], expected: dict[str, Any]) -> bool:
    """Same tool and same arguments; letter case does not matter."""

    def plain(value: Any) -> str:
        return json.dumps(value, sort_keys=True).lower()

    return plain([call["name"], call["arguments"]]) == plain(
        [expected["name"], expected["arguments"]]
    )


def repeated_words(gold: str, reply: str, caller: Iterable[str]) -> tuple[int, int]:
    """How many non-stop-words the gold reply repeats from the caller, and how many of them ours."""
    heard = {word for turn in caller for word in words_of(turn)} - STOP_WORDS
    wanted = heard & set(words_of(gold))
    return len(wanted), len(wanted & set(words_of(reply)))


def accepted_drafts(matches: Sequence[bool], k: int) -> tuple[int, int]:
    """Return of the drafted tokens with an accepted prefix how many match, and how many there are.

    matches: for each token of a greedy reply, whether the draft would have said it there. A block
    drafts k tokens; after it, or at its first mismatch, the target says one itself.
    """
    matched = drafted = at = 0
    while at < len(matches):
        for _ in range(min(k, len(matches) - at)):
            drafted += 1
            if not matches[at]:
                break
            matched += 1
            at += 1
        at += 1
    return matched, drafted


def area_under_curve(positive: Sequence[float], negative: Sequence[float]) -> float:
    """Area under the ROC curve by ranks; ties count half."""
    values = np.concatenate([positive, negative])
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    ranks = (last - (counts - 1) / 2)[inverse]
    n_positive, n_negative = len(positive), len(negative)
    above = ranks[:n_positive].sum() - n_positive * (n_positive + 1) / 2
    return float(above / (n_positive * n_negative))

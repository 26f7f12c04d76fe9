"""The notes beside the sound: ``ID.json``, and its lines while the call lasts.

Owns the form. A call that is being written has a line of JSON for each entry, so that a process
that is killed leaves all but the last; closed, it is one object: the head's fields, a list for each
section, and the end's fields. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

FORM = 1
SECTIONS = ("client", "turns", "said", "cuts", "calls", "results", "digits")
LOST = {"ended": "the process that wrote it was gone before the call was over", "close_code": None}


def line(section: str, entry: dict[str, Any]) -> bytes:
    """One entry; `head` and `end` are sections too."""
    return json.dumps({"section": section, **entry}, separators=(",", ":")).encode() + b"\n"


def whole(lines: Iterable[bytes]) -> dict[str, Any]:
    """The call of these lines. The last of them may be torn."""
    head: dict[str, Any] = {"form": FORM}
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in SECTIONS}
    end: dict[str, Any] = LOST
    for one in lines:
        try:
            entry = json.loads(one)
        except ValueError:
            continue
        match entry.pop("section", ""):
            case "head":
                head |= entry
            case "end":
                end = entry
            case str(name) if name in found:
                found[name].append(entry)
    return head | end | found


def closed(lines: bytes) -> bytes:
    """As it stands in ``ID.json``."""
    return json.dumps(whole(lines.splitlines()), indent=1).encode() + b"\n"

"""The part of a comparison that an interruption left: ``python -m benchmarks.peers --resume FILE``.

Owns which such part may be gone on with: one of the same settings, variants, commit and machine, so
that the whole is what one run would have been.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.peers.call import MeasuredTurn
from clients.errors import ClientError
from clients.provenance import provenance

MOST_BYTES = 64 * 1024 * 1024  # a call's account is some 20 kB


class EarlierPartError(ClientError):
    """What is to be gone on with is no part of this comparison."""


def measured_before(
    path: Path, settings: Mapping[str, Any], seed: int, variants: Sequence[str]
) -> dict[str, list[MeasuredTurn]]:
    """The turns of the calls that had ended, by variant. settings: as they stand in the results.

    Raises:
        EarlierPartError: it is not there, is no part of a comparison, or one of another kind.
    """
    data = _read(path)
    here = provenance()
    wanted = {
        "benchmark": "peers",
        "settings": dict(settings),
        "seed": seed,
        "variants": list(variants),
        "commit": here["commit"],
        "machine": here["machine"],
    }
    found = {**data, "variants": list(data.get("turns", {}))}
    for name, value in wanted.items():
        if found.get(name) != value:
            raise EarlierPartError(
                f"expected {name} {value} in {path}, found {found.get(name, 'none')}"
            )
    if data.get("partial") is None:
        raise EarlierPartError(f"expected a part in {path}, found the whole comparison")
    try:
        return msgspec.convert(data["turns"], dict[str, list[MeasuredTurn]])
    except msgspec.ValidationError as error:
        raise EarlierPartError(f"expected measured turns in {path}, found: {error}") from None


def _read(path: Path) -> dict[str, Any]:
    try:
        if path.stat().st_size > MOST_BYTES:
            raise EarlierPartError(f"expected at most {MOST_BYTES} bytes in {path}, found more")
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise EarlierPartError(f"expected results in {path}, found: {error}") from None
    if not isinstance(data, dict) or not isinstance(data.get("turns", {}), dict):
        raise EarlierPartError(f"expected results in {path}, found other JSON")
    return data

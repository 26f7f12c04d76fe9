"""A worker's report of its models, compared with what others of its version have reported. Pure.

Any of them may take any call, so all must hold the same: a caller would otherwise be told of a
voice that the next worker does not have, or hear another model after a crash. Workers whose label
(`Ready.version`) differs are kept apart and may hold what they like, but for the voice's sample
rate, which a call is played at from its beginning.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import asdict

from voiceloop.backends import RoleName
from voiceloop.workers.messages import Ready, RoleReady

# How much a worker takes at once is its own affair.
OWN = frozenset({"kv_blocks", "n_streams"})
MAX_SHOWN = 80


def role_of(ready: Ready, role: RoleName) -> RoleReady | None:
    return next((told for told in ready.roles if told.role == role), None)


def disagreement(
    found: Ready, others: Iterable[tuple[str, Ready]], roles: Iterable[RoleName]
) -> str | None:
    """Return what was expected and found where a worker holds another model than the others.

    others: the workers that serve already, by name. None: it agrees with all of them.
    """
    known = list(others)
    for role in sorted(roles):
        told = role_of(found, role)
        for name, ready in known:
            held = role_of(ready, role)
            if told is None or held is None:
                continue
            differs = _difference(told, held, is_alike=ready.version == found.version)
            if differs is not None:
                what, here, there = differs
                return (
                    f"{role}: expected {what} {_shown(there)} as {name} has it, found "
                    f"{_shown(here)}; a worker with another model wants another --version"
                )
    return None


def _difference(
    told: RoleReady, held: RoleReady, *, is_alike: bool
) -> tuple[str, object, object] | None:
    """The first thing in which two differ: its name, here, there."""
    if told.rate_hz != held.rate_hz:
        return "rate_hz", told.rate_hz, held.rate_hz
    if not is_alike:
        return None
    here, there = asdict(told.model), asdict(held.model)
    for what, value in there.items():
        if what not in OWN and here[what] != value:
            return what, here[what], value
    return None


def _shown(value: object) -> str:
    text = ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)
    return text[:MAX_SHOWN] or "none"

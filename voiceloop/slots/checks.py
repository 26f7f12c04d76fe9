"""The rules for slots in an agent file. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from voiceloop.agent import AgentSlot
from voiceloop.errors import ConfigError

MAX_SLOTS = 100  # each question is held against all
MAX_VALUES = 50
WITH_VALUES = ("phone", "number", "spelling", "name", "email", "date", "address", "choice")
WITH_DIGITS = ("number", "phone", "spelling")


def check_slots(slots: Sequence[AgentSlot], language: str) -> None:
    """Raises: ConfigError, which names the key, what was expected and what was found."""
    if len(slots) > MAX_SLOTS:
        raise _wrong("slots", f"at most {MAX_SLOTS} slots", str(len(slots)))
    for index, slot in enumerate(slots):
        where = f"slots[{index}]"
        if slot.digits is not None and slot.kind not in WITH_DIGITS:
            wanted = f"a slot of kind {', '.join(map(repr, WITH_DIGITS))}"
            raise _wrong(f"{where}.digits", wanted, f"one of kind {slot.kind!r}")
        if slot.sensitive and slot.name is None:
            raise _wrong(f"{where}.sensitive", "a name beside it", "none")
        if slot.name is None:
            _check_nameless(slot, where)
        else:
            _check_value(slot, where, language)


def _check_nameless(slot: AgentSlot, where: str) -> None:
    nothing = AgentSlot(slot.asked, slot.kind)
    for key in ("values", "read_back"):
        if getattr(slot, key) != getattr(nothing, key):
            raise _wrong(where, f"a name beside {key}", "none")


def _check_value(slot: AgentSlot, where: str, language: str) -> None:
    assert slot.name is not None
    if slot.kind not in WITH_VALUES:
        raise _wrong(f"{where}.kind", f"one of {', '.join(WITH_VALUES)} beside a name", slot.kind)
    if language.split("-")[0].lower() != "en":
        raise _wrong(f"{where}.name", "an agent that speaks English", f"language {language!r}")
    if slot.read_back and "{value}" not in slot.read_back:
        raise _wrong(f"{where}.read_back", "a text with {value}, or none", repr(slot.read_back))
    is_choice = slot.kind == "choice"
    if is_choice != bool(slot.values) or len(slot.values) > MAX_VALUES:
        wanted = (
            f"1 to {MAX_VALUES} of them" if is_choice else "none beside another kind than choice"
        )
        raise _wrong(f"{where}.values", wanted, str(len(slot.values)))
    for number, value in enumerate(slot.values):
        if not re.search(r"\w", value):
            raise _wrong(f"{where}.values[{number}]", "words", repr(value))


def _wrong(where: str, wanted: str, found: str) -> ConfigError:
    return ConfigError(f"{where}: expected {wanted}, found {found}")

"""A caller's words about a value that was said back: right, wrong, or wrong in one place.

Owns the words for it: "no, six at the end", "it's with a k", "seven, not nine". Pure.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum

from voiceloop.agent import AgentSlot
from voiceloop.memory.reading import ASSENTS
from voiceloop.slots.dates import day_in, with_day
from voiceloop.slots.letters import letter_runs
from voiceloop.slots.numbers import FILLERS, digit_runs, digits_in
from voiceloop.slots.progress import STREET_TYPES
from voiceloop.slots.values import Value, fits, is_written, value_in, words_said

DENIALS = frozenset("no nope nah not wrong incorrect isn't wasn't".split())
YES = (*ASSENTS, "uh huh", "aha", "you got it", "that's it", "that is it", "absolutely")
# All that is said behind "it is" where that is a yes, and not "it is Jan".
BESIDE_YES = frozenset("thanks thank you please yes yeah correct right indeed exactly".split())
# Denies nothing of the value: "yes, no problem".
NO_DENIALS = re.compile(r"\bno (?:problem|worries|thanks|thank you|doubt|changes|more)\b")
# Said before what is corrected, and no part of it.
PREFACE = re.compile(
    r"^(?:(?:no|nope|nah|yes|yeah|sorry|wrong|not quite|actually|wait|but|and|it should be|"
    r"should be|it's|it is|that's|that is|i said|um|uh)\s+)+"
)
AT_END = re.compile(r"\b(?:at|in) the end\b|\bend(?:s|ing)?\b|\blast\b")
AT_START = re.compile(
    r"\b(?:at|in) the (?:beginning|start|front)\b|\b(?:begin|start)s?\b|\bfirst\b"
)
# "the last two digits are ...": their count is no digit of the value.
COUNTED = re.compile(
    r"\b(last|first)\s+(?:\w+\s+)?(?:digits?|numbers?|letters?)?\s*(?=(?:is|are|should)\b)"
)
ONE_FOR_OTHER = (
    re.compile(r"\bnot (?:an? |the )?(?P<old>.+?) (?:but|it's|it is) (?P<new>.+)"),
    re.compile(r"(?P<new>.+?) (?:and )?(?:not|instead of|rather than) (?P<old>.+)"),
)
WITH_LETTER = re.compile(
    r"\bwith (?P<how>an?|one|two|double|the)(?: letter)? (?P<letter>[a-z]+?)(?:'s)?\b"
    r"(?: (?:as in|like|for) \w+)?(?P<end> at the end)?"
)
DOMAIN_END = re.compile(r"\bdot ([a-z]{2,6})(?: not dot [a-z]+)?$")
# Letters that are written for each other in names, by how they sound; the likeliest first.
SOUNDS_AS = {
    "a": "e", "b": "pv", "c": "ks", "d": "t", "e": "ia", "f": "vp", "g": "j", "i": "ye", "j": "g",
    "k": "cq", "m": "n", "n": "m", "o": "u", "p": "b", "q": "kc", "s": "zc", "t": "d", "u": "o",
    "v": "fw", "w": "v", "x": "z", "y": "ie", "z": "sx",
}  # fmt: skip
AROUND = frozenset("with a an the it's at end but and should be letter".split())


class Verdict(Enum):
    """The caller's verdict on the value."""

    RIGHT = "right"
    WRONG = "wrong"  # and says no other
    CORRECTED = "corrected"
    ELSEWHERE = "elsewhere"  # the caller speaks of something else


@dataclass(frozen=True, slots=True)
class Judged:
    """value: of CORRECTED, what it is instead."""

    verdict: Verdict
    value: Value | None = None


def judged(slot: AgentSlot, value: str, said: str) -> Judged:
    """Return what these words say of the value that was said back."""
    words = words_said(said)
    while words and words[0] in FILLERS and tuple(words[:2]) != ("uh", "huh"):
        del words[0]
    line = " ".join(words)
    denies = not DENIALS.isdisjoint(NO_DENIALS.sub("", line).split())
    # "Yeah, no" is a no: who is asked once more loses less than who is called at a wrong number.
    assents = not denies and _assents(line)
    bare = PREFACE.sub("", f"{line} ").strip()
    changed = _in_place(slot, value, bare)
    found = Value(changed, fits(slot, changed)) if is_written(slot, changed) else None
    if found is None:
        found = _whole(slot, value, bare, is_new=not assents)
    if found is not None and found.text != value:
        return Judged(Verdict.CORRECTED, found)
    if assents or (found is not None and not denies):
        return Judged(Verdict.RIGHT)
    return Judged(Verdict.WRONG if denies else Verdict.ELSEWHERE)


def _assents(line: str) -> bool:
    begins = any(line == one or line.startswith(f"{one} ") for one in YES)
    return begins or (line.startswith("it is") and BESIDE_YES.issuperset(line[5:].split()))


def _whole(slot: AgentSlot, value: str, line: str, *, is_new: bool) -> Value | None:
    """Another value in the place of all of it. is_new: the words do not just assent."""
    found = value_in(slot, line)
    if found is None:
        return None
    match slot.kind:
        case "phone" | "number":
            # A part that nobody places replaces nothing.
            return found if len(found.text) >= max(len(value) - 1, 2) else None
        case "spelling":
            return found if len(found.text) >= len(value) - 1 else None
        case "name":
            return Value(_name_over(value, found.text)) if is_new else None
        case "address":  # "yes, and two lattes" is none
            words = set(found.text.lower().split())
            is_one = words & STREET_TYPES or words & set(value.lower().split())
            return found if is_one else None
    return found


def _name_over(value: str, found: str) -> str:
    """One word of a name takes the place of the one it is like: "no, it's Jan" of "Jane Doe"."""
    words = value.split()
    alike = [at for at, word in enumerate(words) if word[0] == found[0]]
    if " " in found or len(words) < 2 or not alike:
        return found
    words[alike[-1]] = found
    return " ".join(words)


def _in_place(slot: AgentSlot, value: str, line: str) -> str:
    """The value with a part of it corrected; "" where no part is named."""
    match slot.kind:
        case "phone" | "number":
            other = _one_for_other(value, line, of_digits=True)
            return other or _placed(value, _digits(line), line, slot.digits)
        case "spelling":
            part = max(letter_runs(line.split(), with_digits=True), key=len, default="")
            placed = _placed(value, (part or _lone(line)).upper(), line, slot.digits)
            return _one_for_other(value, line) or _with_letter(value, line) or placed
        case "name":
            return _in_name(value, line)
        case "email":
            return _email(value, line)
        case "date" if value_in(slot, line) is None and (day := day_in(line)):
            return with_day(value, day)
    return ""


def _in_name(value: str, line: str) -> str:
    """Correct the word of the name that is named, as "Clark with an e at the end", else
    anywhere.
    """
    words = value.split()
    said = line.partition(" with ")[0].split()
    meant = [
        at for at, one in enumerate(words) if any(_is_like(one.lower(), word) for word in said)
    ]
    if len(meant) == 1 and (changed := _with_letter(words[meant[0]], line)):
        words[meant[0]] = changed
        return " ".join(words)
    return _one_for_other(value, line) or _with_letter(value, line)


def _is_like(one: str, other: str) -> bool:
    """Whether a recognizer may write one for the other."""
    return len(other) > 2 and (one[:3] == other[:3] or one[1:4] == other[1:4])


def _email(value: str, line: str) -> str:
    local, _, domain = value.partition("@")
    end = DOMAIN_END.search(line)
    if end is not None and " at " not in f" {line}":
        return f"{local}@{domain.rpartition('.')[0]}.{end[1]}"
    changed = _one_for_other(local, line) or _with_letter(local, line)
    return f"{changed}@{domain}" if changed else ""


def _digits(line: str) -> str:
    """The digits of a part, without how many it has."""
    return digits_in(COUNTED.sub(r"\1 ", line).split())


def _placed(value: str, part: str, line: str, n_whole: int | None) -> str:
    """The value that ends, or begins, with this part."""
    if not part or len(part) >= len(value):
        return ""
    if AT_END.search(line):
        is_missing = n_whole is not None and len(value) + len(part) <= n_whole
        return value + part if is_missing else value[: -len(part)] + part
    return part + value[len(part) :] if AT_START.search(line) else ""


def _one_for_other(value: str, line: str, *, of_digits: bool = False) -> str:
    """ "Seven, not nine": in the last place of the one that was heard."""
    for pattern in ONE_FOR_OTHER:
        if (found := pattern.search(line)) is None:
            continue
        if of_digits:
            old, new = "".join(digit_runs(found["old"].split())), _digits(found["new"])
        else:
            old, new = _named(found["old"]), _named(found["new"])
        at = value.lower().rfind(old)
        if old and new and at >= 0 and old != new:
            return value[:at] + _as_written(value[at], new) + value[at + len(old) :]
    return ""


def _named(words: str) -> str:
    """The letter or the word that is named."""
    parts = re.sub(r"^(?:with )?(?:(?:an?|the) )?", "", words).split() or words.split()
    runs = letter_runs(parts)
    bare = [one for one in parts if one not in AROUND] or [one for one in parts if len(one) == 1]
    return runs[-1] if runs else _letter_named(bare[-1]) or bare[-1] if bare else ""


def _lone(line: str) -> str:
    found = re.findall(r"\b[a-z0-9]\b", re.sub(r"\ba (?=[a-z]\b)", "", line))
    return found[0] if len(found) == 1 else ""


def _with_letter(value: str, line: str) -> str:
    """ "With a k": in the place of the letter that sounds like it; "with two l's"."""
    found = WITH_LETTER.search(line)
    letter = _letter_named(found["letter"]) if found is not None else ""
    if found is None or not letter:
        return ""
    low, how = value.lower(), found["how"]
    if how in ("two", "double"):
        at = low.rfind(letter)
        is_new = at >= 0 and letter * 2 not in low
        return value[: at + 1] + _as_written(value[at], letter) + value[at + 1 :] if is_new else ""
    if how == "one" and letter * 2 in low:
        at = low.rfind(letter * 2)
        return value[: at + 1] + value[at + 2 :]
    alike = SOUNDS_AS.get(letter, "")
    if found["end"]:
        stem = value[:-1] if low[-1] in alike else value
        return "" if low.endswith(letter) else stem + _as_written(value[-1], letter)
    places = sorted(
        (at for at in range(len(low)) if low[at] in alike), key=lambda at: alike.index(low[at])
    )
    if not places:
        return ""
    at = places[0]
    return value[:at] + _as_written(value[at], letter) + value[at + 1 :]


def _letter_named(word: str) -> str:
    """A letter by itself or by its name, "" for any other word."""
    if len(word) == 1:
        return word
    runs = letter_runs((word, word))
    return runs[0][0] if runs and len(runs[0]) == 2 else ""


def _as_written(old: str, new: str) -> str:
    """Return it with a capital where the one before had one."""
    return new[:1].upper() + new[1:] if old.isupper() else new

"""The state of each named slot, read from what was said: a fold over the conversation.

Owns the states of an answer. The caller's turn behind a question fills its slot, the agent says the
value back, the caller confirms or corrects it; after MAX_FAILED tries the call goes on without. The
state is nowhere kept: whoever has the turns has the form, also after a call was resumed or an item
deleted. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from voiceloop.agent import AgentSlot
from voiceloop.slots.corrections import Verdict, judged
from voiceloop.slots.question import PHONE_DIGITS, named_in
from voiceloop.slots.values import Value, fits, may_fit, spoken, value_in

MAX_FAILED = 2  # of one answer: who is asked a third time hangs up
ASK_AGAIN = "Sorry, could you say it again?"
ASK_WHOLE = "Sorry, I only got {value}. Could you say all of it again?"
OPENING = "\n\n[Noted by the system, not said by the caller:"
CLOSING = "]"


class SlotState(Enum):
    """The state of one answer."""

    HEARD = "heard"  # said back, and not confirmed yet
    UNCLEAR = "unclear"  # asked for again
    CONFIRMED = "confirmed"
    UNCONFIRMED = "unconfirmed"  # the call went on before the caller had confirmed it
    GIVEN_UP = "given_up"  # nothing that can be used, and not asked for again


@dataclass(frozen=True, slots=True)
class Filled:
    """One slot's answer. value: as far as it was heard, "" for nothing; n_failed: tries."""

    slot: AgentSlot
    value: str
    state: SlotState
    n_failed: int = 0

    @property
    def name(self) -> str:
        assert self.slot.name is not None
        return self.slot.name

    @property
    def note(self) -> str:
        """Return what the model is told of it; "" where it is not settled."""
        match self.state:
            case SlotState.CONFIRMED:
                if self.slot.sensitive:
                    return f"- {self.name}: given, and not to be asked for or said"
                return f"- {self.name} = {self.value}{self._in_words}"
            case SlotState.UNCONFIRMED:
                return f"- {self.name} = {self.value}{self._in_words}, not confirmed"
            case SlotState.GIVEN_UP:
                return f"- {self.name}: not understood, do not ask again"
        return ""

    @property
    def _in_words(self) -> str:
        return f" ({spoken(self.slot, self.value)})" if self.slot.kind == "date" else ""


@dataclass(frozen=True, slots=True)
class Form:
    """The known values after a turn of the caller. line: what the agent is to say now, "" where the
    model answers; open: the slot that the line is about.
    """

    filled: tuple[Filled, ...] = ()
    line: str = ""
    open: str = ""

    def get(self, name: str) -> Filled | None:
        return next((one for one in self.filled if one.name == name), None)

    def put(self, one: Filled, line: str = "") -> Form:
        """Return the form with this answer in the place of the slot's one before."""
        others = tuple(other for other in self.filled if other.name != one.name)
        return Form((*others, one), line, one.name if line else "")

    def changes(self, before: Form) -> tuple[Filled, ...]:
        """The answers that are others than before."""
        return tuple(one for one in self.filled if one not in before.filled)


@dataclass(frozen=True, slots=True)
class Exchange:
    """A turn of the caller, and what was heard of the agent before it."""

    agent: str
    caller: str


def exchanges(said: Iterable[tuple[str, str]]) -> tuple[Exchange, ...]:
    """Roles and words, in order, as turns: what one side says without an answer is one."""
    found: list[Exchange] = []
    agent: list[str] = []
    for role, text in said:
        if role == "assistant":
            agent.append(text)
        elif role == "user" and found and not agent:
            found[-1] = replace(found[-1], caller=f"{found[-1].caller} {text}")
        elif role == "user":
            found.append(Exchange(" ".join(agent), text))
            agent = []
    return tuple(found)


class Forms:
    """The form after any turns of one call; turns that were read before are not read again."""

    def __init__(self, slots: Sequence[AgentSlot] = ()) -> None:
        self._slots = tuple(slots)
        self.has_names = any(slot.name is not None for slot in slots)
        self._read: list[Exchange] = []
        self._forms: list[Form] = []

    def after(self, turns: Sequence[Exchange]) -> Form:
        n_same = 0
        for known, turn in zip(self._read, turns, strict=False):
            if known != turn:
                break
            n_same += 1
        del self._read[n_same:], self._forms[n_same:]
        for turn in turns[n_same:]:
            before = self._forms[-1] if self._forms else Form()
            self._forms.append(after_turn(before, turn, self._slots))
            self._read.append(turn)
        return self._forms[-1] if self._forms else Form()


def after_turn(form: Form, turn: Exchange, slots: Sequence[AgentSlot]) -> Form:
    """The form after one more turn of the caller."""
    about = form.get(form.open) if form.open else None
    form = replace(form, line="", open="")
    if about is not None:
        if _is_of(turn.agent, before_line(about)):
            return _answered(form, about, turn.caller)
        form = form.put(_let_go(about))  # something else was said instead
    asked = named_in(turn.agent, slots)
    if asked is None or asked.name is None:
        return form
    value = value_in(asked, turn.caller)
    before = form.get(asked.name)
    is_open = before is not None and before.state in (SlotState.UNCLEAR, SlotState.GIVEN_UP)
    n_failed = before.n_failed if before is not None and is_open else 0
    return form if value is None else _heard(form, asked, value, n_failed)


def before_line(one: Filled) -> str:
    """Return what the agent said of an answer that is neither confirmed nor let go."""
    if one.state is SlotState.HEARD:
        assert one.slot.read_back
        return one.slot.read_back.replace("{value}", spoken(one.slot, one.value))
    if one.slot.sensitive or not one.value:
        return ASK_AGAIN
    return ASK_WHOLE.replace("{value}", spoken(one.slot, one.value))


def notes_of(form: Form, shown: Sequence[str]) -> str:
    """Return what goes behind the caller's words: each settled answer that no message shown tells
    yet.

    shown: what stands behind the messages before, oldest first.
    """
    lines = [one.note for one in form.filled if one.note and one.note != _told(one.name, shown)]
    return "\n".join((OPENING, *lines)) + CLOSING if lines else ""


def _told(name: str, shown: Sequence[str]) -> str:
    """The newest line of this slot that the model was given."""
    begins = (f"- {name} = ", f"- {name}: ")
    for behind in reversed(shown):
        for line in behind.split("\n"):
            if line.startswith(begins):
                return line.removesuffix(CLOSING)
    return ""


def _answered(form: Form, about: Filled, said: str) -> Form:
    """The caller answers a read-back, or being asked again."""
    if about.state is SlotState.UNCLEAR:
        value = value_in(about.slot, said)
        if value is None:
            return form.put(_let_go(about))
        if value.text == about.value and may_fit(about.slot, value.text):
            value = Value(value.text)  # said twice the same: no digit of it was lost
        elif _is_rest(about, value):
            value = Value(about.value + value.text)
        return _heard(form, about.slot, value, about.n_failed)
    found = judged(about.slot, about.value, said)
    match found.verdict:
        case Verdict.RIGHT:
            return form.put(replace(about, state=SlotState.CONFIRMED))
        case Verdict.ELSEWHERE:
            return form.put(_let_go(about))
        case Verdict.CORRECTED if found.value is not None:
            n_failed = about.n_failed + found.value.fits  # one that does not fit counts there
            return _heard(form, about.slot, found.value, n_failed)
    failed = replace(about, value="", state=SlotState.UNCLEAR, n_failed=about.n_failed + 1)
    if failed.n_failed >= MAX_FAILED:
        return form.put(replace(failed, state=SlotState.GIVEN_UP))
    return form.put(failed, before_line(failed))


def _heard(form: Form, slot: AgentSlot, value: Value, n_failed: int) -> Form:
    """A value was given: it is said back, or asked for again, as long as that may be tried."""
    if not value.fits:
        n_failed = min(n_failed + 1, MAX_FAILED)  # asked anew by the model, it may fail again
        unclear = Filled(slot, value.text, SlotState.UNCLEAR, n_failed)
        if n_failed >= MAX_FAILED:
            return form.put(replace(unclear, value="", state=SlotState.GIVEN_UP))
        return form.put(unclear, before_line(unclear))
    heard = Filled(slot, value.text, SlotState.HEARD, n_failed)
    if not slot.reads_back:
        return form.put(replace(heard, state=SlotState.CONFIRMED))
    if n_failed >= MAX_FAILED:
        return form.put(replace(heard, state=SlotState.UNCONFIRMED))
    return form.put(heard, before_line(heard))


def _is_rest(about: Filled, value: Value) -> bool:
    """Whether this is what was missing of the answer, and not all of it again."""
    whole = about.value + value.text
    is_anew = not about.value or value.text.startswith(about.value)
    most = PHONE_DIGITS if about.slot.kind == "phone" and value.fits else len(whole)
    return not is_anew and fits(about.slot, whole) and len(whole) <= most


def _let_go(one: Filled) -> Filled:
    """The call goes on: what was heard stays, unconfirmed; what was not may be asked for anew."""
    return replace(one, state=SlotState.UNCONFIRMED) if one.state is SlotState.HEARD else one


def _is_of(said: str, line: str) -> bool:
    """Whether what was heard of the agent is this line, or how it begins."""
    heard, whole = _plain(said), _plain(line)
    return bool(heard) and whole[: len(heard)] == heard


def _plain(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())

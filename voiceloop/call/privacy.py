"""Privacy of sensitive answers: a mark takes the place of each before anybody sees it.

Owns which turn of the caller is such an answer, spoken or pressed. The values are kept by
`slots/secrets.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from voiceloop.agent import AgentSlot
from voiceloop.call.events import CallEvent
from voiceloop.call.keys import n_keys_of_menu
from voiceloop.listening import events as heard
from voiceloop.reply.prepared import Prepared
from voiceloop.slots.numbers import digit_runs
from voiceloop.slots.values import value_in, words_said


class Privacy:
    """The privacy of one call. slots: of its agent."""

    def __init__(self, slots: Sequence[AgentSlot], prepared: Prepared) -> None:
        self.has_secrets = any(slot.sensitive for slot in slots)
        self._prepared = prepared
        # That the open turn, or the one that is due, is to answer, where it is sensitive.
        self.slot: AgentSlot | None = None
        self._slots: dict[int, AgentSlot] = {}  # by the segment whose words are still to come
        self.n_keys: int | None = None  # that answer what the agent asks for, where it is known

    def open_turn(self, question: str) -> None:
        """The caller begins. question: what the agent is saying; "": it has said it."""
        slot, n_digits = self._prepared.asked_for(question)
        self.slot = slot if slot is not None and slot.sensitive else None
        self.n_keys = n_digits or n_keys_of_menu(question or self._prepared.last_said)

    def commit(self, segment: int) -> None:
        """The turn is over; its words are those of this segment."""
        if self.slot is not None:
            self._slots[segment] = self.slot

    def hide(self, words: str) -> str:
        """The words of the open turn, as everybody may know them."""
        return words if self.slot is None else self._hidden(self.slot, words)

    def without_secrets(self, event: CallEvent) -> CallEvent:
        """The event with a mark for an answer that it tells."""
        if not isinstance(event, heard.TurnTranscribed):
            return event
        turn = event.turn
        if (slot := self._slots.pop(turn.segment, self.slot)) is None:
            return event
        words = tuple(self._hidden(slot, turn.text).split())
        return heard.TurnTranscribed(replace(turn, words=words, sound=()))

    def _hidden(self, slot: AgentSlot, words: str) -> str:
        """A turn that gives no value ("what do you mean") is no secret."""
        assert slot.name is not None  # the agent file's check
        is_answer = value_in(slot, words) is not None or bool(digit_runs(words_said(words)))
        return self._prepared.secrets.hide(slot.name, words) if is_answer else words

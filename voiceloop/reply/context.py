"""What the replies of one session share: the parts of the session that each of them is given.

Owns what a reply has from the operator before the model is asked: a fixed answer in its place, or
notes behind the caller's words (what was found in documents, what the caller's answers came to).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import cycle
from typing import Literal, NamedTuple

import msgspec

from voiceloop.admission.overload import Level
from voiceloop.agent import AgentConfig
from voiceloop.backends import Voice, VoiceOptions
from voiceloop.knowledge.answers import ApprovedAnswers
from voiceloop.knowledge.retrieval import Retrieval, Settled
from voiceloop.listening.events import UserTurn
from voiceloop.realtime.events import Source
from voiceloop.realtime.protocol import Protocol
from voiceloop.realtime.response import ResponseHandle
from voiceloop.reply.anticipation import Anticipation
from voiceloop.reply.plan import ReplyPlan
from voiceloop.reply.sound.kept_lines import KeptLine, KeptLines
from voiceloop.reply.sound.line_ahead import LineAhead
from voiceloop.reply.sound.playout import LEAD_MS
from voiceloop.slots.form import Form, Forms, SlotState, exchanges, notes_of
from voiceloop.telemetry.record import Mark, TurnRecord
from voiceloop.telemetry.traces import CallTrace, NoTraces
from voiceloop.tools.pending import SessionTools


class FixedAnswer(NamedTuple):
    """What the agent file has said in place of a model's reply, and which of its tables has it."""

    text: str
    table: Literal["crisis", "answer", "slots"]


@dataclass(slots=True)
class ReplyContext:
    """The voice, the anticipated branch, the protocol, the agent, the tools and the clock."""

    voice: Voice
    anticipation: Anticipation
    protocol: Protocol
    agent: AgentConfig
    tools: SessionTools
    clock: Callable[[], float]
    new_stream_id: Callable[[], str]  # for the voice
    load: Callable[[], float] = lambda: 0.0  # utilization of the busiest model process, 0 to 1
    level: Callable[[], Level] = lambda: Level.NORMAL
    lead_ms: float = LEAD_MS
    trace: CallTrace = field(default_factory=NoTraces)
    answers: ApprovedAnswers = field(default_factory=ApprovedAnswers)
    kept_lines: KeptLines = field(default_factory=KeptLines)
    line_ahead: LineAhead = field(default_factory=LineAhead)
    retrieval: Retrieval | None = None
    waiting_lines: Iterator[str] = field(init=False)  # said while a tool takes its time, in turn
    # The newest response that is to look up the turn's last words, and what was found without them.
    _owed: tuple[str, Settled] | None = field(default=None, init=False)
    _known_in: str = field(default="", init=False)  # the newest response with what was found
    _forms: Forms = field(init=False)
    _told: tuple[str | None, Form] | None = field(default=None, init=False)  # of slots, and of whom

    def __post_init__(self) -> None:
        self.waiting_lines = cycle(self.agent.waiting.say)
        self._forms = Forms(self.agent.slots)

    def kept_sound(self, line: str, options: VoiceOptions) -> KeptLine | None:
        """A voice that has spoken this line already, where its sound is kept."""
        return self.kept_lines.line(line, options)

    def sound_of(self, text: str, options: VoiceOptions, record: TurnRecord) -> Voice | None:
        """A voice that has spoken this text, or has begun to; None where none has."""
        line = self.line_ahead.take(text, options) if text else None
        if line is None:
            return self.kept_sound(text, options)
        record.note_held(line.made_ms)
        return line

    def fixed_answer(self, turn: str, *pieces: str) -> FixedAnswer | None:
        """The answer to the caller's whole turn that needs no model; words of danger go first.

        pieces: of the turn, in which such words may stand apart from it.
        """
        crisis = self.agent.crisis
        if any(crisis.answers(said) for said in (turn, *pieces)):
            return FixedAnswer(crisis.answer, "crisis")
        if line := self._form(turn)[1].line:
            return FixedAnswer(line, "slots")
        approved = self.answers.find(turn)
        return FixedAnswer(approved.text, "answer") if approved is not None else None

    # --- notes ---

    @property
    def looks_up_late(self) -> bool:
        """Whether what is behind a turn is known only once it has ended."""
        return self.retrieval is not None and not self.retrieval.looks_ahead

    def notes_ahead(self, turn: str) -> str:
        """What stands behind the open turn's words where it is answered now."""
        notes = self._slot_notes(self._form(turn)[1])
        if self.retrieval is None or not self.retrieval.has_words:
            return notes
        return notes + self.retrieval.settle().notes.text

    def owes_notes(self, response: ResponseHandle, words: tuple[str, ...]) -> bool:
        """Whether the reply to the turn of these words is to look them up (`looked_up`): they came
        as it ended, too late to be searched for ahead.
        """
        if self.retrieval is None or not self.retrieval.has_words or not self.retrieval.owes(words):
            return False
        self._owed = response.id, self.retrieval.settle()
        return True

    def add_notes(self, response: ResponseHandle, turn: UserTurn) -> None:
        """Put what is known of the caller's turn behind their words: before the plan is made."""
        self.note_slots(response)
        if self.retrieval is not None and self.retrieval.has_words:
            turn_id = self.protocol.conversation.newest_turn_id
            settled = self.retrieval.settle()
            self._add(settled, turn_id, response, turn.record, turn.decided_s)

    async def looked_up(
        self,
        plan: ReplyPlan,
        turn_id: str | None,
        response: ResponseHandle,
        record: TurnRecord,
        decided_s: float | None,
    ) -> ReplyPlan:
        """The plan with what is found for a turn for which nobody has searched yet, or not wholly.

        turn_id: the message that the plan answers; newer ones may have come by now.
        """
        is_turn = bool(plan.prompt) and plan.prompt[-1].role == "user"
        is_of_call = not response.is_out_of_band and response.request.input is None
        is_known = self._known_in == response.id
        if self.retrieval is None or not is_turn or not is_of_call or is_known:
            return plan
        turn = plan.prompt[-1]
        response_id, before = self._owed or ("", None)
        is_owed = response_id == response.id
        settled = await self.retrieval.look_up(turn.content, before if is_owed else None)
        self._add(settled, turn_id, response, record, decided_s)
        behind = self._slot_notes(self._form(turn.content)[1]) + settled.notes.text
        prompt = (*plan.prompt[:-1], msgspec.structs.replace(turn, behind=behind))
        return replace(plan, prompt=prompt)

    def _add(
        self,
        settled: Settled,
        turn_id: str | None,
        response: ResponseHandle,
        record: TurnRecord,
        decided_s: float | None,
    ) -> None:
        notes, self._known_in = settled.notes, response.id
        record.mark(Mark.PASSAGES_KNOWN, settled.at_s)
        record.facts.retrieval = settled.lookup(decided_s)
        behind = self._slot_notes(self._form()[1]) + notes.text
        if turn_id is not None and self.protocol.conversation.add_notes(turn_id, behind):
            found = (Source(path=source.path, heading=source.heading) for source in notes.sources)
            response.sources(turn_id, tuple(found))

    # --- slots ---

    def note_slots(self, response: ResponseHandle) -> None:
        """Tell what the caller's newest turn came to: a client, in an event, and the model, behind
        the words.
        """
        conversation = self.protocol.conversation
        turn_id = conversation.newest_turn_id
        before, now = self._form()
        if not self._forms.has_names or turn_id is None or self._told == (turn_id, now):
            return
        self._told = turn_id, now
        conversation.add_notes(turn_id, self._slot_notes(now))
        for one in now.changes(before):
            response.slot(turn_id, one.name, one.slot.kind, one.value, one.state.value)

    def confirmed(self) -> dict[str, str]:
        """The values that the caller has confirmed, by slot, as far as the conversation goes."""
        form = self._form()[1]
        return {one.name: one.value for one in form.filled if one.state is SlotState.CONFIRMED}

    def _form(self, turn: str | None = None) -> tuple[Form, Form]:
        """Where the slots stand before the caller's turn, and with it; None: the newest words."""
        if not self._forms.has_names:
            return Form(), Form()
        said = list(self.protocol.conversation.said())
        words = []
        while said and said[-1][0] == "user":
            words.append(said.pop()[1])
        if turn is None and not words:  # the agent has spoken since
            known = self._forms.after(exchanges(said))
            return known, known
        whole = " ".join(reversed(words)) if turn is None else turn
        turns = exchanges((*said, ("user", whole)))
        return self._forms.after(turns[:-1]), self._forms.after(turns)

    def _slot_notes(self, form: Form) -> str:
        return notes_of(form, self.protocol.conversation.notes_before()) if form.filled else ""

"""The operator's preparation for a turn: an answer in the model's place, or notes behind it.

Owns what is known behind the caller's words: what was found in documents, and what their answers
came to. A reply asks here before it asks the model.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import msgspec

from voiceloop.agent import AgentConfig, AgentSlot, AgentTool
from voiceloop.backends import Tool, ToolCall
from voiceloop.knowledge.answers import ApprovedAnswers
from voiceloop.knowledge.excerpts import said_of
from voiceloop.knowledge.passages import Passage
from voiceloop.knowledge.placement import notes_of
from voiceloop.knowledge.retrieval import Retrieval, Settled
from voiceloop.knowledge.told import line_of
from voiceloop.listening.events import UserTurn
from voiceloop.realtime.events import Source
from voiceloop.realtime.protocol import Protocol
from voiceloop.realtime.response import ResponseHandle
from voiceloop.reply.agent_hooks import AgentHooks, as_hit
from voiceloop.reply.answerers import FixedAnswer, Heard, SaidWithCall, answerers
from voiceloop.reply.answers.quote import words_of_tools
from voiceloop.reply.plan import ReplyPlan
from voiceloop.slots.form import Filled, Form, Forms, SlotState, exchanges
from voiceloop.slots.form import notes_of as slot_notes_of
from voiceloop.slots.question import PHONE_DIGITS, asked_in, named_in
from voiceloop.slots.secrets import Secrets
from voiceloop.telemetry.record import Mark, TurnRecord
from voiceloop.telemetry.tap import NO_CONSENT, Consent
from voiceloop.tools.pending import PendingCall

BY_CLASS = "python"  # in `answered_by`: the agent's class


class Prepared:
    """The prepared answers and notes of one session. retrieval: None where the agent has no
    documents. secrets: of its caller. made_for: as of `Capabilities`. asks_for_large: whether this
    effort does, and who garbles nothing answers.
    """

    def __init__(
        self,
        protocol: Protocol,
        agent: AgentConfig,
        approved: ApprovedAnswers,
        retrieval: Retrieval | None,
        secrets: Secrets,
        consent: Consent = NO_CONSENT,
        made_for: str | None = None,
        asks_for_large: Callable[[str | None], bool] = lambda effort: False,
    ) -> None:
        self._protocol = protocol
        self._agent = agent
        self._approved = approved
        self._retrieval = retrieval
        self._consent = consent
        self._made_for = made_for
        self._asks_for_large = asks_for_large
        self._answerers = answerers()
        self._forms = Forms(agent.slots)
        self.secrets = secrets
        self._told: tuple[str | None, Form] | None = None  # of slots, and of whom
        # The newest response that is to look up the turn's last words, and what was found without.
        self._owed: tuple[str, Settled] | None = None
        # In which response, and the answer.
        self._late: tuple[str, FixedAnswer | None] = "", None
        self._known_in = ""  # the newest response with what was found
        # What the agent's class said of the newest turn that was over: its item, notes; and to
        # which words it answers.
        self._told_before: tuple[str | None, str] = None, ""
        self._answer_before: tuple[str, str] = "", ""

    def take_agent(self, agent: AgentConfig, approved: ApprovedAnswers) -> None:
        """Take up another version of the agent, with the same slots."""
        self._agent, self._approved = agent, approved

    def answer(self, turn: str, *pieces: str, effort: str | None = None) -> FixedAnswer | None:
        """The answer to the caller's whole turn that needs no model.

        pieces: of the turn, in which words of danger may stand apart from it. effort: of the
        response; None: the session's.
        """
        form, quotable = self._form(turn)[1], self._quotable(effort)
        heard = Heard(
            turn, pieces, self._agent, form, self._approved, self._consent, quotable,
            self._callable if quotable else frozenset(), self._offered,
            self._before(turn) if quotable else "",
        )  # fmt: skip
        for table, answerer in self._answerers.items():
            said = answerer.answer(heard)
            if isinstance(said, SaidWithCall):
                call = ToolCall(self._protocol.new_id("call"), said.tool, said.arguments)
                return FixedAnswer(said.text, table, call)
            if said:
                return FixedAnswer(said, table)
        before, own = self._answer_before
        if not own or before not in (turn, *pieces):
            own = (self._retrieval.answer(turn) or "") if self._retrieval is not None else ""
        if own:
            return FixedAnswer(own, BY_CLASS)
        if quotable and self._retrieval is not None:
            return self._read_out(turn, self._retrieval.passages(turn), quotable)
        return None

    def _read_out(
        self, turn: str, found: Sequence[Passage] | None, quotable: str
    ) -> FixedAnswer | None:
        """Return what was found for the turn, where the model would garble it; None: not searched
        yet.
        """
        if found is None:
            return None
        said = said_of(turn, found, quotable, words_of_tools(self._offered))
        return FixedAnswer(said, "quote") if said else None

    async def ask_before(self, hooks: AgentHooks, words: str, turn_id: str | None) -> None:
        """Have the agent's class hear these words of a turn that is over, before it is answered."""
        told, text = await hooks.before_reply(words), ""
        self._answer_before = (
            (words, told.text) if told is not None and told.is_answer else ("", "")
        )
        if told is not None:
            text = notes_of((as_hit(told),)).text
        self._told_before = turn_id, text
        if text and turn_id is not None:
            self._protocol.shown.add_notes(turn_id, self._own_notes(self._form()[1], turn_id))

    @property
    def quotes(self) -> bool:
        """Whether what is known is said word for word, in the model's place."""
        return bool(self._quotable())

    def result_line(self, calls: Sequence[PendingCall], *, by_large: bool) -> FixedAnswer | None:
        """Return what came of these calls, where the model would garble it. by_large: the large
        model of a cascade has made them, and tells it better.
        """
        is_read = all(call.is_made and call.tool.side_effect_free for call in calls)
        if not self.quotes or not is_read or (by_large and self._agent.quote == "auto"):
            return None
        lines = [
            line_of(each.text, _asked(each.call), is_authors=bool(each.tool.known))
            for each in calls
        ]
        return FixedAnswer(" ".join(map(str, lines)), "quote") if all(lines) else None

    def _before(self, turn: str) -> str:
        """Return what the caller said before this turn, which may be in the conversation by now."""
        said = self._protocol.spoken.said(self._protocol.shown.begins_at)
        return next((one.caller for one in reversed(exchanges(said)) if one.caller != turn), "")

    @property
    def _offered(self) -> tuple[AgentTool | Tool, ...]:
        """Return the agent's tools, and those that the client brought: its model has both."""
        own = {tool.name for tool in self._agent.tools}
        brought = (tool for tool in self._protocol.settings.tools if tool.name not in own)
        return *self._agent.tools, *brought

    @property
    def _callable(self) -> frozenset[str]:
        """Return those of the agent's tools that the session has as the agent does."""
        settings, own = self._protocol.settings, self._agent.session_settings().tools
        if settings.tool_choice not in ("auto", "required"):
            return frozenset()
        return frozenset(tool.name for tool in settings.tools if tool in own)

    def _quotable(self, effort: str | None = None) -> str:
        """The session's instructions, where their sentences are said in the model's place."""
        settings, quote = self._protocol.settings, self._agent.quote
        now, is_own = settings.instructions, self._agent.llm_adapter is None  # one is made for it
        is_garbled = is_own and self._made_for is not None and now != self._made_for
        is_garbled &= not self._asks_for_large(effort or settings.reasoning_effort)
        return now if quote == "always" or (quote == "auto" and is_garbled) else ""

    def late_answer(self, response: ResponseHandle) -> FixedAnswer | None:
        """As `answer`, to a turn that was looked up only for this response."""
        known_in, answer = self._late
        return answer if known_in == response.id else None

    # --- notes ---

    @property
    def looks_up_late(self) -> bool:
        """Whether what is behind a turn is known only once it has ended."""
        return self._retrieval is not None and not self._retrieval.looks_ahead

    def ahead(self, turn: str) -> str:
        """Return what stands behind the open turn's words where it is answered now."""
        notes = self._own_notes(self._form(turn)[1])
        if self._retrieval is None or not self._retrieval.has_words:
            return notes
        return notes + self._retrieval.settle().notes.text

    def owes(self, response: ResponseHandle, words: tuple[str, ...]) -> bool:
        """Whether the reply to the turn of these words is to look them up (`looked_up`): they came
        as it ended, too late to be searched for ahead.
        """
        if (
            self._retrieval is None
            or not self._retrieval.has_words
            or not self._retrieval.owes(words)
        ):
            return False
        self._owed = response.id, self._retrieval.settle()
        return True

    def add(self, response: ResponseHandle, turn: UserTurn) -> None:
        """Put what is known of the caller's turn behind their words: before the plan is made."""
        self.note_slots(response)
        if self._retrieval is not None and self._retrieval.has_words:
            turn_id = self._protocol.conversation.newest_turn_id
            settled = self._retrieval.settle()
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
        if self._retrieval is None or not is_turn or not is_of_call or is_known:
            return plan
        turn = plan.prompt[-1]
        response_id, before = self._owed or ("", None)
        is_owed = response_id == response.id
        settled = await self._retrieval.look_up(turn.content, before if is_owed else None)
        if settled.answer is not None:
            self._late = response.id, FixedAnswer(settled.answer, BY_CLASS)
        elif quotable := self._quotable(response.reasoning_effort):
            self._late = response.id, self._read_out(turn.content, settled.passages, quotable)
        self._add(settled, turn_id, response, record, decided_s)
        behind = self._own_notes(self._form(turn.content)[1], turn_id) + settled.notes.text
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
        behind = self._own_notes(self._form()[1], turn_id) + notes.text
        if turn_id is not None and self._protocol.shown.add_notes(turn_id, behind):
            found = (Source(path=source.path, heading=source.heading) for source in notes.sources)
            response.sources(turn_id, tuple(found))

    # --- slots ---

    def note_slots(self, response: ResponseHandle) -> None:
        """Tell what the caller's newest turn came to: a client, in an event, and the model, behind
        the words.
        """
        turn_id = self._protocol.conversation.newest_turn_id
        before, now = self._form()
        if not self._forms.has_names or turn_id is None or self._told == (turn_id, now):
            return
        self._told = turn_id, now
        self._protocol.shown.add_notes(turn_id, self._own_notes(now, turn_id))
        for one in now.changes(before):
            response.slot(turn_id, one.name, one.slot.kind, self._told_of(one), one.state.value)

    def slot_of(self, turn: str) -> str:
        """Return what the caller speaks of in this turn, by a slot's name; "" where that is
        none.
        """
        before, now = self._form(turn)
        return next((one.name.replace("_", " ") for one in now.changes(before)), "")

    def confirmed(self) -> dict[str, str]:
        """The values that the caller has confirmed, by slot, as far as the conversation goes; of
        what is sensitive the mark.
        """
        form = self._form()[1]
        sure = (one for one in form.filled if one.state is SlotState.CONFIRMED)
        return {one.name: self._told_of(one) for one in sure}

    @property
    def last_said(self) -> str:
        """Return what was heard of the agent last; "" where the caller has spoken since."""
        role, text = next(iter(self._protocol.spoken.said()[-1:]), ("", ""))
        return text if role == "assistant" else ""

    def asked_for(self, said: str = "") -> tuple[AgentSlot | None, int | None]:
        """Return what the agent asks for at the moment, of its file's slots, and how many digits
        that has, where that is known. said: by a reply that is not over; "": the newest that is
        counts.
        """
        form = self._form()[1]
        about = form.get(form.open) if form.open else None
        last = said or self.last_said
        slot = named_in(last, self._agent.slots) or (about.slot if about is not None else None)
        if slot is not None:
            return slot, slot.digits
        asked = asked_in(last)
        n_digits = asked.n_digits if asked is not None else None
        return None, n_digits if n_digits != PHONE_DIGITS else None  # abroad they have others

    def _told_of(self, one: Filled) -> str:
        """Return what clients and tools are told of a value, before it is needed."""
        hides = one.slot.sensitive and one.value
        return self.secrets.hide(one.name, one.value) if hides else one.value

    def kept_slots(self) -> dict[str, str]:
        """The same for a recording: of those that are sensitive only that there is a value."""
        sensitive = {slot.name for slot in self._agent.slots if slot.sensitive}
        known = self.confirmed().items()
        return {name: "[hidden]" if name in sensitive else value for name, value in known}

    def is_private(self) -> bool:
        """Whether a slot that is sensitive has been asked for, or is being said back."""
        if not any(slot.sensitive for slot in self._agent.slots):
            return False
        said = self._protocol.spoken.said()
        last = next((text for role, text in reversed(said) if role == "assistant"), "")
        form = self._form()[1]
        asked, open_one = named_in(last, self._agent.slots), form.get(form.open)
        return (asked is not None and asked.sensitive) or (
            open_one is not None and open_one.slot.sensitive
        )

    def _form(self, turn: str | None = None) -> tuple[Form, Form]:
        """Return where the slots stand before the caller's turn, and with it; None: the newest
        words.
        """
        if not self._forms.has_names:
            return Form(), Form()
        # Not those of an agent before, to whom they were sensitive and to this one are not.
        names = [slot.name for slot in self._agent.slots if slot.sensitive and slot.name]
        reveal = partial(self.secrets.reveal, names=names)
        spoken, begins_at = self._protocol.spoken, self._protocol.shown.begins_at
        said = [(role, reveal(text)) for role, text in spoken.said(begins_at)]
        words = []
        while said and said[-1][0] == "user":
            words.append(said.pop()[1])
        if turn is None and not words:  # the agent has spoken since
            known = self._forms.after(exchanges(said))
            return known, known
        whole = " ".join(reversed(words)) if turn is None else reveal(turn)
        turns = exchanges((*said, ("user", whole)))
        return self._forms.after(turns[:-1]), self._forms.after(turns)

    def _own_notes(self, form: Form, turn_id: str | None = None) -> str:
        """Return what is known of slots, and what the class said of this turn as it was over."""
        told_of, told = self._told_before
        before = told if turn_id is not None and turn_id == told_of else ""
        shown = self._protocol.shown.notes_before()
        return (slot_notes_of(form, shown) if form.filled else "") + before


def _asked(call: ToolCall) -> str:
    """Return what a tool was asked for, where that is one text."""
    try:
        given = json.loads(call.arguments)
    except ValueError:
        return ""
    values = list(given.values()) if isinstance(given, dict) else []
    return values[0] if len(values) == 1 and isinstance(values[0], str) else ""

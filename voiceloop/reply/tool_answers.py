"""The tool calls of a reply: which may be made, and which of them the server makes, and when.

Owns when a tool is called: once, in the committed reply, when what the agent says with the call has
been said, so that the caller can still object. One without side effects is called as soon as the
model names it, and for a preemptive reply too, unless the caller has to `confirm` it. Other tools
are the client's. A call that lacks what its tool requires is nobody's: the model is told what is
missing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from msgspec.structs import replace

from voiceloop.agent import AgentConfig, AgentTool
from voiceloop.backends import ChatMessage, PreemptiveCall, Tool, ToolCall
from voiceloop.realtime.items import FunctionCallOutput
from voiceloop.realtime.protocol import Protocol
from voiceloop.tools.pending import PendingCall, SessionTools

# Calls made ahead of one reply. Chosen: twice what a reply makes in practice; each of them asks
# somebody's service for an answer that may be thrown away.
MAX_AHEAD = 8
Call = TypeVar("Call", ToolCall, PreemptiveCall)
NOT_CALLED = json.dumps({"error": "not called: the reply was broken off"})


@dataclass(frozen=True, slots=True)
class IncompleteCall:
    """A call without the arguments that its tool requires; `missing` are their names."""

    call: ToolCall
    missing: tuple[str, ...]


class ToolAnswers:
    """The calls of one reply. offered: the tools that its prompt names.

    is_recorded: the reply stands in the conversation, and with it its calls. confirmed: the values
    of the caller's slots by name, as the reply may use them.
    """

    def __init__(
        self,
        agent: AgentConfig,
        offered: Sequence[Tool],
        tools: SessionTools,
        confirmed: Callable[[], Mapping[str, str]] = dict,
    ) -> None:
        self.is_recorded = True
        self._confirmed = confirmed
        self._session_tools = tools
        own = agent.session_settings().tools
        # A client's tool may have the name of one of the agent file's: then it is the client's.
        self._tools = {tool.name: agent.tool(tool.name) for tool in offered if tool in own}
        self._tools |= {tool.name: tools.of_server(tool) for tool in offered if tool.server_label}
        self._offered = {tool.name: tool for tool in offered}
        self._ahead: dict[tuple[str, str], PendingCall] = {}  # by name and arguments
        self._n_ahead = 0  # calls made ahead, in all
        self._wanted_ahead: list[PreemptiveCall] = []  # by the newest preemptive reply
        # Calls that the preemptive reply begins with and goes on behind, as they were made ahead.
        self.drafted: dict[ToolCall, PendingCall] = {}
        self._begun: list[PendingCall] = []  # in the present round

    def admits(self, call: ToolCall, tool_choice: str) -> bool:
        """Whether the call may be made: of a tool that exists, in a round that need not speak."""
        return call.name in self._offered and tool_choice != "none"

    def filled(self, call: Call) -> Call:
        """The call with what its tool takes from slots: as the caller confirmed it, or not at all,
        so that a tool acts on nothing that a model made up.
        """
        tool = self._tools.get(call.name)
        if tool is None or not tool.from_slots:
            return call
        try:
            given = json.loads(call.arguments)
        except ValueError:
            given = None
        confirmed = self._confirmed()
        arguments = {
            name: value
            for name, value in (given if isinstance(given, dict) else {}).items()
            if name not in tool.from_slots
        }
        taken = {name: confirmed[name] for name in tool.from_slots if name in confirmed}
        return replace(call, arguments=json.dumps(arguments | taken, ensure_ascii=False))

    def missing(self, call: ToolCall | PreemptiveCall) -> tuple[str, ...]:
        return lacking(self._offered[call.name], call.arguments)

    def call_ahead(self, call: PreemptiveCall) -> None:
        """Make ahead a call that a preemptive reply would make, if that is allowed."""
        self._wanted_ahead = [c for c in self._wanted_ahead if c.attempt == call.attempt] + [call]
        tool = self._served(call.name)
        key = (call.name, call.arguments)
        if tool is None or not tool.runs_early or self.missing(call):
            return
        if self._early(*key) is not None or not self._session_tools.calls_ahead:
            return
        if self._n_ahead < MAX_AHEAD:
            self._n_ahead += 1
            early = ToolCall("", call.name, call.arguments)
            self._ahead[key] = self._session_tools.begin(tool, early, is_recorded=False)

    def made_ahead(self, attempt: int) -> tuple[PendingCall, ...]:
        """All calls of this preemptive reply; none where one of them was not made, or twice."""
        calls = [call for call in self._wanted_ahead if call.attempt == attempt]
        pending = {(c.name, c.arguments): self._early(c.name, c.arguments) for c in calls}
        found = tuple(each for each in pending.values() if each is not None)
        return found if len(found) == len(calls) else ()

    # --- the round behind them, drafted ---

    def draft_behind(
        self, attempt: int, new_id: Callable[[str], str], then: Callable[[], None]
    ) -> bool:
        """Whether this preemptive reply goes on behind calls made ahead; `then` as each is over."""
        if self.drafted or not (pending := self.made_ahead(attempt)):
            return False
        for each in pending:
            self.drafted[replace(each.call, call_id=new_id("call"))] = each
            each.when_over(then)
        return True

    def forget_draft(self) -> None:
        """Forget the draft: another version was asked for, or the reply itself, so nothing goes
        on behind its calls.
        """
        self.drafted = {}

    @property
    def has_drafts_results(self) -> bool:
        """Whether every call of the draft has one that the reply may be made of."""
        calls = self.drafted.values()
        return bool(calls) and all(
            each.is_over and each.may_be_adopted and each.hand_off is None for each in calls
        )

    @property
    def drafts_messages(self) -> tuple[ChatMessage, ...]:
        """Return its calls and their results, as they follow the caller's turn; once they are
        over.
        """
        if not self.drafted:
            return ()
        results = (
            ChatMessage("tool", pending.text, (), call.call_id)
            for call, pending in self.drafted.items()
        )
        return ChatMessage("assistant", "", tuple(self.drafted)), *results

    # --- made in the reply itself ---

    def call_early(self, call: ToolCall) -> None:
        """The model has named this call and may write on: make it now, if it changes nothing."""
        tool = self._served(call.name)
        if tool is not None and tool.runs_early:
            self._begin(call, tool)

    def serves(self, calls: Sequence[ToolCall]) -> bool:
        """Whether there are calls, and the server answers every one of them."""
        return bool(calls) and all(self._served(call.name) for call in calls)

    def of(self, calls: Sequence[ToolCall]) -> tuple[PendingCall, ...]:
        """Every call of the round, made together; none where a client must answer one of them."""
        if not self.serves(calls):
            self._drop_begun()  # the client answers all of them
            return ()
        tools = [(call, self._served(call.name)) for call in calls]
        return tuple(self._begin(call, tool) for call, tool in tools if tool is not None)

    def end_round(self) -> None:
        self._begun.clear()

    def leave(self, calls: Sequence[ToolCall] = ()) -> None:
        """The reply is over; idempotent. calls: of its last round.

        Of what it has begun, only side effects go on. What stands in the conversation and was never
        made is said there not to have been.
        """
        self._drop_ahead()
        for pending in self._begun:
            pending.leave()
        if self.is_recorded and self.serves(calls):
            begun = [pending.call for pending in self._begun]
            for call in calls:
                if not any(call is one for one in begun):
                    self._session_tools.record(call, NOT_CALLED, False)

    def _served(self, name: str) -> AgentTool | None:
        """The tool of this name, where the server answers its calls."""
        tool = self._tools.get(name)
        return None if tool is None or tool.is_clients else tool

    def _begin(self, call: ToolCall, tool: AgentTool) -> PendingCall:
        """Make the call, unless that has been done."""
        # The same object, not an equal one: a model may ask for the same thing twice in a round.
        begun = next((each for each in self._begun if each.call is call), None)
        if begun is not None:
            return begun
        if not tool.side_effect_free:
            self._drop_ahead()  # what was read before it may no longer be so
        early = self._early(call.name, call.arguments)
        if early is not None:
            del self._ahead[call.name, call.arguments]
            begun = self._session_tools.adopt(early, call, is_recorded=self.is_recorded)
        else:
            may_ask = not any(each.question for each in self._begun)
            begun = self._session_tools.begin(
                tool, call, is_recorded=self.is_recorded, may_ask=may_ask
            )
        self._begun.append(begun)
        return begun

    def _early(self, name: str, arguments: str) -> PendingCall | None:
        """The call made ahead that asks this; one that failed, or is too old, is dropped."""
        early = self._ahead.get((name, arguments))
        if early is not None and not early.may_be_adopted:
            self._ahead.pop((name, arguments)).drop()
            return None
        return early

    def _drop_ahead(self) -> None:
        for pending in self._ahead.values():
            pending.drop()
        self._ahead.clear()

    def _drop_begun(self) -> None:
        for pending in self._begun:
            pending.drop()
        self._begun.clear()


def _says_nothing(value: object, schema: object) -> bool:
    """Whether an argument is null or an empty text, and its schema has no place for that."""
    if value is None:
        return not _names(schema, None)
    return value == "" and not (_names(schema, "") or _names(schema, None))


def _names(schema: object, value: str | None) -> bool:
    """Whether a schema names this value: as a constant, or null as a type."""
    if not isinstance(schema, dict):
        return False
    kinds, values = schema.get("type"), schema.get("enum")
    if value is None and (kinds == "null" or (isinstance(kinds, list) and "null" in kinds)):
        return True
    if isinstance(values, list) and value in values:
        return True
    if "const" in schema and schema["const"] == value:
        return True
    ways = [schema.get(key) for key in ("anyOf", "oneOf")]
    return any(_names(each, value) for way in ways if isinstance(way, list) for each in way)


def as_refusals(refused: Sequence[IncompleteCall]) -> tuple[ChatMessage, ...]:
    """Return why these calls were not made, as the model is given it; the conversation has none of
    it.
    """
    lacks = ((", ".join(each.missing), each.call.call_id) for each in refused)
    text = "not called: {} is missing. Ask the caller for it."
    return tuple(
        ChatMessage("tool", json.dumps({"error": text.format(names)}), (), call_id)
        for names, call_id in lacks
    )


def lacking(tool: Tool, arguments: str) -> tuple[str, ...]:
    """The required arguments that a call of the tool lacks: not there, or saying nothing."""
    required, schemas = tool.parameters.get("required"), tool.parameters.get("properties")
    if not isinstance(required, list):
        return ()
    try:
        given = json.loads(arguments)
    except ValueError:
        given = None
    values = given if isinstance(given, dict) else {}
    schema_of = schemas if isinstance(schemas, dict) else {}
    return tuple(
        name
        for name in map(str, required)
        if name not in values or _says_nothing(values[name], schema_of.get(name))
    )


def as_results(calls: Sequence[PendingCall], protocol: Protocol | None) -> tuple[ChatMessage, ...]:
    """Return what came of the calls as the model is given it; with a protocol, its conversation
    too.

    Those that are not over go on without the reply, and are recorded when they are.
    """
    messages = []
    for pending in calls:
        call_id = pending.call.call_id
        if pending.is_over:
            text = pending.take().text
            # Meanwhile the client may have deleted the call, or said itself what came of it.
            if protocol is not None and protocol.conversation.is_open(call_id):
                item_id = protocol.new_id("item")
                protocol.add_item(FunctionCallOutput(id=item_id, call_id=call_id, output=text))
        else:
            text = pending.postpone()
        messages.append(ChatMessage("tool", text, (), call_id))
    return tuple(messages)

"""The tools that act on the call: ``end_call``, ``send_digits``, ``transfer``, ``voicemail``.

Owns which of them an agent has on a line, what their calls ask for, and what the model is told of
one. Nothing is done here: a call becomes a `CallAct`, which the call does once all that was said
with it has been heard. Pure.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from voiceloop.agent import AgentConfig, AgentTool
from voiceloop.call_manners import Transfer
from voiceloop.tools.pending import PendingCall

log = logging.getLogger(__name__)

MAX_DIGITS = 64  # keys of one call: an account number, a pause, a code
MAX_SUMMARY_CHARS = 600  # what a colleague listens to before the caller is there: half a minute
PRESSED = re.compile(r"[0-9A-D*#w]+")


class Act(Enum):
    """An act on the call; the value is the tool's name."""

    END = "end_call"
    DIGITS = "send_digits"
    TRANSFER = "transfer"
    VOICEMAIL = "voicemail"


@dataclass(frozen=True, slots=True)
class CallAct:
    """The act that a reply has asked for. line: said before, where the reply has said nothing
    itself.

    failed: said to a caller whom nobody took. digits: keys, where a w is half a second's pause.
    summary: for who takes a transfer.
    """

    act: Act
    line: str = ""
    failed: str = ""
    digits: str = ""
    to: Transfer | None = None
    summary: str = ""


DONE = {
    Act.END: "the call ends when this has been said",
    Act.DIGITS: "the keys are pressed when this has been said",
    Act.TRANSFER: "the caller is transferred when this has been said",
    Act.VOICEMAIL: "the machine is left to its tone",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class CallTool(AgentTool):
    """One of them, as this agent has it. agent: whose lines and transfers it goes by."""

    kind: Act
    agent: AgentConfig

    @property
    def is_executed(self) -> bool:
        return True

    def answer(self, arguments: str) -> str | None:
        """Return what the model is told: nothing is waited for."""
        act = self.act(arguments)
        told = {"error": act} if isinstance(act, str) else {"status": DONE[self.kind]}
        return json.dumps(told, ensure_ascii=False)

    def act(self, arguments: str) -> CallAct | str:
        """Return what this call asks for, or what is wrong with it."""
        try:
            given = json.loads(arguments or "{}")
        except ValueError:
            given = None
        if not isinstance(given, dict):
            return "expected an object"
        manners = self.agent.call
        match self.kind:
            case Act.END:
                return CallAct(Act.END, manners.goodbye)
            case Act.VOICEMAIL:
                return CallAct(Act.VOICEMAIL)
            case Act.DIGITS:
                digits = str(given.get("digits", "")).upper().replace(" ", "").replace(",", "w")
                if len(digits) > MAX_DIGITS or PRESSED.fullmatch(digits) is None:
                    return f"digits: expected 1 to {MAX_DIGITS} of 0-9 A-D * # and commas"
                return CallAct(Act.DIGITS, digits=digits)
        to = next((one for one in self.agent.transfers if one.name == given.get("to")), None)
        if to is None:
            return f"to: expected one of {', '.join(one.name for one in self.agent.transfers)}"
        summary = " ".join(str(given.get("summary", "")).split())[:MAX_SUMMARY_CHARS]
        lines = manners.transferring, manners.not_transferred
        return CallAct(Act.TRANSFER, *lines, to=to, summary=summary)


def act_of(calls: Iterable[PendingCall], agent: AgentConfig) -> CallAct | None:
    """The first of these calls that acts on the call: by its tool, or by what its method returned.

    agent: as it is on this line.
    """
    for pending in calls:
        if isinstance(pending.tool, CallTool) and pending.is_made:
            act = pending.tool.act(pending.call.arguments)
            if not isinstance(act, str):
                return act
        elif (wanted := pending.hand_off) is not None:
            to = next((one for one in agent.transfers if one.name == wanted.to), None)
            if to is not None:
                lines = wanted.say or agent.call.transferring, agent.call.not_transferred
                summary = wanted.summary[:MAX_SUMMARY_CHARS]
                return CallAct(Act.TRANSFER, *lines, to=to, summary=summary)
            log.error("%s handed the call to %r: no transfer here", pending.tool.name, wanted.to)
    return None


def with_call_tools(
    agent: AgentConfig, can: frozenset[Act], allows: Callable[[Transfer], bool]
) -> AgentConfig:
    """The agent with those of these tools that its file switches on and the line can do.

    A tool of the agent file with the same name stays as it is. allows: whether a call may be
    transferred there.
    """
    manners = agent.call
    transfers = tuple(one for one in agent.transfers if allows(one))
    if len(transfers) < len(agent.transfers):
        told = "of the agent's transfers %d are allowed by phone.transfer_to, or agents here"
        log.warning(told, len(transfers))
        agent = replace(agent, transfers=transfers)
    wanted = {
        Act.END: "end_call" in manners.tools,
        Act.DIGITS: "send_digits" in manners.tools,
        Act.TRANSFER: bool(agent.transfers),
        Act.VOICEMAIL: manners.machine != "ignore",
    }
    own = {tool.name for tool in agent.tools}
    tools = tuple(
        _tool(act, agent)
        for act, is_wanted in wanted.items()
        if is_wanted and act in can and act.value not in own
    )
    return replace(agent, tools=(*agent.tools, *tools)) if tools else agent


def _tool(kind: Act, agent: AgentConfig) -> CallTool:
    text = {"type": "string"}
    properties: dict[str, Any] = {}
    match kind:
        case Act.END:
            told = "End the call, once the caller wants nothing more. Say goodbye first."
        case Act.DIGITS:
            told = "Press keys of the telephone, for a menu that asks for them."
            properties = {"digits": text}
        case Act.VOICEMAIL:
            told = "A machine has answered, no person. Say nothing with this call."
        case Act.TRANSFER:
            told = "Hand the caller to somebody else. Say so first. summary: what the caller wants."
            names = [one.name for one in agent.transfers]
            properties = {"to": {"type": "string", "enum": names}, "summary": text}
    parameters = {
        "type": "object",
        "properties": properties,
        "required": [name for name in properties if name != "summary"],
    }
    return CallTool(kind.value, told, parameters, kind=kind, agent=agent)

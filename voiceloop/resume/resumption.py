"""Sends a call's tickets to its client, and resumes a call from the ticket that it came with.

Owns when a ticket is sent to a client that asked for them: as the call begins, after each change,
and before the last one is too old. Owns how a call is resumed that broke off elsewhere: its
settings, its words, the tool calls whose end is unknown, and whether the agent owes an answer.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol as Shape

from msgspec import UNSET
from msgspec.structs import replace

from voiceloop.agent import AgentConfig
from voiceloop.backends import ToolCall
from voiceloop.errors import InvalidRequest, VoiceLoopError
from voiceloop.realtime.commands import SettingsChanged
from voiceloop.realtime.events import Resumed, ResumeTicket
from voiceloop.realtime.items import FunctionCall, FunctionCallOutput, Item, Message
from voiceloop.realtime.mcp.entry import MAX_SERVERS
from voiceloop.realtime.protocol import Protocol
from voiceloop.realtime.settings import SessionSettings
from voiceloop.resume.snapshot import (
    Changes,
    Snapshot,
    carried,
    changes_of,
    newest_reply_id,
    snapshot_of,
)
from voiceloop.resume.ticket import REFRESH_S, Claims, Tickets

# What changes together is in one ticket, and none is written while an answer is on its way out.
SETTLE_S = 0.25
RESULT_LOST = json.dumps({
    "error": "the line broke before the result came; it may have been done: tell the caller so"
})  # fmt: skip


class Lasting(Shape):
    """How long the call has lasted, on this connection and those before it."""

    @property
    def lived_s(self) -> float: ...

    def resume(self, earlier_s: float) -> None: ...


@dataclass(frozen=True, slots=True)
class ResumedCall:
    """A call that goes on here. call_id: of the session before. clients_calls: its client owes
    outputs.
    """

    call_id: str
    settings: SettingsChanged
    clients_calls: tuple[ToolCall, ...]
    owes_answer: bool


class Resumption:
    """The tickets of one session. ``own``: the settings that its agent has by itself.

    agent_name: of several, as the call asked for it. tickets: None where a call cannot be resumed.
    is_returning: its client comes with a ticket, and one of this connection, in which nothing has
    happened, would take its place. changed: set by the protocol when an item is new, changed, or
    gone. answer_by: has the call answered by the agent that it was handed to; raises
    InvalidRequest.
    """

    def __init__(
        self,
        protocol: Protocol,
        agent: AgentConfig,
        own: SessionSettings,
        tickets: Tickets | None,
        tenant: str,
        is_returning: bool,
        lifetime: Lasting,
        changed: asyncio.Event,
        agent_name: str = "",
        answer_by: Callable[[str], None] = lambda name: None,
    ) -> None:
        self._protocol = protocol
        self._agent_name = agent_name
        self._answer_by = answer_by
        self._handed_to = ""
        self._agent = agent
        self._own = own
        self._tickets = tickets
        self._tenant = tenant
        self._lifetime = lifetime
        self._changed = changed
        self._sent: Snapshot | None = None  # by the last ticket, while that need not be renewed
        self._written: tuple[SessionSettings, Changes] | None = None  # the settings of the last
        self._too_long: SessionSettings | None = None  # no ticket has room for these
        # The ticket that it came with and what that says, until more has been said.
        self._came_with: tuple[Claims, tuple[Item, ...]] | None = None
        self._has_settled_calls = False
        if is_returning and protocol.settings.resume:
            with suppress(InvalidRequest):  # the first ticket will say it
                self._sent = self._snapshot()

    def take(self, agent: AgentConfig, own: SessionSettings, name: str) -> None:
        """The call was handed to this agent."""
        self._agent, self._own, self._handed_to, self._written = agent, own, name, None
        self._changed.set()

    # --- tickets on the way out ---

    def observe_settings(self) -> None:
        """Have a ticket sent: the session's settings changed.

        What a call is set to before its first words goes out at once: a server may die before
        these. What follows within `SETTLE_S` has to wait for that.
        """
        is_first = not self._changed.is_set()
        self._changed.set()
        if self._came_with is None and is_first and not len(self._protocol.conversation):
            self.send()

    async def run(self) -> None:
        """Send tickets for as long as the call lasts, while its client asks for them."""
        self.send()
        while True:
            try:
                async with asyncio.timeout(REFRESH_S if self._is_asked else None):
                    await self._changed.wait()
                    self._settle_ticket()
                    await asyncio.sleep(SETTLE_S)
            except TimeoutError:
                self._sent = None
            self._changed.clear()
            self.send()

    def _snapshot(self) -> Snapshot:
        """Raises: InvalidRequest: no ticket has room for the settings."""
        settings = self._protocol.settings
        if self._written is None or self._written[0] is not settings:
            self._written = settings, changes_of(settings, self._own)
        snapshot = snapshot_of(self._written[1], self._protocol.conversation, self._protocol.spoken)
        begins_at = self._protocol.shown.begins_at or UNSET
        return replace(snapshot, handed_to=self._handed_to or UNSET, begins_at=begins_at)

    @property
    def _is_asked(self) -> bool:
        return self._tickets is not None and self._protocol.settings.resume

    def send(self) -> bool:
        """Send a ticket of the call as it stands, if that is news; whether one was sent."""
        self._settle_ticket()
        settings = self._protocol.settings
        if not self._is_asked or settings is self._too_long:
            return False
        assert self._tickets is not None
        call_id, lived_s = self._protocol.session_id, self._lifetime.lived_s
        try:
            snapshot = self._snapshot()
            if snapshot == self._sent:
                return False
            ticket = self._tickets.issue(self._tenant, call_id, lived_s, snapshot, self._agent_name)
        except InvalidRequest as error:
            self._too_long = settings
            self._protocol.error(error)
            return False
        self._sent = snapshot
        self._protocol.send(
            ResumeTicket(ticket=ticket.value, returns=ticket.head, expires_at=ticket.expires_at)
        )
        return True

    # --- the ticket it came with ---

    def _settle_ticket(self) -> None:
        """Let nobody resume by the ticket that it came with, once more has been said."""
        if self._came_with is None or self._tickets is None:
            return
        claims, said = self._came_with
        if carried(self._protocol.conversation) != said:
            self._came_with = None
            self._tickets.settle(claims)

    def resume(self, ticket: str) -> ResumedCall | None:
        """Go on with the call that this is of; None where it is refused, which the client is told.

        A ticket whose settings cannot be taken up here is good elsewhere still. Whatever it is
        refused for, the code begins with ``resume_``: its client knows that this was its answer.
        """
        try:
            return self._resume(ticket)
        except VoiceLoopError as error:
            if not error.wire_code.startswith("resume_"):
                error = InvalidRequest(error.message, param=error.param, code="resume_refused")
            self._protocol.error(error)
            return None

    def _resume(self, ticket: str) -> ResumedCall:
        protocol = self._protocol
        if len(protocol.conversation) or protocol.active_response is not None:
            raise InvalidRequest(
                "voiceloop.resume came too late: this conversation has begun.",
                code="resume_too_late",
            )
        if self._tickets is None:
            raise InvalidRequest("This server resumes no calls.")
        claims, snapshot = self._tickets.read(ticket, self._tenant)
        if claims.agent != self._agent_name:
            raise InvalidRequest("The ticket is of a call with another agent.")
        if snapshot.handed_to is not UNSET and snapshot.handed_to != self._handed_to:
            self._answer_by(snapshot.handed_to)
        self._tickets.use(claims)
        changed = protocol.adopt(self._settings_of(snapshot))
        protocol.conversation.restore(snapshot.items)
        begins_at = snapshot.begins_at
        if begins_at is not UNSET and protocol.conversation.index(begins_at) is not None:
            protocol.shown.begin_at(begins_at)
        newest_id = newest_reply_id(snapshot.items)
        if newest_id is not None and snapshot.spoken is not None:
            protocol.spoken.restore(newest_id, snapshot.spoken)
        self._lifetime.resume(claims.lived_s)
        protocol.send(
            Resumed(
                session_id=claims.call_id,
                items=len(protocol.conversation),
                last_item_id=protocol.conversation.last_id,
            )
        )
        clients_calls = self._settle_calls()
        self._came_with = claims, carried(protocol.conversation)
        self._sent = None
        self.send()  # at once: the one that it came with is good until more has been said
        return ResumedCall(claims.call_id, changed, clients_calls, self._owes_answer)

    def _settings_of(self, snapshot: Snapshot) -> SessionSettings:
        """Return the settings of the call, with the MCP servers of which a ticket says nothing.

        Whoever names them on this connection, by a client secret or before it resumes, keeps them.
        """
        settings = snapshot.settings_over(self._own)
        labels = {entry.server_label for entry in settings.mcp}
        named = [entry for entry in self._protocol.settings.mcp if entry.headers]
        kept = [entry for entry in named if entry.server_label not in labels]
        return replace(settings, mcp=(*settings.mcp, *kept)[:MAX_SERVERS])

    def _settle_calls(self) -> tuple[ToolCall, ...]:
        """Give each tool call without a result its due; returns those of the client.

        The client may know the result of its own. One of the server's that changes nothing is made
        again, by the answer that is owed; whether any other was done nobody can tell.
        """
        protocol, clients = self._protocol, []
        for item in protocol.conversation.items():
            if not isinstance(item, FunctionCall) or not protocol.conversation.is_open(
                item.call_id
            ):
                continue
            tool = self._agent.tool(item.name)
            if tool is None or tool.is_clients:
                clients.append(ToolCall(item.call_id, item.name, item.arguments))
                continue
            self._has_settled_calls = True
            if tool.side_effect_free:
                protocol.delete_item(item.id)
            else:
                protocol.add_output(item.call_id, RESULT_LOST)
        return tuple(clients)

    @property
    def _owes_answer(self) -> bool:
        """Whether the last thing said is the caller's, or what came of a tool's call.

        Or a call of the server's was open: what came of it nobody has said, whatever else was.
        """
        if self._has_settled_calls:
            return True
        conversation = self._protocol.conversation
        last = conversation.get(conversation.last_id or "")
        is_callers = isinstance(last, Message) and last.role == "user"
        return is_callers or isinstance(last, FunctionCallOutput)
